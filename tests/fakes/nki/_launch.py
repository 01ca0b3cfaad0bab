"""What happens when a kernel is called: NKI's checks, then the simulator on the tensors' memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import neuron_device
import torch

from trnx import simulator
from trnx.simulator.language.recorder import current_or_none

# nki/api/nki.language: there are no 64-bit types, and no bool in memory.
_REFUSED = (torch.int64, torch.uint64, torch.float64, torch.bool, torch.complex64)
# Kernels that a test lets the compiler refuse: name -> message.
refused: dict[str, str] = {}


def is_in_kernel() -> bool:
    """Whether a kernel calls another one: that is a plain call."""
    return current_or_none() is not None


class NkiValidationError(Exception):
    """A launch that NKI refuses."""


def check_lnc(lnc: Any) -> None:
    """NKI takes a bare 1 or 2 in the brackets, no tuple."""
    if lnc not in (1, 2):
        raise NkiValidationError(f"NKI only supports LNC 1 or 2, not {lnc!r}")


def _check_configured(lnc: int) -> None:
    """nki/api/nki/__init__.py:24; the default is 2 on Trainium2 (logical-neuroncore-config.rst)."""
    configured = int(os.environ.get("NEURON_LOGICAL_NC_CONFIG") or 2)
    if configured != lnc:
        raise RuntimeError(
            f"the kernel was compiled for LNC {lnc} and the runtime has LNC {configured}"
        )


def _check_argument(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        hash(value)  # constants are keys of compiled kernels: TypeError
    elif value.dtype in _REFUSED:
        raise NkiValidationError(f"argument {name} is {value.dtype}, which NKI does not have")
    elif not value.is_contiguous():
        raise RuntimeError("Cannot process non-contiguous tensors")


def launch(
    function: Callable[..., Any], lnc: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The results of the kernel, on the device of its tensors."""
    for index, value in enumerate((*args, *kwargs.values())):
        _check_argument(str(index), value)
    _check_configured(lnc)
    if function.__name__ in refused:
        raise RuntimeError(refused[function.__name__])
    run = simulator.simulate(function, grid=lnc if lnc > 1 else None)
    found = run(*map(_down, args), **{name: _down(value) for name, value in kwargs.items()})
    if isinstance(found, (tuple, list)):
        return tuple(map(_up, found))
    return _up(found)


def _down(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == "neuron":
        return neuron_device.to_host(value)
    return value


def _up(value: Any) -> Any:
    return neuron_device.to_device(value.contiguous())
