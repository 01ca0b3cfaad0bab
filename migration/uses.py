"""Where the names of one function are bound and read."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence

# Whether a node is one in which a name may be read.
Allowed = Callable[[ast.AST, ast.Name], bool]


def names_of(node: ast.AST) -> set[str]:
    """The names in an expression."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


class Uses:
    """The names of a function, of which `nodes` are all nodes."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._nodes = nodes
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self._reads = [name for name in names if isinstance(name.ctx, ast.Load)]
        self._bound = Counter(name.id for name in names if not isinstance(name.ctx, ast.Load))

    def is_fixed(self, name: str) -> bool:
        """True where at most one statement binds the name."""
        return self._bound[name] <= 1

    def are_within(self, name: str, is_allowed: Allowed) -> bool:
        """True where the name is read, and in nodes that are allowed alone."""
        reads = {read for read in self._reads if read.id == name}
        held = (
            {
                read
                for node in self._nodes
                for read in reads & set(ast.walk(node))
                if is_allowed(node, read)
            }
            if reads
            else set()
        )
        return bool(reads) and held == reads
