"""`max_pool_indices`: the largest value of each window, and where it lies in its plane or volume.

`x[..., H, W]` or `x[..., D, H, W]` in float32, bfloat16 or float16, as `max_pool`. Of equal values
the first counts, of NaN the last, as in eager. A pass along one dimension keeps the best value that
each output has seen and its place; so k x k positions take 2 k steps. Places are below 2^24, which
VectorE compares exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._pooling import (
    MOST_PLACES,
    Windows,
    blocks_of,
    inputs_of,
    reject_windows,
    windows_of,
)
from trnx.nki_kernels.kernels._pooling_samples import window_sample, window_samples
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_PLACE_BYTES = 12  # of an element: its place twice, and what is NaN


@nki.jit
def max_pool_indices_kernel(
    x: nl.NkiTensor,
    out_shape: tuple[int, ...],
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    windows: tuple[tuple[int, ...], ...],
    blocks: tuple[int, int],
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """x `[..., *sizes]` -> values and int64 places of `out_shape`, which ends in `counts`; `blocks`
    outputs of the first two dimensions at a time. `cores` share the planes.
    """
    pmax = nl.tile_size.pmax
    out = nl.ndarray(out_shape, dtype=x.dtype, buffer=nl.shared_hbm)
    indices = nl.ndarray(out_shape + (2,), dtype=nl.int32, buffer=nl.shared_hbm)
    rows = x.size // (sizes[0] * sizes[1] * sizes[2])
    source = x.reshape((rows, sizes[0], sizes[1], sizes[2]))
    values = out.reshape((rows, counts[0], counts[1], counts[2]))
    places = indices.reshape((rows, counts[0], counts[1], counts[2], 2))
    begin, end = share_of(rows, cores)
    for first in range(0, counts[0], blocks[0]):
        n = min(blocks[0], counts[0] - first)
        low, high = inputs_of(windows[0], sizes[0], first, n)
        for row in range(0, counts[1], blocks[1]):
            m = min(blocks[1], counts[1] - row)
            top, bottom = inputs_of(windows[1], sizes[1], row, m)
            shape = (max(1, min(pmax, end - begin)), high - low, bottom - top, sizes[2])
            where = _places(shape, sizes, low, top)
            for start in range(begin, end, pmax):
                p = min(pmax, end - start)
                data = nl.ndarray((p,) + shape[1:], dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=data, src=source[start : start + p, low:high, top:bottom])
                pair = (data, where[0:p])
                pair = _best(pair, 3, 0, counts[2], 0, windows[2])
                pair = _best(pair, 2, row, m, top, windows[1])
                pair = _best(pair, 1, first, n, low, windows[0])
                nisa.dma_copy(dst=values[start : start + p, nl.ds(first, n), nl.ds(row, m)],
                              src=pair[0])  # fmt: skip
                words = nl.ndarray((p, n, m, counts[2], 2), dtype=nl.int32, buffer=nl.sbuf)
                nisa.memset(dst=words, value=0, engine=nisa.engine.gpsimd)
                nisa.activation(dst=words[:, :, :, :, 0], op=nl.copy, data=pair[1])
                nisa.dma_copy(dst=places[start : start + p, nl.ds(first, n), nl.ds(row, m)],
                              src=words)  # fmt: skip
    return out, indices


def _places(shape: tuple[int, ...], sizes: tuple[int, ...], low: int, top: int) -> nl.NkiTensor:
    """The place of each element of a tile, which begins at input `low` and `top`."""
    where = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
    plane = sizes[1] * sizes[2]
    pattern = [[plane, shape[1]], [sizes[2], shape[2]], [1, shape[3]]]
    nisa.iota(dst=where, pattern=pattern, offset=low * plane + top * sizes[2])
    return where


def _best(
    pair: tuple[nl.NkiTensor, nl.NkiTensor],
    axis: int,
    first: int,
    count: int,
    low: int,
    window: tuple[int, ...],
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Outputs `first .. first+count` along `axis` of values and places, which begin at input `low`;
    what lies outside of them is padding, and every output sees something else.
    """
    data, places = pair
    size, stride, padding, dilation = window
    if size == 1 and stride == 1 and padding == 0:
        return pair
    shape = [data.shape[0], data.shape[1], data.shape[2], data.shape[3]]
    shape[axis] = count
    best = nl.ndarray((shape[0], shape[1], shape[2], shape[3]), dtype=data.dtype, buffer=nl.sbuf)
    where = nl.ndarray(best.shape, dtype=nl.int32, buffer=nl.sbuf)
    is_nan = nl.ndarray(data.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_nan, data1=data, data2=data, op=nl.not_equal,
                       engine=nisa.engine.gpsimd)  # fmt: skip
    known = count  # outputs from here on have seen something
    for j in range(size):
        # Output o sees data[o * stride + at].
        at = first * stride - padding + j * dilation - low
        begin = max(0, (-at + stride - 1) // stride)
        end = min(count, (data.shape[axis] - 1 - at) // stride + 1)
        if begin < min(known, end):
            start = begin * stride + at
            stop = start + (min(known, end) - begin - 1) * stride + 1
            nisa.tensor_copy(
                dst=best.slice(axis, begin, min(known, end)),
                src=data.slice(axis, start, stop, stride),
                engine=nisa.engine.gpsimd,
            )
            nisa.activation(
                dst=where.slice(axis, begin, min(known, end)),
                op=nl.copy,
                data=places.slice(axis, start, stop, stride),
            )
        if max(begin, known) < end:
            start = max(begin, known) * stride + at
            stop = start + (end - max(begin, known) - 1) * stride + 1
            part = best.slice(axis, max(begin, known), end)
            seen = data.slice(axis, start, stop, stride)
            better = nl.ndarray(part.shape, dtype=nl.uint8, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=better, data1=seen, data2=part, op=nl.greater)
            nan = is_nan.slice(axis, start, stop, stride)
            nisa.tensor_tensor(dst=better, data1=better, data2=nan, op=nl.maximum)
            nisa.tensor_copy_predicated(dst=part, src=seen, predicate=better)
            nisa.tensor_copy_predicated(
                dst=where.slice(axis, max(begin, known), end),
                src=places.slice(axis, start, stop, stride),
                predicate=better,
            )
        known = min(known, begin)
    return best, where


def _op(spatial: int) -> Any:
    return aten.max_pool2d_with_indices if spatial == 2 else aten.max_pool3d_with_indices


def reference(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    spatial: int,
) -> Any:
    """aten.max_pool2d_with_indices or its three-dimensional form."""
    return _op(spatial).default(x, kernel_size, stride, padding, dilation, ceil_mode)


def _result(b: Bindings) -> tuple[int, ...]:
    x = torch.empty(b.x.shape, dtype=b.x.dtype, device="meta")
    how = (b.kernel_size, b.stride, b.padding, b.dilation, b.ceil_mode, b.spatial)
    return tuple(reference(x, *how)[0].shape)


def _windows(b: Bindings) -> Windows:
    each = (b.kernel_size, b.stride, b.padding, b.dilation)
    return windows_of(b.x.shape, _result(b), b.spatial, *each)


def reject_places(windows: Windows) -> Reject | None:
    """A Reject for planes whose places float32 does not hold, and windows that see padding alone,
    of which eager gives a place all the same."""
    if math.prod(windows.sizes) >= MOST_PLACES:
        return Reject(f"places in {windows.sizes} are not numbers that float32 holds exactly")
    for size, count, window in zip(*windows, strict=True):
        reach, stride, padding, dilation = window
        for output in range(count):
            first = output * stride - padding
            seen = range(first, first + reach * dilation, dilation)
            if not any(0 <= place < size for place in seen):
                return Reject(f"window {output} of {count} over {size} sees padding alone")
    return None


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, the size of a window's rows and of a plane."""
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} is empty")
    windows = _windows(b)
    itemsize = b.x.dtype.itemsize + _PLACE_BYTES
    return reject_windows(windows, itemsize, hw) or reject_places(windows)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The windows, and how many outputs of the first dimensions a tile has."""
    windows = _windows(b)
    blocks = blocks_of(windows, b.x.dtype.itemsize + _PLACE_BYTES, hw)
    return Launch.of(max_pool_indices_kernel, b, ("x",), _result(b), *windows, blocks)


def cost(b: Bindings) -> Cost:
    """Four instructions for each position of each window."""
    result = math.prod(_result(b))
    positions = math.prod(size for size, *_ in _windows(b).windows)
    moved = b.x.nbytes + result * (b.x.dtype.itemsize + 8)
    return Cost(vector_flops=4 * result * positions, hbm_bytes=moved)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and planes, ties, padding, dilation, overhanging windows, infinities."""

    def tensors(
        shape: tuple[int, ...], dtype: torch.dtype, lists: dict[str, list[int]], ceil_mode: bool
    ) -> dict[str, torch.Tensor]:
        del lists, ceil_mode
        return {"x": torch.randint(-9, 9, shape, generator=generator).to(dtype)}  # with ties

    yield from window_samples(tensors)
    yield window_sample(
        tensors, "planes that do not fit", 1, 2, 7, 96, 100, size=3, dilation=3, spatial=3
    )
    special = window_sample(tensors, "infinities", 2, 3, 9, 9)
    special.values["x"][0, 1], special.values["x"][1, 0, 2] = float("-inf"), float("inf")
    yield special


def _max_pool2d(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Any:
    args = (x, kernel_size, stride, padding, dilation, ceil_mode)
    return aten.max_pool2d_with_indices.default(*args)


def _max_pool3d(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Any:
    args = (x, kernel_size, stride, padding, dilation, ceil_mode)
    return aten.max_pool3d_with_indices.default(*args)


register(
    KernelSpec(
        name="max_pool_indices",
        patterns=(Pattern(_max_pool2d, {"spatial": 2}), Pattern(_max_pool3d, {"spatial": 3})),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=max_pool_indices_kernel,
        launch=launch,
    )
)
