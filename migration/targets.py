"""Targets of assignments in older kernels: tiles, parts of them, and those of lists."""

from __future__ import annotations

import ast

from trnx.migration.expressions import Expressions
from trnx.migration.names import Names
from trnx.migration.source import Source
from trnx.migration.subscripts import bounded_tile
from trnx.migration.views import Tile
from trnx.simulator.older_dialects import changed_name

ALLOCATIONS = ("ndarray", "zeros", "ones", "full")
LIKE = ("empty_like", "zeros_like")
_WITHOUT_DTYPE = ("matmul", "expand_dims", "shared_constant", *LIKE, *ALLOCATIONS)


def target_name(statement: ast.stmt) -> str:
    """The name of the tile that an assignment writes, or ""."""
    target: ast.AST | None = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def place_of(text: str) -> str:
    """A view as the target of `=`: Python assigns to subscripts, not to calls of `.ap`."""
    return f"{text}[...]" if text.endswith(")") else text


class Targets:
    """Rewrites the targets of one file."""

    def __init__(self, source: Source, names: Names, expressions: Expressions) -> None:
        self._source = source
        self._names = names
        self._expressions = expressions

    def is_psum(self, target: ast.Subscript) -> bool:
        name = target.value.id if isinstance(target.value, ast.Name) else ""
        return self._expressions.tiles.get(name, Tile()).is_psum

    def assignable(self, target: ast.Subscript) -> None:
        text = self._source.render(target)
        if place_of(text) != text:
            self._source.replace(target, place_of(text))

    def into_block(self, target: ast.Subscript, value: ast.expr) -> None:
        """`tiles[i] = value` wrote into a tile of one dtype; of a list it would replace the tile.
        What a function of nki.language makes is nobody else's, so that its dtype is enough.
        """
        if not self.is_block(target):
            return
        place, text = self._source.render(target), self._source.render(value)
        called = ast.parse(text.strip(), mode="eval").body
        name = self._names.language(called.func) if isinstance(called, ast.Call) else ""
        if changed_name("nki.language", name) is not None:
            return
        if not isinstance(called, ast.Call) or name in ("", *_WITHOUT_DTYPE):
            self._source.replace(target, f"{place}[...]")
        elif "dtype" not in {keyword.arg for keyword in called.keywords}:
            start = text.rstrip().removesuffix(")").rstrip().removesuffix(",")
            self._source.replace(value, f"{start}, dtype={place}.dtype)")

    def text(self, target: ast.Subscript) -> str:
        """The text of `t[...]` as a destination."""
        expressions = self._expressions
        if isinstance(target.slice, ast.Constant) and target.slice.value is ...:
            return bounded_tile(self._source.render(target.value), expressions.bounds)
        expressions.visit(target)
        text = self._source.render(target)
        # A whole tile of a list.
        return bounded_tile(text, expressions.bounds) if self.is_block(target) else text

    def is_block(self, target: ast.Subscript) -> bool:
        """True for `tiles[i]` of a list of tiles."""
        tile = self._expressions.tiles.get(ast.unparse(target.value), Tile())
        parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        return 0 < tile.blocks == len(parts)
