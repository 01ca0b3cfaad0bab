"""Tiles that older kernels cleared and that need no clearing: a product that starts a sum
overwrites PSUM (`accumulate=None` of `nisa.nc_matmul`), as the first turn of a reduction does.

A tile that is cleared where it is made takes memory from there on; of lists of tiles all at once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from trnx.migration.affine import NotAffineError
from trnx.migration.expressions import Expressions
from trnx.migration.loop_reductions import is_loop_reduce
from trnx.migration.names import Names
from trnx.migration.uses import Uses, names_of

_Write = ast.Assign | ast.AugAssign


class Clearing:
    """Answers for the tiles of one function, of which `nodes` are all nodes."""

    def __init__(self, nodes: Sequence[ast.AST], names: Names, expressions: Expressions) -> None:
        self._nodes = nodes
        self._names = names
        self._expressions = expressions
        self._uses = Uses(nodes)

    def is_sum_of_products(self, name: str) -> bool:
        """True where matrix products alone write the tile: the first one of a sum overwrites."""
        return self._are_writes(name, lambda write: self._is_product(write.value))

    def is_reduced_over_loops(self, name: str, shape: Sequence[str], blocks: int) -> bool:
        """True where `nl.loop_reduce` alone writes the tile of `shape`, all of it each time."""
        return self._are_writes(
            name,
            lambda write: (
                isinstance(write, ast.Assign)
                and is_loop_reduce(write.value, self._names)
                and self._is_whole(write.targets[0], shape, blocks)
            ),
        )

    def _are_writes(self, name: str, is_right: Callable[[_Write], bool]) -> bool:
        writes = [
            node
            for node in self._nodes
            if isinstance(node, _Write) and any(map(self._roots(name), _targets(node)))
        ]
        return (
            bool(writes)
            and all(map(is_right, writes))
            and self._uses.are_within(name, self._is_seen)
        )

    @staticmethod
    def _roots(name: str) -> Callable[[ast.expr], bool]:
        def is_part(target: ast.expr) -> bool:
            while isinstance(target, ast.Subscript):
                target = target.value
                if isinstance(target, ast.Name) and target.id == name:
                    return True
            return False

        return is_part

    def _is_seen(self, node: ast.AST, read: ast.Name) -> bool:
        """True for a target of an assignment, and for a call of NKI, which reads its tiles."""
        if isinstance(node, _Write):
            return any(self._roots(read.id)(target) for target in _targets(node))
        if not isinstance(node, ast.Call):
            return False
        writes = any(k.arg == "dst" and read.id in names_of(k.value) for k in node.keywords)
        is_nki = self._names.isa(node.func) or self._names.language(node.func)
        return bool(is_nki) and not writes

    def _is_product(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Call) and self._names.isa(value.func) == "nc_matmul"

    def _is_whole(self, target: ast.expr, shape: Sequence[str], blocks: int) -> bool:
        """True for `t[i, nl.arange(128)[:, None], nl.arange(512)[None, :]]` of [128, 512]."""
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Tuple):
            return False
        try:
            parts = [self._expressions.indices.read(part) for part in target.slice.elts[blocks:]]
        except NotAffineError:
            return False
        found = [
            (iota.axis, iota.size)
            for part in parts
            if part.offset == "0"
            for iota, factor in part.terms
            if factor == "1"
        ]
        return found == list(enumerate(shape)) and len(parts) == len(shape)


def _targets(node: _Write) -> list[ast.expr]:
    return [node.target] if isinstance(node, ast.AugAssign) else node.targets
