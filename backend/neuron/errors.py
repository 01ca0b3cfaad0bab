"""What can go wrong between trnx and TorchNeuron; every message says how to mend it."""

from __future__ import annotations

from trnx.backend.errors import BackendError


class NeuronError(BackendError):
    """Root of the errors of the runner `neuron`."""


class NeuronMachineError(NeuronError):
    """Something is missing on this machine: what was found, and what to do about it."""

    def __init__(self, found: str, fix: str) -> None:
        self.found = found
        self.fix = fix
        super().__init__(f"{found}: {fix}")


class NeuronStackError(NeuronMachineError):
    """TorchNeuron is not installed, or is one that trnx cannot use."""


class NeuronDeviceError(NeuronMachineError):
    """There is no Neuron device, or it cannot be opened."""


class NeuronLncError(NeuronError):
    """A kernel's logical cores are not those of NEURON_LOGICAL_NC_CONFIG."""


class NeuronConstantError(NeuronError):
    """A kernel argument that is no tensor cannot be hashed."""


class NeuronDtypeError(NeuronError):
    """A tensor has a dtype that Neuron devices do not have."""


class NeuronShapeError(NeuronError):
    """A size depends on data; graphs of the device have static sizes."""


class NeuronNumberError(NeuronError):
    """A number is read from a tensor; graphs of the device hold no such number."""


class NeuronKernelError(NeuronError):
    """NKI refused or failed a kernel of the graph."""


class NeuronCompileError(NeuronError):
    """The `neuron` backend could not compile or run a graph, for no kernel's fault."""
