"""The Dynamo backend `neuron`: refuses what the real one is documented to refuse, and runs the rest
with its NKI ops in the simulator (torch/compile/reference-torch-compile.rst)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import handed_over
import neuron_device
import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd


def _check(gm: fx.GraphModule) -> None:
    """compiler/error-codes/EMOD025.rst (dynamic shapes), EVRF004.rst (complex)."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, (torch.SymInt, torch.SymFloat)):
                raise RuntimeError(f"dynamic shapes are not supported: {node.name}")
            if not isinstance(item, torch.Tensor):
                continue
            if any(isinstance(size, torch.SymInt) for size in item.shape):
                raise RuntimeError(f"dynamic shapes are not supported: {node.name}")
            if item.device.type != "neuron":
                raise RuntimeError(f"{node.name} is on {item.device}, not on the Neuron device")
            if neuron_device.is_refused(item):
                raise RuntimeError(f"{node.name} is {item.dtype}, which is not supported")


def neuron_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str = "default",
) -> Callable[..., Any]:
    """Compile Dynamo's graph."""
    handed = handed_over.Handed(gm, dict(options or {}), mode)
    handed_over.graphs.append(handed)

    def compile_graph(traced: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        del inputs
        _check(traced)
        handed.compiled += 1

        def run(*args: Any) -> Any:
            handed.runs += 1
            neuron_device.in_graph.append(True)
            try:
                return traced(*args)
            finally:
                neuron_device.in_graph.pop()

        return make_boxed_func(run)

    compiler = aot_autograd(fw_compiler=compile_graph, keep_inference_input_mutations=True)
    try:
        return compiler(gm, example_inputs)
    except Exception as error:
        raise RuntimeError(
            f"Neuron backend NEFF execution setup failed with unexpected error: {error}"
        ) from error
