"""`cumsum`: running sums along any dimension.

Half precision is added in float32, as in eager. Eager adds float32 in float64. Long rows are added
in two parts, one of which loses nothing (`_fixed_point_sums.py`), and leave one rounding, or two in
every other sum; where magnitudes are not finite, as short ones are. Short rows, and sums over rows:
the rounding of each sum is found exactly (D. Knuth, TAOCP 2, 4.2.2, theorem B) and the running sum
of the errors added, which leaves one. Bools and integers become int64, exact: digits of 8 bits are
added apart, in float32, which holds their sums over 2^16 elements, and carries are brought into two
words. Behind a sum that float32 does not hold, sums are infinite or NaN, where those of eager may
be finite again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import FLOAT_DTYPES
from trnx.nki_kernels.kernels._cores import share_of_program
from trnx.nki_kernels.kernels._fixed_point_plan import plan_of
from trnx.nki_kernels.kernels._fixed_point_sums import SHORTEST, fixed_point_sums_kernel
from trnx.nki_kernels.kernels._scan_plan import constants_of, reject_scan
from trnx.nki_kernels.kernels._scans import lanes, places, scan, tiles_of
from trnx.nki_kernels.kernels._tile_sums import sum_tile
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

_INTEGERS = (torch.int64, torch.int32, torch.bool)
_MOST_DIGITS = 2**16  # elements whose digits of 8 bits have a sum below 2^24
_MOST_BITS = 2**24


@nki.jit
def cumsum_kernel(
    x: nl.NkiTensor,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    groups: tuple[Any, ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """The sums of float `x`; `sizes` are length, inner size and block, `groups` those of `cut`;
    `cores` share their tiles."""
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for group, tile in tiles_of(groups, cores):
        sum_tile(out, x, group, tile, sizes)
    return out


@nki.jit
def cumsum_words_kernel(
    x: nl.NkiTensor,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    groups: tuple[Any, ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """The sums of integers in int64; `sizes` are length, inner size, block, and the digits of x: 8
    of int64, 4 of int32, 1 of bool.
    """
    out = nl.ndarray(shape, dtype=nl.int32, buffer=nl.shared_hbm)
    for group, tile in tiles_of(groups, cores):
        _sum_words(out, x, group, tile, sizes)
    return out


def _sum_words(
    out: nl.NkiTensor, x: nl.NkiTensor, group: tuple[Any, ...], tile: int, sizes: tuple[int, ...]
) -> None:
    """All positions of one tile, block after block."""
    length, inner, block, digits = sizes
    p, rows, width = lanes(group), group[4], group[5]
    words = 2 if digits == 8 else 1
    parts = 5 if digits == 4 else digits  # the signs of int32 are counted too
    zero = nl.ndarray((p, rows, 1, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    carries = []  # type: list[nl.NkiTensor]
    for _ in range(parts):
        column = nl.ndarray((p, rows, 1, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=column, value=0.0)
        carries.append(column)
    for first in range(0, length, block):
        count = min(block, length - first)
        pattern, offset = places(group, tile, first, count, (length, inner), words)
        form = (p, rows, count, width, 2) if words == 2 else (p, rows, count, width)
        data = nl.ndarray(form, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
        sums = []  # type: list[nl.NkiTensor]
        for i in range(parts):
            total = nl.ndarray((p, rows, count, width), dtype=nl.int32, buffer=nl.sbuf)
            digit = _digit(data, i, digits)
            scan(total, digit, zero.broadcast(2, count), carries[i][:, :, 0, :], nl.add, nl.add)
            nisa.tensor_copy(dst=carries[i], src=total[:, :, count - 1 : count, :])
            sums.append(total)
        result = nl.ndarray((p, rows, count, width, 2), dtype=nl.int32, buffer=nl.sbuf)
        _assemble(result, sums, digits)
        pattern, offset = places(group, tile, first, count, (length, inner), 2)
        nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=result)


def _digit(data: nl.NkiTensor, i: int, digits: int) -> nl.NkiTensor:
    """Digit i of integers; of int32 the fifth is 1 where they are negative."""
    if digits == 1:
        return data
    word = data[:, :, :, :, i // 4] if digits == 8 else data
    p, rows, count, width = word.shape
    digit = nl.ndarray((p, rows, count, width), dtype=nl.int32, buffer=nl.sbuf)
    shift = 31 if i == digits else 8 * (i % 4)
    nisa.tensor_scalar(
        dst=digit,
        data=word,
        op0=nl.right_shift,
        operand0=shift,
        op1=nl.bitwise_and,
        operand1=255,
    )
    return digit


def _assemble(result: nl.NkiTensor, sums: list[nl.NkiTensor], digits: int) -> None:
    """The two words of sums of digits, each of which carries into the next one."""
    low, high = result[:, :, :, :, 0], result[:, :, :, :, 1]
    if digits == 1:
        nisa.tensor_copy(dst=low, src=sums[0])
        nisa.memset(dst=high, value=0)
        return
    p, rows, count, width = sums[0].shape
    running = sums[0]
    for i in range(digits):
        word = low if i < 4 else high
        digit = word
        if i % 4 > 0:
            digit = nl.ndarray((p, rows, count, width), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=digit,
            data=running,
            op0=nl.bitwise_and,
            operand0=255,
            op1=nl.left_shift,
            operand1=8 * (i % 4),
        )
        if i % 4 > 0:
            nisa.tensor_tensor(dst=word, data1=word, data2=digit, op=nl.bitwise_or)
        carry = nl.ndarray((p, rows, count, width), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=carry, data=running, op0=nl.right_shift, operand0=8)
        if i + 1 < digits:
            running = nl.ndarray((p, rows, count, width), dtype=nl.int32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=running, data1=carry, data2=sums[i + 1], op=nl.add)
        elif digits == 4:
            nisa.tensor_tensor(dst=high, data1=carry, data2=sums[4], op=nl.subtract)


def reference(x: torch.Tensor, dim: int) -> torch.Tensor:
    """aten.cumsum"""
    result: torch.Tensor = aten.cumsum.default(x, dim)
    return result


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, elements, and digits whose sums are exact."""
    del hw
    if b.x.dtype not in (*FLOAT_DTYPES, *_INTEGERS):
        return Reject(
            f"dtype {b.x.dtype} of x is not float32, half precision, int64, int32 or bool"
        )
    if reject := reject_scan(b):
        return reject
    length = b.x.shape[b.dim]
    most = _MOST_BITS if b.x.dtype is torch.bool else _MOST_DIGITS
    if b.x.dtype in _INTEGERS and length > most:
        return Reject(f"sums of {length} {b.x.dtype} are not exact in float32")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The kernel of the dtype, and the tiles."""
    sizes, groups = constants_of(b, hw)
    if b.x.dtype is torch.float32 and sizes[1] == 1 and sizes[0] >= SHORTEST:
        tiles = sum(group.tiles for group in groups)
        plans = tuple(plan_of(sizes[0], count) for count in _counts(tiles, hw.cores))
        launch = Launch.of(fixed_point_sums_kernel, b, ("x",), b.x.shape, sizes, plans, groups)
        return replace(launch, unknown_trips=0)
    if b.x.dtype in FLOAT_DTYPES:
        return Launch.of(cumsum_kernel, b, ("x",), b.x.shape, sizes, groups)
    digits = {torch.int64: 8, torch.int32: 4, torch.bool: 1}[b.x.dtype]
    shape = (*b.x.shape, 2)
    return Launch.of(cumsum_words_kernel, b, ("x",), shape, (*sizes, digits), groups)


def _counts(tiles: int, cores: int) -> list[int]:
    """How many of the tiles a core may have, alone or as one of `cores`."""
    counts = {tiles}
    for program in range(cores):
        first, end = share_of_program(tiles, cores, 1, program)
        counts.add(end - first)
    return sorted(counts - {0})


def cost(b: Bindings) -> Cost:
    """One sum an element."""
    size = b.x.dtype.itemsize if b.x.dtype in FLOAT_DTYPES else 8
    return Cost(vector_flops=b.x.numel, hbm_bytes=b.x.nbytes + b.x.numel * size)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Long and short rows, each dimension, few and many columns, dtypes, special values."""

    def sample(
        note: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype = torch.float32
    ) -> Sample:
        x = torch.randn(shape, generator=generator)
        x = x.mul(9).to(dtype) if dtype in FLOAT_DTYPES else x.mul(2.0**30).long().to(dtype)
        error = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}.get(dtype, 0.0)
        sums = torch.cumsum(x.double(), dim).abs().max().item() if error else 0.0
        return Sample({"x": x, "dim": dim}, note, error * sums)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 3), 1)
        yield sample(f"{size} columns", (3, size), 1)
        yield sample(f"over {size} rows", (size, 5), 0)
    yield sample("long rows", (3, 2500), 1)
    yield sample("long rows of two tiles", (130, 1100), 1)
    yield sample("rows of many chunks", (2, 9000), 1)
    yield sample("many short rows", (3000, 7), 1)
    yield sample("in the middle", (3, 70, 33), 1)
    yield sample("many columns", (40, 700), 0)
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool):
        yield sample(f"{dtype}", (130, 37), 1, dtype)
        yield sample(f"{dtype} over rows", (37, 130), 0, dtype)


def _cumsum(x: torch.Tensor, dim: int) -> Any:
    return aten.cumsum.default(x, dim)


register(
    KernelSpec(
        name="cumsum",
        patterns=(Pattern(_cumsum),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=cumsum_kernel,
        launch=launch,
    )
)
