"""The registry of kernels: discovery walks the package `kernels`, a module registers itself.

Kernel files say `import nki`, which is not on a machine without Neuron, so they are not imported in
the usual way: they are loaded as twins (`trnx.simulator.load_module`), in which `nki` is the
simulator. A user's own kernel file is added with `load_kernels(path)` and registers itself the same
way. Users' kernels come first: of two kernels that match as many nodes, the user's is taken.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnx.nki_kernels.errors import DuplicateKernelError
from trnx.nki_kernels.spec import KernelSpec
from trnx.nki_kernels.spec_checks import checked_spec

if TYPE_CHECKING:
    from trnx.simulator.frontend.twins import Loader

# The hand-written kernels, one family a file; a helper's name starts with an underscore.
_KERNELS = Path(__file__).resolve().parent / "kernels"


class Registry:
    """Kernels by name; thread-safe. Iteration gives users' kernels first, then those of trnx, each
    sorted by name, so that every run selects the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Name -> kernel, and the file that defines it; replaced as a whole.
        self._specs: dict[str, tuple[KernelSpec, Path | None]] = {}

    def register(self, spec: KernelSpec) -> None:
        """Add `spec`. Raises DuplicateKernelError where its name is taken."""
        with self._lock:
            self._specs = self._with(self._specs, [spec], None)

    def replace(self, file: Path, specs: Sequence[KernelSpec]) -> None:
        """`specs` in place of the kernels that `file` defined before. Raises DuplicateKernelError,
        and leaves everything as it was."""
        with self._lock:
            others = {n: entry for n, entry in self._specs.items() if entry[1] != file}
            self._specs = self._with(others, specs, file)

    def _with(
        self,
        held: dict[str, tuple[KernelSpec, Path | None]],
        specs: Sequence[KernelSpec],
        file: Path | None,
    ) -> dict[str, tuple[KernelSpec, Path | None]]:
        found = dict(held)
        for spec in specs:
            if spec.name in found:
                where = found[spec.name][1]
                raise DuplicateKernelError(
                    f"a kernel named {spec.name!r} is registered already"
                    f"{f' by {where}' if where else ''}; choose another name"
                )
            is_ours = file is not None and file.is_relative_to(_KERNELS)
            found[spec.name] = (replace(spec, builtin=is_ours), file)
        return found

    def __getitem__(self, name: str) -> KernelSpec:
        return self._specs[name][0]

    def of_file(self, file: Path) -> tuple[KernelSpec, ...]:
        """The kernels that a file has registered, sorted by name."""
        found = [spec for spec, where in self._specs.values() if where == file.resolve()]
        return tuple(sorted(found, key=lambda spec: spec.name))

    def file_of(self, name: str) -> Path | None:
        """The file that registered the kernel `name`, None where no file did."""
        return self._specs[name][1] if name in self._specs else None

    def __iter__(self) -> Iterator[KernelSpec]:
        specs = [spec for spec, _ in self._specs.values()]
        return iter(sorted(specs, key=lambda spec: (spec.builtin, spec.name)))

    def __len__(self) -> int:
        return len(self._specs)


@dataclass(frozen=True)
class _Loading:
    """What the file that is being loaded has registered. Sources of `is_own`, those of the package,
    are read by its tests."""

    is_own: bool
    specs: list[KernelSpec] = field(default_factory=list)


_registry = Registry()
_loaded: dict[Path, bytes] = {}  # file -> digest of what was loaded
# One lock per file, as Python's import system has one per module: a thread waits while another one
# loads the file.
_locks: dict[Path, threading.RLock] = {}
_loading: ContextVar[_Loading | None] = ContextVar("trnx_loading_kernels", default=None)


def register(spec: KernelSpec) -> None:
    """Register a kernel: the last statement of a kernel module. Raises KernelSpecError where its
    parts do not fit together, DuplicateKernelError where its name is taken."""
    found = _loading.get()
    if found is None:
        _registry.register(checked_spec(spec))
    else:
        found.specs.append(checked_spec(spec, reads_source=not found.is_own))


def load_kernels(path: str | Path) -> None:
    """Load a kernel file as a twin, which registers its kernels.

    A second call does nothing if the file has not changed, nor one beside it that it imports. After
    an edit it replaces the file's kernels; if the new file fails, the old kernels stay. Functions
    that are already compiled keep their kernels until `torch.compiler.reset()`.
    """
    _load(Path(path).resolve(), None)


def _load(file: Path, loader: Loader | None) -> None:
    """`load_kernels`, as a twin of `loader`."""
    from trnx.simulator.frontend.twins import load_module

    with _locks.setdefault(file, threading.RLock()):
        digest = _digest(file)
        if _loaded.get(file) == digest:
            return
        loading = _Loading(is_own=loader is not None)
        token = _loading.set(loading)
        try:
            load_module(file, loader)
        finally:
            _loading.reset(token)
        _registry.replace(file, loading.specs)
        _loaded[file] = digest


def is_edited(file: Path) -> bool:
    """Whether a kernel file is not what was loaded of it."""
    digest = _loaded.get(file)
    return digest is not None and _digest(file) != digest


_IMPORT = re.compile(rb"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)


def _digest(file: Path) -> bytes:
    """Of a kernel file, and of the files beside it that it imports."""
    texts: dict[Path, bytes] = {}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one not in texts and one.is_file():
            texts[one] = one.read_bytes()
            names = sorted(set(_IMPORT.findall(texts[one])))
            waiting += [one.with_name(f"{name.decode()}.py") for name in names]
    return hashlib.sha256(b"\0".join(texts.values())).digest()


def kernels() -> Registry:
    """All kernels: those of this package, found on the first call, and those that users loaded."""
    _load_package()
    return _registry


@functools.cache
def _load_package() -> None:
    from trnx.simulator.frontend.subset import trust_sources
    from trnx.simulator.frontend.twins import Loader

    # tests/nki_kernels/test_registry.py reads them.
    trust_sources(_KERNELS)
    loader = Loader()  # helpers are executed once, and not for each kernel
    for file in sorted(_KERNELS.rglob("*.py")):
        if not file.name.startswith("_"):
            _load(file, loader)
