"""Stretches of ops on lists are one op for AOTAutograd, and stay what they are in value."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from trnx.fx_passes.expand_lists import LISTS
from trnx.fx_passes.group_lists import GROUP_LISTS

Tensors = list[torch.Tensor]
COUNT = 12


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 5), (1,), (), (0, 2), (129,)]
    drawn = [torch.rand(shapes[i % 5], generator=generator) + 0.25 for i in range(COUNT)]
    return [x.to(dtype) for x in drawn]


def steps(xs: Tensors, ys: Tensors) -> Tensors:
    """Two results, of which one is written to, and a list that is written to twice."""
    a = torch._foreach_add(xs, ys, alpha=2)
    torch._foreach_mul_(xs, 3)
    torch._foreach_addcdiv_(xs, a, ys, value=0.5)
    b = torch._foreach_sqrt(a)
    torch._foreach_neg_(b)
    return [*a, *b]


def in_a_circle(xs: Tensors, _: Tensors) -> Tensors:
    """An element reads what those before it have written."""
    torch._foreach_add_(xs[::5], [*xs[5::5], xs[0]])
    torch._foreach_mul_(xs, 2)
    return torch._foreach_exp(xs)


def narrower(xs: Tensors, ys: Tensors) -> Tensors:
    """What is written has the dtype of what it is written to."""
    halves = [x.bfloat16() for x in xs]
    torch._foreach_add_(halves, ys)
    torch._foreach_mul_(halves, [0.1 * i for i in range(COUNT)])
    return halves


def listed_twice(xs: Tensors, ys: Tensors) -> Tensors:
    both = [*xs[:8], *xs[:8]]
    torch._foreach_sub_(both, [*ys[:8], *ys[:8]])
    return torch._foreach_abs(both)


def beside_others(xs: Tensors, ys: Tensors) -> Tensors:
    """Two stretches with other ops between them."""
    norms = torch._foreach_norm(torch._foreach_mul(xs, 2), 2)
    total = torch.linalg.vector_norm(torch.stack(norms))
    torch._foreach_mul_(ys, total)
    torch._foreach_div_(ys, 7.0)
    return [total]


FUNCTIONS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    function.__name__: function
    for function in (steps, in_a_circle, narrower, listed_twice, beside_others)
}


def captured(function: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    """Dynamo's graph after the pass."""
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        graphs.append(GROUP_LISTS.run(gm))
        gm.recompile()
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*inputs)
    (gm,) = graphs
    return gm


def targets(gm: fx.GraphModule) -> list[Any]:
    """What is called, but for what is taken of lists."""
    calls = [node.target for node in gm.graph.nodes if node.op == "call_function"]
    return [target for target in calls if target is not operator.getitem]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_writes_are_those_of_eager(name: str) -> None:
    torch._dynamo.reset()
    ours, theirs = [tensors(0), tensors(1)], [tensors(0), tensors(1)]
    actual = torch.compile(FUNCTIONS[name], backend="trnx")(*ours)
    expected = FUNCTIONS[name](*theirs)
    tolerance = 1e-2 if name == "narrower" else 1e-5
    for mine, other in ((actual, expected), *zip(ours, theirs, strict=True)):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=1e-6, check_stride=True)


def test_a_stretch_is_one_call_and_one_copy() -> None:
    xs, ys = tensors(0), tensors(1)
    assert targets(captured(steps, xs, ys)) == [LISTS, torch._foreach_copy_]
    expected = tensors(0)
    steps(expected, ys)
    torch.testing.assert_close(xs, expected)  # the pass keeps what Dynamo's graph does


def with_gradients(xs: Tensors, ys: Tensors) -> Tensors:
    return torch._foreach_mul(torch._foreach_add([x.requires_grad_() for x in xs], ys), 2)


def of_shared_memory(xs: Tensors, ys: Tensors) -> Tensors:
    whole = torch.cat([x.flatten() for x in xs])
    parts = [whole[i : i + 9] for i in range(COUNT)]
    torch._foreach_add_(parts, 1)
    return torch._foreach_mul(parts, ys[2])


def few(xs: Tensors, ys: Tensors) -> Tensors:
    return torch._foreach_add(xs, ys)


def complex_numbers(xs: Tensors, _: Tensors) -> Tensors:
    return torch._foreach_exp(torch._foreach_mul([x.to(torch.complex64) for x in xs], 2j))


def under_autocast(xs: Tensors, ys: Tensors) -> Tensors:
    with torch.autocast("cpu", torch.bfloat16):
        return torch._foreach_norm(torch._foreach_add(xs, ys), 2)


@pytest.mark.parametrize(
    "function", [with_gradients, of_shared_memory, few, complex_numbers, under_autocast]
)
def test_what_could_mean_something_else_stays(function: Callable[..., Any]) -> None:
    assert LISTS not in targets(captured(function, tensors(0), tensors(1)))
    torch._dynamo.reset()
    ours, theirs = [tensors(0), tensors(1)], [tensors(0), tensors(1)]
    actual = torch.compile(function, backend="trnx")(*ours)
    torch.testing.assert_close(actual, function(*theirs), rtol=1e-5, atol=1e-6)


def test_inputs_that_share_memory_stay() -> None:
    whole = torch.arange(40.0)
    xs = [whole[i : i + 20] for i in range(COUNT)]
    gm = captured(steps, xs, [torch.ones(20)] * COUNT)
    assert LISTS not in targets(gm)


def test_no_gradients_are_followed_under_no_grad() -> None:
    def step(xs: Tensors, ys: Tensors) -> None:
        with torch.no_grad():
            torch._foreach_add_(xs, ys)
            torch._foreach_mul_(xs, 2)

    parameters = [torch.nn.Parameter(x) for x in tensors(0)]
    assert LISTS in targets(captured(step, parameters, tensors(1)))


def test_the_sizes_may_be_symbols() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(steps, backend="trnx", dynamic=True)
    for size in (3, 5):
        xs, ys = [[torch.full((size, 4), 0.5 + i) for i in range(COUNT)] for _ in range(2)]
        expected = [x.clone() for x in xs]
        results = steps(expected, ys)
        torch.testing.assert_close(compiled(xs, ys), results)
        torch.testing.assert_close(xs, expected)


def test_few_elements_in_a_circle_are_computed_in_order() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([a, b], [b, a], alpha=2)
        return a + 1

    torch._dynamo.reset()
    ours, theirs = [[torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])] for _ in range(2)]
    torch.testing.assert_close(torch.compile(step, backend="trnx")(*ours), step(*theirs))
    torch.testing.assert_close(ours, theirs)
