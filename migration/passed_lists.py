"""Lists of tiles that functions of a file hand to each other: parameters and results.

A tile with block dimensions becomes a list of tiles where it is made. A function that is given it,
or gets it from another one, has to index it as a list, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from trnx.migration.names import Names

_ALLOCATIONS = ("ndarray", "zeros", "ones", "full")
HBM = ("shared_hbm", "private_hbm", "hbm")


class PassedLists:
    """Block dimensions of the names of each function; 0 for what is no list."""

    def __init__(self, functions: Sequence[ast.FunctionDef], names: Names) -> None:
        self._names = names
        self._functions = {one.name: one for one in functions}
        self._known: dict[str, dict[str, int]] = {
            one.name: dict(self._made(one)) for one in functions
        }
        # By function: of what it returns.
        self._results: dict[str, int] = {}
        while any(self._follow(one) for one in functions):
            pass

    def parameters(self, function: ast.FunctionDef) -> dict[str, int]:
        """Block dimensions of the parameters that are lists."""
        known = self._known.get(function.name, {})
        return {one.arg: known[one.arg] for one in _parameters(function) if known.get(one.arg, 0)}

    def of_result(self, call: ast.expr) -> int:
        """Block dimensions of what a call gives."""
        name = (
            call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        )
        return self._results.get(name, 0)

    def _made(self, function: ast.FunctionDef) -> Iterator[tuple[str, int]]:
        for name, value in _assignments(function):
            if isinstance(value, ast.Call) and self._names.language(value.func) in _ALLOCATIONS:
                yield name, self._blocks(value)

    def _blocks(self, call: ast.Call) -> int:
        """What stands in front of the partition dimension of an allocation on chip."""
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        buffer, shape = given.get("buffer"), given.get("shape", call.args[0] if call.args else None)
        is_hbm = isinstance(buffer, ast.Attribute) and buffer.attr in HBM
        for place, size in enumerate(shape.elts if isinstance(shape, ast.Tuple | ast.List) else ()):
            if isinstance(size, ast.Call) and self._names.language(size.func) == "par_dim":
                return 0 if is_hbm else place
        return 0

    def _follow(self, function: ast.FunctionDef) -> bool:
        """Hand on what is known in a function; True where that is news."""
        known = self._known[function.name]
        is_news = False
        for name, value in _assignments(function):
            if name not in known and (blocks := self.of_result(value)):
                known[name], is_news = blocks, True
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
                blocks = known.get(node.value.id, 0)
                if blocks and function.name not in self._results:
                    self._results[function.name], is_news = blocks, True
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                is_news |= self._pass_on(node, node.func.id, known)
        return is_news

    def _pass_on(self, call: ast.Call, name: str, known: dict[str, int]) -> bool:
        called = self._functions.get(name)
        if called is None:
            return False
        given = zip([one.arg for one in _parameters(called)], call.args, strict=False)
        named = ((one.arg, one.value) for one in call.keywords if one.arg is not None)
        is_news = False
        for parameter, value in (*given, *named):
            blocks = known.get(value.id, 0) if isinstance(value, ast.Name) else 0
            if blocks and parameter not in self._known[name]:
                self._known[name][parameter], is_news = blocks, True
        return is_news


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name):
            yield target.id, value
