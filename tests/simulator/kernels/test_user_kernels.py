"""Whole kernels at their edges against torch: the first call, the second one, and the replay of a
trace without values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import Program, TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import OutOfBoundsError, UninitialisedReadError

F = torch.nn.functional
EDGES = (1, 127, 128, 129)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("user_kernels.py"))


def recorded(kernel: Any, arguments: tuple[Any, ...], grid: int | None = None) -> Program:
    """Traced from shapes alone."""
    specs = [TensorSpec.of(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    return trace(kernel, specs, grid=grid)


def run(kernel: Any, *arguments: Any, grid: int | None = None) -> Any:
    """Results of the first call, which the second one and a replay repeat to the bit."""
    dense = tuple(a.contiguous() if isinstance(a, torch.Tensor) else a for a in arguments)
    first, second = (simulate(kernel, grid=grid)(*arguments) for _ in range(2))
    replayed = recorded(kernel, dense, grid).run([a for a in dense if isinstance(a, torch.Tensor)])
    for again in (second, replayed):
        for a, b in zip(_tuple(first), _tuple(again), strict=True):
            assert torch.equal(a, b)
    return first


def _tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def count(n: int) -> torch.Tensor:
    return torch.tensor([[n]], dtype=torch.int32)


@pytest.mark.parametrize(("n", "d"), [*itertools.product(EDGES, (1, 129)), (2, 513), (129, 1025)])
def test_layer_norm_of_sizes_that_do_not_divide(kernels: ModuleType, n: int, d: int) -> None:
    x, gamma = torch.randn(n, d) * 3 + 5, torch.rand(d)
    expected = F.layer_norm(x.double(), (d,), gamma.double(), eps=1e-3).float()
    torch.testing.assert_close(run(kernels.layer_norm, x, gamma, 1e-3), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.stack((x, x), dim=2)[:, :, 1],
        lambda x: x[:1].expand(129, 65),
        lambda x: x.to(torch.bfloat16),
    ],
    ids=["transposed", "interleaved", "expanded", "bfloat16"],
)
def test_layer_norm_of_any_layout(
    kernels: ModuleType, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = make(torch.randn(129, 65))
    expected = F.layer_norm(x.double(), (65,), eps=1e-3).to(x.dtype)
    torch.testing.assert_close(run(kernels.layer_norm, x, torch.ones(65), 1e-3), expected)


@pytest.mark.parametrize(
    ("c", "n", "k", "stride", "dilation"),
    [(1, 5, 3, 1, 1), (127, 129, 5, 3, 2), (128, 64, 1, 7, 1), (3, 513, 7, 2, 5)],
)
def test_overlapping_windows(
    kernels: ModuleType, c: int, n: int, k: int, stride: int, dilation: int
) -> None:
    x, w = torch.randn(c, n), torch.randn(c, k)
    expected = F.conv1d(x[None], w[:, None], stride=stride, dilation=dilation, groups=c)[0]
    torch.testing.assert_close(run(kernels.depthwise_conv, x, w, stride, dilation), expected)


@pytest.mark.parametrize("mode", ["pattern", "select"])
@pytest.mark.parametrize("n", EDGES)
def test_gathers_reach_the_last_row_and_no_further(kernels: ModuleType, n: int, mode: str) -> None:
    table = torch.randn(7, 50).t()
    rows = torch.randint(0, 50, (n, 1), dtype=torch.int32)
    rows[0] = rows[-1] = 49
    assert torch.equal(run(kernels.gather_rows, table, rows, mode), table[rows[:, 0].long()])
    program = recorded(kernels.gather_rows, (table.contiguous(), rows, mode))
    for bad in (-1, 50):
        rows[n // 2] = bad
        with pytest.raises(OutOfBoundsError, match=f"index {bad}; valid are 0 to 49"):
            simulate(kernels.gather_rows)(table, rows, mode)
        with pytest.raises(OutOfBoundsError, match=f"index {bad}; valid are 0 to 49"):
            program.run([table.contiguous(), rows])


def test_gathers_may_leave_out_what_is_not_there(kernels: ModuleType) -> None:
    table = torch.randn(50, 7)
    rows = torch.tensor([[-1], [0], [49], [50], [2**31 - 1], [-(2**31)]], dtype=torch.int32)
    expected = torch.full((6, 7), -1.0)
    expected[1], expected[2] = table[0], table[49]
    assert torch.equal(run(kernels.gather_rows, table, rows, "skip"), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("k", "m", "w"), [(1, 1, 1), (129, 127, 64), (300, 128, 512)])
def test_products_accumulate_in_all_banks(
    kernels: ModuleType, k: int, m: int, w: int, dtype: torch.dtype
) -> None:
    a, b = torch.randn(k, m).to(dtype), torch.randn(k, 8 * w).to(dtype)
    expected = a.double().t() @ b.double()
    got = run(kernels.product_in_all_banks, a, b)
    torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("p", "n"), [(1, 2), (127, 258), (128, 6)])
def test_two_programs_exchange_edges(kernels: ModuleType, p: int, n: int) -> None:
    x = torch.randn(p, n)
    wide = F.pad(x, (1, 1))
    assert torch.equal(run(kernels.neighbours, x, grid=2), wide[:, :-2] + wide[:, 2:])


@pytest.mark.parametrize(("n", "d"), [(1, 1), (127, 99), (128, 101), (5, 513)])
def test_a_scan_goes_on_where_it_ended(kernels: ModuleType, n: int, d: int) -> None:
    x = torch.randn(n, d)
    expected = x.double().cumsum(1).float()
    torch.testing.assert_close(run(kernels.running_sum, x), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("p", "n"), [(1, 16), (127, 17), (128, 1000)])
def test_the_largest_and_where_they_are(kernels: ModuleType, p: int, n: int) -> None:
    x = torch.randn(p, n)
    values, indices = run(kernels.top_16, x)
    assert torch.equal(values, x.topk(16, dim=1).values)
    assert torch.equal(x.gather(1, indices.long()), values)


def test_loops_turn_as_often_as_values_say(kernels: ModuleType) -> None:
    x = torch.randn(65, 9)
    triangle = recorded(kernels.turns_of_a_triangle, (count(0),))
    doubled = recorded(kernels.doubled_rows, (x, count(0)))
    for n in (0, 1, 5, 65):
        turns = min(n, 11)
        assert run(kernels.turns_of_a_triangle, count(turns)).item() == turns * (turns - 1) / 2
        assert triangle.run([count(turns)])[0].item() == turns * (turns - 1) / 2
        expected = torch.cat((2 * x[:n], x[n:]))
        assert torch.equal(run(kernels.doubled_rows, x, count(n)), expected)
        assert torch.equal(doubled.run([x, count(n)])[0], expected)
    with pytest.raises(OutOfBoundsError, match="index 65; valid are 0 to 64"):
        doubled.run([x, count(66)])


def test_a_result_that_no_turn_has_written(kernels: ModuleType) -> None:
    x = torch.randn(4, 5)
    for _ in range(2):
        with pytest.raises(UninitialisedReadError, match=r"result .* the loop made no turn"):
            simulate(kernels.written_in_a_loop)(x, count(0))
    assert torch.equal(run(kernels.written_in_a_loop, x, count(2)), x)


@pytest.mark.parametrize(
    ("sq", "sk", "d", "dtype", "is_causal"),
    [
        (129, 129, 64, torch.bfloat16, True),
        (1, 127, 128, torch.bfloat16, False),
        (128, 257, 32, torch.float32, False),
        (127, 1, 1, torch.float32, False),
    ],
)
def test_attention_of_ragged_lengths(
    kernels: ModuleType, sq: int, sk: int, d: int, dtype: torch.dtype, is_causal: bool
) -> None:
    q, k, v = (torch.randn(n, d).to(dtype) for n in (sq, sk, sk))
    wide = (tensor.double()[None] for tensor in (q, k, v))
    expected = F.scaled_dot_product_attention(*wide, is_causal=is_causal)[0]
    # The weights of the values are rounded to their type too.
    got = run(kernels.attention, q, k, v, is_causal)
    torch.testing.assert_close(
        got, expected.to(dtype), **({"rtol": 2e-2, "atol": 2e-2} if d > 32 else {})
    )


@pytest.mark.parametrize("takes_exponential", [True, False])
def test_the_initial_value_of_a_reduction_may_lie_in_dst(
    kernels: ModuleType, takes_exponential: bool
) -> None:
    x, start = torch.randn(5, 1), torch.randn(5, 1)
    run = simulate(kernels.reduces_from_its_destination, target="trn3")
    expected = start + (x.exp() if takes_exponential else 3 * x)
    for _ in range(2):
        torch.testing.assert_close(run(x, start, takes_exponential), expected)
