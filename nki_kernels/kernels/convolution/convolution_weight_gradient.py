"""`convolution_weight_gradient`: the gradient of the weight of a convolution.

`aten.convolution_backward` with this gradient alone, as the canonical graph has it; of 1, 2 or 3
dimensions, also of a transposed convolution, whose input and gradient change places. One group.
float32, bfloat16, float16; sums are float32, rounded once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels.convolution._convolve import volumes_of
from trnx.nki_kernels.kernels.convolution._geometry import Window, output_size
from trnx.nki_kernels.kernels.convolution._weight_product import (
    BANKS,
    Columns,
    WindowAxis,
    axis_of,
    columns_of_banks,
    load_window,
    transposed_gradient,
    transposed_window,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

# Bytes of a partition for a block of the window, and for one of the gradient.
_BLOCK_BYTES = 12288
_MOST_BYTES = 49152


# Positions whose transposes are made before the products of the first of them.
_AHEAD = 2
# Bytes of a partition for transposes of the gradient that several passes over it use.
_KEPT_BYTES = 32768

# Starts of some positions in a block, and how many they are, by axis.
Place = tuple[tuple[int, int, int], tuple[int, int, int]]


class Work(NamedTuple):
    """One pass over all positions: channels `first ..` of the gradient, and columns of the window.

    kept: transposes of the gradient, in order, where a pass `keeps` them for the next ones.
    """

    axes: tuple[WindowAxis, ...]
    first: int
    channels: int
    columns: list[Columns]
    keeps: bool
    kept: list[list[nl.NkiTensor]]


@nki.jit
def convolution_weight_gradient_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    transposed: bool,
    shape: tuple[int, ...],
    numbers: tuple[tuple[int, ...], ...],
    keeps: bool,
) -> nl.NkiTensor:
    """grad and x `[N, C, ...]` -> `shape`, that of the weight."""
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    grads = volumes_of(x if transposed else grad, 1)
    windows = volumes_of(grad if transposed else x, 1)
    axes = (axis_of(numbers[0]), axis_of(numbers[1]), axis_of(numbers[2]))
    taps = axes[0].kernel * axes[1].kernel * axes[2].kernel
    flat = out.reshape((shape[0], shape[1], taps))
    pmax = nl.tile_size.pmax
    columns = columns_of_banks(shape[1], taps)
    for first in range(0, shape[0], BANKS * pmax):
        # All these channels of the gradient meet the same transposes of the window.
        channels = min(BANKS * pmax, shape[0] - first)
        some = max(1, BANKS // ((channels + pmax - 1) // pmax))
        kept: list[list[nl.NkiTensor]] = []
        results: list[nl.NkiTensor] = []
        begin = 0
        while begin < len(columns):
            end = min(begin + some, len(columns))
            while columns[end - 1].first != columns[begin].first:
                end = end - 1
            work = Work(axes, first, channels, columns[begin:end], keeps, kept)
            if columns[begin].tap == 0:
                results = _results(out, channels, columns[begin], taps)
            _sum_positions(results, grads, windows, work)
            if end == len(columns) or columns[end].tap == 0:
                _store(flat, results, first, columns[begin].first)
            begin = end
    return out


def _results(out: nl.NkiTensor, channels: int, columns: Columns, taps: int) -> list[nl.NkiTensor]:
    """Tiles `[a, chunks, b, kernel]` for the channels of the window in these columns."""
    pmax = nl.tile_size.pmax
    results = []
    for row in range(0, channels, pmax):
        shape = (min(pmax, channels - row), columns.chunks, columns.lanes, taps)
        results.append(nl.ndarray(shape, dtype=out.dtype, buffer=nl.sbuf))
    return results


def _store(out: nl.NkiTensor, results: list[nl.NkiTensor], first: int, channel: int) -> None:
    """`out[first .., channel .., kernel]` <- the results, whose kernel positions are all there."""
    for tile in results:
        size = (tile.shape[0], tile.shape[1] * tile.shape[2], tile.shape[3])
        nisa.dma_copy(
            dst=out[nl.ds(first, size[0]), nl.ds(channel, size[1]), :], src=tile.reshape(size)
        )
        first = first + size[0]


def _sum_positions(
    results: list[nl.NkiTensor], grads: list[nl.NkiTensor], windows: list[nl.NkiTensor], work: Work
) -> None:
    """`results[..][a, chunks, b, kernel]` for the columns of this pass."""
    pmax = nl.tile_size.pmax
    axes, columns = work.axes, work.columns
    banks = []
    for row in range(0, work.channels, pmax):
        for some in columns:
            size = (min(pmax, work.channels - row), some.taps, some.chunks, some.lanes)
            banks.append(nl.ndarray(size, dtype=nl.float32, buffer=nl.psum))
    # Transposes run ahead of the products, which wait for them to leave PSUM.
    waiting = []
    number = 0
    for volume in range(len(grads)):
        grad = grads[volume][nl.ds(work.first, work.channels)]
        for plane in range(0, axes[0].out, axes[0].block):
            for row in range(0, axes[1].out, axes[1].block):
                firsts = (plane, row, 0)
                tile = load_window(windows[volume], columns[0], axes, firsts)
                tiles: list[nl.NkiTensor] = []
                for place in _places(axes, firsts):
                    if number >= len(work.kept) and len(tiles) == 0:
                        tiles = _load_gradient(grad, axes, firsts)
                    waiting.append(_transposed(tile, tiles, place, number, work))
                    number = number + 1
                    if len(waiting) > _AHEAD:
                        _multiply(banks, waiting.pop(0), len(columns))
    for pair in waiting:
        _multiply(banks, pair, len(columns))
    for row in range(len(results)):
        for index in range(len(columns)):
            some = columns[index]
            target = results[row][:, :, :, nl.ds(some.tap, some.taps)].permute((0, 3, 1, 2))
            nisa.tensor_copy(dst=target, src=banks[row * len(columns) + index])


def _load_gradient(
    grad: nl.NkiTensor, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]
) -> list[nl.NkiTensor]:
    """The gradient of a block as tiles `[channels, chunks, planes, rows, columns]`: whole chunks of
    128 channels, and the rest.
    """
    pmax = nl.tile_size.pmax
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    source = grad[:, nl.ds(firsts[0], planes), nl.ds(firsts[1], rows), :]
    full = grad.shape[0] // pmax
    tiles = []
    if full > 0:
        shape = (pmax, full, planes, rows, grad.shape[3])
        tile = nl.ndarray(shape, dtype=grad.dtype, buffer=nl.sbuf)
        part = source[0 : full * pmax].reshape_dim(0, (full, pmax)).permute((1, 0, 2, 3, 4))
        nisa.dma_copy(dst=tile, src=part)
        tiles.append(tile)
    rest = grad.shape[0] - full * pmax
    if rest > 0:
        tile = nl.ndarray((rest, 1, planes, rows, grad.shape[3]), dtype=grad.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[:, 0], src=source[full * pmax :])
        tiles.append(tile)
    return tiles


def _places(axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]) -> list[Place]:
    """The positions of a block that share the partitions: (starts in the block, counts)."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    places = []
    for p in range(0, planes, axes[0].tile):
        for r in range(0, rows, axes[1].tile):
            for q in range(0, axes[2].out, axes[2].tile):
                counts = (
                    min(axes[0].tile, planes - p),
                    min(axes[1].tile, rows - r),
                    min(axes[2].tile, axes[2].out - q),
                )
                places.append(((p, r, q), counts))
    return places


def _transposed(
    tile: nl.NkiTensor, tiles: list[nl.NkiTensor], place: Place, number: int, work: Work
) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The operands of the products of some positions, which are the `number`-th of all: chunks of
    128 channels of the gradient, and the columns of the window.
    """
    starts, counts = place
    turn = number
    if number < len(work.kept):
        left = work.kept[number]
    else:
        left = []
        size = counts[0] * counts[1] * counts[2]
        where = (nl.ds(starts[0], counts[0]), nl.ds(starts[1], counts[1]))
        for part in tiles:
            view = part[:, :, where[0], where[1], nl.ds(starts[2], counts[2])]
            values = transposed_gradient(view, size, turn)
            for chunk in range(part.shape[1]):
                left.append(values[:, nl.ds(chunk * part.shape[0], part.shape[0])])
            turn = turn + 1
        if work.keeps:
            work.kept.append(left)
    right = []
    for columns in work.columns:
        right.append(transposed_window(tile, columns, work.axes, starts, counts, turn))
        turn = turn + 1
    return left, right


def _multiply(
    banks: list[nl.NkiTensor], pair: tuple[list[nl.NkiTensor], list[nl.NkiTensor]], count: int
) -> None:
    """Add the products of some positions to the sums."""
    left, right = pair
    for row in range(len(left)):
        for index in range(count):
            nisa.nc_matmul(
                dst=banks[row * count + index], stationary=left[row], moving=right[index]
            )


# ---- host ----


def _windows(b: Bindings) -> list[Window]:
    """The windows of the axes that the kernel mixes, as of a convolution that is not transposed."""
    dense, window = (b.x, b.grad) if b.transposed else (b.grad, b.x)
    found = []
    for i in range(b.x.ndim - 2):
        stride, padding, dilation = (
            v[i if len(v) > 1 else 0] for v in (b.stride, b.padding, b.dilation)
        )
        kernel, out = b.weight.shape[2 + i], dense.shape[2 + i]
        found.append(Window(window.shape[2 + i], out, kernel, stride, padding, dilation, False))
    return found


def _axes(b: Bindings) -> list[Window]:
    windows = _windows(b)
    images = Window(b.x.shape[0], b.x.shape[0], 1, 1, 0, 1, False)
    one = Window(1, 1, 1, 1, 0, 1, False)
    return {1: [images, *windows, one], 2: [images, *windows], 3: windows}[len(windows)]


def _plan(b: Bindings, hw: Hardware) -> tuple[tuple[int, ...], ...]:
    """The fields of the kernel's axes."""
    axes = _axes(b)
    left = hw.partitions
    tiles: list[int] = []
    for axis in reversed(axes):
        pieces = -(-axis.out // max(1, left))
        tiles.insert(0, -(-axis.out // pieces))
        left = left // tiles[0] if pieces == 1 else 1
    block = [tiles[0], tiles[1]]
    for i in (1, 0):
        while block[i] < axes[i].out and (i == 1 or block[1] >= axes[1].out):
            block[i] += tiles[i]
            if _block_bytes(b, block, hw) > _BLOCK_BYTES:
                block[i] -= tiles[i]
                break
    sizes = [*(min(n, axis.out) for n, axis in zip(block, axes, strict=False)), axes[2].out]
    return tuple(
        (a.out, a.size, a.kernel, a.stride, a.padding, a.dilation, size, tile)
        for a, size, tile in zip(axes, sizes, tiles, strict=True)
    )


def _block_bytes(b: Bindings, block: list[int], hw: Hardware) -> int:
    """Bytes of a partition for a block of so many planes and rows."""
    axes = _axes(b)
    counts = [*block, axes[2].out]
    window = 1
    dense: int = min(BANKS, -(-b.weight.shape[0] // hw.partitions))
    for axis, count in zip(axes, counts, strict=True):
        window *= (count - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
        dense *= count
    return max(window, dense) * int(b.x.dtype.itemsize)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One group, one dtype, one to three dimensions, blocks that fit SBUF."""
    if reject := reject_dtypes(b, "x"):
        return reject
    for name in ("grad", "weight"):
        if b[name].dtype != b.x.dtype:
            return Reject(f"{name} is {b[name].dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.x.ndim not in (3, 4, 5) or b.weight.ndim != b.x.ndim:
        return Reject(f"x{b.x.shape} and weight{b.weight.shape}: 1 to 3 dimensions are possible")
    if b.groups != 1:
        return Reject(f"{b.groups} groups; one is possible")
    if min(b.x.numel, b.grad.numel, b.weight.numel) == 0:
        return Reject(f"an empty convolution: x{b.x.shape}, weight{b.weight.shape}")
    block = [int(axis[6]) for axis in _plan(b, hw)[:2]]
    if (needed := _block_bytes(b, block, hw)) > _MOST_BYTES:
        return Reject(
            f"x{b.x.shape}: the smallest block takes {needed} bytes of a partition of SBUF, more "
            f"than {_MOST_BYTES}"
        )
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The shape of the weight, and how the positions are blocked."""
    names = ("grad", "x", "transposed")
    numbers = _plan(b, hw)
    tiles = math.prod(-(-axis[0] // axis[7]) for axis in numbers)
    if b.x.ndim == 5:
        tiles *= b.x.shape[0]
    channels = min(b.weight.shape[0], BANKS * hw.partitions)
    keeps = tiles * channels * b.x.dtype.itemsize <= _KEPT_BYTES
    kernel = convolution_weight_gradient_kernel
    return Launch.of(kernel, b, names, b.weight.shape, numbers, keeps)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; grad and x are read once, the result is written."""
    dense = b.x if b.transposed else b.grad
    each = b.weight.numel // b.weight.shape[0]
    return Cost(
        matmul_flops=2 * dense.numel * each,
        vector_flops=b.weight.numel,
        hbm_bytes=b.x.nbytes + b.grad.nbytes + b.weight.nbytes,
    )


def reference(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    """The same in float32, rounded once."""
    how = (stride, padding, dilation, transposed, output_padding, groups)
    wide = (t.float() for t in (grad, x, weight))
    mask = [False, True, False]
    result: torch.Tensor = aten.convolution_backward.default(*wide, bias_sizes, *how, mask)[1]
    return result.to(x.dtype)


def _pattern(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    how = (stride, padding, dilation, transposed, output_padding, groups)
    found = aten.convolution_backward.default(
        grad, x, weight, bias_sizes, *how, [False, True, False]
    )
    return operator.getitem(found, 1)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges of channels and positions, every geometry."""

    def sample(
        note: str,
        x: tuple[int, ...],
        weight: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        **more: Any,
    ) -> Sample:
        dims = len(x) - 2
        how: dict[str, Any] = {
            "stride": [1] * dims, "padding": [0] * dims, "dilation": [1] * dims,
            "transposed": False, "output_padding": [0] * dims, "groups": 1,
        } | more  # fmt: skip
        out = [
            output_size(
                Window(x[2 + i], 0, weight[2 + i], how["stride"][i], how["padding"][i],
                       how["dilation"][i], how["transposed"]),
                how["output_padding"][i],
            )
            for i in range(dims)
        ]  # fmt: skip
        channels = weight[1] if how["transposed"] else weight[0]
        tensors = {
            "grad": torch.randn((x[0], channels, *out), generator=generator).to(dtype),
            "x": torch.randn(x, generator=generator).to(dtype),
            "weight": torch.randn(weight, generator=generator).to(dtype),
        }
        positions = x[0] * math.prod(x[2:] if how["transposed"] else out)
        error = 4e-7 * positions**0.5 * math.log2(2 + positions)
        return Sample(tensors | {"bias_sizes": None} | how, note, error)

    for size in (1, 2, 127, 128, 129):
        yield sample(f"{size} channels", (1, size, 5, 6), (3, size, 3, 3), padding=[1, 1])
        yield sample(f"{size} out channels", (1, 4, 5, 6), (size, 4, 3, 3), padding=[1, 1])
    yield sample("1x1", (2, 130, 7, 9), (140, 130, 1, 1))
    yield sample("513 columns", (1, 2, 2, 513), (3, 2, 1, 3))
    yield sample("many planes", (40, 66, 3, 4), (5, 66, 2, 2))
    yield sample("stride", (2, 66, 9, 11), (6, 66, 3, 3), stride=[2, 2], padding=[1, 1])
    yield sample("stem", (2, 3, 21, 20), (8, 3, 7, 7), stride=[2, 2], padding=[3, 3])
    yield sample("dilation", (1, 7, 13, 12), (4, 7, 3, 2), dilation=[2, 3], padding=[2, 1])
    yield sample("padding beyond the kernel", (1, 6, 2, 3), (4, 6, 2, 2), padding=[3, 3])
    yield sample("bfloat16", (2, 70, 9, 8), (130, 70, 3, 3), torch.bfloat16, padding=[1, 1])
    yield sample("many channels", (1, 140, 4, 4), (700, 140, 3, 3), padding=[1, 1])
    yield sample("1d", (3, 20, 70), (9, 20, 5), stride=[2], padding=[2])
    yield sample("3d", (2, 6, 5, 6, 7), (4, 6, 3, 3, 3), padding=[1] * 3, stride=[2, 1, 2])
    yield sample("transposed", (2, 66, 5, 6), (66, 7, 3, 3), stride=[2, 2], padding=[1, 1],
                 output_padding=[1, 1], transposed=True)  # fmt: skip


register(
    KernelSpec(
        name="convolution_weight_gradient",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=convolution_weight_gradient_kernel,
        launch=launch,
    )
)
