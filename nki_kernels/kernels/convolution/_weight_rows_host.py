"""When the gradient of a weight contracts image rows (host side); see `_weight_rows.py`."""

from __future__ import annotations

from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._weight_product import BANKS
from trnx.nki_kernels.kernels.convolution._weight_rows import (
    LEAST_COLUMNS,
    RowAxis,
    reached,
)
from trnx.nki_kernels.kernels.convolution._windows import Window
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Bytes of a row of an image, below which its descriptors take too long.
_ROW_BYTES = 96
# The share of the partitions that the positions of a product have, about.
_FILLED = 0.75
# Bytes of a partition for rows of the long tensor, and of the short one.
_LONG_BYTES, _SHORT_BYTES = 49152, 16384


def _axis(window: Window, is_turned: bool) -> RowAxis:
    size, out, kernel, stride, padding, dilation, _ = window
    if is_turned:
        # Counted from the end of the kernel.
        return RowAxis(size, out, kernel, stride, (kernel - 1) * dilation - padding, dilation)
    return RowAxis(out, size, kernel, stride, padding, dilation)


def rows_plan(
    b: Bindings, windows: list[Window], hw: Hardware
) -> tuple[bool, tuple[RowAxis, RowAxis]] | None:
    """Whether the window is the long tensor, and its rows and columns; None where other ways are
    faster, or the only ones.
    """
    if len(windows) != 2 or b.groups > 1 or windows[0].kernel * windows[1].kernel == 1:
        return None
    rows, columns = b.weight.shape[:2]
    is_turned = rows < columns and windows[0].stride == 1 == windows[1].stride
    long, short = (columns, rows) if is_turned else (rows, columns)
    axes = (_axis(windows[0], is_turned), _axis(windows[1], is_turned))
    return (is_turned, axes) if _pays(b, long, short, axes, hw) else None


def _pays(b: Bindings, long: int, short: int, axes: tuple[RowAxis, RowAxis], hw: Hardware) -> bool:
    itemsize = int(b.x.dtype.itemsize)
    taps = axes[0].kernel * axes[1].kernel
    if short * taps > float32_per_bank(hw) or long > BANKS * hw.partitions:
        return False
    width = axes[1].long * itemsize
    fits = min(long, hw.partitions) * width <= _LONG_BYTES
    fits = fits and short * axes[0].kernel * axes[1].short * itemsize <= _SHORT_BYTES
    if not fits or width < _ROW_BYTES:
        return False
    if not any(_is_whole(axes[1], column) for column in range(axes[1].long)):
        return False
    return _columns(b, long, short, axes, hw) < _transposed_columns(b, long, short, axes, hw)


def _columns(
    b: Bindings, long: int, short: int, axes: tuple[RowAxis, RowAxis], hw: Hardware
) -> float:
    """Moving columns of TensorE where rows are contracted as they are."""
    images = int(b.x.shape[0])
    inner = [_is_whole(axes[0], row) for row in range(axes[0].long)].count(True)
    if inner == 0:
        return float("inf")
    pieces = -(-inner // hw.partitions)
    together = max(1, hw.partitions // -(-inner // pieces))
    passes = pieces * -(-images // together)
    # A row of the border takes as long as a full tile of rows.
    passes += (axes[0].long - inner) * -(-images // hw.partitions)
    each = max(LEAST_COLUMNS, short * axes[0].kernel * axes[1].kernel)
    return passes * axes[1].long * each * -(-long // hw.partitions)


def _transposed_columns(
    b: Bindings, long: int, short: int, axes: tuple[RowAxis, RowAxis], hw: Hardware
) -> float:
    """The same where positions are transposed: the window for each kernel column."""
    positions = int(b.x.shape[0]) * axes[0].long * axes[1].long
    chunks = -(-long // hw.partitions)
    each = max(LEAST_COLUMNS, short * axes[0].kernel * axes[1].kernel) * chunks
    each += (axes[1].kernel + chunks) * hw.partitions
    return positions / (_FILLED * hw.partitions) * each


def _is_whole(axis: RowAxis, index: int) -> bool:
    first, end = reached(axis, index)
    return end - first == axis.kernel
