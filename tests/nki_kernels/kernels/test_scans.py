"""What is special to scans: accuracy, special values, integers beyond 32 bits, how rows are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.kernels._fixed_point_plan import plan_of
from trnx.nki_kernels.kernels._fixed_point_steps import (
    ADD,
    ADD_ON_TENSOR,
    BOUND,
    COPY,
    FINISH,
    FINISH_ON_GPSIMD,
    LIFT,
    LOAD,
    ROUND,
    ROUND_ON_VECTOR,
    SUM,
    SUM_LEFT,
    grid_of,
)
from trnx.nki_kernels.kernels._scan_plan import cut
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import predicted_seconds

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


def adversarial(length: int) -> dict[str, torch.Tensor]:
    """Rows that addition in float32 gets wrong by many roundings, or that are special."""
    places = torch.arange(length)
    x = iter(draw(24, length))
    rows = {"drawn": next(x)}
    rows["equal"] = torch.full((length,), 0.1)
    rows["positive"] = next(x).abs()
    rows["alternating"] = next(x).abs() * (1 - 2 * (places % 2))
    half = next(x)[: length // 2]
    rows["back to nothing"] = torch.cat((half, -half, torch.zeros(length % 2)))
    rows["large and small"] = next(x) * torch.where(places % 64 == 0, 1e8, 1.0)
    rows["large comes and goes"] = next(x).index_put(
        (torch.tensor([1, length - 5]),), torch.tensor([1e8, -1e8])
    )
    rows["of many sizes"] = next(x) * 10.0 ** ((places * 7 % 61 - 30).double()).float()
    rows["growing"] = 2.0 ** (places / length * 60 - 30)
    rows["shrinking"] = next(x) * 2.0 ** (30 - places / length * 60)
    rows["sums of 1e38"] = next(x) * (1e38 / length)
    pairs = next(x)[: -(-length // 2)].repeat_interleave(2)[:length]
    rows["magnitudes beyond float32"] = pairs * (1 - 2 * (places % 2)) * (4e37 - 1e33 * places)
    rows["denormal"] = next(x) * 1e-42
    rows["small"] = next(x) * 1e-33
    for name, values in {
        "inf": {length // 2: INF},
        "-inf": {length // 2: -INF},
        "two": {length // 3: INF, length // 2: INF},
        "both": {length // 3: INF, length - 2: -INF},
        "nan": {length - 3: NAN},
        "inf, nan": {20: INF, 30: NAN},
        "nan first": {0: NAN},
        "inf first": {0: INF},
    }.items():
        rows[name] = next(x).clone()
        for place, value in values.items():
            rows[name][place] = value
    return rows


def assert_as_exact_as_eager(rows: dict[str, torch.Tensor]) -> None:
    """Row by row: an error that is small beside the others of another row is none of this one."""
    x = torch.stack(list(rows.values()))
    exact, eager = x.double().cumsum(1), x.cumsum(1)
    result = compiled(lambda x: x.cumsum(1), x)
    for name, found, wanted, right in zip(rows, result, eager, exact, strict=True):
        is_finite = wanted.isfinite()
        torch.testing.assert_close(
            found[~is_finite], wanted[~is_finite], rtol=0, atol=0, equal_nan=True, msg=name
        )
        if is_finite.any():
            errors = [(sums - right)[is_finite].abs().max() for sums in (found, wanted)]
            assert errors[0] <= 2 * errors[1], (name, errors)


@pytest.mark.parametrize("is_repaired", [False, True])
@pytest.mark.parametrize("length", [130, 513, 600, 2048, 4097, 8192, 8193, 40000])
def test_running_sums_of_float32_are_as_exact_as_in_eager(length: int, is_repaired: bool) -> None:
    """A row that is not finite, or of magnitudes beyond float32, has all rows computed again."""
    rows = adversarial(length)
    if not is_repaired:
        rows = {name: row for name, row in rows.items() if row.double().abs().sum() < 2.0**125}
        assert len(rows) == 12
    assert_as_exact_as_eager(rows)


@pytest.mark.parametrize("length", [2048, 4096, 8192, 16384])
def test_running_sums_of_equal_elements_of_float32(length: int) -> None:
    """Where each sum of what is left may round to the same side."""
    values = draw(64).sign() * (0.5 + torch.rand(64, generator=torch.Generator().manual_seed(1)))
    rows = {f"{value:.3f}": value.expand(length) for value in values}
    assert_as_exact_as_eager(rows)


def test_a_first_row_of_float32_beside_special_ones() -> None:
    """Rows do not meet, and all are computed again, so that the last bit may be another."""
    x = draw(3, 3000)
    alone = compiled(lambda x: x.cumsum(1), x[:1])
    x[1:] = torch.tensor([[NAN], [3e38]])
    exact = x[:1].double().cumsum(1)
    beside = compiled(lambda x: x.cumsum(1), x)[:1]
    least = 2 * (x[:1].cumsum(1) - exact).abs().max()
    assert (alone - exact).abs().max() <= least
    assert (beside - exact).abs().max() <= least


def test_scans_of_long_rows_of_float32_take_two_elements_a_step() -> None:
    b = Bindings({"x": TensorSpec.dense((128, 2047), torch.float32), "dim": 1})
    launch = registry.kernels()["cumsum"].launch(b, hardware("trn2"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
    scans = [row for row in program.rows if row.opcode == "tensor_tensor_scan"]
    steps = sum(operand.free_size for row in scans for operand in row.operands if operand.is_write)
    # Two scans: of multiples of units, and of what is left. A repair has two of all elements.
    assert steps == 2 * 1024 + 2 * 2047


@pytest.mark.parametrize(
    ("shape", "microseconds"),
    # 115.4, 202.9, 17.4, 119.1 with instructions in the order of stages, chunk after chunk.
    [((1024, 4096), 94), ((4096, 2048), 188), ((128, 2048), 12), ((64, 32768), 110)],
)
def test_engines_do_not_wait_for_each_other_along_long_rows(
    shape: tuple[int, int], microseconds: float
) -> None:
    b = Bindings({"x": TensorSpec.dense(shape, torch.float32), "dim": 1})
    launch = registry.kernels()["cumsum"].launch(b, hardware("trn2"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
    seconds = predicted_seconds(program, hardware("trn2"), launch.unknown_trips)
    assert seconds * 1e6 < microseconds


@pytest.mark.parametrize("tiles", [1, 2, 5])
@pytest.mark.parametrize("length", [513, 514, 1025, 2047, 2048, 4097, 8191, 8193, 20001, 40000])
def test_plans_of_long_rows(length: int, tiles: int) -> None:
    """Pieces cover every row once, only the last one of a row is odd, and no instruction comes
    before what it needs."""
    chunks, pieces, order = plan_of(length, tiles)[2:]
    ends = [0] * tiles
    for i, piece in enumerate(pieces):
        chunk = chunks[piece.chunk]
        assert chunk.first_piece <= i <= chunk.last_piece
        assert ends[chunk.tile] == chunk.first + piece.first
        ends[chunk.tile] += piece.size
        assert piece.size % 2 == 0 or ends[chunk.tile] == length
    assert ends == [length] * tiles
    place = {name: n for n, name in enumerate(order)}
    assert len(place) == len(order)
    for i, piece in enumerate(pieces):
        rounds = ROUND if (ROUND, i) in place else ROUND_ON_VECTOR
        adds, finishes = ADD, FINISH if (FINISH, i) in place else FINISH_ON_GPSIMD
        if piece.in_psum:
            adds, finishes = ADD_ON_TENSOR, COPY
        stages = [LOAD, BOUND, rounds, SUM, finishes]
        assert sorted(stages, key=lambda kind: place[kind, i]) == stages
        assert place[SUM_LEFT, i] < place[adds, i] < place[finishes, i]
        for kind in (LIFT, ROUND, ROUND_ON_VECTOR):
            assert (kind, i) not in place or place[kind, i] > place[grid_of(chunks, piece.chunk)]
        if i:
            assert place[BOUND, i] > place[BOUND, i - 1]
        if chunks[piece.chunk].first + piece.first > 0:
            assert place[SUM, i] > place[SUM, i - 1]
            assert place[SUM_LEFT, i] > place[SUM_LEFT, i - 1]


@pytest.mark.parametrize("lnc", [1, 2])
def test_many_long_rows_of_float32(lnc: int) -> None:
    """More than one tile, the last one partly filled."""
    x = draw(300, 2100) * 1000
    options = {**ALL_ON_NKI, "lnc": lnc}
    torch._dynamo.reset()
    result = torch.compile(lambda x: x.cumsum(1), backend="trnx", options=options)(x)
    exact = x.double().cumsum(1)
    errors = [(sums - exact).abs().amax(1) for sums in (result, x.cumsum(1))]
    assert (errors[0] <= 2 * errors[1]).all()


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
