"""`topk` of long lines by blocks: special values, ties, ragged ends, segments, limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnx.nki_kernels import registry
from trnx.nki_kernels.kernels.ordering._block_plan import Blocks, blocks_of
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

INF, NAN = float("inf"), float("nan")


def check(x: torch.Tensor, k: int, largest: bool = True, target: str = "trn2", lnc: int = 1) -> Any:
    """Values are torch's; places are different ones that have these values."""
    torch._dynamo.reset()
    options = {"fallback": "error", "select": "legal", "target": target, "lnc": lnc}
    function = torch.compile(
        lambda x: x.topk(k, -1, largest), backend="trnx", options=options, dynamic=False
    )
    values, places = function(x)
    wanted = x.topk(k, -1, largest)
    assert (values.dtype, places.dtype) == (x.dtype, torch.int64)
    assert values.stride() == wanted.values.stride()
    torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
    assert 0 <= int(places.min()) <= int(places.max()) < x.shape[-1]
    torch.testing.assert_close(x.gather(-1, places), values, rtol=0, atol=0, equal_nan=True)
    ordered = places.sort(-1).values
    assert ordered[..., 1:].ne(ordered[..., :-1]).all()
    return places


def special(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers, among them ties, zeros of both signs, infinities, NaN, the greatest ones."""
    generator = torch.Generator().manual_seed(rows + columns)
    x = torch.randn(rows, columns, generator=generator).to(dtype)
    numbers = [NAN, INF, -INF, 0.0, -0.0, 2.5, 1e-42, torch.finfo(dtype).max]
    values = torch.tensor([*numbers, torch.finfo(dtype).min]).to(dtype)
    chosen = values[torch.randint(len(values), (rows, columns), generator=generator)]
    return torch.where(torch.rand(rows, columns, generator=generator) < 0.02, chosen, x)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("largest", [True, False])
def test_special_values(largest: bool, dtype: torch.dtype, target: str) -> None:
    check(special(5, 1021, dtype), 17, largest, target)


@pytest.mark.parametrize("rows", [1, 127, 128, 129])
@pytest.mark.parametrize("lnc", [1, 2])
def test_lines(rows: int, lnc: int) -> None:
    check(special(rows, 777, torch.float32), 9, lnc=lnc)


@pytest.mark.parametrize("fill", [-INF, INF, NAN, 1.0])
@pytest.mark.parametrize("largest", [True, False])
def test_lines_of_one_value(fill: float, largest: bool) -> None:
    """What fills the last block of a ragged line is never found."""
    x = torch.full((3, 1001), fill)
    check(x, 40, largest)
    x[:, 5], x[1, 1000] = 0.0, NAN
    check(x, 40, largest)


@pytest.mark.parametrize(("length", "k"), [(50257, 50), (16387, 1), (9000, 8)])
def test_lines_in_segments(length: int, k: int) -> None:
    cut = blocks_of(length, k, 2, 4)
    assert isinstance(cut, Blocks)
    assert cut.segments > 1
    check(special(2, length, torch.float32), k)


def test_places_of_different_numbers_are_those_of_torch() -> None:
    x = torch.stack(
        [torch.randperm(6001, generator=torch.Generator().manual_seed(i)) for i in (1, 2)]
    )
    assert torch.equal(check(x.float(), 100), x.topk(100).indices)


def test_a_long_line_of_another_dimension_is_refused() -> None:
    x = TensorSpec.dense((5000, 3), torch.float32)
    given = {"x": x, "k": 2, "dim": 0, "largest": True, "is_sorted": True}
    refusal = registry.kernels()["topk"].supports(Bindings(given), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert "lines of 5000 elements" in refusal.reason


@pytest.mark.parametrize(("length", "k", "reason"), [(500, 2, "500 elements"), (10**7, 9, "SBUF")])
def test_no_blocks(length: int, k: int, reason: str) -> None:
    refusal = blocks_of(length, k, 128, 4)
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


def test_what_fits_is_in_sbuf() -> None:
    """The largest lines that one partition takes, with many elements to be found."""
    for length, k in ((24000, 300), (33000, 8)):
        cut = blocks_of(length, k, 128, 4)
        assert isinstance(cut, Blocks)
        check(torch.randn(2, length, generator=torch.Generator().manual_seed(k)), k, target="trn1")
