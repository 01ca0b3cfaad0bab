"""Aliases, mutation and layouts: compiled code shares, writes and lays out what eager does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import trnx

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def storages(values: Sequence[Any]) -> list[int]:
    """For each tensor with elements the index of the first one with the same storage."""
    addresses = [v.untyped_storage().data_ptr() for v in values if v.numel()]
    return [addresses.index(address) for address in addresses]


def check(function: Function, *inputs: torch.Tensor, calls: int = 2, **options: Any) -> None:
    """Compare values, dtypes, shapes, strides, sharing and mutation with eager, for some calls."""
    compiled = torch.compile(function, backend="trnx", fullgraph=True, options=options or None)
    for _ in range(calls):
        ours = [copied(x) for x in inputs]
        theirs = [copied(x) for x in inputs]
        with torch.no_grad():
            got, want = compiled(*ours), function(*theirs)
        got, want = ([v] if isinstance(v, torch.Tensor) else list(v) for v in (got, want))
        assert len(got) == len(want)
        for a, b in zip([*got, *ours], [*want, *theirs], strict=True):
            assert (a.dtype, a.shape, strides(a)) == (b.dtype, b.shape, strides(b))
            assert a.storage_offset() == b.storage_offset()
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert storages([*ours, *got]) == storages([*theirs, *want])


def strides(x: torch.Tensor) -> list[int]:
    """Strides of the dimensions with more than one element.

    For the others torch's own metadata differ from what eager returns.
    """
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1]


def copied(x: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of `x`."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def returns_a_view(x: torch.Tensor) -> torch.Tensor:
    return x[1:].t()


def returns_views_of_a_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x * 2).relu()
    return y, y.t(), y.view(-1)[3:], y[0]


def mutates_its_input(x: torch.Tensor) -> torch.Tensor:
    x.mul_(3).add_(1)
    return x.sum(dim=0)


def mutates_a_slice(x: torch.Tensor) -> torch.Tensor:
    x[1].copy_(x[0] * 2)
    return x + 1


def mutates_a_view_and_returns_it(x: torch.Tensor) -> torch.Tensor:
    y = x.t()
    y.add_(1)
    return y


def returns_its_input(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x + 1


def returns_the_same_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.sigmoid()
    return y, y


def returns_equal_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sigmoid() * 2, x.sigmoid() * 2


def returns_equal_results_of_operators_with_several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = torch.nn.functional.layer_norm(x, x.shape[-1:])
    second = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return first, second, *x.max(-1), *x.max(-1), x.sort(-1)[1], x.argsort(-1)


def returns_parts_of_equal_results(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parts = x.relu().chunk(2)[0], x.relu().chunk(2)[0]
    return x.sigmoid().topk(2)[0], x.sigmoid().topk(2)[1], *parts


def reads_the_memory_of_results(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = (x * 2).relu()
    second = torch.nn.functional.layer_norm(x, x.shape[-1:])
    third = (first @ second.t()).softmax(-1)
    strided = (t.as_strided((3, 2), (2, 3), 1) for t in (first, second, third))
    return tuple(t * 2 for t in strided)


def writes_the_memory_of_results(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.layer_norm(x, x.shape[-1:])
    z = torch.nn.functional.layer_norm(y.relu(), x.shape[-1:]).softmax(-1)
    z.diagonal().fill_(1)
    z.fill_diagonal_(2)
    return z * 2 + y.fill_diagonal_(3)


def returns_a_constant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(3), x.new_full((2,), 7.0)


def returns_a_transposed_product(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.t()).relu().t()


FUNCTIONS: list[Function] = [
    returns_a_view,
    returns_views_of_a_result,
    mutates_its_input,
    mutates_a_slice,
    mutates_a_view_and_returns_it,
    returns_its_input,
    returns_the_same_twice,
    returns_equal_results,
    returns_equal_results_of_operators_with_several,
    returns_parts_of_equal_results,
    reads_the_memory_of_results,
    writes_the_memory_of_results,
    returns_a_constant,
    returns_a_transposed_product,
]


@pytest.mark.parametrize("runner", ["simulator", "reference"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_eager(function: Function, runner: str) -> None:
    check(function, torch.randn(4, 6), runner=runner, select="legal")


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(6, 4).t(),
        torch.randn(8, 12)[::2, ::2],
        torch.randn(4, 1).expand(4, 6).clone(memory_format=torch.preserve_format),
        torch.randn(3, 4, 6)[1],
        torch.empty(0, 6),
        torch.randn(1, 6),
    ],
    ids=["transposed", "strided", "expanded", "offset", "empty", "one row"],
)
def test_layouts_of_inputs(x: torch.Tensor) -> None:
    check(lambda x: ((x * 2).relu(), x.t() + 1, x.sum(0)), x, select="legal")


def test_zero_dimensional_tensors() -> None:
    check(lambda x, y: (x * y, y + 1, x.sum()), torch.randn(3), torch.tensor(2.0), select="legal")


def test_channels_last_stays() -> None:
    x = torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last)
    check(lambda x: ((x * 2).relu(), x + x.contiguous()), x, select="legal")


def test_convolution_in_channels_last() -> None:
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3)
    check(lambda x, w: torch.conv2d(x, w, padding=1).relu(), x, weight)


def test_two_arguments_that_are_one_tensor() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    compiled = torch.compile(function, backend="trnx")
    ours, theirs = torch.arange(4.0), torch.arange(4.0)
    assert torch.equal(compiled(ours, ours), function(theirs, theirs))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("fallback", ["xla", "eager"])
def test_a_copy_is_a_copy(fallback: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sigmoid() * 2
        return x.clone(), y.clone(), y + 0, y.to(torch.float32, copy=True)

    compiled = torch.compile(function, backend="trnx", options={"fallback": fallback})
    x = torch.randn(64, 64)
    with torch.no_grad():
        first = compiled(x)
        kept = [y.clone() for y in first]
        compiled(torch.randn(64, 64))
    assert len({y.data_ptr() for y in (x, *first)}) == 5
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def overlapping(size: int, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two arguments that share half of their elements, and are views of no tensor."""
    storage = torch.arange(float(size)).untyped_storage()
    return (
        torch.empty(0).set_(storage, start, (2, 8), (8, 1)),
        torch.empty(0).set_(storage, start + 8, (2, 8), (8, 1)),
    )


def test_arguments_that_overlap_in_any_memory() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return y + x.sum()

    compiled = torch.compile(function, backend="trnx", fullgraph=True)
    for size, start in ((24, 0), (40, 0), (24, 0), (64, 0)):  # the first one ends with them
        ours, theirs = overlapping(size, start), overlapping(size, start)
        assert torch.equal(compiled(*ours), function(*theirs))
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_arguments_that_overlap_in_larger_memory_at_capture() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(y.flip(0))
        return x @ y.t()

    ours, theirs = overlapping(40, 0), overlapping(40, 0)
    with trnx.collect_reports() as reports:
        found = torch.compile(function, backend="trnx", fullgraph=True)(*ours)
    assert torch.equal(found, function(*theirs))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    (entry,) = (one for one in reports.fallbacks if "overlap" in one.reason)
    assert "clone" in entry.advice


def test_results_are_fresh_at_each_call() -> None:
    compiled = torch.compile(lambda x: torch.softmax(x @ x, -1), backend="trnx")
    with torch.no_grad():
        first = compiled(torch.eye(8))
        kept = first.clone()
        second = compiled(torch.randn(8, 8))
    assert torch.equal(first, kept)
    assert first.data_ptr() != second.data_ptr()


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    table = torch.nn.Embedding(10, 8)
    compiled = torch.compile(table, backend="trnx", options={"select": "legal"})
    with torch.no_grad():
        assert torch.equal(compiled(torch.tensor([1, 9])), table(torch.tensor([1, 9])))
        with pytest.raises(IndexError):
            compiled(torch.tensor([1, 10]))
        assert torch.equal(compiled(torch.tensor([3, 0])), table(torch.tensor([3, 0])))


def test_random_ops_draw_what_eager_draws() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    compiled = torch.compile(function, backend="trnx")
    x = torch.ones(64)
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)
