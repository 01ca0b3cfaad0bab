"""Which modules are kernel sources: those that import `nki` when they are executed, directly or
through other modules, wherever they are installed: in a checkout, a site-packages folder, a zip.

Nothing is executed to find out: modules are located without importing the packages around them, and
their import statements are read. A file that says "nki" is parsed. Of all others only the chain
matters, from a helper to a file that does, and packages of thousands of files can be on it: their
import statements are found by a regular expression, in a tenth of the time. So are those of trnx's
own kernels, for which a test says that both find the same.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

from trnx.simulator.source import parse

_NKI_ROOTS = ("nki", "neuronxcc.nki")
# Packages that are never twins: the simulator itself, and large ones that hold no kernels, which
# need not be looked through.
_NEVER = (
    "trnx.simulator",
    "torch",
    "numpy",
    "ml_dtypes",
    "transformers",
    "jax",
    "pytest",
    "hypothesis",
    "scipy",
)
# An import statement that may run with the module, the start of a block that does not, or any
# other line that is not indented, which ends such a block.
_STATEMENT = re.compile(
    rb"""
    (?:^(?P<indent>[ \t]*)|[;:][ \t]*)
    (?:import[ \t]+(?P<modules>(?:[^\n\\;\#]|\\\n)+)
     |from[ \t]*(?P<base>[.\w]+)[ \t]*import[ \t]*
      (?:\((?P<listed>(?:[^)\#]|\#[^\n]*)*)\)|(?P<members>(?:[^\n\\;\#]|\\\n)+)))
    |^(?P<deferred>async\b|def\b|class\b|if[ \t]+(?:\w+\.)?TYPE_CHECKING\b)
    |^\w
    """,
    re.MULTILINE | re.VERBOSE,
)
_IMPORTED = re.compile(r"(?:^|,)\s*([\w.]+)")


@dataclass(frozen=True)
class Source:
    """The source of a module: a file, or a member of an archive as its loader names it."""

    name: str
    origin: str
    loader: Any
    is_package: bool

    @property
    def package(self) -> str:
        """What relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    def spec(self) -> ModuleSpec:
        """What a module of this source is made from."""
        folders = [os.path.dirname(self.origin)] if self.is_package else None
        found = importlib.util.spec_from_file_location(
            self.name, self.origin, loader=self.loader, submodule_search_locations=folders
        )
        assert found is not None
        return found

    def read(self) -> bytes:
        """Raises OSError."""
        text: bytes = self.loader.get_data(self.origin)
        return text

    def modified(self) -> int:
        """When the file was changed, in nanoseconds; 0 for a member of an archive."""
        try:
            return os.stat(self.origin).st_mtime_ns
        except OSError:
            return 0


def is_nki(name: str) -> bool:
    """True for `nki`, `neuronxcc.nki` and their submodules."""
    return any(name == root or name.startswith(root + ".") for root in _NKI_ROOTS)


def is_own(name: str) -> bool:
    """True for trnx's own kernels, and what is beside them."""
    return name.startswith("trnx.nki_kernels.")


def never_twin(name: str) -> bool:
    """True for modules of Python's library and of packages that hold no kernels."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or any(
        name == root or name.startswith(root + ".") for root in _NEVER
    )


class Sources:
    """Where modules lie and what they import, each looked up once."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}
        self._reaching: dict[str, bool] = {}

    def kernel_source(self, name: str) -> Source | None:
        """The source of the module `name` where it must be executed as a twin, else None.

        That is a kernel source; and any module of a package that is one and that nobody has
        imported: to import the module as usual would import the package as usual.
        """
        if never_twin(name) or not (self._reaches_nki(name) or self._is_behind_nki(name)):
            return None
        return self.source(name)

    def source(self, name: str) -> Source | None:
        """The Python source of `name`, if it has one."""
        spec = self._spec(name)
        if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
            return None
        origin, loader = str(spec.origin), spec.loader
        if not hasattr(loader, "get_data"):
            loader = SourceFileLoader(name, origin)
        return Source(name, origin, loader, spec.submodule_search_locations is not None)

    def _spec(self, name: str) -> ModuleSpec | None:
        if name not in self._specs:
            loaded = sys.modules.get(name)
            found = self._search(name) if loaded is None else getattr(loaded, "__spec__", None)
            self._specs[name] = found
        return self._specs[name]

    def _search(self, name: str) -> ModuleSpec | None:
        """`importlib.util.find_spec`, which would import the packages around `name`."""
        parent = name.rpartition(".")[0]
        path = self._locations(parent) if parent else None
        if parent and path is None:
            return None
        for finder in list(sys.meta_path):
            try:
                found = finder.find_spec(name, path)
            except (ImportError, AttributeError, KeyError, ValueError):
                continue
            if found is not None:
                return found
        return None

    def _locations(self, package: str) -> list[str] | None:
        """The folders of a package's modules."""
        loaded = sys.modules.get(package)
        if loaded is not None:
            return list(getattr(loaded, "__path__", ())) or None
        spec = self._spec(package)
        if spec is not None and spec.has_location:
            found = spec.submodule_search_locations
            return None if found is None else list(found)
        # A package without __init__.py lists its folders only once its parent is imported.
        parent, _, child = package.rpartition(".")
        around = (self._locations(parent) or []) if parent else sys.path
        folders = [os.path.join(folder, child) for folder in around]
        return [folder for folder in folders if os.path.isdir(folder)] or None

    def _is_behind_nki(self, name: str) -> bool:
        parts = name.split(".")
        packages = [".".join(parts[:count]) for count in range(1, len(parts))]
        return any(p not in sys.modules and self._reaches_nki(p) for p in packages)

    def _reaches_nki(self, name: str) -> bool:
        seen, pending = {name}, [name]
        while pending:
            current = pending.pop()
            if is_nki(current) or self._reaching.get(current):
                self._reaching[name] = True
                return True
            if current not in self._reaching:
                new = self._imports(current) - seen
                seen |= new
                pending.extend(new)
        self._reaching.update(dict.fromkeys(seen, False))
        return False

    def _imports(self, name: str) -> frozenset[str]:
        source = None if never_twin(name) else self.source(name)
        return frozenset() if source is None else _imports_of(source, source.modified())


@functools.lru_cache(maxsize=8192)
def _imports_of(source: Source, _modified: int) -> frozenset[str]:
    """Names of what a module imports when it is executed: modules, and members that may be."""
    try:
        text = source.read()
        is_parsed = b"nki" in text and not is_own(source.name)
        listed = _parsed_imports(text) if is_parsed else _scanned_imports(text)
        return frozenset(
            name for base, members in listed for name in _absolute(base, members, source.package)
        )
    except (SyntaxError, OSError, ImportError):
        return frozenset()


def _absolute(base: str, members: Sequence[str], package: str) -> Iterator[str]:
    if base.startswith("."):
        base = importlib.util.resolve_name(base, package)
    yield base
    for member in members:
        yield f"{base}.{member}"


def _parsed_imports(text: bytes) -> Iterator[tuple[str, list[str]]]:
    for node in _executed(parse(text).body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]


def _executed(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Statements that may run with the module: not those of functions, nor for type checkers."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            yield from _executed(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            for part in ("body", "handlers", "orelse", "finalbody"):
                yield from _executed(getattr(node, part, ()))


def _name(node: ast.expr) -> str:
    """`name` and `module.name` -> name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _scanned_imports(text: bytes) -> Iterator[tuple[str, list[str]]]:
    deferred = False
    for found in _STATEMENT.finditer(text):
        is_import = found["modules"] or found["base"]
        if found["indent"] == b"" or not is_import:
            deferred = found["deferred"] is not None
        if deferred:
            continue
        if found["modules"]:
            for name in _names(found["modules"]):
                yield name, []
        elif found["base"]:
            yield found["base"].decode(), _names(found["listed"] or found["members"])


def _names(text: bytes) -> list[str]:
    """`a as b, c` -> a, c."""
    plain = re.sub(rb"#[^\n]*|\\", b"", text).decode("utf-8", "replace")
    return _IMPORTED.findall(plain)
