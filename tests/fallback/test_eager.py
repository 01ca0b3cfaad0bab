"""The eager engine: what it takes, values and strides of what it returns."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import fx

from trnx.fallback import EagerEngine
from trnx.fallback.layout import layout_of, restride
from trnx.simulator.hardware import TRN2


def test_runs_a_region_with_the_strides_of_the_metadata(capture: Any) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    graph_module = capture(lambda v: (v.relu(), v.sum(0), v.permute(3, 1, 0, 2) + 1), x)
    actual = EagerEngine().compile(graph_module)([x])
    for a, e in zip(actual, graph_module(x), strict=True):
        torch.testing.assert_close(a, e, check_stride=True)


def test_results_have_the_dtype_of_the_metadata(capture: Any) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor) -> Any:
        norm = torch.ops.aten._native_batch_norm_legit_functional.default
        return norm(x, weight, weight, mean, weight, True, 0.1, 1e-5)

    inputs = (
        torch.randn(3, 5, 4, 4).bfloat16(),
        torch.rand(5).bfloat16(),
        torch.ones(5).bfloat16(),
    )
    gm = capture(function, *inputs)
    outputs = EagerEngine().compile(gm)(inputs)
    promised = [node.meta["val"].dtype for node in gm.graph.output_node().args[0]]
    assert [value.dtype for value in outputs] == promised


def test_strides_are_scattered_into_what_requires_a_gradient(capture: Any) -> None:
    """As saved tensors and inputs of a compiled step do, whose gradients the graph computes."""

    def function(x: Any, values: Any) -> Any:
        return (torch.as_strided_scatter(x, values, [4], [5]),)

    x, values = torch.randn(4, 4).T, torch.ones(4)
    run = EagerEngine().compile(capture(function, x, values))

    (found,) = run([x.clone().requires_grad_(), values])

    assert found.stride() == (1, 4)
    assert torch.equal(found, x.diagonal_scatter(values))


def test_takes_random_and_mutating_ops() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    engine = EagerEngine()
    for op in (torch.ops.aten.bernoulli.default, torch.ops.aten.add_.Tensor,
               torch.ops.aten.linear.default, torch.ops.aten.empty.memory_format):  # fmt: skip
        assert engine.supports(graph.call_function(op, (x, x))) is None


def test_refuses_an_op_without_implementation() -> None:
    with torch.library._scoped_library("trnx_test_fallback", "DEF") as library:
        library.define("shape_only(Tensor x) -> Tensor")
        torch.library.register_fake("trnx_test_fallback::shape_only", torch.empty_like, lib=library)
        graph = fx.Graph()
        node = graph.call_function(
            torch.ops.trnx_test_fallback.shape_only.default, (graph.placeholder("x"),)
        )
        rejected = EagerEngine().supports(node)
        assert rejected is not None
        assert rejected.node is node
        assert "trnx_test_fallback.shape_only" in rejected.reason
        assert "register_kernel" in rejected.reason


def test_frees_intermediates() -> None:
    alive: list[int] = []
    seen: list[Any] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive.append(sum(r() is not None for r in seen))
        out = x + 1
        seen.append(weakref.ref(out))
        return out

    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(5):
        node = graph.call_function(watch, (node,))
    node.meta["val"] = torch.empty(3, device="meta")
    graph.output((node,))
    EagerEngine().compile(fx.GraphModule(torch.nn.Module(), graph))([torch.zeros(3)])
    assert max(alive) <= 1


def test_restride_of_gaps_expansion_and_order() -> None:
    value = torch.randn(3, 4)
    for wanted in (value.t().contiguous().t(), torch.empty(3, 9)[:, :4],
                   torch.empty(3, 8)[:, ::2]):  # fmt: skip
        out = restride(value, layout_of(wanted))
        torch.testing.assert_close(out, value)
        assert out.stride() == wanted.stride()
    expanded = torch.randn(3, 1).expand(3, 4)
    out = restride(expanded.contiguous(), layout_of(expanded))
    assert out.stride() == (1, 0)
    torch.testing.assert_close(out, expanded, check_stride=False)


def test_symbolic_outputs_keep_the_order_of_dimensions(capture: Any) -> None:
    graph_module = capture(lambda v: v.t() + 1, torch.randn(3, 4), symbolic=True)
    x = torch.randn(5, 7)
    (out,) = EagerEngine().compile(graph_module)([x])
    torch.testing.assert_close(out, x.t() + 1, check_stride=True)


def test_cost_counts_ops_and_grows_with_size(capture: Any) -> None:
    def nodes(size: int) -> list[fx.Node]:
        x = torch.randn(size, size)
        return list(capture(lambda v: torch.relu(v @ v) + 1, x).graph.nodes)

    engine = EagerEngine()
    assert engine.cost(nodes(8)) == pytest.approx(TRN2.launch_seconds + 3 * 64e-6)
    assert engine.cost(nodes(4096)) > engine.cost(nodes(8))
    assert engine.cost([]) == 0
