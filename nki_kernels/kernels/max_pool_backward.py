"""`max_pool_backward`: each gradient of an output is added where its window had its maximum.

`aten.max_pool2d_with_indices_backward` and its three-dimensional form, float32, bfloat16 or
float16, sums in float32 and rounded once. A block of the first dimension of the input stays in SBUF
while every position of the window adds the gradients whose place is there; others count as zeros,
whatever their values are. Planes have fewer than 2^24 places, which VectorE compares exactly.
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
from trnx.nki_kernels.kernels._pooling import MOST_PLACES, Windows, windows_of
from trnx.nki_kernels.kernels._pooling_samples import window_sample, window_samples
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
# Bytes of a partition for a block: with the next one, and what each position makes, it fits SBUF.
_BLOCK_BYTES = 32768
_MOST_BYTES = 65536


@nki.jit
def max_pool_backward_kernel(
    grad: nl.NkiTensor,
    indices: nl.NkiTensor,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    windows: tuple[tuple[int, ...], ...],
    block: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """grad `[..., *counts]` and int64 indices -> `shape`, which ends in `sizes`; `block` inputs of
    the first dimension at a time. `cores` share the planes.
    """
    pmax = nl.tile_size.pmax
    out = nl.ndarray(shape, dtype=grad.dtype, buffer=nl.shared_hbm)
    rows = out.size // (sizes[0] * sizes[1] * sizes[2])
    result = out.reshape((rows, sizes[0], sizes[1], sizes[2]))
    grads = grad.reshape((rows, counts[0], counts[1], counts[2]))
    places = indices.reshape((rows, counts[0], counts[1], counts[2], 2))
    begin, end = share_of(rows, cores)
    for start in range(begin, end, pmax):
        p = min(pmax, end - start)
        for low in range(0, sizes[0], block):
            n = min(block, sizes[0] - low)
            total = nl.ndarray((p, n, sizes[1], sizes[2]), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0, engine=nisa.engine.gpsimd)
            first, last = _outputs(windows[0], counts[0], low, n)
            if first < last:
                some = (p, last - first, counts[1], counts[2])
                data = nl.ndarray(some, dtype=grad.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=data, src=grads[start : start + p, first:last])
                words = nl.ndarray(some + (2,), dtype=nl.int32, buffer=nl.sbuf)
                nisa.dma_copy(dst=words, src=places[start : start + p, first:last])
                _add_windows(total, data, words, low, first, sizes, windows)
            rounded = nl.ndarray(total.shape, dtype=grad.dtype, buffer=nl.sbuf)
            nisa.activation(dst=rounded, op=nl.copy, data=total)
            nisa.dma_copy(dst=result[start : start + p, nl.ds(low, n)], src=rounded)
    return out


def _outputs(window: tuple[int, ...], count: int, low: int, size: int) -> tuple[int, int]:
    """The outputs whose windows may reach inputs `low .. low+size`."""
    reach, stride, padding, dilation = window
    first = (low + padding - (reach - 1) * dilation + stride - 1) // stride
    return max(0, first), min(count, (low + size - 1 + padding) // stride + 1)


def _add_windows(
    total: nl.NkiTensor,
    grads: nl.NkiTensor,
    words: nl.NkiTensor,
    low: int,
    first: int,
    sizes: tuple[int, ...],
    windows: tuple[tuple[int, ...], ...],
) -> None:
    """Add the gradients of outputs `first ..` to inputs `low ..`, one position of the window after
    the other.
    """
    # Places from where each window begins: equal for all outputs whose maximum has one position.
    steps = (sizes[1] * sizes[2], sizes[2], 1)
    origins = nl.ndarray(grads.shape, dtype=nl.float32, buffer=nl.sbuf)
    pattern = []
    offset = first * windows[0][1] * steps[0]
    for i in range(3):
        pattern.append([windows[i][1] * steps[i], grads.shape[i + 1]])
        offset = offset - windows[i][2] * steps[i]
    nisa.iota(dst=origins, pattern=pattern, offset=offset)
    relative = nl.ndarray(grads.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=relative, data1=words[:, :, :, :, 0], data2=origins, op=nl.subtract)
    starts = (first, 0, 0)
    lows = (low, 0, 0)
    for a in range(windows[0][0]):
        for b in range(windows[1][0]):
            for c in range(windows[2][0]):
                position = (a, b, c)
                place = 0
                sources = []
                targets = []
                is_seen = True
                for i in range(3):
                    _, stride, padding, dilation = windows[i]
                    place = place + position[i] * dilation * steps[i]
                    # Output o of the tile lies at input o * stride + at of the block.
                    at = starts[i] * stride - padding + position[i] * dilation - lows[i]
                    begin = max(0, (-at + stride - 1) // stride)
                    end = min(grads.shape[i + 1], (total.shape[i + 1] - 1 - at) // stride + 1)
                    is_seen = is_seen and begin < end
                    sources.append(slice(begin, end))
                    stop = (end - 1) * stride + at + 1
                    targets.append(slice(begin * stride + at, stop, stride))
                if is_seen:
                    _add(
                        total[:, targets[0], targets[1], targets[2]],
                        grads[:, sources[0], sources[1], sources[2]],
                        relative[:, sources[0], sources[1], sources[2]],
                        place,
                    )


def _add(total: nl.NkiTensor, grads: nl.NkiTensor, relative: nl.NkiTensor, place: int) -> None:
    """total += the gradients whose maximum is at `place`; the others need not be finite."""
    is_here = nl.ndarray(grads.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_here, data=relative, op0=nl.equal, operand0=float(place))
    part = nl.ndarray(grads.shape, dtype=grads.dtype, buffer=nl.sbuf)
    nisa.memset(dst=part, value=0.0, engine=nisa.engine.gpsimd)
    nisa.tensor_copy_predicated(dst=part, src=grads, predicate=is_here)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)


def _op(spatial: int) -> Any:
    if spatial == 2:
        return aten.max_pool2d_with_indices_backward
    return aten.max_pool3d_with_indices_backward


def reference(
    grad: torch.Tensor,
    x: torch.Tensor,
    indices: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    spatial: int,
) -> torch.Tensor:
    """The same in float32, rounded once."""
    how = (kernel_size, stride, padding, dilation, ceil_mode)
    result: torch.Tensor = _op(spatial).default(grad.float(), x.float(), *how, indices)
    return result.to(grad.dtype)


def _windows(b: Bindings) -> Windows:
    each = (b.kernel_size, b.stride, b.padding, b.dilation)
    return windows_of(b.x.shape, b.grad.shape, b.spatial, *each)


def _bytes(windows: Windows, block: int) -> int:
    """Of a partition, for so many inputs of the first dimension."""
    plane = math.prod(windows.sizes[1:])
    size, stride, _, dilation = windows.windows[0]
    outputs = (block + (size - 1) * dilation) // stride + 1
    return 8 * block * plane + 25 * outputs * math.prod(windows.counts[1:])


def _block(windows: Windows) -> int:
    """Inputs of the first dimension in a block."""
    block = windows.sizes[0]
    while block > 1 and _bytes(windows, block) > _BLOCK_BYTES:
        block = -(-block // 2)
    return block


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, and the size of a window's rows and of a plane."""
    del hw
    if reject := reject_dtypes(b, "grad"):
        return reject
    if b.x.numel == 0 or b.grad.numel == 0:
        return Reject(f"x{b.x.shape} or grad{b.grad.shape} is empty")
    windows = _windows(b)
    if math.prod(windows.sizes) >= MOST_PLACES:
        return Reject(f"places in {windows.sizes} are not numbers that float32 holds exactly")
    if _bytes(windows, _block(windows)) > _MOST_BYTES:
        return Reject(f"the rows of one window over {windows.sizes} do not fit into a partition")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The windows, and how many inputs of the first dimension a tile has."""
    del hw
    windows = _windows(b)
    constants = (b.x.shape, *windows, _block(windows))
    return Launch.of(max_pool_backward_kernel, b, ("grad", "indices"), *constants)


def cost(b: Bindings) -> Cost:
    """Three instructions for each position of each window."""
    positions = math.prod(size for size, *_ in _windows(b).windows)
    moved = b.x.numel * b.grad.dtype.itemsize + b.grad.nbytes + 8 * b.grad.numel
    return Cost(vector_flops=3 * b.grad.numel * positions, hbm_bytes=moved)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and planes, padding, dilation, overlap, infinities, dtypes."""

    def tensors(
        shape: tuple[int, ...], dtype: torch.dtype, lists: dict[str, list[int]], ceil_mode: bool
    ) -> dict[str, torch.Tensor]:
        x = torch.randn(shape, generator=generator).to(dtype)
        is_flat = len(lists["stride"]) == 2
        forward = aten.max_pool2d_with_indices if is_flat else aten.max_pool3d_with_indices
        _, indices = forward.default(x, *lists.values(), ceil_mode)
        grad = torch.randn(indices.shape, generator=generator).to(dtype)
        return {"grad": grad, "x": x, "indices": indices}

    yield from window_samples(tensors)
    yield window_sample(tensors, "a row shorter than the window", 2, 3, 20, 3)
    special = window_sample(tensors, "infinities", 2, 3, 9, 9)
    special.values["grad"][0, 1, 2, 2], special.values["grad"][1, 0, 2] = math.inf, -math.inf
    yield special


def _backward2d(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: torch.Tensor,
) -> Any:
    args = (grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices)
    return aten.max_pool2d_with_indices_backward.default(*args)


def _backward3d(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: torch.Tensor,
) -> Any:
    args = (grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices)
    return aten.max_pool3d_with_indices_backward.default(*args)


register(
    KernelSpec(
        name="max_pool_backward",
        patterns=(Pattern(_backward2d, {"spatial": 2}), Pattern(_backward3d, {"spatial": 3})),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=max_pool_backward_kernel,
        launch=launch,
    )
)
