"""Which runner the option `runner` means on this machine, and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from trnx.backend.neuron.errors import NeuronDeviceError, NeuronError
from trnx.backend.neuron.stack import TARGETS, Stack, find_stack
from trnx.backend.runners import NeuronRunner, Runner, make_runner

log = logging.getLogger(__name__)


def explained_runner(name: str, target: str) -> str:
    """What `explain` says of the option: the runner that a call would have and why, or what is
    missing for it."""
    try:
        choice = choose_runner(name, target)
    except NeuronError as problem:
        return f"none: {problem}"
    return f"{choice.runner.name} ({choice.reason})"


@dataclass(frozen=True)
class Choice:
    """A runner, and the reason that the report gives for it."""

    runner: Runner | NeuronRunner
    reason: str


def choose_runner(name: str, target: str, stack: Stack | None = None) -> Choice:
    """The runner for the value `name` of the option and the `target`.

    `auto` is `neuron` where TorchNeuron and a device are, else `simulator`. Raises NeuronStackError
    or NeuronDeviceError where `neuron` is asked for and cannot be.
    """
    if name not in ("auto", "neuron"):
        return Choice(make_runner(name), f"runner={name!r}")
    found = find_stack() if stack is None else stack
    problem = _unsupported(target) or found.problem()
    if problem is None:
        return Choice(NeuronRunner(), f"runner={name!r}: TorchNeuron {found.version} and a device")
    if name == "neuron":
        raise problem
    if found.kind == "native":  # somebody wants the device; the log says why it is not used
        log.warning("kernels run in the simulator: %s", problem)
    return Choice(make_runner("simulator"), f"runner='auto': {problem}")


def _unsupported(target: str) -> NeuronDeviceError | None:
    if target in TARGETS:
        return None
    return NeuronDeviceError(
        f"TorchNeuron runs on Trn2 and Trn3, and the target is {target}",
        "choose the target of the instance, or options={'runner': 'simulator'}",
    )
