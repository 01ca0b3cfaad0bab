"""What the pooling kernels share: a window over two or three dimensions, reduced one after another.

Rows (images and channels) lie on the partitions, a block of the input in each. A pass along one
dimension takes one instruction for each position of the window, over the outputs that see the input
there; so there is no padding in memory, and a window of k x k takes 2 k passes instead of k * k.
Sums of larger windows that lie side by side are one reduction.
Two-dimensional pooling is three-dimensional with a middle dimension of size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

# Of the input per partition in a tile: DMA and VectorE are busy for about 5 us with it.
_TILE_BYTES = 16384
_FEW = 4  # elements of a window that passes add as fast as a reduction
MOST_PLACES = 2**24  # of a plane or a volume, as VectorE compares them in float32

Window = tuple[int, int, int, int]  # size, stride, padding, dilation
Scale = tuple[int, int, float]  # outputs `start` to `stop` are multiplied by this


class Windows(NamedTuple):
    """The windows of an op over its three dimensions."""

    sizes: tuple[int, int, int]
    counts: tuple[int, int, int]
    windows: tuple[Window, Window, Window]


def windows_of(
    shape: Sequence[int], result: Sequence[int], spatial: int, *each: Sequence[int]
) -> Windows:
    """`each` are size, stride, padding and dilation of the window, of one number or of `spatial`;
    an empty stride is the size.
    """
    size, stride, padding, dilation = [
        list(given) * (spatial if len(given) == 1 else 1) for given in each
    ]
    rows = list(zip(size, stride or size, padding, dilation, strict=True))
    sizes, counts = list(shape[-spatial:]), list(result[-spatial:])
    if spatial == 2:
        rows.insert(1, (1, 1, 0, 1))
        sizes.insert(1, 1)
        counts.insert(1, 1)
    return Windows(_three(sizes), _three(counts), _three(rows))


def _three(items: Sequence[Any]) -> tuple[Any, Any, Any]:
    first, second, third = items
    return first, second, third


def blocks_of(windows: Windows, itemsize: int, hw: Hardware) -> tuple[int, int]:
    """Outputs of the first and of the middle dimension in one tile; 0 where not even one fits."""
    first = _block_of(windows, windows.sizes[1], itemsize, hw)
    middle = windows.counts[1]
    while first == 0 and middle > 1:
        # Rows that two tiles need are loaded twice, so a tile has as many as fit.
        middle = -(-middle // 2)
        size, stride, _, dilation = windows.windows[1]
        rows = (middle - 1) * stride + (size - 1) * dilation + 1
        first = _block_of(windows, min(rows, windows.sizes[1]), itemsize, hw)
    return first, middle


def _block_of(windows: Windows, rows: int, itemsize: int, hw: Hardware) -> int:
    """Outputs of the first dimension in a tile with so many inputs of the middle one."""
    size, stride, _, dilation = windows.windows[0]
    plane = rows * windows.sizes[2] * itemsize
    reach = (size - 1) * dilation + 1
    # The input, and what the passes give, twice: loads overlap with work.
    if plane * reach * 4 > hw.sbuf_partition_bytes * 7 // 8:
        return 0
    count = max(reach, _TILE_BYTES // plane)
    return min(windows.counts[0], (count - reach) // stride + 1)


def reject_windows(windows: Windows, itemsize: int, hw: Hardware) -> Reject | None:
    """A Reject where a window's rows do not fit into a partition."""
    if 0 in windows.sizes or 0 in windows.counts:
        return Reject(f"pooling of {windows.sizes} to {windows.counts} is empty")
    if blocks_of(windows, itemsize, hw)[0] == 0:
        return Reject(f"the rows of one window over {windows.sizes} do not fit into a partition")
    return None


@nki.jit
def pool_kernel(
    x: nl.NkiTensor,
    out_shape: tuple[int, ...],
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    windows: tuple[tuple[int, ...], ...],
    blocks: tuple[int, int],
    is_max: bool,
    scales: tuple[tuple[tuple[int, int, float], ...], ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[..., *sizes]` -> `out_shape`, which ends in `counts`; `blocks` outputs of the first two
    dimensions at a time. `scales` are applied along each dimension to sums. `cores`
    share the planes.
    """
    pmax = nl.tile_size.pmax
    out = nl.ndarray(out_shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.size // (sizes[0] * sizes[1] * sizes[2])
    source = x.reshape((rows, sizes[0], sizes[1], sizes[2]))
    result = out.reshape((rows, counts[0], counts[1], counts[2]))
    # The same factor for all sums is taken where they are rounded.
    own, factor = scales[0], None
    if len(scales[0]) == 1 and scales[0][0][0:2] == (0, counts[0]):
        own, factor = (), scales[0][0][2]
    is_reduced = not is_max and len(scales[2]) == 0 and _is_reduced(windows, sizes)
    begin, end = share_of(rows, cores)
    for start in range(begin, end, pmax):
        p = min(pmax, end - start)
        for first in range(0, counts[0], blocks[0]):
            n = min(blocks[0], counts[0] - first)
            low, high = inputs_of(windows[0], sizes[0], first, n)
            for row in range(0, counts[1], blocks[1]):
                m = min(blocks[1], counts[1] - row)
                top, bottom = inputs_of(windows[1], sizes[1], row, m)
                shape = (p, high - low, bottom - top, sizes[2])
                data = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=data, src=source[start : start + p, low:high, top:bottom])
                if is_reduced:
                    total = _reduced(data, n, counts[2], windows)
                else:
                    last = _pass(data, 3, 0, counts[2], 0, windows[2], is_max, scales[2])
                    middle = _pass(last, 2, row, m, top, windows[1], is_max, scales[1])
                    total = _pass(middle, 1, first, n, low, windows[0], is_max, own)
                done = total
                if factor is not None:
                    done = nl.ndarray(total.shape, dtype=x.dtype, buffer=nl.sbuf)
                    nisa.tensor_scalar(dst=done, data=total, op0=nl.multiply, operand0=factor)
                elif total.dtype != x.dtype:
                    done = nl.ndarray(total.shape, dtype=x.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=done, src=total)
                target = result[start : start + p, first : first + n, row : row + m]
                nisa.dma_copy(dst=target, src=done)
    return out


def _is_reduced(windows: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> bool:
    """Whether one reduction of whole windows is faster than a pass for each position: windows side
    by side over two dimensions, of more than four elements."""
    for size, stride, padding, dilation in windows:
        if (stride, padding, dilation) != (size, 0, 1):
            return False
    return sizes[1] == 1 and windows[0][0] * windows[2][0] > _FEW


def _reduced(
    data: nl.NkiTensor, rows: int, columns: int, windows: tuple[tuple[int, ...], ...]
) -> nl.NkiTensor:
    """The sums `[P, rows, 1, columns]` of windows that lie side by side from the first row of
    data on."""
    down, across = windows[0][0], windows[2][0]
    view = data[:, 0 : rows * down, 0, 0 : columns * across]
    view = view.reshape_dim(2, (columns, across)).reshape_dim(1, (rows, down))
    total = nl.ndarray((data.shape[0], rows, 1, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(
        dst=total[:, :, 0, :], op=nl.add, data=view.permute((0, 1, 3, 2, 4)), axis=(3, 4)
    )
    return total


def inputs_of(window: tuple[int, ...], size: int, first: int, count: int) -> tuple[int, int]:
    """The inputs of `size` that outputs `first .. first+count` see, at least one."""
    reach, stride, padding, dilation = window
    low = min(size - 1, max(0, first * stride - padding))
    last = (first + count - 1) * stride - padding + (reach - 1) * dilation
    return low, max(low + 1, min(size, last + 1))


def _pass(
    data: nl.NkiTensor,
    axis: int,
    first: int,
    count: int,
    low: int,
    window: tuple[int, ...],
    is_max: bool,
    scales: tuple[tuple[int, int, float], ...],
) -> nl.NkiTensor:
    """Outputs `first` to `first + count` along `axis` of data, which begins at input `low`; what
    lies outside of data is padding.
    """
    size, stride, padding, dilation = window
    if size == 1 and stride == 1 and padding == 0 and len(scales) == 0:
        return data
    op = nl.maximum if is_max else nl.add
    shape = [data.shape[0], data.shape[1], data.shape[2], data.shape[3]]
    shape[axis] = count
    dtype = data.dtype if is_max else nl.float32
    total = nl.ndarray((shape[0], shape[1], shape[2], shape[3]), dtype=dtype, buffer=nl.sbuf)
    # The first position that all outputs see starts the result, another such one joins it.
    whole = -1
    for j in range(size):
        at = first * stride - padding + j * dilation - low
        inside = at >= 0 and at + (count - 1) * stride < data.shape[axis]
        if whole < 0 and inside:
            whole = j
    joined = -1
    if whole < 0:
        nisa.memset(dst=total, value=-float("inf") if is_max else 0.0)
    else:
        here = first * stride - padding + whole * dilation - low
        view = data.slice(axis, here, here + (count - 1) * stride + 1, stride)
        for j in range(size):
            at = first * stride - padding + j * dilation - low
            inside = at >= 0 and at + (count - 1) * stride < data.shape[axis]
            if joined < 0 and j != whole and inside:
                joined = j
                other = data.slice(axis, at, at + (count - 1) * stride + 1, stride)
                nisa.tensor_tensor(dst=total, data1=view, data2=other, op=op)
        if joined < 0:
            nisa.tensor_copy(dst=total, src=view)
    for j in range(size):
        # Output o sees data[o * stride + at].
        at = first * stride - padding + j * dilation - low
        begin = max(0, (-at + stride - 1) // stride)
        end = min(count, (data.shape[axis] - 1 - at) // stride + 1)
        if j != whole and j != joined and begin < end:
            start = begin * stride + at
            seen = data.slice(axis, start, start + (end - begin - 1) * stride + 1, stride)
            part = total.slice(axis, begin, end)
            nisa.tensor_tensor(dst=part, data1=part, data2=seen, op=op)
    for i in range(len(scales)):
        begin = max(scales[i][0] - first, 0)
        end = min(scales[i][1] - first, count)
        if begin < end:
            part = total.slice(axis, begin, end)
            nisa.tensor_scalar(dst=part, data=part, op0=nl.multiply, operand0=scales[i][2])
    return total
