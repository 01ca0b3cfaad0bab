"""Ops on lists of tensors are as many ops on one, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trnx
from trnx.backend.foreach_decompositions import FOREACH_DECOMPOSITIONS

aten = torch.ops.aten
SHAPES = [(3, 5), (1,), (), (0, 2), (129,)]


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [0.7 * torch.rand(shape, generator=generator) + 0.25 for shape in SHAPES]


def arguments(op: Any) -> tuple[list[Any], dict[str, Any]]:
    """Tensors between 0.25 and 0.95, and numbers for each argument of the schema."""
    values: list[Any] = []
    named: dict[str, Any] = {}
    for i, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if argument.name in ("dtype", "non_blocking"):
            continue
        value: Any = 0.5
        if kind == "List[Tensor]":
            value = tensors(i)
        elif kind.startswith("List["):
            value = [0.5 + j for j in range(len(SHAPES))]
        elif kind == "Tensor":
            value = torch.tensor(0.75)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            values.append(value)
    return values, named


@pytest.mark.parametrize("op", FOREACH_DECOMPOSITIONS, ids=str)
def test_a_decomposition_gives_what_eager_gives(op: Any) -> None:
    values, named = arguments(op)
    expected = op(*values, **named)
    actual = FOREACH_DECOMPOSITIONS[op](*values, **named)
    assert len(actual) == len(expected) == len(SHAPES)
    torch.testing.assert_close(actual, list(expected), rtol=0, atol=0, check_stride=True)


CALLS: dict[str, Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]]] = {
    "scalar": lambda x, _: torch._foreach_add(x, 2),
    "alpha": lambda x, y: torch._foreach_sub(x, y, alpha=3),
    "defaults": lambda x, y: torch._foreach_addcmul(x, x, y),
    "lists": lambda x, y: torch._foreach_addcdiv(x, x, y, [1.0, 2.0, 3.0, 4.0, 5.0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_list_is_compiled_for_nki(name: str) -> None:
    torch._dynamo.reset()
    x, y = tensors(0), tensors(1)
    with trnx.collect_reports() as reports:
        actual = torch.compile(CALLS[name], backend="trnx", options={"select": "legal"})(x, y)
    torch.testing.assert_close(actual, CALLS[name](x, y), rtol=1e-6, atol=1e-6)
    assert not [entry for entry in reports.fallbacks if "_foreach" in entry.op]
