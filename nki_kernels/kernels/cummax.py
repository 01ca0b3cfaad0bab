"""`cummax` and `cummin`: running extremes along any dimension, and where they stand.

Floats; NaN wins from where it stands on, and of equal elements the last one counts, as in eager.
Positions are exact in float32 up to 2^24, and become int64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._scan_plan import constants_of, reject_scan
from trnx.nki_kernels.kernels._scans import lanes, places, scan, tiles_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

_MOST = 2**24  # positions that float32 holds


@nki.jit
def cumulative_extreme_kernel(
    x: nl.NkiTensor,
    sizes: tuple[int, ...],
    groups: tuple[Any, ...],
    words: tuple[int, ...],
    is_largest: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Values and positions, whose words have the shape `words`; `sizes` are length, inner size and
    block, `groups` those of `cut`; `cores` share their tiles.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    where = nl.ndarray(words, dtype=nl.int32, buffer=nl.shared_hbm)
    for group, tile in tiles_of(groups, cores):
        _extreme_tile(out, where, x, group, tile, sizes, is_largest)
    return out, where


def _extreme_tile(
    out: nl.NkiTensor,
    where: nl.NkiTensor,
    x: nl.NkiTensor,
    group: tuple[Any, ...],
    tile: int,
    sizes: tuple[int, ...],
    is_largest: bool,
) -> None:
    """All positions of one tile, block after block."""
    length, inner, block = sizes
    p, rows, width = lanes(group), group[4], group[5]
    op = nl.maximum if is_largest else nl.minimum
    best = nl.ndarray((p, rows, 1, width), dtype=nl.float32, buffer=nl.sbuf)
    last = nl.ndarray((p, rows, 1, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=best, value=float("-inf") if is_largest else float("inf"))
    nisa.memset(dst=last, value=0.0)
    for first in range(0, length, block):
        count = min(block, length - first)
        form = (p, rows, count, width)
        pattern, offset = places(group, tile, first, count, (length, inner), 1)
        data = nl.ndarray(form, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
        values = nl.ndarray(form, dtype=x.dtype, buffer=nl.sbuf)
        scan(values, data, data, best[:, :, 0, :], op, op)
        nisa.tensor_copy(dst=best, src=values[:, :, count - 1 : count, :])
        nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=values)
        marks = _marks(data, values, first)
        indices = nl.ndarray((p, rows, count, width), dtype=nl.int32, buffer=nl.sbuf)
        scan(indices, marks, marks, last[:, :, 0, :], nl.maximum, nl.maximum)
        nisa.tensor_copy(dst=last, src=indices[:, :, count - 1 : count, :])
        words = nl.ndarray((p, rows, count, width, 2), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=words[:, :, :, :, 0], src=indices)
        nisa.memset(dst=words[:, :, :, :, 1], value=0)
        pattern, offset = places(group, tile, first, count, (length, inner), 2)
        nisa.dma_copy(dst=where.ap(pattern=pattern, offset=offset), src=words)


def _marks(data: nl.NkiTensor, values: nl.NkiTensor, first: int) -> nl.NkiTensor:
    """The position of each element that is the extreme there, or NaN; 0 of all others."""
    p, rows, count, width = data.shape
    is_extreme = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
    is_nan = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_extreme, data1=data, data2=values, op=nl.equal)
    nisa.tensor_tensor(dst=is_nan, data1=data, data2=data, op=nl.not_equal)
    nisa.tensor_tensor(dst=is_extreme, data1=is_extreme, data2=is_nan, op=nl.maximum)
    position = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=position, pattern=[[0, rows], [1, count], [0, width]], offset=first)
    marks = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=marks, data1=position, data2=is_extreme, op=nl.multiply)
    return marks


def reference(x: torch.Tensor, dim: int, is_largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """aten.cummax, or aten.cummin"""
    op = aten.cummax if is_largest else aten.cummin
    values, indices = op.default(x, dim)
    return values, indices


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, elements, and positions that float32 holds."""
    del hw
    if reject := reject_dtypes(b, "x") or reject_scan(b):
        return reject
    if b.x.shape[b.dim] > _MOST:
        return Reject(f"positions up to {b.x.shape[b.dim]} are not exact in float32")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The tiles."""
    constants = (*constants_of(b, hw), (*b.x.shape, 2), b.is_largest)
    return Launch.of(cumulative_extreme_kernel, b, ("x",), *constants)


def cost(b: Bindings) -> Cost:
    """One comparison an element; positions have eight bytes."""
    return Cost(vector_flops=b.x.numel, hbm_bytes=2 * b.x.nbytes + 8 * b.x.numel)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, long rows, equal elements, special values, dtypes."""

    def sample(
        note: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype = torch.float32
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(3).round().to(dtype)
        largest = len(shape) % 2 == 0
        return Sample({"x": x, "dim": dim, "is_largest": largest}, note)

    for size in (1, 127, 128, 129):
        yield sample(f"{size} rows", (size, 3), 1)
        yield sample(f"over {size} rows", (size, 5, 2), 0)
    yield sample("long rows", (3, 2500), 1)
    yield sample("in the middle", (3, 70, 33), 1)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (130, 37), 1, dtype)
    special = sample("special values", (3, 40), 1)
    special.values["x"][0, 7], special.values["x"][1, 3] = float("-inf"), float("inf")
    special.values["x"][0, 20], special.values["x"][2, :4] = float("inf"), float("-inf")
    yield special


def _cummax(x: torch.Tensor, dim: int) -> Any:
    return aten.cummax.default(x, dim)


def _cummin(x: torch.Tensor, dim: int) -> Any:
    return aten.cummin.default(x, dim)


register(
    KernelSpec(
        name="cummax",
        patterns=(Pattern(_cummax, {"is_largest": True}), Pattern(_cummin, {"is_largest": False})),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=cumulative_extreme_kernel,
        launch=launch,
    )
)
