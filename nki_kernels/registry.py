"""The registry of kernels: discovery walks this package, a module registers itself.

Kernel files say `import nki`, which is not on a machine without Neuron, so they are not imported in
the usual way: they are loaded as twins (`trnx.simulator.load_module`), in which `nki` is the
simulator. A user's own kernel file is added with `load_kernels(path)` and registers itself the same
way.
"""

from __future__ import annotations

import functools
import pkgutil
import threading
from collections.abc import Iterator
from pathlib import Path

from trnx.nki_kernels.errors import DuplicateKernelError
from trnx.nki_kernels.spec import KernelSpec

# The modules of this package that define no kernel.
_NOT_KERNELS = frozenset({"spec", "registry", "errors", "canonical_ops", "generator"})


class Registry:
    """Kernels by name, in the order of their names, so that every run selects alike."""

    def __init__(self) -> None:
        self._specs: dict[str, KernelSpec] = {}

    def register(self, spec: KernelSpec) -> None:
        """Add `spec`. Raises DuplicateKernelError where its name is taken."""
        if spec.name in self._specs:
            raise DuplicateKernelError(
                f"a kernel named {spec.name!r} is registered already; choose another name"
            )
        self._specs[spec.name] = spec

    def __getitem__(self, name: str) -> KernelSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[KernelSpec]:
        return iter([self._specs[name] for name in sorted(self._specs)])

    def __len__(self) -> int:
        return len(self._specs)


_registry = Registry()
_loaded: set[Path] = set()
# One a file, as Python's import system has one a module: a thread waits for a file that another
# one is loading.
_locks: dict[Path, threading.RLock] = {}


def register(spec: KernelSpec) -> None:
    """Register a kernel: the last statement of a kernel module."""
    _registry.register(spec)


def load_kernels(path: str | Path) -> None:
    """Load a kernel file as a twin, which registers its kernels; a second call does nothing."""
    from trnx import simulator

    file = Path(path).resolve()
    if file in _loaded:
        return
    with _locks.setdefault(file, threading.RLock()):
        if file not in _loaded:
            simulator.load_module(file)
            _loaded.add(file)


def kernels() -> Registry:
    """All kernels: those of this package, found on the first call, and those that users loaded."""
    for file in _own_files():
        load_kernels(file)
    return _registry


@functools.cache
def _own_files() -> tuple[Path, ...]:
    import trnx.nki_kernels as package

    return tuple(
        Path(root) / f"{module.name}.py"
        for root in package.__path__
        for module in pkgutil.iter_modules([root])
        if module.name not in _NOT_KERNELS and not module.name.startswith("_")
    )
