"""Which engine runs an instruction, and how tiles are cut into stages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch

from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds, profile_program

aten = torch.ops.aten
Build = Callable[..., Any]
BF16, F32 = torch.bfloat16, torch.float32


def _draw(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def _stages(built: Any) -> set[str]:
    return set(re.findall(r"def (_stage\d)", built.source()))


def gated(x: Any) -> Any:
    return aten.mul.Tensor(x, aten.sigmoid.default(aten.mul.Tensor(x, 1.5)))


def sums(a: Any, b: Any, c: Any) -> Any:
    inner = aten.gelu.default(aten.add.Tensor(a, b))
    return aten.add.Tensor(aten.mul.Tensor(inner, c), b)


def normal(x: Any, w: Any) -> Any:
    mean = aten.mean.dim(aten.mul.Tensor(x, x), [1], True)
    return aten.mul.Tensor(aten.mul.Tensor(x, aten.rsqrt.default(mean)), w)


def through_two_functions(x: Any, y: Any) -> Any:
    first = aten.mul.Tensor(x, aten.sigmoid.default(aten.add.Tensor(x, y)))
    return aten.add.Tensor(aten.tanh.default(first), x), first


FUNCTIONS = {
    "gated": (gated, 1),
    "sums": (sums, 3),
    "two functions": (through_two_functions, 2),
}


def test_a_chain_is_cut_where_an_engine_reads_what_another_one_gives(region: Build) -> None:
    built = region(gated, _draw(128 * 5 + 3, 2048, dtype=BF16))
    source = built.source()

    expecttest.assert_expected_inline(
        source[source.index("\n\ndef") :].strip(),
        """\
def _stage0(x0, r, p, k):
    x0_tile = nl.ndarray((p, k), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=x0_tile,
        src=x0.ap(pattern=[[k, p], [1, k]], offset=r),
        dge_mode=nisa.dge_mode.none,
    )
    multiply_tile = nl.ndarray((p, k), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=multiply_tile, data=x0_tile, op0=nl.multiply, operand0=1.5)
    return x0_tile, multiply_tile


def _stage1(tiles0, p, k):
    x0_tile, multiply_tile = tiles0
    sigmoid_tile = nl.ndarray((p, k), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.activation(dst=sigmoid_tile, op=nl.sigmoid, data=multiply_tile)
    return x0_tile, sigmoid_tile


def _stage2(tiles1, out0, r, p, k):
    x0_tile, sigmoid_tile = tiles1
    multiply2_tile = nl.ndarray((p, k), dtype=nl.bfloat16, buffer=nl.sbuf)
    cut = k - k * 351 // 936
    nisa.tensor_tensor(
        dst=multiply2_tile[:, 0:cut],
        data1=x0_tile[:, 0:cut],
        data2=sigmoid_tile[:, 0:cut],
        op=nl.multiply,
    )
    if cut < k:
        nisa.tensor_tensor(
            dst=multiply2_tile[:, cut:k],
            data1=x0_tile[:, cut:k],
            data2=sigmoid_tile[:, cut:k],
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )
    nisa.dma_copy(
        dst=out0.ap(pattern=[[k, p], [1, k]], offset=r),
        src=multiply2_tile,
        dge_mode=nisa.dge_mode.none,
    )


@nki.jit
def fused_mul_sigmoid_mul(x0):
    out0 = nl.ndarray((643, 2048), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    one = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=one, value=1.0)
    unused = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=unused, op=nl.sigmoid, data=one)
    tiles0 = _stage0(x0, 0, 128, 936)
    next0 = _stage0(x0, 119808, 128, 936)
    tiles1 = _stage1(tiles0, 128, 936)
    tiles0 = next0
    next0 = _stage0(x0, 239616, 128, 936)
    next1 = _stage1(tiles0, 128, 936)
    _stage2(tiles1, out0, 0, 128, 936)
    tiles0 = next0
    tiles1 = next1
    next0 = _stage0(x0, 359424, 128, 935)
    next1 = _stage1(tiles0, 128, 936)
    _stage2(tiles1, out0, 119808, 128, 936)
    tiles0 = next0
    tiles1 = next1
    next0 = _stage0(x0, 479104, 128, 935)
    next1 = _stage1(tiles0, 128, 935)
    _stage2(tiles1, out0, 239616, 128, 936)
    tiles0 = next0
    tiles1 = next1
    for r in range(598784, 1316864, 119680):
        next0 = _stage0(x0, r, 128, 935)
        next1 = _stage1(tiles0, 128, 935)
        _stage2(tiles1, out0, r - 239360, 128, 935)
        tiles0 = next0
        tiles1 = next1
    next1 = _stage1(tiles0, 128, 935)
    _stage2(tiles1, out0, 1077504, 128, 935)
    tiles1 = next1
    _stage2(tiles1, out0, 1197184, 128, 935)
    return out0""",
    )
    built.check()


def test_sums_go_to_gpsimd_where_vector_is_the_busiest(region: Build) -> None:
    inputs = [_draw(4096, 2048, dtype=BF16, seed=s) for s in range(3)]
    built = region(sums, *inputs)

    assert "engine=nisa.engine.gpsimd" in built.source()
    crossing = 4 * 2 * 4096 * 2048 / hardware("trn2").dma_bytes_per_second
    assert crossing / predicted_seconds(built.program(), hardware("trn2")) > 0.9
    built.check()


def test_a_square_goes_to_scalar_before_gpsimd(region: Build) -> None:
    """GpSimd reads the tile twice, as it does two tiles."""

    def normal_of_columns(x: Any, least: Any) -> Any:
        x = aten.silu.default(aten.maximum.default(x, least))
        mean = aten.mean.dim(aten.mul.Tensor(x, x), [0], True)
        return aten.add.Tensor(aten.mul.Tensor(x, aten.rsqrt.default(mean)), 0.5)

    built = region(normal_of_columns, _draw(127, 1882), _draw(1, 1))
    assert "op=nl.square" in built.source()
    built.check()


def test_where_dma_is_the_busiest_nothing_moves(region: Build) -> None:
    built = region(lambda a, b: aten.add.Tensor(a, b), _draw(2048, 2048), _draw(2048, 2048, seed=1))

    assert "engine=" not in built.source()


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_on_ragged_sizes(region: Build, name: str, dtype: torch.dtype, target: str) -> None:
    function, count = FUNCTIONS[name]
    inputs = [_draw(128 * 9 + 5, 1023, dtype=dtype, seed=s) for s in range(count)]
    built = region(function, *inputs)

    built.check(target)


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 511, 512, 513, 1100])
def test_rows_of_a_reduction(region: Build, rows: int) -> None:
    built = region(normal, _draw(rows, 2050), _draw(2050))

    # More than five tiles overlap; fewer may overlap parts of their columns.
    assert rows <= 640 or "_stage0" in built.source()
    built.check()


def test_the_schedule_waits_less_than_without_stages(region: Build) -> None:
    built = region(gated, _draw(4096, 2048, dtype=BF16))
    crossing = 2 * 2 * 4096 * 2048 / hardware("trn2").dma_bytes_per_second

    assert crossing / predicted_seconds(built.program(), hardware("trn2")) > 0.85


def test_stages_are_few(region: Build) -> None:
    def chain(x: Any) -> Any:
        for _ in range(6):
            x = aten.mul.Tensor(x, aten.sigmoid.default(aten.mul.Tensor(x, 1.5)))
        return x

    built = region(chain, _draw(1024, 2048))

    assert _stages(built) == {f"_stage{i}" for i in range(8)}  # MOST_STAGES
    built.check()


@pytest.mark.parametrize("elements", [465_965, 4_000_037])
def test_functions_of_one_table_stand_together(region: Build, elements: int) -> None:
    """In turns, so that a table serves two tiles; with one at the start."""

    def two(x: Any) -> Any:
        return aten.sigmoid.default(aten.tanh.default(x))

    built = region(two, _draw(elements, dtype=BF16))
    built.check()
    program = built.program()
    counts = program.rows.opcode_counts()
    tiles = (counts["activation"] - 1) // 2
    chip = hardware("trn2")
    busy = profile_program(program, chip).busy("scalar")
    work = (2 * elements / 128 + counts["activation"] * 128) / chip.scalar_clock
    assert busy <= work + (tiles + 2) * timing(chip).scalar_table_ns / 1e9
