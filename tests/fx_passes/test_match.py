"""The matcher: commutativity, literals, None, several results, and near misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.canonicalise import canonicalise
from trnx.fx_passes.errors import PatternError
from trnx.fx_passes.match import GraphMatch, Matcher, bindings_spec, matchers, pattern_targets
from trnx.nki_kernels.spec import Pattern
from trnx.simulator.errors import Reject

aten = torch.ops.aten
X, Y = torch.randn(4, 6), torch.randn(4, 6)


def _find(trnx: Any, pattern: Callable[..., Any], function: Callable[..., Any], *args: Any) -> Any:
    """What the matcher says at the last place where it says anything."""
    gm = canonicalise(make_fx(function, tracing_mode="fake")(*args))
    matcher = Matcher(trnx.FakeKernel("k", pattern), Pattern(pattern))
    found = [
        matcher.match(node)
        for node in gm.graph.nodes
        if node.op == "call_function" and node.target is matcher.root_target
    ]
    return next((match for match in reversed(found) if match is not None), None)


def silu(x: torch.Tensor) -> Any:
    return aten.mul.Tensor(x, aten.sigmoid.default(x))


def test_tracing_a_pattern_leaves_modules_of_other_threads_alone(trnx: Any) -> None:
    usual = torch.nn.Module.__call__
    seen = []

    def watching(x: torch.Tensor) -> Any:
        seen.append(torch.nn.Module.__call__)
        return aten.exp.default(x)

    Matcher(trnx.FakeKernel("k", watching), Pattern(watching))
    assert seen == [usual]


def scaled(x: torch.Tensor, scale: float) -> Any:
    return aten.mul.Tensor(aten.exp.default(x), scale)


def halved(x: torch.Tensor) -> Any:
    return aten.mul.Tensor(x, 0.5)


def test_operands_of_commutative_ops_may_be_swapped(trnx: Any) -> None:
    for function in (lambda x: x * torch.sigmoid(x), lambda x: torch.sigmoid(x) * x):
        found = _find(trnx, silu, function, X)

        assert isinstance(found, GraphMatch)
        assert [node.target for node in found.nodes] == [aten.sigmoid.default, aten.mul.Tensor]
        assert found.match.bindings["x"].op == "placeholder"


def test_subtraction_is_not_commutative(trnx: Any) -> None:
    def pattern(x: torch.Tensor) -> Any:
        return aten.sub.Tensor(x, aten.exp.default(x))

    assert isinstance(_find(trnx, pattern, lambda x: x - x.exp(), X), GraphMatch)
    assert _find(trnx, pattern, lambda x: x.exp() - x, X) is None


def test_one_name_is_one_node(trnx: Any) -> None:
    assert _find(trnx, silu, lambda x, y: x * torch.sigmoid(y), X, Y) is None


def test_constants_are_bound_and_literals_compared(trnx: Any) -> None:
    found = _find(trnx, scaled, lambda x: x.exp() * 3.5, X)

    assert found.match.bindings["scale"] == 3.5
    assert isinstance(_find(trnx, halved, lambda x: x * 0.5, X), GraphMatch)
    assert _find(trnx, halved, lambda x: x * 0.25, X) is None


def test_a_tensor_is_no_constant(trnx: Any) -> None:
    assert _find(trnx, scaled, lambda x, y: x.exp() * y, X, Y) is None


def test_defaults_that_are_not_written_are_equal(trnx: Any) -> None:
    def pattern(x: torch.Tensor) -> Any:
        return aten.gelu.default(x, approximate="none")

    assert isinstance(_find(trnx, pattern, torch.nn.functional.gelu, X), GraphMatch)


def test_none_only_where_the_annotation_allows_it(trnx: Any) -> None:
    def with_bias(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return aten.linear.default(x, w, b)

    def maybe(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> Any:
        return aten.linear.default(x, w, b)

    weight = torch.randn(5, 6)

    assert _find(trnx, with_bias, torch.nn.functional.linear, X, weight) is None
    found = _find(trnx, maybe, torch.nn.functional.linear, X, weight)
    assert found.match.bindings["b"] is None


def test_a_value_that_is_used_elsewhere_is_a_near_miss(trnx: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        gate = torch.sigmoid(x)
        return x * gate, gate + 1

    found = _find(trnx, silu, function, X)

    assert isinstance(found, Reject)
    assert "sigmoid" in found.reason


def test_no_parameter_stands_for_what_the_match_computes(trnx: Any) -> None:
    def pattern(x: torch.Tensor, y: torch.Tensor) -> Any:
        return aten.add.Tensor(aten.exp.default(x), y)

    def twice(x: torch.Tensor) -> Any:
        y = x.exp()
        return y + y

    assert isinstance(_find(trnx, pattern, lambda x, y: x.exp() + y, X, X), GraphMatch)
    assert _find(trnx, pattern, twice, X) is None


def test_a_view_that_is_used_elsewhere_is_none(trnx: Any) -> None:
    def pattern(x: torch.Tensor, w: torch.Tensor) -> Any:
        return aten.linear.default(x, aten.transpose.int(w, 0, 1), None)

    weight = torch.randn(6, 5)

    found = _find(trnx, pattern, lambda x, y, w: (x @ w, y @ w), X, Y, weight)

    assert isinstance(found, GraphMatch)


def test_all_results_of_a_root(trnx: Any) -> None:
    def pattern(x: torch.Tensor, shape: list[int], eps: float) -> Any:
        return aten.native_layer_norm.default(x, shape, None, None, eps)

    found = _find(trnx, pattern, lambda x: torch.nn.functional.layer_norm(x, (6,)), X)

    assert found.match.bindings["shape"] == [6] or found.match.bindings["shape"] == (6,)
    assert len(found.match.results) == 3
    assert found.match.results[0].args[1] == 0
    assert found.match.results[1:] == (None, None)


def test_one_of_several_results(trnx: Any) -> None:
    def pattern(x: torch.Tensor, shape: list[int], eps: float) -> Any:
        return aten.native_layer_norm.default(x, shape, None, None, eps)[0]

    def all_of_them(x: torch.Tensor) -> Any:
        return torch.native_layer_norm(x, (6,), None, None, 1e-5)

    found = _find(trnx, pattern, lambda x: all_of_them(x)[0] * 2, X)

    assert len(found.match.results) == 1
    assert isinstance(_find(trnx, pattern, all_of_them, X), Reject)


def test_several_roots(trnx: Any) -> None:
    def pattern(x: torch.Tensor) -> Any:
        shared = aten.exp.default(x)
        return aten.add.Tensor(shared, 1), aten.mul.Tensor(shared, 2)

    found = _find(trnx, pattern, lambda x: (x.exp() + 1, x.exp() * 2), X)

    assert [node.target for node in found.match.results] == [aten.add.Tensor, aten.mul.Tensor]


def test_bindings_have_hints_for_symbolic_sizes(trnx: Any) -> None:
    gm = canonicalise(make_fx(lambda x: x.exp() * 2.0, tracing_mode="symbolic")(X))
    matcher = Matcher(trnx.FakeKernel("k", scaled), Pattern(scaled))
    mul = next(node for node in gm.graph.nodes if node.target is aten.mul.Tensor)
    guards = len(gm.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode.shape_env.guards)

    found = matcher.match(mul)
    assert isinstance(found, GraphMatch)
    spec = bindings_spec(found.match)

    assert spec.x.shape == (4, 6)
    assert spec.x.strides == (6, 1)
    assert spec.scale == 2.0
    mode = gm.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode
    assert len(mode.shape_env.guards) == guards


def test_bigger_patterns_come_first(trnx: Any) -> None:
    kernels = [trnx.FakeKernel("small", halved), trnx.FakeKernel("big", silu)]

    assert [matcher.kernel.name for matcher in matchers(kernels)] == ["big", "small"]
    assert pattern_targets(kernels) == {aten.mul.Tensor, aten.sigmoid.default}


def test_a_pattern_that_returns_its_argument_is_an_error(trnx: Any) -> None:
    with pytest.raises(PatternError, match="returns results of calls only"):
        Matcher(trnx.FakeKernel("k", lambda x: x), Pattern(lambda x: x))


def test_a_pattern_that_branches_is_an_error(trnx: Any) -> None:
    def pattern(x: torch.Tensor) -> Any:
        return aten.exp.default(x) if x else x

    with pytest.raises(PatternError, match="cannot trace the pattern of k"):
        Matcher(trnx.FakeKernel("k", pattern), Pattern(pattern))


def test_constants_of_a_pattern_join_the_bindings(trnx: Any) -> None:
    gm = make_fx(lambda x: x * 0.5, tracing_mode="fake")(X)
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    assert isinstance(node, fx.Node)

    found = Matcher(trnx.FakeKernel("k", halved), Pattern(halved, {"variant": "half"})).match(node)

    assert isinstance(found, GraphMatch)
    assert found.match.bindings["variant"] == "half"
