"""The registry of kernels: discovery walks this package, a module registers itself.

Kernel files say `import nki`, which is not on a machine without Neuron, so they are not imported in
the usual way: they are loaded as twins (`trnx.simulator.load_module`), in which `nki` is the
simulator. A user's own kernel file is added with `load_kernels(path)` and registers itself the same
way. Users' kernels come first, so that they stand for those of this package which match as much.
"""

from __future__ import annotations

import functools
import hashlib
import pkgutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from trnx.nki_kernels.errors import DuplicateKernelError
from trnx.nki_kernels.spec import KernelSpec
from trnx.nki_kernels.spec_checks import check_spec

# The modules of this package that define no kernel.
_NOT_KERNELS = frozenset(
    {"spec", "registry", "errors", "canonical_ops", "generator", "spec_checks"}
)


class Registry:
    """Kernels by name: users' first, each in the order of their names, so that every run selects
    alike."""

    def __init__(self) -> None:
        self._specs: dict[str, KernelSpec] = {}
        self._files: dict[str, Path | None] = {}

    def register(self, spec: KernelSpec, file: Path | None = None) -> None:
        """Add `spec`, which `file` defines. Raises DuplicateKernelError where its name is taken,
        KernelSpecError where its parts do not fit together."""
        if spec.name in self._specs:
            raise DuplicateKernelError(
                f"a kernel named {spec.name!r} is registered already"
                f"{_defined_in(self._files[spec.name])}; choose another name"
            )
        check_spec(spec)
        self._specs[spec.name] = replace(spec, builtin=file is not None and _is_ours(file))
        self._files[spec.name] = file

    @contextmanager
    def replacing(self, file: Path) -> Iterator[None]:
        """Kernels of `file` leave, for those that the block registers; they return if it fails."""
        before = dict(self._specs), dict(self._files)
        for name in [name for name, where in self._files.items() if where == file]:
            del self._specs[name], self._files[name]
        try:
            yield
        except BaseException:
            self._specs, self._files = before
            raise

    def __getitem__(self, name: str) -> KernelSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[KernelSpec]:
        specs = sorted(self._specs.values(), key=lambda spec: (spec.builtin, spec.name))
        return iter(specs)

    def __len__(self) -> int:
        return len(self._specs)


_registry = Registry()
_loaded: dict[Path, bytes] = {}  # file -> digest of what was loaded
_lock = threading.RLock()
_loading: ContextVar[Path | None] = ContextVar("trnx_loading_kernels", default=None)


def _is_ours(file: Path) -> bool:
    return file.parent == Path(__file__).resolve().parent


def _defined_in(file: Path | None) -> str:
    return "" if file is None else f" by {file}"


def register(spec: KernelSpec) -> None:
    """Register a kernel: the last statement of a kernel module. Raises DuplicateKernelError or
    KernelSpecError."""
    with _lock:
        _registry.register(spec, _loading.get())


def load_kernels(path: str | Path) -> None:
    """Load a kernel file as a twin, which registers its kernels.

    A second call does nothing where the file is the same; after an edit it replaces the file's
    kernels, or leaves them as they are where the new file fails. Functions that are compiled
    already keep theirs until `torch.compiler.reset()`.
    """
    from trnx import simulator

    file = Path(path).resolve()
    with _lock:
        digest = hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b""
        if _loaded.get(file) == digest:
            return
        token = _loading.set(file)
        try:
            with _registry.replacing(file):
                simulator.load_module(file)
        finally:
            _loading.reset(token)
        _loaded[file] = digest


def kernels() -> Registry:
    """All kernels: those of this package, found on the first call, and those that users loaded."""
    _load_package()
    return _registry


@functools.cache
def _load_package() -> None:
    import trnx.nki_kernels as package

    for root in package.__path__:
        for module in pkgutil.iter_modules([root]):
            if module.name not in _NOT_KERNELS and not module.name.startswith("_"):
                load_kernels(Path(root) / f"{module.name}.py")
