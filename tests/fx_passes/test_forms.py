"""When groups of nodes have one form."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.forms import form_of

X = torch.randn(4, 6)


def _form(function: Callable[..., Any], *args: Any, mode: str = "fake", last: int = 1) -> Hashable:
    graph = make_fx(function, tracing_mode=mode)(*args).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    return form_of(nodes, nodes[-last:])


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.add(torch.exp(x), y)


def test_equal_groups_have_one_form_whatever_their_names() -> None:
    def other(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return torch.add(torch.exp(p), q)

    assert _form(_chain, X, X.clone()) == _form(other, X, X.clone())


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x, y: torch.add(y, torch.exp(x)), (X, X.clone())),
        (lambda x, _y: torch.add(torch.exp(x), x), (X, X.clone())),
        (lambda x, y: torch.add(torch.exp(x), y, alpha=2), (X, X.clone())),
        (lambda x, y: torch.sub(torch.exp(x), y), (X, X.clone())),
        (_chain, (X, torch.randn(6))),
        (_chain, (X, torch.randn(6, 4).T)),
        (_chain, (X, X.double())),
        (_chain, (X, torch.randn(4, 1))),
    ],
)
def test_what_is_computed_and_of_what_is_the_form(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    assert _form(function, *args) != _form(_chain, X, X.clone())


def test_results_are_a_part_of_the_form() -> None:
    assert _form(_chain, X, X.clone(), last=2) != _form(_chain, X, X.clone())


def test_a_number_and_a_boolean_differ() -> None:
    one = _form(lambda x: torch.add(x, 1), X)
    assert one != _form(lambda x: torch.add(x, 1.0), X)
    assert one != _form(lambda x: torch.add(x, True), X)


def test_zeros_of_both_signs_differ_and_nan_is_itself() -> None:
    def times(number: float) -> Hashable:
        return _form(lambda x: torch.mul(x, number), X)

    assert times(0.0) != times(-0.0)
    assert times(float("nan")) == times(float("nan"))
