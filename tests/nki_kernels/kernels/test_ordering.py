"""What is special to `topk` and `sort`: NaN, ties, layouts, strides, routers, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

Function = Callable[[torch.Tensor], Any]

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
INF, NAN = float("inf"), float("nan")
MAX = torch.finfo(torch.float32).max


def compiled(function: Function, x: torch.Tensor, target: str = "trn2") -> Any:
    torch._dynamo.reset()
    options = {**ALL_ON_NKI, "target": target}
    return torch.compile(function, backend="trnx", options=options)(x)


def special(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Many ties, zeros of both signs, infinities, NaN and the greatest numbers."""
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, 1e-42, torch.finfo(dtype).max]
    values = torch.tensor([*numbers, torch.finfo(dtype).min]).to(dtype)
    return values[torch.randint(len(values), shape, generator=generator)]


def equal(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_stable_sort_of_special_values(dtype: torch.dtype, descending: bool, target: str) -> None:
    x = special(9, 43, dtype=dtype)
    for dim in (0, 1):
        wanted = torch.sort(x, dim=dim, descending=descending, stable=True)
        found = compiled(
            lambda x, dim=dim: torch.sort(x, dim=dim, descending=descending, stable=True), x, target
        )
        equal(found[0], wanted[0])
        equal(found[1], wanted[1])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 8, 9, 30])
def test_topk_of_special_values(k: int, largest: bool) -> None:
    x = special(4, 30, 7)
    values, indices = compiled(lambda x: x.topk(k, 1, largest), x)
    wanted = x.topk(k, 1, largest)
    equal(values, wanted.values)
    assert indices.stride() == wanted.indices.stride()
    # Which of equal elements are taken is not promised; each is taken once and has the value.
    torch.testing.assert_close(x.gather(1, indices), values, rtol=0, atol=0, equal_nan=True)
    places = indices.sort(1).values
    assert places[:, 1:].ne(places[:, :-1]).all()


def test_greatest_numbers_of_float32_stay_apart_from_infinity() -> None:
    x = torch.tensor([[MAX, INF, -INF, NAN, -MAX, 3.0e38, INF, MAX, 1.0]])
    for descending in (True, False):
        found = compiled(lambda x, d=descending: torch.sort(x, -1, d), x)
        equal(found[1], torch.sort(x, -1, descending)[1])


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_strides(layout: str) -> None:
    x = torch.randn(30, 24, generator=torch.Generator().manual_seed(5))
    x = {"transposed": x.t(), "sliced": x[:, 1::2], "expanded": x[:1].expand(7, 24)}[layout]
    for function in (lambda x: x.topk(5), lambda x: x.sort(0, True), lambda x: x.sort(-1)):
        for found, wanted in zip(compiled(function, x), function(x), strict=True):
            equal(found, wanted)


def test_spellings_of_a_sort() -> None:
    x = torch.randn(20, 12, generator=torch.Generator().manual_seed(6))
    for function in (
        lambda x: x.argsort(),
        lambda x: x.argsort(0, True),
        lambda x: torch.argsort(x, dim=1, stable=True),
        lambda x: torch.msort(x),
        lambda x: x.sort(-1).values,
    ):
        equal(compiled(function, x), function(x))


def test_one_element() -> None:
    x = torch.tensor([[3.0], [NAN], [-1.0]])
    for found, wanted in zip(compiled(lambda x: x.topk(1), x), x.topk(1), strict=True):
        equal(found, wanted)
    for found, wanted in zip(compiled(lambda x: x.sort(1), x), x.sort(1), strict=True):
        equal(found, wanted)


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 4)])
def test_nothing_to_find_runs_in_eager(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    torch._dynamo.reset()
    function = torch.compile(lambda x: x.topk(0, -1), backend="trnx")
    for found, wanted in zip(function(x), x.topk(0, -1), strict=True):
        equal(found, wanted)


def test_gradients() -> None:
    grads = []
    for compile_it in (False, True):
        x = torch.randn(7, 30, generator=torch.Generator().manual_seed(7), requires_grad=True)

        def loss(x: torch.Tensor) -> torch.Tensor:
            return x.topk(3)[0].square().sum() + (x.sort(0)[0] * torch.arange(30)).sum()

        (torch.compile(loss, backend="trnx") if compile_it else loss)(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (60, 4), (64, 8), (256, 8)])
def test_routers_of_experts_run_on_nki(experts: int, chosen: int) -> None:
    def router(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, places = torch.topk(torch.softmax(x.float(), -1), chosen, dim=-1)
        return weights / weights.sum(-1, keepdim=True), places

    x = torch.randn(2048, experts, generator=torch.Generator().manual_seed(8)).bfloat16()
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        weights, places = torch.compile(router, backend="trnx")(x)
    assert [region.engine for region in reports[0].regions] == ["nki"] * len(reports[0].regions)
    assert "topk" in [region.kernel for region in reports[0].regions]
    wanted, expected = router(x)
    torch.testing.assert_close(weights, wanted)
    probabilities = torch.softmax(x.float(), -1)
    torch.testing.assert_close(probabilities.gather(1, places), probabilities.gather(1, expected))


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "reason"),
    [
        ("topk", (3, 40), torch.float64, "float64"),
        ("topk", (3, 5000000), torch.float32, "lines of 5000000 elements"),
        ("sort", (300, 4, 2), torch.float32, "300 groups"),
        ("sort", (0, 4), torch.float32, "no elements"),
        ("sort", (), torch.float32, "no dimensions"),
        ("sort", (128 * 1024, 512), torch.float32, "65536 searches"),
    ],
)
def test_refusals(name: str, shape: tuple[int, ...], dtype: torch.dtype, reason: str) -> None:
    given = {"x": TensorSpec.dense(shape, dtype), "dim": 1 if shape else 0}
    own = {"k": 2, "largest": True, "is_sorted": True}
    if name == "sort":
        own = {"descending": False, "stable": True}
    refusal = registry.kernels()[name].supports(Bindings({**given, **own}), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
