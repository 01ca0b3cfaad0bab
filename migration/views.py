"""Views and masks in one function: what the expressions and statements of a kernel share."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trnx.migration.affine import Affine, Indices, Iota, NotAffineError
from trnx.migration.names import Names
from trnx.migration.source import Source
from trnx.migration.subscripts import (
    bounded_tile,
    bounds_of,
    condition_of,
    count_of,
    pattern,
    sliced,
)
from trnx.simulator.older_dialects import changed_parameter


@dataclass(frozen=True)
class Tile:
    """What a name stands for: a tensor, a view of one, or lists of tiles for block dimensions."""

    blocks: int = 0
    is_whole: bool = True
    is_psum: bool = False
    is_hbm: bool = False


@dataclass(frozen=True)
class Gather:
    """Rows of `base`, which are `stride` elements apart, by the row numbers of a tile."""

    base: str
    stride: str
    rows: str
    columns: Affine


class Views:
    """The names of a function, the notes of a statement, and the masks of the calls at hand."""

    def __init__(self, source: Source, names: Names) -> None:
        self.source = source
        self.names = names
        self.indices = Indices(source.render, names.language)
        self.tiles: dict[str, Tile] = {}
        # Views of masked loads and stores by name; dtypes that loads of constants give.
        self.views: dict[str, ast.Subscript] = {}
        self.constants: dict[str, str] = {}
        # Identity matrices, which are in SBUF since NKI 0.2.
        self.identities: set[str] = set()
        # A function of the host: its arrays are NumPy's.
        self.is_host = False
        # Tiles of numbers that nisa.iota counted.
        self.integers: set[str] = set()
        # Names of comparisons without an arange, which are Python's.
        self.flags: set[str] = set()
        # Of the statement at hand: lines that come before it, and what is left to its author.
        self.before: list[str] = []
        self.notes: list[str] = []
        # What holds for the whole statement, and whether that may stand under an `if`.
        self.conditions: list[str] = []
        self.is_conditional = False
        self._bounds: dict[Iota, str] = {}
        self._order: tuple[int, ...] | None = None
        self._made = 0

    def note(self, text: str) -> None:
        """A comment that goes above the statement."""
        if text not in self.notes:
            self.notes.append(text)

    def nl(self, name: str) -> str:
        """`nl.name` as the file spells it."""
        return self.names.spelt("nki.language", name)

    @property
    def bounds(self) -> Mapping[Iota, str]:
        """What the masks of the calls at hand let through."""
        return self._bounds

    @contextmanager
    def bounded(self, bounds: Mapping[Iota, str]) -> Iterator[None]:
        """Within, aranges are cut to `bounds`."""
        outer = self._bounds
        self._bounds = {**outer, **bounds}
        try:
            yield
        finally:
            self._bounds = outer

    def masked(self, node: ast.Call) -> dict[Iota, str] | None:
        """What the mask of a call says; None, with a note, where that is not known."""
        masks = [keyword.value for keyword in node.keywords if keyword.arg == "mask"]
        if not masks or (isinstance(masks[0], ast.Constant) and masks[0].value is None):
            return {}
        if isinstance(masks[0], ast.Name) and masks[0].id in self.flags and self.is_conditional:
            self.conditions += [masks[0].id] * (masks[0].id not in self.conditions)
            return {}
        try:
            compared = self.indices.comparisons(masks[0])
            conditions = {one: condition_of(one) for one in compared}
            if any(conditions.values()) and not self.is_conditional:
                raise NotAffineError("a mask without an arange is an `if` around the statement")
            bounds = bounds_of([one for one in compared if not conditions[one]])
            self.conditions += [
                text for text in conditions.values() if text and text not in self.conditions
            ]
            return bounds
        except NotAffineError as error:
            self.note(f"mask: {error}; {changed_parameter('*', 'mask')}")
            return None

    def fresh(self) -> str:
        """A new name for a tile."""
        self._made += 1
        name = f"tile_{self._made}"
        self.tiles[name] = Tile()
        return name

    def view(self, base: str, parts: Sequence[ast.expr], is_whole: bool) -> str | None:
        """The text of `base[parts]`; None, with a note, where it is left to the author."""
        gather = self.gather(base, parts) if is_whole else None
        if gather is not None:
            return self.gathered(gather)
        try:
            read = [self.part(part) for part in parts]
        except NotAffineError as error:
            self.note(f"{error}: write slices or `.ap`")
            return None
        if self._order is None:
            text = sliced(*self._as_matrix(base, read), self._bounds)
            if text is not None:
                return text
        whole = [part for part in read if isinstance(part, Affine)]
        if len(whole) < len(read) or not is_whole or not self._is_tensor(base):
            self.note("write this access as `.ap(pattern=[[stride, count], ...], offset=...)`")
            return None
        try:
            return pattern(base, whole, self._bounds, self._order)
        except NotAffineError as error:
            self.note(str(error))
            return None

    def is_vector(self, base: str, parts: Sequence[Affine | str]) -> bool:
        """True for a vector in HBM by `nl.arange(64)[:, None]` or `[None, :]`: a column, a row."""
        tile = self.tiles.get(base)
        if (tile is not None and not tile.is_hbm) or len(parts) > 1 or not base.isidentifier():
            return False
        return isinstance(parts[0], Affine) and (parts[0].rank, len(parts[0].terms)) == (2, 1)

    def _as_matrix(
        self, base: str, parts: Sequence[Affine | str]
    ) -> tuple[str, Sequence[Affine | str]]:
        """A vector as a matrix of one column or row. What is no vector cannot be reshaped so, and
        the simulator says it.
        """
        first = parts[0]
        if isinstance(first, str) or not self.is_vector(base, parts):
            return base, parts
        if first.terms[0][0].axis == 0:
            return f"{base}.reshape(({base}.shape[0], 1))", [first, "0:1"]
        return f"{base}.reshape((1, {base}.shape[0]))", ["0:1", first]

    def _is_tensor(self, base: str) -> bool:
        """True for the name of a tensor, and for one tile of lists of tiles (`t[i][j]`)."""
        node, depth = ast.parse(base, mode="eval").body, 0
        while isinstance(node, ast.Subscript):
            node, depth = node.value, depth + 1
        return isinstance(node, ast.Name) and depth == self.tiles.get(node.id, Tile()).blocks

    def gather(self, base: str, parts: Sequence[ast.expr]) -> Gather | None:
        """`base[b, rows, iy]` where `rows` is a tile of row numbers, or a part of one."""
        if len(parts) < 2 or not base.isidentifier():
            return None
        *outer, place, last = parts
        owner = place.value if isinstance(place, ast.Subscript) else place
        if not (isinstance(owner, ast.Name) and owner.id in self.tiles):
            return None
        if any(isinstance(one, ast.Slice) or self.indices.has_index(one) for one in outer):
            return None
        try:
            columns = self.indices.read(last)
        except NotAffineError:
            return None
        if len(columns.terms) != 1:
            return None
        rows: str | None = self.source.render(owner)
        if isinstance(place, ast.Subscript):
            inner = place.slice
            listed = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
            rows = self.view(self.source.render(owner), listed, is_whole=True)
        if rows is None:
            return None
        within = f"[{', '.join(map(self.source.render, outer))}]" if outer else ""
        return Gather(f"{base}{within}", f"{base}.shape[{len(outer) + 1}]", rows, columns)

    def gathered(self, found: Gather) -> str:
        """The access pattern of a gather, within what masks let through."""
        rows = [iota for iota in self._bounds if iota.axis == 0]
        index = bounded_tile(found.rows, {iota: self._bounds[iota] for iota in rows})
        iota, factor = found.columns.terms[0]
        count = count_of(iota, self._bounds)
        offset = found.columns.offset
        return (
            f"{found.base}.ap(pattern=[[{found.stride}, {index}.shape[0]], [{factor}, {count}]], "
            f"{'' if offset == '0' else f'offset={offset}, '}vector_offset={index}, indirect_dim=0)"
        )

    def part(self, part: ast.expr) -> Affine | str:
        """One part of a subscript: an index expression, or the text of anything else."""
        if isinstance(part, ast.Slice) or (
            isinstance(part, ast.Constant) and part.value in (None, ...)
        ):
            return self.source.render(part)
        return self.indices.read(part)
