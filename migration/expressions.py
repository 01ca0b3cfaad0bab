"""Expressions of older kernels: tiles with operators, `nl` and `nisa` calls, subscripts."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trnx.migration.affine import Affine, NotAffineError, operand
from trnx.migration.calls import Spelling, arithmetic, without
from trnx.migration.loaded_shapes import loaded_shape
from trnx.migration.names import Names
from trnx.migration.passed_tiles import NO_TILE, PassedTiles
from trnx.migration.results import PARAMETERS, affine_select, bound, declaration, iota
from trnx.migration.source import Source
from trnx.migration.subscripts import (
    bounded_tile,
    predicate,
)
from trnx.migration.views import Tile, Views
from trnx.simulator.older_dialects import changed_name, changed_parameter

_ALLOCATIONS = ("ndarray", "zeros", "ones", "full", "empty_like", "zeros_like", "rand")
# What `migrate` rewrites, or tells of, where it stands.
_REWRITTEN = ("simulate_kernel", "baremetal", "par_dim", "static_cast")
_REDUCTIONS = ("sum", "max", "min", "mean", "prod", "var", "all")
# `nl.fp32.min`: the least float32.
_SMALLEST = "-3.4028234663852886e38"


class Expressions(Views):
    """Rewrites the expressions of one function, in order; replacements go to the source."""

    def __init__(self, source: Source, names: Names, passed: PassedTiles) -> None:
        super().__init__(source, names)
        self._passed = passed
        self._spelling = Spelling(source, names)
        self._seen: dict[ast.expr, bool] = {}

    def visit(self, node: ast.expr) -> bool:
        """Rewrite; True where the value is a tile. Once is enough."""
        if node not in self._seen:
            self._seen[node] = self._visit(node)
        return self._seen[node]

    def visit_alone(self, call: ast.Call) -> None:
        """Rewrite a call whose result nobody takes: an instruction has its `dst` already."""
        self._seen[call] = self._call(call, is_alone=True)

    def _visit(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            if node.id in self.indices.names:
                self.note(f"`{node.id}` is an index expression; write slices or `.ap` instead")
            if node.id in self.indices.masks:
                self.note(f"`{node.id}` is a mask of index expressions: use nisa.affine_select")
            return node.id in self.tiles
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp):
            return self._operator(node)
        if isinstance(node, ast.Attribute):
            self._attribute(node)
            return False
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.visit(child)
        return False

    # ---- operators ----

    def _operator(self, node: ast.BinOp | ast.Compare | ast.UnaryOp) -> bool:
        op: ast.AST
        if isinstance(node, ast.Compare):
            parts, op = [node.left, *node.comparators], node.ops[0]
        elif isinstance(node, ast.BinOp):
            parts, op = [node.left, node.right], node.op
        else:
            parts, op = [node.operand], node.op
        if isinstance(node, ast.Compare) and self.indices.has_index(node):
            self.note("a comparison of index expressions: use nisa.affine_select")
            return False
        is_tile = [self.visit(part) for part in parts]
        name = arithmetic(op)
        if not any(is_tile) or not name or len(parts) > 2:
            return False
        texts = ", ".join(self.operands(parts))
        named = {part.id for part in parts if isinstance(part, ast.Name)}
        if isinstance(op, ast.Div) and named & self.integers:
            # Integers have quotients in float32; nl.divide gives the dtype of its operands.
            texts += f", dtype={self.nl('float32')}"
        self.source.replace(node, f"{self.nl(name)}({texts})")
        return True

    def operands(self, parts: Sequence[ast.expr]) -> list[str]:
        """The operands of a function of nki.language: one of them may be in PSUM."""
        texts, has_psum = [], False
        for part in parts:
            text, is_psum = self.source.render(part), self._is_psum(part)
            texts.append(f"{self.nl('copy')}({text})" if has_psum and is_psum else text)
            has_psum |= is_psum
        return texts

    def move_to_sbuf(self, node: ast.expr | None) -> None:
        """What TensorE and GpSimd read is in SBUF: a tile of PSUM is copied before."""
        if node is not None and self._is_psum(node):
            name = self.fresh()
            self.before.append(f"{name} = {self.nl('copy')}({self.source.render(node)})")
            self.source.replace(node, name)

    def _is_psum(self, node: ast.expr) -> bool:
        owner = node.value if isinstance(node, ast.Subscript) else node
        return isinstance(owner, ast.Name) and self.tiles.get(owner.id, Tile()).is_psum

    def _attribute(self, node: ast.Attribute) -> None:
        module, _, name = self.names.dotted(node).rpartition(".")
        if module in ("nki.language.fp32", "nki.isa.fp32") and name == "min":
            self.source.replace(node, _SMALLEST)
            return
        change = changed_name(module, name) if module else None
        if change is not None:
            self.note(f"{module}.{name} is {change}")
            return
        self.visit(node.value)
        if isinstance(node.value, ast.Name):
            tile = self.tiles.get(node.value.id, Tile())
            self.source.replace(node, f"{node.value.id}{'[0]' * tile.blocks}.{node.attr}")

    # ---- subscripts ----

    def _subscript(self, node: ast.Subscript) -> bool:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        tile = self.tiles.get(name)
        if not name:
            self.visit(node.value)
        index = self.indices.slices_of(node.slice)
        parts = list(index.elts) if isinstance(index, ast.Tuple) else [index]
        base = self.source.render(node.value)
        blocks = tile.blocks if tile is not None else 0
        if blocks:
            if len(parts) < blocks or any(
                isinstance(part, ast.Slice) or self.indices.has_index(part)
                for part in parts[:blocks]
            ):
                self.note(f"`{name}` is a list of tiles now: index its blocks one by one")
                return True
            base += "".join(f"[{self.source.render(part)}]" for part in parts[:blocks])
            parts = parts[blocks:]
            if not parts:
                self.source.replace(node, base)
                return True
        if any(self.indices.has_index(part) for part in parts):
            text = self.view(base, parts, tile is None or tile.is_whole)
            if text is None:
                return True
            self.source.replace(node, text)
        else:
            self.visit(index)
            text = self.source.render(node)
            if blocks or index is not node.slice:
                text = f"{base}[{', '.join(map(self.source.render, parts))}]"
            self.source.replace(node, self._cut_slices(text, parts))
        # Of what is no tile for sure, a subscript with an index expression is one.
        return tile is not None or any(self.indices.has_index(part) for part in parts)

    def _cut_slices(self, text: str, parts: list[ast.expr]) -> str:
        """A view by plain slices, cut to what the masks at hand let through."""
        slices = sum(isinstance(part, ast.Slice) for part in parts)
        if not slices or not self.bounds:
            return text
        if max(iota.axis for iota in self.bounds) >= slices:
            self.note(f"`{text}` has fewer slices than its mask has axes: bound them")
            return text
        return bounded_tile(text, self.bounds)

    # ---- calls ----

    def _call(self, node: ast.Call, is_alone: bool = False) -> bool:
        language, isa = self.names.language(node.func), self.names.isa(node.func)
        outer = self._bounds
        try:
            if any(keyword.arg == "mask" for keyword in node.keywords) and (language or isa):
                bounds = self.masked(node)
                if bounds is None and isa in PARAMETERS:
                    return True  # the mask stays, under its comment, and so does the call
                self._bounds = {**outer, **(bounds or {})}
            if isa in PARAMETERS and not is_alone:
                given = {keyword.arg for keyword in node.keywords}
                if "dst" not in given:
                    name = self.fresh()
                    lines = self.instruction(node, name, declares=True)
                    if lines is None:
                        return True
                    self.before += lines
                    self.source.replace(node, name)
                    return True
            return self._other_call(node, language, isa)
        finally:
            self._bounds = outer

    def _other_call(self, node: ast.Call, language: str, isa: str) -> bool:
        if language == "store" and node.args and isinstance(node.args[0], ast.Name):
            self._place(node.args[0])
        if language == "load" and self._bounds:
            name = self.fresh()
            self.before += self.masked_load(node, name)
            self.source.replace(node, name)
            return True
        if language in _REDUCTIONS:
            self._reduce(node)
        self._method(node)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if not self._is_mask(node, argument):
                self.visit(argument)
        self.spell(node)
        is_masked = any(keyword.arg == "mask" for keyword in node.keywords)
        gone = ["mask"] if is_masked and self.masked(node) is not None else []
        if isa:
            gone += [k.arg for k in node.keywords if k.arg == "dtype"]
        if language == "store":
            self._store(node)
        if language == "load" and self._is_identity(node):
            text = without(self.source, node)
            function = self.source.render(node.func)
            self.source.replace(node, f"{self.nl('copy')}{text.removeprefix(function)}")
            return True
        if language == "load" and (dtype := self._constant_dtype(node)):
            text = without(self.source, node, *gone)
            self.source.replace(node, f"{text[:-1]}, dtype={dtype})")
            return True
        if language == "rand" and "dtype" not in (bound(("shape", "dtype"), node) or {}):
            text = without(self.source, node)
            self.source.replace(node, f"{text[:-1]}, dtype={self.nl('float32')})")
        if language == "static_cast" and len(node.args) == 2:
            value, dtype = map(self.source.render, node.args)
            cast = f"{operand(value)}.astype({dtype})"
            copied = f"{self.nl('copy')}({value}, dtype={dtype})"
            self.source.replace(node, cast if self.is_host else copied)
            return True
        if gone:
            self.source.replace(node, without(self.source, node, *gone))
        if not isinstance(node.func, ast.Attribute | ast.Name):
            self.visit(node.func)
        else:
            self._gone(node.func)
        makes_tile = bool(language) and language not in NO_TILE
        is_result = self._passed.of_result(node) == (True,)
        return makes_tile or is_result or self._is_tile_method(node)

    def _place(self, name: ast.Name) -> None:
        """The view that a name stands for, in its place."""
        view = self.views.get(name.id)
        if view is not None:
            parts = list(view.slice.elts) if isinstance(view.slice, ast.Tuple) else [view.slice]
            text = self.view(self.source.render(view.value), parts, is_whole=True)
            if text is not None:
                self.source.replace(name, text)

    def _is_identity(self, node: ast.Call) -> bool:
        """True for the load of an identity matrix, which is a copy now."""
        source = node.args[0] if node.args else None
        return isinstance(source, ast.Name) and source.id in self.identities

    def _constant_dtype(self, node: ast.Call) -> str:
        """The dtype that the load of a constant gave where it names none, else ""."""
        source = node.args[0] if node.args else None
        owner = source.value if isinstance(source, ast.Subscript) else source
        name = owner.id if isinstance(owner, ast.Name) else ""
        has_dtype = any(keyword.arg == "dtype" for keyword in node.keywords)
        return "" if has_dtype else self.constants.get(name, "")

    def _gone(self, function: ast.expr) -> None:
        module, _, name = self.names.dotted(function).rpartition(".")
        change = changed_name(module, name) if module else None
        if change is not None and name not in _REWRITTEN:
            self.note(f"{module}.{name} is {change}")

    @staticmethod
    def _is_mask(node: ast.Call, argument: ast.expr) -> bool:
        return any(k.arg == "mask" and k.value is argument for k in node.keywords)

    def _is_tile_method(self, node: ast.Call) -> bool:
        function = node.func
        return isinstance(function, ast.Attribute) and (
            isinstance(function.value, ast.Name) and function.value.id in self.tiles
        )

    def _method(self, node: ast.Call) -> None:
        """`x.broadcast_to(shape)` and its like are functions of nki.language."""
        function = node.func
        if not isinstance(function, ast.Attribute) or self.names.dotted(function):
            return
        is_tile = self.visit(function.value)
        if not is_tile or len(node.args) != 1 or node.keywords:
            return
        tile, given = self.source.render(function.value), self.source.render(node.args[0])
        texts = {
            "broadcast_to": f"{self.nl('broadcast_to')}({tile}, {given})",
            "astype": f"{self.nl('copy')}({tile}, dtype={given})",
            "expand_dims": f"{tile}.expand_dim({given})",
        }
        if function.attr in texts:
            self.source.replace(node, texts[function.attr])

    def _reduce(self, node: ast.Call) -> None:
        """Reductions take trailing axes: an access pattern is given them last."""
        given = bound(("x", "axis"), node) or {}
        axis, value = given.get("axis"), given.get("x")
        try:
            axes = ast.literal_eval(axis) if axis is not None else ()
        except ValueError:
            return
        axes = [axes] if isinstance(axes, int) else list(axes)
        if not isinstance(value, ast.Subscript) or not self.indices.has_index(value.slice):
            return
        parts = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
        try:
            rank = max(part.rank for part in map(self.part, parts) if isinstance(part, Affine))
        except (NotAffineError, ValueError):
            return
        rest = [i for i in range(rank) if i not in axes]
        if axis is None or min(axes, default=0) < 1 or rest == list(range(len(rest))):
            return
        self._order = (*rest, *axes)
        self.visit(value)
        self._order = None
        self.source.replace(axis, repr(tuple(range(len(rest), rank))))

    def _store(self, node: ast.Call) -> None:
        value = node.args[1] if len(node.args) > 1 else None
        value = value or next((k.value for k in node.keywords if k.arg == "value"), None)
        if value is None:
            return
        if self._is_psum(value):
            # DMA does not read PSUM since NKI 0.3.
            self.source.replace(value, f"{self.nl('copy')}({self.source.render(value)})")
        if self._bounds and not self.indices.has_index(value) and not has_slices(value):
            text = bounded_tile(self.source.render(value), self._bounds)
            self.source.replace(value, text)

    def spell(self, node: ast.Call) -> None:
        """What is spelt differently in the arguments of a call of NKI."""
        isa, language = self.names.isa(node.func), self.names.language(node.func)
        if isa or language:
            parameters = PARAMETERS.get(isa, ())
            if language in _ALLOCATIONS:
                parameters = ("shape", "dtype")
            if language == "loop_reduce":
                parameters = ("x", "op")
            self._spelling.of_arguments(node, parameters)

    # ---- instructions that get a dst ----

    def masked_load(self, node: ast.Call, name: str) -> list[str]:
        """A whole tile of which the part that the mask lets through is loaded."""
        given = bound(("src",), node) or {}
        src = self.whole_view(given.get("src"))
        if not isinstance(src, ast.Subscript):
            self.note(f"a load with a mask of a whole tensor; {changed_parameter('*', 'mask')}")
            return []
        self.spell(node)
        self.visit(src.value)
        base = self.source.render(src.value)
        parts = list(src.slice.elts) if isinstance(src.slice, ast.Tuple) else [src.slice]
        view = self.view(base, parts, is_whole=True)
        if view is None:
            return []
        gather = self.gather(base, parts)
        if gather is not None:
            shape = f"{gather.rows}.shape[0], {gather.columns.terms[0][0].size}"
            return self._loaded(name, shape, given.get("dtype"), base, view)
        read = [self.part(part) for part in parts]
        is_vector = self.is_vector(base, read)
        sizes = loaded_shape(base, parts, read, is_vector, self.source.render)
        if sizes is None:
            self.note("a load with a mask and a slice: make its tile, and load a part of it")
            return []
        return self._loaded(name, sizes, given.get("dtype"), base, view)

    def _loaded(
        self, name: str, shape: str, dtype: ast.expr | None, base: str, view: str
    ) -> list[str]:
        kind = self.source.render(dtype) if dtype is not None else f"{base}.dtype"
        return [
            f"{name} = {self.nl('ndarray')}(({shape}), dtype={kind}, buffer={self.nl('sbuf')})",
            f"{self.names.spelt('nki.isa', 'dma_copy')}"
            f"(dst={bounded_tile(name, self._bounds)}, src={view})",
        ]

    def whole_view(self, node: ast.expr | None) -> ast.expr | None:
        """What the name of a view stands for."""
        return self.views.get(node.id, node) if isinstance(node, ast.Name) else node

    def instruction(self, node: ast.Call, dst: str, declares: bool) -> list[str] | None:
        """The lines of an instruction with `dst` first; `declares` makes it before. None, with a
        note, where the shape of the result is not known.
        """
        isa = self.names.isa(node.func)
        if isa in ("iota", "affine_select"):
            return self._ramp(node, dst, declares, isa)
        given = bound(PARAMETERS[isa], node)
        if given is None:
            self.note(f"nisa.{isa}: give it a `dst` first")
            return None
        for parameter, value in given.items():
            if parameter not in ("mask", "dtype"):
                self.visit(value)
        self.spell(node)
        if isa == "nc_matmul":
            for operand_name in ("stationary", "moving"):
                self.move_to_sbuf(given.get(operand_name))
        texts = {name: self.source.render(value) for name, value in given.items()}
        made = declaration(isa, dst, given, texts, self.nl)
        if declares and made is None:
            self.note(f"nisa.{isa}: make a tile for its result and give it as `dst`")
            return None
        if isa == "memset":
            call = f"{self.source.render(node.func)}({dst}, value={texts.get('value')})"
        else:
            call = without(self.source, node, "mask", "dtype", first=dst)
        if isa == "nc_matmul" and not declares:
            # It would add to what an earlier product left there (accumulate=None).
            call = f"{call[:-1].rstrip().removesuffix(',')}, accumulate=False)"
        return [made, call] if declares and made is not None else [call]

    def _ramp(self, node: ast.Call, dst: str, declares: bool, isa: str) -> list[str] | None:
        """`nisa.iota` and `nisa.affine_select` of index expressions."""
        given = bound(PARAMETERS[isa], node) or {}
        main = given.get(PARAMETERS[isa][0])
        for name, one in given.items():
            if name not in ("pred", "expr", "dtype", "mask"):
                self.visit(one)
        self.move_to_sbuf(given.get("on_true_tile"))
        texts = {name: self.source.render(one) for name, one in given.items() if one is not main}
        try:
            if main is None:
                raise NotAffineError(f"no {PARAMETERS[isa][0]}")
            if isa == "iota":
                made, call = iota(dst, self.indices.read(main), texts, self.nl)
            else:
                made, call = affine_select(
                    dst, predicate(self.indices.comparisons(main)), texts, self.nl
                )
        except (NotAffineError, KeyError) as error:
            self.note(f"nisa.{isa}: {error}; {changed_parameter(isa, PARAMETERS[isa][0])}")
            return None
        call = f"{self.source.render(node.func)}{call}"
        if isa == "iota" and "int" in texts.get("dtype", "int"):
            self.integers.add(dst)
        return [made, call] if declares else [call]


def has_slices(node: ast.expr) -> bool:
    """True for a view by slices, which its masks have cut."""
    if not isinstance(node, ast.Subscript):
        return False
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(part, ast.Slice) for part in parts)
