"""Kernels of others' checkouts, loaded at run time: nki-library from a patched scratch copy, the
tutorials of the Neuron SDK as they are. Nothing of theirs is kept.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trnx.simulator import Program, install, install_cpu_simulator, load_module, trace

_LIBRARY = "src/nkilib_src"
_TUTORIALS = "nki/examples"
_CONFORMANCE = Path(__file__).resolve().parents[1] / "conformance/nki_library"


class MissingCheckoutError(Exception):
    """No checkout has the file of a kernel."""


class Checkouts:
    """What `--checkout` names. `folder` is for the scratch copy of nki-library."""

    def __init__(self, paths: Iterable[Path], folder: Path) -> None:
        self._tutorials: Path | None = None
        self._has_library = False
        for path in paths:
            if (path / _LIBRARY).is_dir():
                self._add_library(path, folder)
            elif (path / _TUTORIALS).is_dir():
                self._tutorials = path / _TUTORIALS
            else:
                raise MissingCheckoutError(
                    f"{path} has neither {_LIBRARY} (nki-library) nor {_TUTORIALS} (the Neuron SDK)"
                )

    def _add_library(self, path: Path, folder: Path) -> None:
        install()
        install_cpu_simulator()
        _of_conformance("stand_ins").install_stand_ins()
        copy, _ = _of_conformance("scratch_copy").make_copy(path, folder)
        sys.path.insert(0, str(copy / "src"))
        logging.getLogger("nkilib").setLevel(logging.WARNING)
        self._has_library = True

    def has(self, place: str) -> bool:
        """Whether a checkout was given that `place` may be in."""
        return self._tutorials is not None if place.endswith(".py") else self._has_library

    def module(self, place: str) -> ModuleType:
        """A tutorial's file, or a module of nki-library below `nkilib`."""
        if not self.has(place):
            raise MissingCheckoutError(f"no --checkout has {place}")
        if place.endswith(".py"):
            assert self._tutorials is not None
            return load_module(self._tutorials / place)
        return importlib.import_module(f"nkilib_src.nkilib.{place}")

    def named(self, place: str) -> Any:
        """`module:name`."""
        module, _, name = place.partition(":")
        return getattr(self.module(module), name)


def traced(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], target: str, lnc: int
) -> Program:
    """The Program of a kernel for arguments by name, on one core or as two programs."""
    bound = inspect.signature(kernel).bind(**arguments)
    bound.apply_defaults()
    return trace(kernel, bound.args, target=target, grid=None if lnc == 1 else lnc)


def _of_conformance(name: str) -> ModuleType:
    """A module of `scripts/conformance/nki_library`, under a name of its own."""
    full = f"_versus_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, _CONFORMANCE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]
