"""Seeded inputs of `convolution` for the generic tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from trnx.nki_kernels.spec import Sample

# `_sample` of a generator.
Draw = Callable[..., Sample]
_BF16, _HALF = torch.bfloat16, torch.float16
_UP: dict[str, Any] = {"transposed": True}


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, every geometry, every epilogue."""
    sample = partial(_sample, generator)
    for some in (
        _sizes, _pointwise, _windows, _depthwise, _transposed, _shared_columns, _gaps, _epilogues,
    ):  # fmt: skip
        yield from some(sample)


def arguments_of(dims: int, more: dict[str, Any]) -> dict[str, Any]:
    """Those of a convolution of so many dimensions: `more`, of which a list of one is for each
    dimension alike, and defaults."""
    plain: dict[str, Any] = {
        "stride": [1], "padding": [0], "dilation": [1], "transposed": False,
        "output_padding": [0], "groups": 1,
    } | more  # fmt: skip
    return {k: v * dims if isinstance(v, list) and len(v) == 1 else v for k, v in plain.items()}


def _sample(
    generator: torch.Generator,
    note: str,
    x: tuple[int, ...],
    weight: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    bias: bool = False,
    residual: tuple[int, ...] | None = None,
    norm: bool = False,
    **more: Any,
) -> Sample:
    """Tensors of these sizes; `more` as in `arguments_of`."""

    def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    dims = len(x) - 2
    how = arguments_of(dims, more)
    out: int = weight[1] * how["groups"] if how["transposed"] else weight[0]
    vector = values(out, dtype=dtype) if norm else None  # of a batch norm
    given = {
        "x": values(*x, dtype=dtype),
        "weight": values(*weight, dtype=dtype) / math.sqrt(math.prod(weight[1:])),
        "bias": values(out, dtype=dtype) if bias else None,
        "residual": values(*residual, dtype=dtype) if residual else None,
        "norm_weight": vector,
        "norm_bias": vector,
        "mean": vector,
        "variance": values(out).square() if norm else None,
        "eps": 1e-5 if norm else 0.0,
        "sizes": [1, out] + [1] * dims if norm else None,
        "activation": "none",
    }
    # Channels and kernel positions are one sum, longer than any dimension.
    depth = math.prod(weight[1:]) if not how["transposed"] else weight[0] * math.prod(weight[2:])
    return Sample(given | how, note, 4e-7 * math.sqrt(depth))


def _sizes(sample: Draw) -> Iterator[Sample]:
    """Ragged sizes."""
    for size in (1, 2, 127, 128, 129):
        yield sample(f"{size} channels", (1, size, 6, 5), (3, size, 3, 3), padding=[1], bias=True)
        yield sample(f"{size} out channels", (1, 4, 6, 5), (size, 4, 3, 3), padding=[1], bias=True)
    yield sample("513 columns", (1, 2, 2, 513), (3, 2, 1, 3))
    yield sample("rows of several banks", (1, 65, 40, 33), (5, 65, 3, 3), padding=[1])
    yield sample("many planes", (70, 66, 3, 4), (5, 66, 2, 2))


def _pointwise(sample: Draw) -> Iterator[Sample]:
    """Kernels of one element."""
    yield sample("1x1", (2, 130, 7, 9), (140, 130, 1, 1), bias=True)
    # A last chunk of few channels, whose blocks take turns at the partitions.
    for size in (129, 144, 160, 192):
        yield sample(f"1x1, {size} channels", (5, size, 9, 8), (6, size, 1, 1), _BF16, bias=True)
    # Chunks of channels that come one by one, the first results stored by themselves.
    yield sample("1x1, 512 channels", (3, 512, 9, 9), (260, 512, 1, 1), _BF16, bias=True)
    yield sample("1x1, 520 channels", (2, 520, 9, 10), (300, 520, 1, 1), _BF16)
    # Images that share a bank, two adjacent channels on a partition, or the last ones alone.
    yield sample("1x1, pairs of channels", (3, 512, 7, 7), (260, 512, 1, 1), _HALF, bias=True,
                 activation="relu")  # fmt: skip
    yield sample("1x1, pairs of channels, and few", (1, 130, 6, 7), (1154, 130, 1, 1), _BF16)
    yield sample("1x1, pairs of channels, last ones", (8, 330, 4, 5), (450, 330, 1, 1), _BF16,
                 norm=True, bias=True, activation="silu")  # fmt: skip
    yield sample("patches", (2, 130, 9, 11), (640, 130, 2, 2), _BF16, stride=[2], bias=True)
    yield sample("1x1, 144 channels to 140", (5, 144, 9, 8), (140, 144, 1, 1))
    yield sample("even chunks", (2, 257, 6, 5), (130, 257, 3, 3), _BF16, padding=[1])
    yield sample("transposed 1x1, 144 channels", (3, 144, 9, 5), (144, 7, 1, 1), transposed=True)


def _windows(sample: Draw) -> Iterator[Sample]:
    """Steps, padding and dilation, few channels, one and three dimensions, groups."""
    yield sample("stride", (2, 66, 9, 11), (6, 66, 3, 3), stride=[2], padding=[1])
    yield sample("stem", (2, 3, 21, 20), (8, 3, 7, 7), stride=[2], padding=[3])
    yield sample("stride beyond the kernel", (1, 5, 9, 11), (4, 5, 2, 1), stride=[3, 4])
    yield sample("dilation", (1, 70, 13, 12), (4, 70, 3, 2), dilation=[2, 3], padding=[2, 1])
    yield sample("dilation, folded", (1, 9, 13, 12), (4, 9, 3, 2), dilation=[2, 3], padding=[2, 1])
    yield sample("padding beyond the kernel", (1, 66, 2, 3), (4, 66, 2, 2), padding=[3])
    yield sample("padding, folded", (1, 5, 2, 3), (4, 5, 3, 2), padding=[3])
    yield sample("one pixel", (2, 66, 1, 1), (4, 66, 3, 3), padding=[1])
    yield sample("even kernel", (1, 40, 8, 8), (4, 40, 4, 4), stride=[2], padding=[1])
    for dtype in (_BF16, _HALF):
        yield sample(f"{dtype}", (2, 70, 9, 8), (130, 70, 3, 3), dtype, padding=[1], bias=True)
    yield sample("1d", (3, 20, 70), (9, 20, 5), stride=[2], padding=[2], bias=True)
    yield sample("1d, one channel", (2, 1, 300), (130, 1, 10), stride=[5])
    yield sample("3d", (2, 6, 5, 6, 7), (4, 6, 3, 3, 3), padding=[1], stride=[2, 1, 2], bias=True)
    yield sample("groups", (1, 64, 6, 5), (40, 32, 3, 3), padding=[1], groups=2, bias=True)
    yield sample("groups of 2", (1, 12, 6, 5), (18, 2, 3, 3), padding=[1], groups=6, bias=True)


def _depthwise(sample: Draw) -> Iterator[Sample]:
    """A channel a group."""
    deep: dict[str, Any] = {"padding": [1], "bias": True}
    yield sample("depthwise", (3, 50, 6, 5), (50, 1, 3, 3), groups=50, **deep)
    yield sample("depthwise, bfloat16", (2, 129, 5, 4), (129, 1, 3, 3), _BF16, groups=129, **deep)
    yield sample("depthwise, 2 each", (2, 7, 9, 8), (14, 1, 3, 3), groups=7, stride=[2], **deep)
    yield sample("depthwise, blocks", (1, 3, 70, 65), (3, 1, 7, 7), groups=3, padding=[3])
    yield sample("depthwise, dilation", (1, 9, 13, 12), (9, 1, 3, 2), groups=9, dilation=[2, 3],
                 padding=[7, 1])  # fmt: skip
    yield sample("depthwise 1d", (2, 5, 3000), (5, 1, 4), groups=5, padding=[3], stride=[2])
    yield sample("depthwise 3d", (2, 6, 5, 6, 7), (6, 1, 3, 3, 3), groups=6, stride=[2, 1, 2],
                 **deep)  # fmt: skip
    yield sample("depthwise, every epilogue", (2, 6, 7, 5), (6, 1, 3, 3), groups=6, norm=True,
                 residual=(2, 6, 7, 5), activation="relu", **deep)  # fmt: skip
    # Large enough for products with diagonals: whole images in a bank, two kernel rows a product.
    yield sample("depthwise products", (2, 129, 14, 14), (129, 1, 3, 3), _BF16, groups=129, **deep)
    yield sample("depthwise products, pairs", (2, 144, 30, 28), (144, 1, 3, 3), _BF16, groups=144,
                 padding=[1], bias=True, activation="relu")  # fmt: skip
    yield sample("depthwise products 7x7", (1, 65, 30, 28), (65, 1, 7, 7), _BF16, groups=65,
                 padding=[3], norm=True, residual=(1, 65, 30, 28))  # fmt: skip
    yield sample(
        "depthwise products 1d", (2, 127, 300), (127, 1, 4), _BF16, groups=127, padding=[3]
    )
    yield sample("depthwise products, dilation", (1, 96, 40, 30), (96, 1, 4, 2), _BF16, groups=96,
                 dilation=[2, 3], padding=[3, 1])  # fmt: skip


def _transposed(sample: Draw) -> Iterator[Sample]:
    """Transposed, with kernel rows that are folded."""
    yield sample("transposed", (2, 66, 5, 6), (66, 7, 3, 3), stride=[2], padding=[1], bias=True,
                 output_padding=[1], **_UP)  # fmt: skip
    yield sample("transposed 2x2", (1, 8, 5, 6), (8, 7, 2, 2), _BF16, stride=[2], **_UP)
    yield sample("transposed, gaps", (1, 8, 4, 3), (8, 7, 2, 1), stride=[3, 2], bias=True, **_UP)
    # Rows of the result that a row of the input makes by itself, as further output channels.
    yield sample("transposed, rows apart", (3, 40, 7, 33), (40, 5, 3, 2), stride=[3, 2], norm=True,
                 residual=(3, 5, 21, 66), activation="relu", bias=True, **_UP)  # fmt: skip
    yield sample("transposed, rows apart, bfloat16", (2, 130, 5, 20), (130, 9, 4, 4), _BF16,
                 stride=[4], bias=True, **_UP)  # fmt: skip
    yield sample("transposed, 128 rows apart", (1, 3, 2, 33), (3, 64, 2, 3), stride=[2, 2], **_UP)
    # Few channels: kernel rows of a phase are folded into the contraction.
    yield sample("transposed, folded", (2, 5, 7, 6), (5, 9, 5, 3), stride=[2, 3], padding=[2, 1],
                 output_padding=[1, 0], bias=True, **_UP)  # fmt: skip
    yield sample("transposed, folded, dilation", (1, 8, 9, 5), (8, 6, 4, 3), _BF16, stride=[2, 3],
                 dilation=[3, 2], padding=[3, 1], **_UP)  # fmt: skip
    yield sample("transposed, folded, even steps", (1, 3, 6, 5), (3, 40, 5, 2), stride=[4, 1],
                 dilation=[2, 1], **_UP)  # fmt: skip
    yield sample("transposed 3d, folded groups", (2, 12, 3, 5, 4), (12, 5, 3, 4, 3), stride=[2],
                 padding=[1], groups=3, **_UP)  # fmt: skip


def _shared_columns(sample: Draw) -> Iterator[Sample]:
    """Blocks that share the columns of the array."""
    yield sample("images of few rows, folded", (3, 4, 9, 130), (130, 4, 3, 3), _BF16, padding=[1])
    # Few output channels: blocks share the columns of the array and the partitions of a bank.
    yield sample(
        "blocks beside each other", (3, 40, 41, 37), (24, 40, 3, 3), padding=[1], bias=True
    )
    yield sample("1x1, blocks beside each other", (4, 130, 30, 31), (24, 130, 1, 1), _BF16,
                 bias=True, activation="silu")  # fmt: skip
    # A last chunk of few output channels, for which blocks share the columns.
    yield sample("144 of 24 channels", (6, 24, 9, 8), (144, 24, 1, 1), bias=True,
                 activation="silu")  # fmt: skip
    yield sample("192 of 32 channels", (5, 32, 23, 24), (192, 32, 1, 1), _BF16, norm=True)
    yield sample("130 of 64 channels", (3, 64, 5, 6), (130, 64, 3, 3), _BF16, padding=[1])
    yield sample("transposed, 144 of 20 channels", (5, 20, 9, 5), (20, 144, 1, 1), _BF16, **_UP)
    # The same where each block has all rows of the array, and so waits for the next one.
    yield sample("192 of 130 channels", (3, 130, 20, 24), (192, 130, 3, 3), _BF16, padding=[1],
                 bias=True, activation="silu")  # fmt: skip
    yield sample("192 of 192 channels", (4, 192, 15, 14), (192, 192, 2, 3), _BF16)
    yield sample("160 of 96 channels", (9, 96, 15, 16), (160, 96, 1, 1), norm=True)
    yield sample("transposed, 192 of 66 channels", (5, 66, 17, 16), (66, 192, 1, 1), bias=True,
                 **_UP)  # fmt: skip
    yield sample("192 of 70 channels, 3d", (2, 70, 5, 12, 13), (192, 70, 2, 2, 2), _BF16)
    yield sample("blocks of even rows", (2, 130, 44, 64), (4, 130, 3, 3), _BF16, padding=[1])
    yield sample("residual, blocks beside each other", (2, 70, 40, 50), (32, 70, 3, 3), padding=[1],
                 residual=(2, 32, 40, 50), norm=True, activation="relu")  # fmt: skip
    yield sample("transposed, blocks beside each other", (3, 66, 43, 31), (66, 5, 3, 4), stride=[2],
                 padding=[1], output_padding=[1, 0], **_UP)  # fmt: skip
    yield sample("volumes beside each other", (2, 5, 12, 24, 22), (7, 5, 3, 3, 3), _BF16,
                 padding=[1])  # fmt: skip


def _gaps(sample: Draw) -> Iterator[Sample]:
    """Transposed, with phases that no kernel position reaches, and groups."""
    yield sample("transposed 1x1, gaps", (2, 129, 5, 3), (129, 7, 1, 1), _BF16, stride=[3, 2],
                 padding=[1], output_padding=[1], **_UP)  # fmt: skip
    yield sample("transposed, an empty phase first", (1, 8, 2, 3), (8, 7, 1, 1), stride=[2],
                 padding=[1], output_padding=[1], **_UP)  # fmt: skip
    yield sample("transposed, gaps of volumes", (2, 6, 3, 2, 4), (6, 5, 1, 2, 1), stride=[2], **_UP)
    yield sample("transposed 1d", (2, 130, 9), (130, 7, 4), stride=[2], padding=[1], **_UP)
    yield sample("transposed 3d", (1, 6, 2, 3, 4), (6, 5, 2, 3, 2), stride=[2], **_UP)
    yield sample("transposed, groups", (1, 32, 4, 5), (32, 16, 3, 3), groups=2, **_UP)
    yield sample(
        "transposed, dilation", (1, 8, 4, 5), (8, 6, 3, 2), stride=[2], dilation=[3], **_UP
    )
    yield sample("transposed, depthwise", (2, 20, 5, 6), (20, 1, 3, 3), groups=20, stride=[2],
                 padding=[1], output_padding=[1], **_UP)  # fmt: skip
    yield sample("transposed, depthwise, blocks", (2, 3, 40, 50), (3, 1, 3, 3), _BF16, groups=3,
                 stride=[2], padding=[1], output_padding=[1], **_UP)  # fmt: skip
    yield sample("transposed, depthwise, epilogue", (2, 130, 6, 5), (130, 1, 4, 3), groups=130,
                 stride=[2, 1], padding=[1, 0], bias=True, activation="relu", **_UP)  # fmt: skip
    yield sample("transposed, depthwise products", (2, 144, 28, 24), (144, 1, 3, 3), _BF16,
                 groups=144, padding=[1], **_UP)  # fmt: skip
    yield sample("transposed, depthwise products, phases", (2, 160, 28, 28), (160, 1, 3, 3), _BF16,
                 groups=160, stride=[2], padding=[1], output_padding=[1], **_UP)  # fmt: skip
    yield sample("transposed, depthwise, gaps", (2, 5, 4, 3), (5, 3, 2, 1), _BF16, groups=5,
                 stride=[3, 2], bias=True, **_UP)  # fmt: skip


def _epilogues(sample: Draw) -> Iterator[Sample]:
    """Activations, residuals and batch norms."""
    case = ((2, 20, 7, 6), (33, 20, 3, 3))
    for activation in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "sigmoid"):
        yield sample(activation, *case, padding=[1], bias=True, activation=activation)
    same: dict[str, Any] = {"padding": [1], "residual": (2, 33, 7, 6)}
    yield sample("relu, no bias", *case, padding=[1], activation="relu")
    yield sample("residual", *case, **same)
    yield sample("residual, bias, relu", *case, **same, bias=True, activation="relu")
    yield sample("batch norm", *case, norm=True, bias=True)
    yield sample("batch norm, relu", *case, _BF16, norm=True, activation="relu")
    yield sample("batch norm, residual", *case, **same, norm=True, activation="relu")
    yield sample("bfloat16 residual", *case, _BF16, **same, bias=True)
