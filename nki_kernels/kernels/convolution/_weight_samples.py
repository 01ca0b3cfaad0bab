"""Seeded inputs of `convolution_weight_gradient` for the generic tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from trnx.nki_kernels.kernels.convolution._samples import Draw, arguments_of
from trnx.nki_kernels.kernels.convolution._windows import Window, output_size
from trnx.nki_kernels.spec import Sample

_SHORT: dict[str, Any] = {"dtype": torch.bfloat16}


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges of channels and positions, every geometry."""
    sample = partial(_sample, generator)
    for some in (_pointwise, _wide, _windows, _strips):
        yield from some(sample)


def _sample(
    generator: torch.Generator,
    note: str,
    x: tuple[int, ...],
    weight: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Sample:
    """Tensors of these sizes, `weight` that of the gradient; `more` as in
    `arguments_of`."""
    dims = len(x) - 2
    how = arguments_of(dims, more)
    out = [
        output_size(
            Window(x[2 + i], 0, weight[2 + i], how["stride"][i], how["padding"][i],
                   how["dilation"][i], how["transposed"]),
            how["output_padding"][i],
        )
        for i in range(dims)
    ]  # fmt: skip
    channels = weight[1] * how["groups"] if how["transposed"] else weight[0]
    tensors = {
        "grad": torch.randn((x[0], channels, *out), generator=generator).to(dtype),
        "x": torch.randn(x, generator=generator).to(dtype),
        "weight": torch.randn(weight, generator=generator).to(dtype),
    }
    positions = x[0] * math.prod(x[2:] if how["transposed"] else out)
    error = 4e-7 * positions**0.5 * math.log2(2 + positions)
    return Sample(tensors | {"bias_sizes": None} | how, note, error)


def _pointwise(sample: Draw) -> Iterator[Sample]:
    """Ragged sizes, and kernels of one element."""
    for size in (1, 2, 127, 128, 129):
        yield sample(f"{size} channels", (1, size, 5, 6), (3, size, 3, 3), padding=[1, 1])
        yield sample(f"{size} out channels", (1, 4, 5, 6), (size, 4, 3, 3), padding=[1, 1])
    yield sample("1x1", (2, 130, 7, 9), (140, 130, 1, 1))
    # Transposed by DMA: images of whole chunks of positions, and with a rest.
    for size in (1, 127, 129):
        yield sample(
            f"1x1, {size} channels of 2 bytes", (3, size, 13, 11), (5, size, 1, 1), **_SHORT
        )
        yield sample(f"1x1, {size} of 2 bytes out", (2, 6, 8, 16), (size, 6, 1, 1), **_SHORT)
    for images in (1, 2, 5):
        yield sample(f"1x1, {images} small images of 2 bytes", (images, 140, 7, 7),
                     (20, 140, 1, 1), **_SHORT)  # fmt: skip
    # Between images that share the partitions lie some with zeros, where as many fit.
    yield sample("1x1, odd channels between zeros", (4, 141, 7, 7), (129, 141, 1, 1), **_SHORT)
    yield sample("1x1, images of 36 positions", (5, 20, 6, 6), (131, 20, 1, 1), **_SHORT)
    yield sample("1x1, images of half the partitions", (3, 40, 8, 8), (130, 40, 1, 1), **_SHORT)
    yield sample("1x1, images of few positions", (50, 6, 2, 2), (5, 6, 1, 1), **_SHORT)
    yield sample("1x1, many of 2 bytes", (3, 140, 16, 20), (700, 140, 1, 1), **_SHORT)
    # Whose last positions TensorE transposes: few channels in a chunk, one image, an odd number.
    for x, out in (((8, 257, 12, 11), 3), ((1, 1030, 20, 21), 5), ((5, 40, 13, 13), 500)):
        yield sample(
            f"1x1, {x[0]} images whose ends are transposed", x, (out, x[1], 1, 1), **_SHORT
        )
    yield sample("1x1, groups of 2 bytes", (2, 12, 13, 12), (6, 4, 1, 1), groups=3, **_SHORT)
    yield sample("1d, 1 wide, 2 bytes", (3, 20, 300), (9, 20, 1), **_SHORT)


def _wide(sample: Draw) -> Iterator[Sample]:
    """Wide images."""
    # Rows of images that are contracted as they are; the window has more channels, or fewer.
    yield sample("stem of wide images", (3, 3, 40, 41), (130, 3, 7, 7), stride=[2, 2],
                 padding=[3, 3])  # fmt: skip
    for size in (32, 64):  # products run side by side
        yield sample(f"stem of {size} channels", (4, 3, 40, 100), (size, 3, 5, 5), stride=[2, 2],
                     padding=[2, 2])  # fmt: skip
    yield sample("few out channels, wide", (3, 130, 9, 50), (4, 130, 3, 3), padding=[1, 1])
    yield sample("wide, dilation", (2, 6, 12, 53), (3, 6, 3, 2), dilation=[2, 3], padding=[2, 1])
    yield sample(
        "wide, 129 rows of 2 bytes", (2, 5, 131, 52), (7, 5, 3, 3), padding=[0, 2], **_SHORT
    )
    yield sample("wide, 33 images", (33, 2, 6, 48), (3, 2, 3, 3), padding=[1, 1], **_SHORT)
    yield sample("wide, transposed", (2, 5, 7, 30), (5, 3, 3, 3), stride=[2, 2], padding=[1, 1],
                 transposed=True)  # fmt: skip


def _windows(sample: Draw) -> Iterator[Sample]:
    """Steps, padding and dilation, one and three dimensions, transposed ones, groups."""
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
    yield sample("groups", (2, 12, 7, 6), (6, 4, 3, 3), groups=3, padding=[1, 1])
    yield sample("groups of 70", (1, 140, 5, 4), (144, 70, 2, 2), groups=2)
    yield sample("many groups", (1, 270, 5, 4), (135, 2, 3, 3), torch.bfloat16, groups=135)
    yield sample("depthwise", (2, 129, 6, 5), (129, 1, 3, 3), groups=129, padding=[1, 1])


def _strips(sample: Draw) -> Iterator[Sample]:
    """A channel or two a group."""
    # Strips of rows are contracted as they are.
    for size in (32, 127, 129):
        yield sample(f"depthwise, {size} of 2 bytes", (2, size, 9, 10), (size, 1, 3, 3),
                     groups=size, padding=[1, 1], **_SHORT)  # fmt: skip
    yield sample("depthwise, 2 bytes, stride", (3, 40, 15, 17), (40, 1, 5, 3), groups=40,
                 padding=[2, 1], stride=[2, 2], **_SHORT)  # fmt: skip
    yield sample("depthwise, 2 bytes, dilation", (2, 33, 12, 9), (33, 1, 2, 3), groups=33,
                 padding=[1, 2], dilation=[1, 2], **_SHORT)  # fmt: skip
    yield sample("depthwise, 2 bytes, transposed", (2, 48, 6, 7), (48, 1, 3, 3), groups=48,
                 padding=[1, 1], stride=[2, 2], transposed=True, **_SHORT)  # fmt: skip
    yield sample(
        "strips of rows, 2 bytes", (8, 33, 14, 28), (64, 33, 3, 3), padding=[1, 1], **_SHORT
    )
    yield sample("depthwise, 2 each", (2, 7, 9, 8), (14, 1, 3, 3), groups=7, stride=[2, 2])
    yield sample("depthwise 7x7", (1, 20, 9, 8), (20, 1, 7, 7), groups=20, padding=[3, 3])
    yield sample("depthwise 1d", (2, 5, 300), (5, 1, 4), groups=5, padding=[3])
    yield sample("transposed, groups", (2, 12, 5, 6), (12, 3, 3, 3), groups=4, stride=[2, 2],
                 transposed=True)  # fmt: skip
