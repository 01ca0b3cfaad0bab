"""The files that a kernel of a plan is made of, by the names that they have in a folder.

A folder holds copies, to read and to compare: what runs are the files of the installation, and a
folder whose copies differ from them is refused. A generated kernel is generated anew by whoever
loads the folder, from the region's ops.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trnx.backend.kernel_call import concrete_bindings
from trnx.backend.prediction import PREDICTIONS
from trnx.fx_passes.region import KernelMatch
from trnx.nki_kernels import registry
from trnx.nki_kernels.generator.kernel import FusedKernel
from trnx.simulator.hardware import Hardware

_PACKAGE = Path(registry.__file__).resolve().parent
_MODULES = "trnx.nki_kernels.kernels"


def digest_of(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def kernel_sources(match: KernelMatch, hw: Hardware) -> Mapping[str, Path]:
    """Name in a folder -> file: the kernel's own, the one that chooses how it is launched, and the
    helpers that they import. Raises what planning the launch raises."""
    kernel = match.kernel
    launch = PREDICTIONS.launch(kernel, concrete_bindings(match, {})[0], hw)
    files = {_file_of(launch.kernel)}
    if isinstance(kernel, FusedKernel):
        return {f"generated/{file.name}": file for file in files}
    spec = registry.kernels().file_of(kernel.name)
    files |= {spec} if spec is not None else set()
    found: dict[str, Path] = {}
    while files:
        file = files.pop()
        if _name(file) not in found:
            found[_name(file)] = file
            files |= _imported(file)
    return found


def _file_of(function: Any) -> Path:
    plain: Any = inspect.unwrap(getattr(function, "function", function))
    return Path(plain.__code__.co_filename).resolve()


def _name(file: Path) -> str:
    if file.is_relative_to(_PACKAGE):
        return file.relative_to(_PACKAGE).as_posix()
    return f"user/{file.name}"


def _imported(file: Path) -> set[Path]:
    """The files of kernels and their helpers that `file` imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(_MODULES):
            continue
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
            path = _PACKAGE.joinpath(*str(name).split(".")[2:]).with_suffix(".py")
            if path.is_file():
                found.add(path)
    return found
