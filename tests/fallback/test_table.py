"""Every entry of the ATen-to-JAX table against eager, on calls recorded from PyTorch's OpInfo samples.

A dispatch mode records the ATen calls that forward and backward of the samples make, so that each
overload is tried with arguments that PyTorch itself makes. All recorded calls of an overload form one
graph, which XLA compiles once.
"""

from __future__ import annotations

import random
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

pytest.importorskip("jax")

from trnx.fallback.aten_to_jax import TABLE
from trnx.fallback.xla import XlaEngine

Call = tuple[tuple[Any, ...], dict[str, Any]]
PER_OP = 3
SEED = 7


class Recorder(TorchDispatchMode):
    """Keeps calls of table ops, distinct in shapes, dtypes and constants."""

    def __init__(self, wanted: set[Any], limit: int) -> None:
        super().__init__()
        self.wanted, self.limit = wanted, limit
        self.calls: dict[Any, dict[str, Call]] = defaultdict(dict)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.wanted and len(self.calls[func]) < self.limit:
            key = str(tree_map(_signature, (args, kwargs)))
            if key not in self.calls[func] and _small((args, kwargs)):
                self.calls[func][key] = tree_map(_copy, (tuple(args), dict(kwargs)))
        return func(*args, **kwargs)


def _signature(x: Any) -> Any:
    return (tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x


def _small(values: Any) -> bool:
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    return all(x.numel() < 20_000 and x.layout == torch.strided for x in tensors)


def _copy(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) if not any(
        s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)
    ) else x.detach().clone()


def _run(op: Any, dtype: torch.dtype, samples: int) -> None:
    grad = dtype.is_floating_point and op.supports_autograd
    for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
        if i >= samples:
            return
        out = op.op(sample.input, *sample.args, **sample.kwargs)
        if grad:
            leaves = [
                x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad
            ]
            if leaves:
                torch.autograd.backward(leaves, [torch.randn_like(x) for x in leaves])


def record(wanted: set[Any], limit: int, samples: int, ops: Any = op_db) -> dict[Any, list[Call]]:
    """Calls of the wanted overloads made by OpInfo's samples."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    recorder = Recorder(wanted, limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
                if dtype not in op.supported_dtypes("cpu"):
                    continue
                try:
                    with recorder:
                        _run(op, dtype, samples)
                except Exception:  # noqa: BLE001, S112 - a sample that eager itself refuses
                    continue
    return {op: list(calls.values()) for op, calls in recorder.calls.items()}


def graph_of(op: Any, call: Call) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph module of one call, with metadata, and its tensors."""
    graph = fx.Graph()
    leaves, spec = tree_flatten(call)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    nodes = []
    fakes = []
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor):
            node = graph.placeholder(f"x{i}")
            node.meta["val"] = mode.from_tensor(x)
            fakes.append(node.meta["val"])
            nodes.append(node)
        else:
            nodes.append(x)
            fakes.append(x)
    args, kwargs = tree_unflatten(nodes, spec)
    fake_args, fake_kwargs = tree_unflatten(fakes, spec)
    node = graph.call_function(op, args, kwargs)
    with mode:
        node.meta["val"] = op(*fake_args, **fake_kwargs)
    graph.output(_outputs(graph, node))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


def _outputs(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, ...]:
    import operator

    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return (node,)
    outputs = []
    for i, member in enumerate(value):
        if isinstance(member, torch.Tensor):
            item = graph.call_function(operator.getitem, (node, i))
            item.meta["val"] = member
            outputs.append(item)
    return tuple(outputs)


UNDEFINED = ("empty", "new_empty")  # ops whose values eager leaves undefined


def check(op: Any, call: Call) -> str | None:
    """Compare one call with eager; the reason where the engine refuses it."""
    graph_module, tensors = graph_of(op, call)
    node = next(n for n in graph_module.graph.nodes if n.target is op)
    engine = XlaEngine()
    rejected = engine.supports(node)
    if rejected is not None:
        return rejected.reason
    expected = [x.clone() for x in graph_module(*tensors)]
    actual = engine.compile(graph_module)(tensors)
    wide = _in_float32(graph_module, tensors)
    promised = [n.meta["val"].stride() for n in graph_module.graph.output_node().args[0]]
    assert [x.stride() for x in actual] == promised
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        if not op.__name__.startswith(UNDEFINED):
            _assert_close(a, e, None if wide is None else wide[i])
    return None


def _in_float32(graph_module: fx.GraphModule, tensors: list[torch.Tensor]) -> Any:
    """What eager computes in float32 on the same bf16 values, None where there is nothing to widen."""
    if not any(x.dtype == torch.bfloat16 for x in tensors):
        return None
    widened = [x.float() if x.dtype == torch.bfloat16 else x for x in tensors]
    try:
        return graph_module(*widened)
    except RuntimeError:  # a dtype among the arguments
        return None


def _assert_close(actual: torch.Tensor, expected: torch.Tensor, wide: torch.Tensor | None) -> None:
    """Within torch's tolerances of eager; half precision may instead be that close to float32."""
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if actual.dtype == torch.float32 else {}
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)
    except AssertionError:
        if wide is None or actual.dtype != torch.bfloat16:
            raise
        torch.testing.assert_close(actual, wide.to(actual.dtype), equal_nan=True)
