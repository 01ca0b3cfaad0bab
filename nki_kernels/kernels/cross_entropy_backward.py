"""`cross_entropy_backward`: the gradient of cross-entropy with respect to the logits.

Pattern `trnx::cross_entropy_backward(grad, x, target, weight, top, total, reduction, ignore_index)`
of what the forward gave; x `[N, C]` in float32, bfloat16 or float16, float32 inside. One read of
the logits, one write of their gradient: exp(x - top) on ScalarE, and the class of the label from a
comparison with a row of column numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import nki
import nki.isa as nisa
import nki.language as nl
import torch

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers trnx::cross_entropy_backward
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._labels import (
    MEAN,
    NONE,
    SUM,
    by_tile,
    counted,
    group_of,
    load_labels,
    reject_logits,
)
from trnx.nki_kernels.kernels._pieces import PIECE, load_piece, piece_of, pieces_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_NAMES = ("grad", "x", "target", "weight", "top", "total", "reduction", "ignore_index")
_FLOATS = ("grad", "x", "weight", "top", "total")
_forward = torch.ops.trnx.cross_entropy.default
_backward = torch.ops.trnx.cross_entropy_backward.default


@nki.jit
def cross_entropy_backward_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    target: nl.NkiTensor,
    weight: nl.NkiTensor,
    top: nl.NkiTensor,
    total: nl.NkiTensor,
    reduction: int,
    ignore_index: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[N, C]`, top and total `[N]`, grad `[N]` or `[1]`, weight `[1]` -> dx like x."""
    rows, classes = x.shape
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    columns = nl.ndarray(
        (nl.tile_size.pmax, 1, min(PIECE, classes)), dtype=nl.float32, buffer=nl.sbuf
    )
    nisa.iota(dst=columns, pattern=[[1, min(PIECE, classes)]])
    done, end = share_of(rows, cores)
    while done < end:
        partitions, tiles = group_of(end, done)
        labels = load_labels(target, done, partitions, tiles, rows)
        slopes = _slopes(grad, weight, done, labels, reduction, ignore_index)
        lowest = _load(by_tile(top, done, partitions, tiles))
        nisa.tensor_scalar(dst=lowest, data=lowest, op0=nl.multiply, operand0=-1.0)
        factors = _load(by_tile(total, done, partitions, tiles))
        nisa.reciprocal(dst=factors, data=factors)
        nisa.tensor_tensor(dst=factors, data1=factors, data2=slopes, op=nl.multiply)
        for i in range(tiles):
            first = done + i * partitions
            here = slice(first, first + partitions)
            at = slice(i, i + 1)
            for j in range(pieces_of(classes)):
                exponentials = _exponentials(load_piece(x[here], j), lowest[:, at])
                hot = _one_hot(columns, exponentials.shape, labels[:, at], j, slopes[:, at])
                result = nl.ndarray(exponentials.shape, dtype=x.dtype, buffer=nl.sbuf)
                nisa.scalar_tensor_tensor(
                    dst=result,
                    data=exponentials,
                    op0=nl.multiply,
                    operand0=factors[:, at],
                    op1=nl.subtract,
                    operand1=hot,
                )
                nisa.dma_copy(dst=piece_of(dx[here], j), src=result)
        done = done + partitions * tiles
    return dx


def _load(source: nl.NkiTensor) -> nl.NkiTensor:
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def _slopes(
    grad: nl.NkiTensor,
    weight: nl.NkiTensor,
    start: int,
    labels: nl.NkiTensor,
    reduction: int,
    ignore_index: int,
) -> nl.NkiTensor:
    """The gradient of each row's loss, `[partitions, tiles]`: 0 where a row does not count."""
    partitions, tiles = labels.shape
    if reduction == NONE:
        given = _load(by_tile(grad, start, partitions, tiles))
    else:
        given = _load(grad.reshape((1, 1)).broadcast(0, partitions))
    wide = nl.ndarray(given.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=given)
    if reduction == MEAN:
        inverse = _load(weight.reshape((1, 1)).broadcast(0, partitions))
        nisa.reciprocal(dst=inverse, data=inverse)
        nisa.tensor_tensor(dst=wide, data1=wide, data2=inverse, op=nl.multiply)
    if reduction != NONE:
        wide = wide.broadcast(1, tiles)
    slopes = nl.ndarray((partitions, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=slopes, value=0.0)
    # Not a product: what a row that does not count is given may be infinite, and is for the mean of
    # no rows.
    counts = counted(labels, ignore_index, nl.uint8)
    nisa.tensor_copy_predicated(dst=slopes, src=wide, predicate=counts)
    return slopes


def _exponentials(data: nl.NkiTensor, lowest: nl.NkiTensor) -> nl.NkiTensor:
    """exp(data + lowest) in float32."""
    result = data
    if data.dtype != nl.float32:
        result = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=result, op=nl.exp, data=data, bias=lowest)
    return result


def _one_hot(
    columns: nl.NkiTensor,
    shape: tuple[int, ...],
    labels: nl.NkiTensor,
    piece: int,
    slopes: nl.NkiTensor,
) -> nl.NkiTensor:
    """`slopes` in the column of the label, if it is in this piece, else 0."""
    place = nl.ndarray(labels.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=place, data=labels, op0=nl.subtract, operand0=float(piece * PIECE))
    hot = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=hot,
        data=columns[0 : shape[0], :, 0 : shape[2]],
        op0=nl.equal,
        operand0=place,
        op1=nl.multiply,
        operand1=slopes,
    )
    return hot


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, shapes and sizes."""
    del hw
    return reject_logits(b, _FLOATS)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The bindings as they are."""
    del hw
    return Launch.of(cross_entropy_backward_kernel, b, _NAMES)


def cost(b: Bindings) -> Cost:
    """Four operations a logit."""
    rows = b.x.shape[0]
    crossing = 2 * b.x.nbytes + b.target.nbytes + 12 * rows
    return Cost(vector_flops=4 * b.x.numel, hbm_bytes=crossing)


def reference(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    top: torch.Tensor,
    total: torch.Tensor,
    reduction: int,
    ignore_index: int,
) -> torch.Tensor:
    """trnx::cross_entropy_backward."""
    result: torch.Tensor = _backward(grad, x, target, weight, top, total, reduction, ignore_index)
    return result


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and classes, vocabularies, ignored rows, masked and large logits, halves."""

    def sample(
        note: str,
        rows: int,
        classes: int,
        reduction: int = MEAN,
        dtype: torch.dtype = torch.float32,
        ignore_index: int = -100,
        masked: int = 0,
        shift: float = 0.0,
    ) -> Sample:
        x = (torch.randn(rows, classes, generator=generator) * 3 + shift).to(dtype)
        x[:, :masked] = -float("inf")
        target = torch.randint(masked, classes, (rows,), generator=generator)
        target[2::3] = ignore_index
        loss, weight, top, total = _forward(x, target, reduction, ignore_index)
        given = (torch.randn(loss.shape, generator=generator).to(dtype), x, target, weight)
        values = (*given, top, total, reduction, ignore_index)
        return Sample(dict(zip(_NAMES, values, strict=True)), note)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    for classes in (1, 2, 511, 4096, 4097):
        yield sample(f"{classes} classes", 130, classes, NONE)
    yield sample("a sum", 200, 70, SUM)
    yield sample("more than a group", 8200, 10)
    yield sample("a vocabulary", 3, 30011)
    yield sample("an ignored class", 130, 70, ignore_index=0)
    yield sample("masked", 130, 9000, masked=5000)
    yield sample("large logits", 130, 70, shift=1e4)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 130, 600, dtype=dtype)
        yield sample(f"{dtype}, a gradient a row", 130, 600, NONE, dtype)


def _pattern(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    top: torch.Tensor,
    total: torch.Tensor,
    reduction: int,
    ignore_index: int,
) -> torch.Tensor:
    return reference(grad, x, target, weight, top, total, reduction, ignore_index)


register(
    KernelSpec(
        name="cross_entropy_backward",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=cross_entropy_backward_kernel,
        launch=launch,
    )
)
