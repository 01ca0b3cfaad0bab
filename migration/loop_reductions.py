"""`nl.loop_reduce` of NKI 0.1, which reduces a tile over turns of loops: an accumulation.

The first turn of the loops copies the tile, the others combine it with what is there.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trnx.migration.expressions import Expressions
from trnx.migration.names import Names
from trnx.migration.results import bound
from trnx.migration.source import Source

PARAMETERS = ("x", "op", "loop_indices", "mask", "dtype")
_LOOPS = ("affine_range", "sequential_range", "static_range", "range")


def is_loop_reduce(node: ast.AST | None, names: Names) -> bool:
    """True for a call of `nl.loop_reduce`."""
    return isinstance(node, ast.Call) and names.language(node.func) == "loop_reduce"


class LoopReductions:
    """Rewrites assignments of `nl.loop_reduce` within `loops`, outer ones first."""

    def __init__(self, source: Source, names: Names, expressions: Expressions) -> None:
        self._source = source
        self._names = names
        self._expressions = expressions
        self.loops: list[ast.For] = []

    def lines(self, call: ast.Call, dst: str, declares: bool) -> list[str] | None:
        """The statements for `dst = nl.loop_reduce(...)`; None, with a note, where the loops or
        the operator are not known. `declares`: dst is a name, which the first turn binds.
        """
        given = bound(PARAMETERS, call) or {}
        first = self._first_turn(given.get("loop_indices"))
        mask = given.get("mask")
        is_masked = mask is not None and not (isinstance(mask, ast.Constant) and mask.value is None)
        if first is None or is_masked or not {"x", "op"} <= set(given):
            self._expressions.note(
                "nl.loop_reduce: copy in the first turn, combine with the target in the others"
            )
            return None
        self._expressions.visit(given["x"])
        self._expressions.spell(call)
        value, op = self._source.render(given["x"]), self._source.render(given["op"])
        kind = f", dtype={self._source.render(given['dtype'])}" if "dtype" in given else ""
        place = f"{dst}[...]" if declares else dst
        return [
            f"if {first}:",
            f"    {dst} = {self._expressions.nl('copy')}({value}{kind})",
            "else:",
            f"    {place} = {op}({dst}, {value}{kind})",
        ]

    def _first_turn(self, indices: ast.expr | None) -> str | None:
        """`i == 0 and j == 0` for the loops that are reduced over."""
        listed: Sequence[ast.expr | None] = (
            indices.elts if isinstance(indices, ast.List | ast.Tuple) else [indices]
        )
        starts = [self._start(one) for one in listed]
        if not all(starts):
            return None
        return " and ".join(text for text in starts if text)

    def _start(self, index: ast.expr | None) -> str:
        """`i == 0` for the index of a loop around; "" where none is known."""
        for loop in reversed(self.loops):
            target, counted = loop.target, loop.iter
            if (
                isinstance(index, ast.Name)
                and isinstance(target, ast.Name)
                and target.id == index.id
            ):
                if not isinstance(counted, ast.Call) or not 1 <= len(counted.args) <= 3:
                    return ""
                name = self._names.language(counted.func) or ast.unparse(counted.func)
                start = self._source.render(counted.args[0]) if len(counted.args) > 1 else "0"
                return f"{index.id} == {start}" if name in _LOOPS else ""
        return ""
