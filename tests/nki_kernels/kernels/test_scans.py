"""What is special to scans: accuracy, special values, integers beyond 32 bits, how rows are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.nki_kernels import registry
from trnx.nki_kernels.kernels._scan_plan import cut
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
Function = Callable[[torch.Tensor], Any]

INF, NAN = float("inf"), float("nan")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def compiled(function: Function, x: torch.Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="trnx", options=ALL_ON_NKI)(x)


def special(*shape: int) -> torch.Tensor:
    x = draw(*shape)
    x[0, 3], x[1, 2], x[2, 1] = INF, NAN, -INF
    x[3, 2], x[3, 5] = INF, -INF
    x[4] *= 1e-42
    return x


SCANS: dict[str, Function] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumsum over rows": lambda x: x.cumsum(0),
    "cummax": lambda x: x.cummax(1),
    "cummin over rows": lambda x: x.cummin(-2),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "special"])
def test_layouts_and_special_values(name: str, layout: str) -> None:
    x = {
        "contiguous": draw(6, 35),
        "transposed": draw(35, 6).t(),
        "sliced": draw(6, 71)[:, 1::2],
        "special": special(6, 35),
    }[layout]
    results, expected = compiled(SCANS[name], x), SCANS[name](x)
    if isinstance(expected, torch.Tensor):
        results, expected = (results,), (expected,)
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype is wanted.dtype
        assert result.stride() == wanted.stride()
        torch.testing.assert_close(result, wanted, equal_nan=True)


def test_running_sums_of_float32_lose_one_rounding() -> None:
    x = draw(2, 20000) * 1000
    exact = x.double().cumsum(1)
    eager = (x.cumsum(1) - exact).abs().max()
    assert (compiled(lambda x: x.cumsum(1), x) - exact).abs().max() <= 2 * eager


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("dim", [0, 1])
def test_running_sums_of_integers_wrap_around_as_in_eager(dtype: torch.dtype, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    x = torch.randint(-(2**63), 2**63 - 1, (37, 1100), generator=generator)
    x = (x > 0) if dtype is torch.bool else x.to(dtype)
    torch.testing.assert_close(compiled(lambda x: x.cumsum(dim), x), x.cumsum(dim), rtol=0, atol=0)


def test_of_equal_elements_the_last_one_counts() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, NAN, 7.0, NAN, INF]])
    values, indices = compiled(lambda x: x.cummax(1), x)
    assert indices.tolist() == [[0, 1, 2, 2, 4, 5, 5, 7, 7]]
    assert values.isnan().sum() == 4


def test_gradients() -> None:
    grads = []
    for run in (SCANS["cumsum"], torch.compile(SCANS["cumsum"], backend="trnx")):
        x = draw(7, 30).requires_grad_()
        run(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((5, 3), torch.float64, "float64"),
        ((2, 70000), torch.int64, "not exact"),
        ((), torch.float32, "no dimension"),
        ((3, 0), torch.float32, "no elements"),
    ],
)
def test_refusals(shape: tuple[int, ...], dtype: torch.dtype, reason: str) -> None:
    b = Bindings({"x": TensorSpec.dense(shape, dtype), "dim": max(0, len(shape) - 1)})
    refusal = registry.kernels()["cumsum"].supports(b, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("shape", [(1,), (7, 1), (300, 9), (3, 2000), (2, 70, 33), (4, 5, 300)])
def test_tiles_cover_every_element_once(shape: tuple[int, ...], cores: int) -> None:
    for dim in range(len(shape)):
        pieces = cut(shape, dim, cores)
        seen = torch.zeros(torch.Size(shape).numel(), dtype=torch.int64)
        for group in pieces.groups:
            assert torch.Size(size for _, size in group.partitions).numel() <= 128
            for tile in range(group.tiles):
                sizes = [size for _, size in group.partitions]
                strides = [stride for stride, _ in group.partitions]
                sizes += [group.rows, pieces.length, group.width]
                strides += [pieces.length, pieces.inner, 1]
                start = group.start + tile * group.step
                seen.as_strided(sizes, strides, start).add_(1)
        assert seen.eq(1).all()


@pytest.mark.parametrize(
    ("shape", "dim"), [((4096, 2048), 0), ((40, 512), 0), ((2, 70, 640), 1), ((200, 9), 1)]
)
def test_both_cores_have_tiles(shape: tuple[int, ...], dim: int) -> None:
    """On one core the same work is one tile."""
    tiles = [sum(group.tiles for group in cut(shape, dim, cores).groups) for cores in (1, 2)]
    assert tiles == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_columns_on_both_cores(dtype: torch.dtype) -> None:
    """Every sum is that of one core."""
    x = torch.randn(130, 700, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    found = []
    for lnc in (1, 2):
        torch._dynamo.reset()
        options = {**ALL_ON_NKI, "lnc": lnc}
        found.append(torch.compile(lambda x: x.cumsum(0), backend="trnx", options=options)(x))
    assert torch.equal(*found)
