"""A convolution along its axes, as the host sees it: see `_geometry.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# (kernel position, offset, stride, how many positions are folded into the contraction, 1 + the mask
# of the weights or 0, first output, end of the outputs)
Tap = tuple[int, int, int, int, int, int, int]
# Weights whose first folded positions are zeros: (kernel position, these, all that are folded)
Mask = tuple[int, int, int]
Phase = tuple[int, int, tuple[Tap, ...]]  # start, outputs, taps


class Window(NamedTuple):
    """A convolution along one axis, as `aten.convolution` takes it."""

    size: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    transposed: bool

    @property
    def step(self) -> int:
        """Distance of the outputs of one phase."""
        return self.stride if self.transposed else 1

    @property
    def reach(self) -> int:
        """Inputs from the first to the last one that an output of one phase may take."""
        taps = (self.kernel - 1) * self.dilation
        return taps // self.step + 1

    def phases(self) -> tuple[Phase, ...]:
        """The phases that have outputs."""
        if not self.transposed:
            taps = tuple(
                (k, k * self.dilation - self.padding, self.stride, 1, 0, 0, self.out)
                for k in range(self.kernel)
            )
            return ((0, self.out, taps),)
        return tuple(self._phase(start) for start in range(min(self.stride, self.out)))

    @property
    def fold_step(self) -> int:
        """Kernel positions between two that a fold has on neighbouring parts of the partitions."""
        return self.stride // math.gcd(self.stride, self.dilation) if self.transposed else 1

    @property
    def fold_shift(self) -> int:
        """Inputs between two parts of the partitions."""
        return self.dilation * self.fold_step // self.step

    def _phase(self, start: int) -> Phase:
        count = -(-(self.out - start) // self.stride)
        distances = (start + self.padding - k * self.dilation for k in range(self.kernel))
        taps = tuple(
            (k, distance // self.stride, 1, 1, 0, 0, count)
            for k, distance in enumerate(distances)
            if distance % self.stride == 0
        )
        return start, count, taps


@dataclass(frozen=True)
class Problem:
    """A convolution of one group: channels, bytes of an element, and the windows of its axes."""

    channels: int
    out_channels: int
    itemsize: int
    planes: Window
    rows: Window
    columns: Window
    has_residual: bool

    @property
    def outputs(self) -> int:
        """Of a channel and a phase: those that one product computes together."""
        axes = (self.planes, self.rows, self.columns)
        return math.prod(-(-axis.out // axis.step) for axis in axes)

    @property
    def weights(self) -> int:
        """Elements of the weight."""
        return self.channels * self.out_channels * self.taps

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return self.planes.kernel * self.rows.kernel * self.columns.kernel


def trivial(size: int) -> Window:
    """An axis along which nothing is mixed."""
    return Window(size, size, 1, 1, 0, 1, False)


def output_size(window: Window, output_padding: int) -> int:
    """Outputs along an axis, by the formula of `torch.nn.Conv2d` and `ConvTranspose2d`."""
    reach = window.dilation * (window.kernel - 1)
    if window.transposed:
        return (window.size - 1) * window.stride - 2 * window.padding + reach + output_padding + 1
    return (window.size + 2 * window.padding - reach - 1) // window.stride + 1
