"""The Python subset of kernels, checked on their source: what the device's front end takes.

A kernel, and every function that it reaches through its globals, refers only to `nki*` modules,
`math`, numpy and modules of other such functions, to classes derived from NKIObject, Enum or
NamedTuple, and to module constants that are int, float, bool, str, None, NKIObjects, or tuples,
lists and dicts of them. It has no inner functions but bodies of `fori_loop` and `while_loop`, and
nothing of the table in `subset_rules`, whose rows have their sources.

Evidence for what may be reached: SDK/nki/get-started/nki-language-guide.rst, the open front end
leanprover/KLR, and the kernels of aws-neuron/nki-library, which are compiled for the device: they
use math, numpy's constants, modules of helpers, and lists, dicts and NKIObjects of modules.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from trnx.simulator.errors import KernelSubsetError, Location
from trnx.simulator.findings import DISPUTED
from trnx.simulator.frontend.kernel import Kernel
from trnx.simulator.frontend.kernel_sources import is_nki, never_twin
from trnx.simulator.frontend.subset_rules import PARAMETERS, RULES, Rule
from trnx.simulator.frontend.twins import load
from trnx.simulator.language.nki_object import NKIObject
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.source import parse

# Methods that change a list or a dict.
_CHANGES = (
    "append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
    "sort", "update",
)  # fmt: skip
_LOOPS = ("fori_loop", "while_loop")
_MODULES = ("math", "numpy")
_CONSTANTS = (int, float, bool, str, type(None), DType)


Found = tuple[KernelSubsetError, ...]
# What is found in a function itself, and the functions that it reaches.
_Checked = tuple[Found, Sequence[FunctionType]]


def subset_findings(kernel: Any) -> list[KernelSubsetError]:
    """What in a kernel, and in all that it reaches, is outside of the subset."""
    return _findings(kernel, _checked)


def _findings(kernel: Any, checked: Callable[[FunctionType], _Checked]) -> list[KernelSubsetError]:
    twin = load(kernel)
    function = inspect.unwrap(twin.function if isinstance(twin, Kernel) else twin)
    findings: list[KernelSubsetError] = []
    seen: set[FunctionType] = set()
    pending: list[FunctionType] = [function]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            found, reached = checked(current)
            findings += found
            pending += reached
    return findings


def _checked(function: FunctionType) -> _Checked:
    reached: list[FunctionType] = []
    return tuple(_Checker(function, reached.append).run()), reached


def _checked_once(function: FunctionType) -> _Checked:
    """`_checked`, computed once: the kernels of a family share most of what they reach."""
    if _is_trusted(function):
        return (), ()

    def make() -> tuple[Found, list[weakref.ref[FunctionType]]]:
        found, reached = _checked(function)
        return found, list(map(weakref.ref, reached))

    found, references = _CHECKED.get_or_make(weakref.ref(function), make)
    return found, [one for reference in references if (one := reference()) is not None]


# Given a function and what finds; where findings are kept between processes.
FindingStore = Callable[[Callable[..., Any], Callable[[], Found]], Found]

# By weak reference: a function keeps its module, and a generated kernel should not stay for this.
_FINDINGS: LruCache[Found] = LruCache(1024)
_CHECKED: LruCache[tuple[Found, list[weakref.ref[FunctionType]]]] = LruCache(4096)
_stores: list[FindingStore] = []
# Prefixes of file names.
_trusted: list[str] = []


def trust_sources(folder: Path) -> None:
    """Record kernels from files in `folder` without reading them first: tests do it, by
    `subset_findings`, which reads every file. They may call nothing outside of the folder that is
    to be read."""
    _trusted.append(os.path.join(folder, ""))


def _is_trusted(function: Callable[..., Any]) -> bool:
    return function.__code__.co_filename.startswith(tuple(_trusted))


def keep_findings_in(store: FindingStore) -> None:
    """Ask `store` before a source is read."""
    _stores[:] = [store]


def cached_findings(function: Callable[..., Any]) -> Found:
    """`subset_findings`, computed once per function; none where there is no source to read, and
    where it is trusted."""
    if _is_trusted(function):
        return ()

    def find() -> Found:
        has_source = bool(_parsed(function.__code__.co_filename).body)
        return tuple(_findings(function, _checked_once)) if has_source else ()

    def make() -> Found:
        return _stores[0](function, find) if _stores else find()

    return _FINDINGS.get_or_make(weakref.ref(function), make)


def check_subset(kernel: Any) -> None:
    """Raise the first KernelSubsetError of `subset_findings`, if there is one."""
    for finding in subset_findings(kernel):
        raise finding


def _parsed(file: str) -> ast.Module:
    # Cells of notebooks have no file; linecache knows their source.
    linecache.checkcache(file)
    was_known = file in linecache.cache
    source = "".join(linecache.getlines(file))
    if not was_known:
        linecache.cache.pop(file, None)  # it never forgets, and generated kernels are many
    return _tree(source, file)


@functools.lru_cache(maxsize=16)
def _tree(source: str, file: str) -> ast.Module:
    try:
        return parse(source, file)
    except SyntaxError:
        return ast.Module([], [])  # no Python file: nothing is found in it


def defined_at(function: Any) -> Location | None:
    """The line of a function's `def`."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    try:
        line = _definition(function).lineno
    except KernelSubsetError:
        line = code.co_firstlineno
    return Location(code.co_filename, line, code.co_name)


def _definition(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    found = _definitions(_parsed(code.co_filename)).get((code.co_name, code.co_firstlineno))
    if found is not None:
        return found
    raise KernelSubsetError(
        "kernel-subset",
        f"the source of {function.__qualname__} cannot be found",
        Location(code.co_filename, code.co_firstlineno, code.co_name),
    )


@functools.lru_cache(maxsize=16)
def _definitions(tree: ast.Module) -> dict[tuple[str, int], ast.FunctionDef]:
    """Functions by their names and first lines, which are those of decorators where there are."""
    return {
        (node.name, min([node.lineno, *(item.lineno for item in node.decorator_list)])): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


class _Checker:
    """Checks one function; what it calls through globals goes to `reach`."""

    def __init__(self, function: FunctionType, reach: Callable[[FunctionType], None]) -> None:
        self._function = function
        self._reach = reach
        self._node = _definition(function)
        self._local = set(function.__code__.co_varnames) | set(function.__code__.co_cellvars)
        # Behind the function's `return`: names there mean nothing (nki-library has such a kernel).
        self._is_unreachable = False

    def run(self) -> Iterator[KernelSubsetError]:
        """Findings in the order of the source."""
        for rule in PARAMETERS:
            if rule.applies(self._node.args):
                yield self._broken(self._node, rule)
        bodies = self._loop_bodies()
        for statement in self._node.body:
            yield from self._visit(statement, bodies)
            self._is_unreachable |= isinstance(statement, ast.Return)

    def _finding(
        self, node: ast.AST, message: str, check: str = "kernel-subset"
    ) -> KernelSubsetError:
        code = self._function.__code__
        line = getattr(node, "lineno", code.co_firstlineno)
        where = Location(code.co_filename, line, code.co_name)
        return KernelSubsetError(check, f"{code.co_name} {message}", where)

    def _broken(self, node: ast.AST, rule: Rule) -> KernelSubsetError:
        if rule.is_disputed:
            message = f"has {rule.what}, which the device's front end may reject"
            return self._finding(node, f"{message} ({'; '.join(rule.sources)})", DISPUTED)
        message = f"has {rule.what}, which the device's front end does not take"
        return self._finding(node, f"{message} ({'; '.join(rule.sources)})")

    def _loop_bodies(self) -> set[str]:
        """Names of inner functions that are passed to fori_loop or while_loop."""
        names: set[str] = set()
        for node in ast.walk(self._node):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in _LOOPS:
                assert isinstance(node, ast.Call)
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                names.update(value.id for value in values if isinstance(value, ast.Name))
        return names

    def _visit(self, node: ast.AST, bodies: set[str]) -> Iterator[KernelSubsetError]:
        broken = [rule for rule in RULES.get(type(node), ()) if rule.applies(node)]
        for rule in broken:
            yield self._broken(node, rule)
        if any(not rule.is_disputed for rule in broken):
            return
        if isinstance(node, ast.FunctionDef) and node.name not in bodies:
            yield self._finding(node, f"defines {node.name} inside; move it to the module")
            return
        if not self._is_unreachable:
            yield from self._visit_names(node)
        for child in _children(node):
            if isinstance(node, ast.FunctionDef):
                self._local.update(item.arg for item in node.args.args)
            yield from self._visit(child, bodies)

    def _visit_names(self, node: ast.AST) -> Iterator[KernelSubsetError]:
        """What the node reads or changes by a name."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield from self._visit_name(node)
        if isinstance(node, ast.Attribute):
            yield from self._visit_member(node)
        name = _changed_name(node)
        if name and self._is_kept(name):
            yield self._finding(
                node,
                f"changes {name!r}, which is kept from call to call; a kernel depends on its "
                "arguments alone, and the device runs what was compiled for the first call "
                "(SDK/nki/get-started/nki-language-guide.rst, Kernel Caching)",
                "kernel-purity",
            )

    def _is_kept(self, name: str) -> bool:
        """True for a global, and for a parameter whose default is a list or a dict."""
        given = self._node.args
        named = [item.arg for item in given.posonlyargs + given.args][::-1]
        defaults = zip(named, given.defaults[::-1], strict=False)
        pairs = zip((item.arg for item in given.kwonlyargs), given.kw_defaults, strict=True)
        if any(
            name == one and isinstance(d, ast.List | ast.Dict) for one, d in (*defaults, *pairs)
        ):
            return True
        return name not in self._local and name in self._function.__globals__

    def _visit_name(self, node: ast.Name) -> Iterator[KernelSubsetError]:
        name = node.id
        scope = self._function.__globals__
        if name in self._local or (name not in scope and hasattr(builtins, name)):
            return
        if name not in scope:
            # A local of a loop's body.
            return
        yield from self._judge(node, name, scope[name])

    def _visit_member(self, node: ast.Attribute) -> Iterator[KernelSubsetError]:
        """`module.name`, where the module holds kernels' helpers."""
        if not isinstance(node.value, ast.Name) or node.value.id in self._local:
            return
        module = self._function.__globals__.get(node.value.id)
        if isinstance(module, ModuleType) and _holds_helpers(module) and hasattr(module, node.attr):
            yield from self._judge(node, node.attr, getattr(module, node.attr))

    def _judge(self, node: ast.AST, name: str, value: Any) -> Iterator[KernelSubsetError]:
        if isinstance(value, Kernel):
            value = value.function
        if isinstance(value, FunctionType) and not is_nki(value.__module__ or ""):
            if not value.__module__.startswith("trnx.simulator"):
                self._reach(value)
        elif not _is_allowed(value):
            yield self._finding(
                node,
                f"refers to {name!r}, a {type(value).__name__}; only nki modules, modules of "
                "helpers, functions, and constants (int, float, bool, str, None, NKIObject, and "
                "tuples, lists and dicts of them) can be reached",
            )


def _changed_name(node: ast.AST) -> str:
    """The name of which a node changes a part, or ""."""
    owner: ast.AST | None = None
    if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
        owner = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value if node.func.attr in _CHANGES else None
    while isinstance(owner, ast.Subscript | ast.Attribute):
        owner = owner.value
    return owner.id if isinstance(owner, ast.Name) else ""


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Children of a node but annotations and decorators, which the device does not execute."""
    skipped = {"annotation", "returns", "decorator_list"}
    for name, value in ast.iter_fields(node):
        if name in skipped:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield item


def _is_allowed(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return is_nki(value.__name__) or value.__name__ in _MODULES or _holds_helpers(value)
    if isinstance(value, type):
        is_named_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
        return is_named_tuple or issubclass(value, NKIObject | Enum) or value in _CONSTANTS
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return all(_is_allowed(item) for item in value)
    if isinstance(value, dict):
        return all(_is_allowed(item) for pair in value.items() for item in pair)
    # Members of nki modules that were imported by name: `from nki.language import add`.
    from_nki = type(value).__module__.startswith("trnx.simulator")
    return isinstance(value, (*_CONSTANTS, Enum, NKIObject)) or from_nki


def _holds_helpers(module: ModuleType) -> bool:
    """A module of Python source that may hold them: what a kernel takes from it is judged."""
    file = getattr(module, "__file__", None)
    return file is not None and file.endswith(".py") and not never_twin(module.__name__)
