"""`tril` and `triu`: the triangles of matrices, zero outside.

The last two dimensions, any diagonal, floats, int32, int64 and bools. A tile has rows of matrices
on the partitions and columns of several matrices in each; GpSimd compares positions as it copies
(SDK nki.isa.affine_select).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import FLOAT_DTYPES
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

_DTYPES = (*FLOAT_DTYPES, torch.int32, torch.int64, torch.bool)
_ELEMENTS = 2048  # of one partition of a tile


@nki.jit
def triangle_kernel(
    x: nl.NkiTensor,
    sizes: tuple[int, int, int, int],
    diagonal: int,
    is_lower: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """`sizes` are matrices, rows, columns and words of an element; `cores` share the rows."""
    matrices, rows, columns, words = sizes
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    wide = min(columns, _ELEMENTS)
    many = max(1, min(matrices, _ELEMENTS // wide))
    sign = 1 if is_lower else -1
    start, end = share_of(rows, cores)
    for first in range(0, matrices, many):
        m = min(many, matrices - first)
        for r in range(start, end, nl.tile_size.pmax):
            p = min(nl.tile_size.pmax, end - r)
            for c in range(0, columns, wide):
                n = min(wide, columns - c)
                pattern = [
                    [columns * words, p],
                    [rows * columns * words, m],
                    [1, n * words],
                ]
                offset = ((first * rows + r) * columns + c) * words
                data = nl.ndarray((p, m, n * words), dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
                kept = nl.ndarray((p, m, n * words), dtype=x.dtype, buffer=nl.sbuf)
                # The lower triangle has columns up to row + diagonal, the upper one from there.
                nisa.affine_select(
                    dst=kept,
                    pattern=[[0, m], [-sign, n], [0, words]],
                    offset=sign * (r + diagonal - c),
                    channel_multiplier=sign,
                    on_true_tile=data,
                    on_false_value=0.0,
                    cmp_op=nl.greater_equal,
                )
                nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=kept)
    return out


def reference(x: torch.Tensor, diagonal: int, is_lower: bool) -> torch.Tensor:
    """aten.tril, or aten.triu"""
    op = aten.tril if is_lower else aten.triu
    result: torch.Tensor = op.default(x, diagonal)
    return result


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and elements."""
    del hw
    if b.x.dtype not in _DTYPES:
        return Reject(
            f"dtype {b.x.dtype} of x is no float of 32 bits or less, int32, int64 or bool"
        )
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} is empty")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The matrices."""
    del hw
    *outer, rows, columns = b.x.shape
    words = 2 if b.x.dtype is torch.int64 else 1
    sizes = (math.prod(outer), rows, columns, words)
    # A diagonal beyond a corner is as good as one there.
    diagonal = max(-rows, min(columns, b.diagonal))
    return Launch.of(triangle_kernel, b, ("x",), sizes, diagonal, b.is_lower)


def cost(b: Bindings) -> Cost:
    """x is read, the result written."""
    return Cost(vector_flops=b.x.numel, hbm_bytes=2 * b.x.nbytes)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, diagonals on both sides and beyond, batches, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        diagonal: int,
        is_lower: bool,
        dtype: torch.dtype = torch.float32,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        return Sample({"x": x, "diagonal": diagonal, "is_lower": is_lower}, note)

    for is_lower in (True, False):
        side = "lower" if is_lower else "upper"
        for size in (1, 127, 128, 129):
            yield sample(f"{side}, {size} rows", (size, 130), 0, is_lower)
        for diagonal in (1, -2, 200, -200, 2**40):
            yield sample(f"{side}, diagonal {diagonal}", (60, 70), diagonal, is_lower)
        yield sample(f"{side}, long rows", (3, 5000), 2, is_lower)
        yield sample(f"{side}, a batch", (3, 5, 20, 30), -1, is_lower)
        for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool):
            yield sample(f"{side}, {dtype}", (2, 40, 50), 0, is_lower, dtype)
    special = sample("special values", (9, 9), 0, True)
    special.values["x"][:3], special.values["x"][3:6] = float("-inf"), float("inf")
    yield special


def _tril(x: torch.Tensor, diagonal: int) -> Any:
    return aten.tril.default(x, diagonal)


def _triu(x: torch.Tensor, diagonal: int) -> Any:
    return aten.triu.default(x, diagonal)


def _tril_of_zero(x: torch.Tensor) -> Any:
    return aten.tril.default(x)


def _triu_of_zero(x: torch.Tensor) -> Any:
    return aten.triu.default(x)


register(
    KernelSpec(
        name="tril",
        patterns=(
            Pattern(_tril, {"is_lower": True}),
            Pattern(_triu, {"is_lower": False}),
            Pattern(_tril_of_zero, {"is_lower": True, "diagonal": 0}),
            Pattern(_triu_of_zero, {"is_lower": False, "diagonal": 0}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=triangle_kernel,
        launch=launch,
    )
)
