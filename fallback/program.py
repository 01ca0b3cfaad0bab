"""One region compiled by XLA for concrete sizes, and the call that exchanges its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import torch
from torch import fx

from trnx.fallback import forks
from trnx.fallback.aten_to_jax.dtypes import JAX_DTYPES
from trnx.fallback.exchange import InputSlot, OutputSlot
from trnx.fallback.layout import StrideOrder, layout_of, output_layouts
from trnx.fallback.settings import own_settings
from trnx.fallback.translate import Trace, jax_function
from trnx.fx_passes.nodes import placeholders
from trnx.fx_passes.region import RegionFunction
from trnx.nki_kernels.hints import hint_int

# Round where eager rounds: no float32 between two bf16 ops.
_COMPILER_OPTIONS: dict[str, str | bool] = {"xla_allow_excess_precision": False}


def specialises(graph_module: fx.GraphModule) -> bool:
    """Whether sizes are symbolic, so that calls may differ in them."""

    def symbolic(value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return not all(isinstance(s, int) for s in value.shape)
        return True

    return any(symbolic(n.meta.get("val")) for n in placeholders(graph_module))


def example_inputs(graph_module: fx.GraphModule) -> list[Any]:
    """Inputs without data: tensors on `meta` and integers, with the sizes seen at capture."""

    def example(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape = [hint_int(s) for s in value.shape]
            return torch.empty(shape, dtype=value.dtype, device="meta")
        return hint_int(value)

    return [example(n.meta["val"]) for n in placeholders(graph_module)]


def _order(value: Any) -> tuple[int, ...] | None:
    """The order of dimensions of an input, None where it is row-major."""
    if not isinstance(value, torch.Tensor):
        return None
    layout = layout_of(value)
    if layout.expanded or layout.order == tuple(range(value.ndim)):
        return None
    return layout.order


class Program:
    """A compiled region. `run` may be called from several threads.

    `eager` is the region in eager: it raises the error where a check of XLA's fails, and runs where
    a fork has left the process without JAX, of which `tell_lost` is told once.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        eager: RegionFunction,
        tell_lost: Callable[[], None],
    ) -> None:
        self._eager = eager
        self._tell_lost = tell_lost
        self._is_lost = False
        orders = [_order(n.meta.get("val")) for n in placeholders(graph_module)]
        layouts = output_layouts(graph_module)
        tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        self._inputs = [(InputSlot(orders[i]), i) for i in tensors]
        with _on_cpu():
            traced, attributes, trace = _traced(graph_module, inputs, orders, layouts)
            self._compiled = traced.lower().compile(compiler_options=_COMPILER_OPTIONS)
        self._attributes = [(InputSlot(None), value) for value in attributes]
        self._is_checked = trace.is_checked
        self._outputs = [_output(s, x) for s, x in zip(trace.shapes, layouts, strict=True)]
        self._shared = _shared_outputs(traced.jaxpr.jaxpr, len(self._outputs))

    def run(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The region's outputs; waits for XLA, so that PyTorch may write to what was shared."""
        if forks.jax_is_lost:
            return self._run_without_jax(inputs)
        try:
            with jax.enable_x64(True):
                results = self._call(inputs)
        except Exception:  # noqa: BLE001 - most likely a setting of the user: it is not asked each time
            with own_settings():
                results = self._call(inputs)
        if self._is_checked and not np.asarray(results[-1]):
            # Eager raises its own error; the inputs are as they were.
            return self._eager(inputs)
        outputs = [slot.tensor(array) for slot, array in zip(self._outputs, results, strict=False)]
        for i in self._shared:
            outputs[i] = self._outputs[i].tensor(results[i], copy=True)
        return outputs

    def _call(self, inputs: Sequence[Any]) -> Any:
        arrays = [slot.array(inputs[i]) for slot, i in self._inputs]
        arrays += [slot.array(value) for slot, value in self._attributes]
        return jax.block_until_ready(self._compiled(*arrays))

    def _run_without_jax(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        if not self._is_lost:
            self._is_lost = True
            self._tell_lost()
        return self._eager(inputs)


def stablehlo(graph_module: fx.GraphModule) -> str:
    """The region as StableHLO text, all tensors row-major. Arguments are its inputs, and after them
    its tensor attributes; results are its outputs, and where eager would raise for some values one
    boolean more, which says that it would not."""
    inputs = example_inputs(graph_module)
    plain = [None] * len(output_layouts(graph_module))
    with _on_cpu():
        traced, _, _ = _traced(graph_module, inputs, [None] * len(inputs), plain)
        return str(traced.lower().as_text(dialect="stablehlo"))


@contextmanager
def _on_cpu() -> Iterator[None]:
    with own_settings(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def _traced(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    orders: Sequence[tuple[int, ...] | None],
    layouts: Sequence[StrideOrder | None],
) -> tuple[Any, list[torch.Tensor], Trace]:
    """JAX's trace of the region, its tensor attributes, and what the trace has learnt."""
    names = [str(n.target) for n in graph_module.graph.nodes if n.op == "get_attr"]
    names = list(dict.fromkeys(names))
    attributes = [_attribute(graph_module, name) for name in names]
    trace = Trace()
    function = jax_function(graph_module, inputs, orders, layouts, names, trace)
    given = zip(inputs, orders, strict=True)
    avals = [_aval(x, order) for x, order in given if isinstance(x, torch.Tensor)]
    avals += [_aval(value, None) for value in attributes]
    return jax.jit(function).trace(*avals), attributes, trace


def _attribute(graph_module: fx.GraphModule, name: str) -> torch.Tensor:
    value: Any = graph_module
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, torch.Tensor)
    return value


def _aval(tensor: torch.Tensor, order: tuple[int, ...] | None) -> Any:
    shape = tensor.shape if order is None else [tensor.shape[d] for d in order]
    return jax.ShapeDtypeStruct(tuple(shape), JAX_DTYPES[tensor.dtype])


def _output(shape: tuple[int, ...], layout: StrideOrder | None) -> OutputSlot:
    assert layout is not None
    return OutputSlot(shape, layout.strides(shape), layout.order)


def _shared_outputs(jaxpr: Any, count: int) -> list[int]:
    """Outputs that are an input, a constant or an earlier output: JAX may hand out its buffer."""
    taken = {id(value) for value in (*jaxpr.invars, *jaxpr.constvars)}
    shared = []
    for i, value in enumerate(jaxpr.outvars[:count]):
        if id(value) in taken:
            shared.append(i)
        taken.add(id(value))
    return shared
