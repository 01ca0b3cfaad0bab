"""Convolutions of image models, for `kernels.py`: every distinct layer at batch 8.

Sources: He et al., Deep Residual Learning (ResNet-50); Liu et al., A ConvNet for the 2020s
(ConvNeXt-T); Sandler et al., MobileNetV2; Rombach et al., High-Resolution Image Synthesis (the UNet
of Stable Diffusion at 512 pixels).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

BATCH = 8


class Layer(NamedTuple):
    """A square convolution: channels, image size, kernel, stride and padding; `groups`."""

    model: str
    channels: int
    out_channels: int
    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def name(self) -> str:
        """How rows of tables name it."""
        stride = f" /{self.stride}" if self.stride > 1 else ""
        shape = f"{self.channels}-{self.out_channels} {self.kernel}x{self.kernel}{stride}"
        kind = " depthwise" if self.groups > 1 else ""
        return f"{self.model} {shape}{kind} @{self.size}"

    @property
    def out(self) -> int:
        """Rows and columns of the result."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Those of the result (and its gradient), the input and the weight."""
        weight = (self.out_channels, self.channels // self.groups, self.kernel, self.kernel)
        image = (BATCH, self.channels, self.size, self.size)
        return (BATCH, self.out_channels, self.out, self.out), image, weight

    @property
    def flops(self) -> int:
        """Two for a multiply-add."""
        depth = self.channels // self.groups * self.kernel**2
        return 2 * BATCH * self.out_channels * self.out**2 * depth


def _depthwise(model: str, channels: int, size: int, kernel: int, stride: int = 1) -> Layer:
    return Layer(model, channels, channels, size, kernel, stride, kernel // 2, channels)


def _resnet() -> Iterator[Layer]:
    name = "ResNet-50"
    yield Layer(name, 3, 64, 224, 7, 2, 3)
    yield Layer(name, 64, 64, 56, 1)
    before, size = 64, 56
    for inner, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        outer = 4 * inner
        if stride > 1:
            yield Layer(name, before, inner, size, 1)
            yield Layer(name, inner, inner, size, 3, stride, 1)
            yield Layer(name, before, outer, size, 1, stride)
        size //= stride
        yield Layer(name, inner, outer, size, 1)
        yield Layer(name, outer, inner, size, 1)
        yield Layer(name, inner, inner, size, 3, 1, 1)
        before = outer


def _convnext() -> Iterator[Layer]:
    name = "ConvNeXt"
    yield Layer(name, 3, 96, 224, 4, 4)
    for channels, size in ((96, 56), (192, 28), (384, 14), (768, 7)):
        yield _depthwise(name, channels, size, 7)
        if size > 7:
            yield Layer(name, channels, 2 * channels, size, 2, 2)


def _unet() -> Iterator[Layer]:
    name = "UNet"
    yield Layer(name, 4, 320, 64, 3, 1, 1)
    yield Layer(name, 320, 4, 64, 3, 1, 1)
    sides = {
        64: ((320, 320), (640, 320), (960, 320)),
        32: ((320, 640), (640, 640), (960, 640), (1280, 640), (1920, 640)),
        16: ((640, 1280), (1280, 1280), (1920, 1280), (2560, 1280)),
        8: ((1280, 1280), (2560, 1280)),
    }
    for size, pairs in sides.items():
        for channels, out_channels in pairs:
            yield Layer(name, channels, out_channels, size, 3, 1, 1)
    for channels, size in ((320, 64), (640, 32), (1280, 16)):
        yield Layer(name, channels, channels, size, 1)
        yield Layer(name, channels, channels, size, 3, 2, 1)


def _mobilenet() -> Iterator[Layer]:
    name = "MobileNetV2"
    yield Layer(name, 3, 32, 224, 3, 2, 1)
    yield _depthwise(name, 32, 112, 3)
    yield Layer(name, 32, 16, 112, 1)
    before, size = 16, 112
    for channels, stride, repeats in (
        (24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3), (160, 2, 3), (320, 1, 1),
    ):  # fmt: skip
        yield Layer(name, before, 6 * before, size, 1)
        yield _depthwise(name, 6 * before, size, 3, stride)
        size //= stride
        yield Layer(name, 6 * before, channels, size, 1)
        if repeats > 1:
            yield _depthwise(name, 6 * channels, size, 3)
            yield Layer(name, 6 * channels, channels, size, 1)
        before = channels
    yield Layer(name, before, 1280, size, 1)


def layers() -> Iterator[Layer]:
    """All of them, each once."""
    seen = set()
    for of_model in (_resnet, _convnext, _unet, _mobilenet):
        for layer in of_model():
            if layer not in seen:
                seen.add(layer)
                yield layer
