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


def many(seed: int) -> list[torch.Tensor]:
    """Twenty, no two of which are one."""
    return [x for i in range(4) for x in tensors(10 * seed + i)]


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
# With names of the overloads, in stretches that are long enough to be one op.
NAMED: dict[str, Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]]] = {
    "scalar": lambda x, _: torch._foreach_mul(x, scalar=0.5),
    "scalars": lambda x, _: torch._foreach_add(x, scalars=[float(i) for i in range(20)]),
    "other": lambda x, y: torch._foreach_sub(x, other=y, alpha=2),
    "exponent": lambda x, _: torch._foreach_pow(self=x, exponent=2.0),
    "numbers": lambda x, y: torch._foreach_addcdiv(x, y, y, scalars=[0.1] * 20),
    "value": lambda x, y: torch._foreach_addcmul(x, y, tensor2=y, value=0.5),
    "bound": lambda x, _: torch._foreach_clamp_max(x, scalar=0.6),
    "norm": lambda x, _: torch._foreach_norm(x, dtype=torch.float64),
    "weight": lambda x, y: torch._foreach_lerp(x, tensors1=y, weight=0.25),
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_may_be_named(name: str) -> None:
    torch._dynamo.reset()
    x, y = many(0), many(1)
    actual = torch.compile(NAMED[name], backend="trnx", fullgraph=True)(x, y)
    torch.testing.assert_close(list(actual), list(NAMED[name](x, y)), rtol=1e-6, atol=1e-6)


def test_arguments_of_writes_may_be_named() -> None:
    torch._dynamo.reset()

    def step(x: list[torch.Tensor], y: list[torch.Tensor]) -> None:
        torch._foreach_mul_(self=x, scalar=0.5)
        torch._foreach_copy_(y, src=x)
        torch._foreach_add_(y, scalar=1.0)

    ours, theirs = ([many(0), many(1)] for _ in range(2))
    torch.compile(step, backend="trnx", fullgraph=True)(*ours)
    step(*theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", CALLS)
def test_a_list_is_compiled_for_nki(name: str) -> None:
    torch._dynamo.reset()
    x, y = tensors(0), tensors(1)
    with trnx.collect_reports() as reports:
        actual = torch.compile(CALLS[name], backend="trnx", options={"select": "legal"})(x, y)
    torch.testing.assert_close(actual, CALLS[name](x, y), rtol=1e-6, atol=1e-6)
    assert not [entry for entry in reports.fallbacks if "_foreach" in entry.op]
