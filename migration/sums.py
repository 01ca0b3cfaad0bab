"""Sums in older kernels: `x += y` on tiles, and products that accumulate in PSUM."""

from __future__ import annotations

import ast

from trnx.migration.affine import operand
from trnx.migration.calls import arithmetic
from trnx.migration.expressions import Expressions
from trnx.migration.names import Names
from trnx.migration.results import bound
from trnx.migration.source import Source
from trnx.migration.targets import Targets, place_of, target_name
from trnx.migration.views import Tile

_OF_PRODUCTS = (
    "is_stationary_onezero", "is_moving_onezero", "is_transpose", "tile_position", "tile_size",
    "perf_mode",
)  # fmt: skip


class Sums:
    """Rewrites the sums of one file."""

    def __init__(
        self, source: Source, names: Names, expressions: Expressions, targets: Targets
    ) -> None:
        self._source = source
        self._names = names
        self._expressions = expressions
        self._targets = targets

    def lines(self, statement: ast.AugAssign) -> list[str] | None:
        """`x += y` on tiles; products accumulate in PSUM."""
        expressions, value, target = self._expressions, statement.value, statement.target
        if isinstance(statement.op, ast.Add) and isinstance(target, ast.Name | ast.Subscript):
            accumulated = self._accumulated(target, value)
            if accumulated is not None:
                return [accumulated]
        is_tile = expressions.visit(value)
        name = arithmetic(statement.op)
        if isinstance(target, ast.Name):
            if target.id in expressions.tiles and name:
                text = f"{expressions.nl(name)}({', '.join(expressions.operands((target, value)))})"
                return [f"{target.id}[...] = {text}"]
            return None
        if isinstance(target, ast.Subscript) and (is_tile or expressions.visit(target)) and name:
            if not self._source.is_replaced(target):
                expressions.visit(target)
            place = place_of(self._source.render(target))
            added = expressions.operands((target, value))[1]
            return [f"{place} = {expressions.nl(name)}({place}, {added})"]
        return None

    def _accumulated(self, target: ast.Name | ast.Subscript, value: ast.expr) -> str | None:
        """The product that is added to `target`; None where `value` is none. Its mask cuts the
        target, too.
        """
        if not isinstance(value, ast.Call):
            return None
        with self._expressions.bounded(self._expressions.masked(value) or {}):
            name = target_name(ast.AugAssign(target, ast.Add(), value))
            is_psum = self._expressions.tiles.get(name, Tile()).is_psum
            product = self._product(value, may_turn=is_psum)
            if product is None:
                return None
            dst = target.id if isinstance(target, ast.Name) else self._targets.text(target)
            return f"{self._names.spelt('nki.isa', 'nc_matmul')}({dst}, {product})"

    def _product(self, value: ast.Call, may_turn: bool) -> str | None:
        """`stationary, moving` of a product that accumulates; None for anything else. `may_turn`:
        what nl.matmul transposes is transposed before the statement.
        """
        is_turned = True
        if self._names.isa(value.func) == "nc_matmul":
            given = bound(("stationary", "moving"), value) or {}
            operands = [given.get("stationary"), given.get("moving")]
        elif self._names.language(value.func) == "matmul":
            given = bound(("x", "y"), value) or {}
            turned = given.get("transpose_x")
            is_turned = isinstance(turned, ast.Constant) and turned.value is True
            if not is_turned and (turned is not None or not may_turn):
                return None
            operands = [given.get("x"), given.get("y")]
        else:
            return None
        texts = []
        for one in operands:
            if one is None:
                return None
            self._expressions.visit(one)
            self._expressions.move_to_sbuf(one)
            texts.append(self._source.render(one))
        if not is_turned:
            texts[0] = self._transposed(texts[0])
        self._expressions.spell(value)
        rest = [k for k in value.keywords if k.arg in _OF_PRODUCTS]
        return ", ".join([*texts, *(self._source.render(keyword) for keyword in rest)])

    def _transposed(self, tile: str) -> str:
        """The transpose of a tile in SBUF, made before the statement."""
        expressions, tile = self._expressions, operand(tile)
        psum, sbuf = expressions.fresh(), expressions.fresh()
        shape = f"({tile}.shape[1], {tile}.shape[0])"
        buffer = f"buffer={expressions.nl('psum')}"
        expressions.before += [
            f"{psum} = {expressions.nl('ndarray')}({shape}, dtype={tile}.dtype, {buffer})",
            f"{self._names.spelt('nki.isa', 'nc_transpose')}({psum}, {tile})",
            f"{sbuf} = {expressions.nl('copy')}({psum})",
        ]
        return sbuf
