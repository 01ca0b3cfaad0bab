"""Tiles that functions of a file hand to each other: parameters and results.

Operators on tiles become functions of nki.language. What a name stands for is known where it is
bound; a parameter is a tile where all calls in the file give one, a call where the function returns
one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from trnx.migration.names import Names
from trnx.migration.passed_lists import HBM
from trnx.migration.results import PARAMETERS

# Functions of nki.language that make no tile.
NO_TILE = (
    "affine_range", "sequential_range", "static_range", "dynamic_range", "program_id",
    "num_programs", "program_ndim", "ds", "store", "device_print", "par_dim", "arange", "mgrid",
    "shared_constant",
)  # fmt: skip
_METHODS = ("astype", "broadcast_to", "expand_dims", "reshape")


class PassedTiles:
    """The tiles among the names of each function, and of what each returns."""

    def __init__(self, functions: Sequence[ast.FunctionDef], names: Names) -> None:
        self._names = names
        self._functions = {one.name: one for one in functions}
        self._known: dict[str, set[str]] = {one.name: set() for one in functions}
        # By function: whether what it returns is a tile; of each where it returns several.
        self._results: dict[str, tuple[bool, ...]] = {}
        self._calls = [
            (one.name, node)
            for one in functions
            for node in ast.walk(one)
            if isinstance(node, ast.Call) and self._called(node) is not None
        ]
        while any([self._follow(one) for one in functions] + [self._pass_on()]):
            pass

    def parameters(self, function: ast.FunctionDef) -> list[str]:
        """The parameters that are tiles."""
        known = self._known.get(function.name, set())
        return [name for name in _parameters(function) if name in known]

    def of_result(self, value: ast.expr) -> tuple[bool, ...]:
        """Whether what a call gives is a tile; of each where it gives several; () if unknown."""
        function = self._called(value)
        return () if function is None else self._results.get(function.name, ())

    def _called(self, value: ast.expr) -> ast.FunctionDef | None:
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
            return None
        return self._functions.get(value.func.id)

    def _is_tile(self, node: ast.expr, known: set[str]) -> bool:
        if isinstance(node, ast.Name):
            return node.id in known
        if isinstance(node, ast.Subscript):
            return self._is_tile(node.value, known)
        if isinstance(node, ast.BinOp):
            return self._is_tile(node.left, known) or self._is_tile(node.right, known)
        if not isinstance(node, ast.Call):
            return False
        if self.of_result(node) == (True,):
            return True
        language = self._names.language(node.func)
        if language:
            return language not in NO_TILE and not _is_in_hbm(node)
        if self._names.isa(node.func) in PARAMETERS:
            return True
        method = node.func
        if not (isinstance(method, ast.Attribute) and method.attr in _METHODS):
            return False
        return self._is_tile(method.value, known)

    def _follow(self, function: ast.FunctionDef) -> bool:
        """Hand on what is known in a function; True where that is news."""
        known = self._known[function.name]
        before = len(known), function.name in self._results
        for target, value in _assignments(function):
            if isinstance(target, ast.Name) and self._is_tile(value, known):
                known.add(target.id)
            elif isinstance(target, ast.Tuple):
                known |= self.unpacked(target, value)
        returned = [
            self._returned(node.value, known)
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value is not None
        ]
        if returned and len(set(returned)) == 1 and any(returned[0]):
            self._results[function.name] = returned[0]
        return before != (len(known), function.name in self._results)

    def unpacked(self, target: ast.Tuple, value: ast.expr) -> set[str]:
        """The names of `a, b = helper(...)` that become tiles."""
        pairs = zip(target.elts, self.of_result(value), strict=False)
        return {one.id for one, is_tile in pairs if is_tile and isinstance(one, ast.Name)}

    def _returned(self, value: ast.expr, known: set[str]) -> tuple[bool, ...]:
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        return tuple(self._is_tile(part, known) for part in parts)

    def _pass_on(self) -> bool:
        """Parameters that are tiles in all calls; True where one is news."""
        given: dict[tuple[str, str], list[bool]] = {}
        for caller, call in self._calls:
            called = self._called(call)
            assert called is not None
            for parameter, value in _bound(called, call):
                is_tile = self._is_tile(value, self._known[caller])
                given.setdefault((called.name, parameter), []).append(is_tile)
        is_news = False
        for (name, parameter), tiles in given.items():
            if all(tiles) and parameter not in self._known[name]:
                self._known[name].add(parameter)
                is_news = True
        return is_news


def _is_in_hbm(call: ast.Call) -> bool:
    """True for an allocation in HBM."""
    buffers = [keyword.value for keyword in call.keywords if keyword.arg == "buffer"]
    return any(isinstance(one, ast.Attribute) and one.attr in HBM for one in buffers)


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _bound(called: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    yield from zip(_parameters(called), call.args, strict=False)
    yield from ((one.arg, one.value) for one in call.keywords if one.arg is not None)


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
