"""Fake results: an operator is asked once for arguments that are alike, and never instead of
others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from trnx.fx_passes import metadata
from trnx.fx_passes.metadata import EXAMPLE_VALUE, VAL, fake_call, fake_results_known
from trnx.fx_passes.nodes import is_view

aten = torch.ops.aten


class _Calls:
    """Fake calls on values of one graph; `made` counts those that an operator answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.graph = fx.Graph()
        self.made = 0
        without_guards = metadata.without_guards

        def counted(mode: Any) -> Any:
            self.made += 1
            return without_guards(mode)

        monkeypatch.setattr(metadata, "without_guards", counted)

    def __call__(self, target: Any, value: torch.Tensor, *rest: Any, key: str = VAL) -> Any:
        node = self.graph.placeholder("x")
        node.meta[key] = self.mode.from_tensor(value, static_shapes=True)
        return fake_call(self.graph, target, (node, *rest), {}, key)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> _Calls:
    return _Calls(monkeypatch)


def test_calls_that_are_alike_are_asked_once(calls: _Calls) -> None:
    with fake_results_known():
        found = [calls(aten.view.default, torch.randn(4, 6), [2, 12]) for _ in range(3)]
    assert calls.made == 1
    assert {tuple(one.shape) for one in found} == {(2, 12)}


def test_nothing_is_known_outside(calls: _Calls) -> None:
    for _ in range(2):
        with fake_results_known():
            calls(aten.relu.default, torch.randn(4))
        calls(aten.relu.default, torch.randn(4))
    assert calls.made == 4


def test_calls_that_differ_are_asked_again(calls: _Calls) -> None:
    x = torch.randn(4, 6)
    with fake_results_known():
        strides = [calls(aten.relu.default, one).stride() for one in (x, x.t(), x[:, :5], x[1:])]
        integers = torch.arange(4)
        kinds = [calls(aten.mul.Tensor, integers, number).dtype for number in (1, 1.0)]
        dtypes = [calls(aten.relu.default, x.to(one)).dtype for one in (torch.half, torch.double)]
        negative = torch.randn(4, dtype=torch.cfloat).conj().imag
        bits = [calls(aten.view.default, one, [4]).is_neg() for one in (negative, -negative)]
    assert strides == [(6, 1), (1, 6), (5, 1), (6, 1)]
    assert kinds == [torch.int64, torch.float32]
    assert dtypes == [torch.half, torch.double]
    assert bits == [True, False]


def test_sizes_that_depend_on_data_are_new_ones(calls: _Calls) -> None:
    with fake_results_known():
        first, second = (calls(aten.nonzero.default, torch.randn(4)) for _ in range(2))
    assert first.shape[0].node.expr != second.shape[0].node.expr


def test_values_of_dynamo_and_writes_are_their_own(calls: _Calls) -> None:
    with fake_results_known():
        found = [calls(aten.relu.default, torch.randn(4), key=EXAMPLE_VALUE) for _ in range(2)]
        written = [calls(aten.relu_.default, torch.randn(4)) for _ in range(2)]
    assert found[0] is not found[1]
    assert written[0] is not written[1]


def test_views_are_what_the_schema_says() -> None:
    """torch reads it off the arguments, of which a result is an alias."""
    seen = 0
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        target = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if space != "aten" or target is None:
            continue
        schema = target._schema
        aliases = any(result.alias_info is not None for result in schema.returns)
        node = fx.Graph().call_function(target)
        assert is_view(node) == (aliases and not schema.is_mutable), name
        seen += 1
    assert seen > 1000
