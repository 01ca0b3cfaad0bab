"""The kernels that a file registers."""

from __future__ import annotations

from pathlib import Path

from trnx.nki_kernels.errors import KernelCheckError
from trnx.nki_kernels.registry import kernels, load_kernels
from trnx.nki_kernels.spec import KernelSpec


def specs_in(file: Path) -> list[KernelSpec]:
    """Load `file`, anew where it has changed.

    Raises KernelCheckError where it registers no kernel, and whatever the file raises.
    """
    if not file.is_file():
        raise KernelCheckError(f"{file} is no file; give the one that registers your kernels")
    load_kernels(file)
    if found := kernels().of_file(file.resolve()):
        return list(found)
    raise KernelCheckError(
        f"{file} registers no kernel; end it with trnx.register_kernel(KernelSpec(...))"
    )
