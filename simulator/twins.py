"""Twins: kernel files executed privately, with `nki*` resolved to the simulator.

`sys.modules` is neither read for `nki*` nor written. A module that a kernel file imports becomes a
twin as well where its own source imports `nki` (directly, or through another such module);
everything else is imported as usual. Tracebacks, breakpoints and `inspect` work: a twin has its
real file name.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trnx.simulator.errors import TrnxError
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.kernel import Kernel
from trnx.simulator.source import parse

# A global of every twin.
IN_TWIN = "__trnx_twin__"
_NKI_ROOTS = ("nki", "neuronxcc.nki")
# Packages that are never twins: the simulator itself, and what is too large to look through.
_NEVER = (
    "trnx.simulator",
    "torch",
    "numpy",
    "ml_dtypes",
    "transformers",
    "jax",
    "pytest",
    "hypothesis",
)


class KernelSourceError(TrnxError):
    """The source of a kernel cannot be found or executed."""


def load_module(path: str | Path) -> ModuleType:
    """Execute the kernel file `path` as a new twin. Raises KernelSourceError."""
    file = Path(path).resolve()
    if not file.is_file():
        raise KernelSourceError(f"there is no kernel file {file}")
    return _Loader().execute(file, _dotted_name(file))


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
    file = inspect.getsourcefile(function)
    if file is None:
        raise KernelSourceError(f"the source file of {function.__qualname__} cannot be found")
    module = _cached_twin(str(Path(file).resolve()), Path(file).stat().st_mtime_ns)
    try:
        found: Any = module
        for part in function.__qualname__.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise KernelSourceError(
            f"{function.__qualname__} is not at the top level of {file}; move the kernel there"
        ) from None
    return found


def _uses_nki(scope: Mapping[str, Any]) -> bool:
    """True where a function's globals hold parts of an installed nki package."""
    from trnx.simulator.modules import MARK

    return any(
        is_nki(value.__name__) and not hasattr(value, MARK)
        if isinstance(value, ModuleType)
        else is_nki(str(getattr(value, "__module__", "")))
        for value in scope.values()
    )


@functools.lru_cache(maxsize=64)
def _cached_twin(file: str, _modified: int) -> ModuleType:
    return load_module(file)


def is_nki(name: str) -> bool:
    """True for `nki`, `neuronxcc.nki` and their submodules."""
    return any(name == root or name.startswith(root + ".") for root in _NKI_ROOTS)


def _dotted_name(file: Path) -> str:
    """The module name of `file` for Python, found from its package's `__init__` files."""
    from trnx import simulator

    # An editable install maps trnx.X to the folder X: the mapping is read off this package.
    root = Path(simulator.__file__).resolve().parent.parent
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == root and len(parts) > 1:
        parts.insert(0, "trnx")
    return ".".join(parts)


class _Loader:
    """The twins of one `load_module`: each helper module is executed once."""

    def __init__(self) -> None:
        self._twins: dict[str, ModuleType] = {}
        self._lock = fork_lock(self, threading.RLock)

    def execute(self, file: Path, name: str) -> ModuleType:
        module = ModuleType(name)
        module.__file__ = str(file)
        is_package = file.name == "__init__.py"
        module.__package__ = name if is_package else name.rpartition(".")[0]
        if is_package:
            module.__path__ = [str(file.parent)]
        scope = vars(module)
        scope[IN_TWIN] = True
        scope["__builtins__"] = {**vars(builtins), "__import__": self._import}
        self._twins[name] = module
        try:
            code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise KernelSourceError(f"{file} is no valid Python: {error}") from error
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
        top = absolute.partition(".")[0]
        return twin if top == absolute else self._twins.get(top) or __import__(top)

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
        if not twins:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        rest = [member for member in fromlist or () if member not in twins]
        package = importlib.import_module(absolute)
        view = ModuleType(absolute)
        vars(view).update({member: getattr(package, member) for member in rest if member != "*"})
        vars(view).update(twins)
        return view

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
        file = _kernel_source(name)
        return None if file is None else self.execute(file, name)


def never_twin(name: str) -> bool:
    """True for modules of Python's library and of packages that hold no kernels."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or any(
        name == root or name.startswith(root + ".") for root in _NEVER
    )


@functools.lru_cache(maxsize=4096)
def _source_of(name: str) -> Path | None:
    """The source file of a module that is not stdlib; does not execute it."""
    if never_twin(name):
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file if file.suffix == ".py" and "site-packages" not in file.parts else None


def _kernel_source(name: str) -> Path | None:
    """The source file of `name` if it imports nki itself or through other modules, else None."""
    return _source_of(name) if _reaches_nki(name, frozenset()) else None


def _reaches_nki(name: str, seen: frozenset[str]) -> bool:
    if is_nki(name):
        return True
    file = _source_of(name)
    if file is None or name in seen:
        return False
    imports = _top_level_imports(str(file), name, file.stat().st_mtime_ns)
    return any(_reaches_nki(imported, seen | {name}) for imported in imports)


@functools.lru_cache(maxsize=4096)
def _top_level_imports(file: str, name: str, _modified: int) -> frozenset[str]:
    try:
        tree = parse(Path(file).read_bytes())
    except (SyntaxError, OSError):
        return frozenset()
    package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package or name)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(found)


def _nki_import(name: str, fromlist: Sequence[str] | None) -> ModuleType:
    """`import nki...` in a twin."""
    from trnx.simulator.modules import nki_modules

    modules = nki_modules()
    if name not in modules:
        raise ModuleNotFoundError(f"No module named {name!r} in the simulator", name=name)
    return modules[name] if fromlist else modules[name.partition(".")[0]]
