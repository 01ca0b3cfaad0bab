"""What the fakes are and refuse, run by `worker.py`."""

from __future__ import annotations

import importlib
import inspect
import os
import stat
from collections.abc import Callable
from typing import Any

import nki
import torch
import torch_neuronx
from torch import fx

from trnx.backend.neuron import native
from trnx.backend.neuron.native import native_kernel
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator import TensorSpec
from trnx.simulator.hardware import hardware


def signature(module: str, name: str) -> str:
    """A function's parameters without annotations."""
    found = inspect.signature(getattr(importlib.import_module(module), name))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(inspect.Signature(bare))


def exported(module: str) -> list[str]:
    return sorted(importlib.import_module(module).__all__)


def device() -> dict[str, Any]:
    """The device as torch sees it."""
    return {
        "accelerator": str(torch.accelerator.current_accelerator()),
        "name": torch.utils.backend_registration._get_privateuse1_backend_name(),
        "count": torch.neuron.device_count(),
        "backends": "neuron" in torch._dynamo.list_backends(),
    }


@nki.jit
def _kernel(x: Any, factor: Any = 1) -> Any:
    del factor
    return x


def _tensor() -> torch.Tensor:
    return torch.ones(2, 3).to("neuron")


def _symbolic() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + x.shape[0]

    torch.compile(function, backend="neuron", dynamic=True)(_tensor())


def _op_that_returns_its_input() -> None:
    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    torch_neuronx.nki_op("fake_facts::same", same)(_tensor())


def _two_cores() -> None:
    _kernel[2](_tensor())


def _default_cores() -> None:
    configured = os.environ.pop("NEURON_LOGICAL_NC_CONFIG")
    try:
        _kernel(_tensor())
    finally:
        os.environ["NEURON_LOGICAL_NC_CONFIG"] = configured


def _host_graph() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.relu, (x,)),))
    backend = torch._dynamo.lookup_backend("neuron")
    backend(fx.GraphModule(torch.nn.Module(), graph), [torch.ones(2)])


_REFUSALS: dict[str, Callable[[], Any]] = {
    "dynamic=True": _symbolic,
    "constant without a hash": lambda: _kernel(_tensor(), [1, 2]),
    "LNC 2 on 1": _two_cores,
    "LNC 1 on the default": _default_cores,
    "a tuple in the brackets": lambda: _kernel[(1,)],
    "int64 to a kernel": lambda: _kernel(_tensor().long()),
    "bool to a kernel": lambda: _kernel(_tensor() > 0),
    "strides to a kernel": lambda: _kernel(_tensor().t()),
    "complex numbers": lambda: torch.ones(2, dtype=torch.complex64).to("neuron"),
    "float64": lambda: _tensor().double(),
    "an op that returns its input": _op_that_returns_its_input,
    "a graph in host memory": _host_graph,
}


def refusal(name: str) -> str:
    """The message with which the fake refuses."""
    try:
        _REFUSALS[name]()
    except Exception as error:  # noqa: BLE001  what it is, is the result
        return f"{type(error).__name__}: {error}"
    return ""


def loaded_natively() -> dict[str, tuple[str, str]]:
    """Kernel -> module and class of the native one, for a launch of each of the registry."""
    found = {}
    for spec in kernels():
        sample = next(iter(spec.samples(torch.Generator().manual_seed(0))))
        values = {
            name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
            for name, value in sample.values.items()
        }
        kernel = native_kernel(spec.launch(Bindings(values), hardware("trn2")).kernel)
        kind = type(kernel)
        found[spec.name] = (kernel.func.__module__, f"{kind.__module__}.{kind.__name__}")
    return found


def generated_file() -> dict[str, Any]:
    """Where the kernel of a chain of ops lies."""
    before = set(native._modules)
    options = {"runner": "neuron", "select": "legal"}
    torch.compile(lambda x: torch.exp(x) * 3 + x, backend="trnx", options=options)(_tensor())
    [path] = [p for p in set(native._modules) - before if p.stem.startswith("fused_")]
    return {
        "mode": stat.S_IMODE(path.parent.stat().st_mode),
        "name": path.name,
        "is_native": native._modules[path].nki is nki,
    }
