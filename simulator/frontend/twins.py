"""Twins: kernel files executed privately, with `nki*` resolved to the simulator.

`sys.modules` is neither read for `nki*` nor written. A module that a kernel file imports becomes a
twin as well where it is a kernel source (`kernel_sources.py`); everything else is imported as
usual. Tracebacks, breakpoints and `inspect` work: a twin has its real file name.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import inspect
import linecache
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from trnx.simulator.errors import TrnxError
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.frontend.kernel import Kernel
from trnx.simulator.frontend.kernel_sources import Source, Sources, is_nki, is_own, never_twin
from trnx.simulator.frontend.nki_modules import MARK, nki_modules
from trnx.simulator.older_dialects import changed_name

# A global of every twin.
IN_TWIN = "__trnx_twin__"
# One a file, as Python's import system has one a module: threads share a kernel's twin.
_locks: dict[str, threading.RLock] = {}


class KernelSourceError(TrnxError):
    """The source of a kernel cannot be found or executed."""


def load_module(path: str | Path, loader: Loader | None = None) -> ModuleType:
    """Execute the kernel file `path` as a new twin; files of one `loader` share their helpers.
    Raises KernelSourceError.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise KernelSourceError(f"there is no kernel file {file}")
    return (loader or Loader()).execute(_file_source(file))


def load(kernel: Any) -> Any:
    """The twin of a kernel function: itself where it is one, else the same name in a twin of its
    file.
    """
    if isinstance(kernel, Kernel):
        return kernel
    function = inspect.unwrap(getattr(kernel, "func", kernel))
    scope = getattr(function, "__globals__", None)
    if scope is None:
        raise KernelSourceError(f"{kernel!r} is not a kernel function")
    if IN_TWIN in scope or not _uses_nki(scope):
        return function
    source = _source_of(function)
    with _locks.setdefault(source.origin, threading.RLock()):
        found: Any = _cached_twin(source, source.modified())
    try:
        for part in function.__qualname__.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise KernelSourceError(
            f"{function.__qualname__} is not at the top level of {source.origin}; move the "
            "kernel there"
        ) from None
    return found


def _uses_nki(scope: Mapping[str, Any]) -> bool:
    """True where a function's globals hold parts of an installed nki package."""
    return any(
        is_nki(value.__name__) and not hasattr(value, MARK)
        if isinstance(value, ModuleType)
        else is_nki(str(getattr(value, "__module__", "")))
        for value in scope.values()
    )


def _source_of(function: FunctionType) -> Source:
    file = inspect.getsourcefile(function)
    if file is not None and Path(file).is_file():
        return _file_source(Path(file).resolve())
    # A module of an archive has a loader that reads it.
    spec = function.__globals__.get("__spec__")
    if file is None or spec is None or not hasattr(spec.loader, "get_data"):
        raise KernelSourceError(f"the source file of {function.__qualname__} cannot be found")
    return Source(spec.name, file, spec.loader, spec.submodule_search_locations is not None)


@functools.lru_cache(maxsize=64)
def _cached_twin(source: Source, _modified: int) -> ModuleType:
    return Loader().execute(source)


def _code_of(source: Source) -> CodeType:
    """What a twin executes. trnx's own kernels are compiled as any module of a package is: once
    for all processes, and found by time and size. A user's may be edited between two calls.
    """
    if is_own(source.name):
        code: CodeType = source.loader.get_code(source.name)
        return code
    return _compiled(source.read(), source.origin)


# Helpers are executed in the twin of each kernel that uses them.
@functools.lru_cache(maxsize=64)
def _compiled(text: bytes, origin: str) -> CodeType:
    return compile(text, origin, "exec", dont_inherit=True)


def _file_source(file: Path) -> Source:
    name = _dotted_name(file)
    return Source(name, str(file), SourceFileLoader(name, str(file)), file.stem == "__init__")


def _dotted_name(file: Path) -> str:
    """The module name of `file` for Python, found from its package's `__init__` files."""
    # An editable install maps trnx.X to the folder X of the checkout; in any other, X is a folder
    # of the package trnx.
    root = Path(__file__).resolve().parents[2]
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == root and len(parts) > 1:
        parts.insert(0, "trnx")
    return ".".join(parts)


class _Package(ModuleType):
    """A package as a twin sees it: its kernel sources are twins, the rest is the imported one's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class Loader:
    """The twins of one `load_module`, or of several: each helper module is executed once."""

    def __init__(self) -> None:
        self._sources = Sources()
        self._twins: dict[str, ModuleType] = {}
        self._packages: dict[str, ModuleType] = {}
        self._lock = fork_lock(self, threading.RLock)

    def execute(self, source: Source) -> ModuleType:
        module = importlib.util.module_from_spec(source.spec())
        scope = vars(module)
        scope[IN_TWIN] = True
        scope["__builtins__"] = {**vars(builtins), "__import__": self._import}
        self._twins[source.name] = module
        try:
            code = _code_of(source)
        except SyntaxError as error:
            raise KernelSourceError(f"{source.origin} is no valid Python: {error}") from error
        if not Path(source.origin).is_file():
            linecache.lazycache(source.origin, scope)  # a member of an archive
        exec(code, scope)
        return module

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        absolute = name
        if level:
            package = str((globals or {}).get("__package__") or "")
            absolute = importlib.util.resolve_name("." * level + name, package)
        if is_nki(absolute) or absolute == "neuronxcc":
            return _nki_import(absolute, fromlist)
        with self._lock:
            twin = self._twin(absolute)
        if twin is None:
            return self._usual(name, globals, locals, fromlist, level, absolute)
        if fromlist:
            self._load_members(absolute, twin, fromlist)
            return twin
        return self._top(absolute, twin)

    def _top(self, name: str, module: ModuleType) -> ModuleType:
        """`import a.b.c` of a twin gives `a`, through which `a.b.c` is found."""
        while parent := name.rpartition(".")[0]:
            child = name.rpartition(".")[2]
            with self._lock:
                package = self._twin(parent) or self._package(parent)
            setattr(package, child, module)
            name, module = parent, package
        return module

    def _package(self, name: str) -> ModuleType:
        return self._packages.setdefault(name, _Package(name))

    def _usual(
        self,
        name: str,
        globals: Mapping[str, Any] | None,
        locals: Mapping[str, Any] | None,
        fromlist: Sequence[str] | None,
        level: int,
        absolute: str,
    ) -> Any:
        """The ordinary import, but for members of a package that are twins: `from package import
        kernel`.
        """
        twins = {}
        for member in fromlist or ():
            found = None if never_twin(absolute) else self._twin(f"{absolute}.{member}")
            if found is not None:
                twins[member] = found
        rest = [member for member in fromlist or () if member not in twins]
        if rest or not twins:
            imported = builtins.__import__(name, globals, locals, rest, level)
            if not twins:
                return self._packages.get(imported.__name__, imported)
        package = self._package(absolute)
        vars(package).update(twins)
        return package

    def _load_members(self, name: str, twin: ModuleType, fromlist: Sequence[str]) -> None:
        for member in fromlist:
            if not hasattr(twin, member) and hasattr(twin, "__path__"):
                self._import(f"{name}.{member}", None, None, (member,), 0)
                found = self._twins.get(f"{name}.{member}") or sys.modules.get(f"{name}.{member}")
                if found is not None:
                    setattr(twin, member, found)

    def _twin(self, name: str) -> ModuleType | None:
        if name in self._twins:
            return self._twins[name]
        source = self._sources.kernel_source(name)
        return None if source is None else self.execute(source)


def _nki_import(name: str, fromlist: Sequence[str] | None) -> ModuleType:
    """`import nki...` in a twin."""
    modules = nki_modules()
    if name not in modules:
        parent, _, last = name.removeprefix("neuronxcc.").rpartition(".")
        change = changed_name(parent, last)
        what = "" if change is None else f"; {change}"
        raise ModuleNotFoundError(f"No module named {name!r} in the simulator{what}", name=name)
    return modules[name] if fromlist else modules[name.partition(".")[0]]
