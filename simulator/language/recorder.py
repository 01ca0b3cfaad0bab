"""`Recorder`: who records the running kernel, as tensors and registers see it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trnx.simulator.errors import TrnxError
from trnx.simulator.findings import Findings
from trnx.simulator.hardware import Hardware

if TYPE_CHECKING:
    from trnx.simulator.language.registers import VirtualRegister
    from trnx.simulator.language.tensor import NkiTensor


class Recorder(Protocol):
    """What is asked of `frontend.simulator.Simulator`; instructions ask more (`isa.recorder`).
    `is_interactive` is True at the Python prompt (`trnx.simulator.interactive`).
    """

    hardware: Hardware
    findings: Findings
    is_interactive: bool

    def values_of(self, tensor: NkiTensor) -> torch.Tensor: ...
    def assign(self, view: NkiTensor, value: Any) -> None: ...
    def while_condition(self, register: VirtualRegister) -> bool: ...


CURRENT: ContextVar[Recorder | None] = ContextVar("trnx_simulator", default=None)


class OutsideKernelError(TrnxError):
    """An NKI function was called outside of a kernel."""


def current(what: str) -> Recorder:
    """The recorder of the running kernel. Raises OutsideKernelError, which names `what` was
    called.
    """
    recorder = CURRENT.get()
    if recorder is None:
        raise OutsideKernelError(
            f"{what} was called outside of a kernel; call it in a function that "
            "trnx.simulator.simulate or trace runs"
        )
    return recorder


def current_or_none() -> Recorder | None:
    """The recorder of the running kernel, if any."""
    return CURRENT.get()
