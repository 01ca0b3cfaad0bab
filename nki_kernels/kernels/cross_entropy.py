"""`cross_entropy`: the loss of logits and class labels, with what its gradient needs of each row.

Pattern `trnx::cross_entropy(x, target, reduction, ignore_index)`; x `[N, C]` in float32, bfloat16
or float16, target `[N]` int64 or int32; float32 inside. The logits are read once: pieces of a row
have maxima and sums of their own, and an indirect DMA gathers the logit of each label.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers trnx::cross_entropy
from trnx.nki_kernels.kernels._cores import is_first, share_of, sum_over_cores
from trnx.nki_kernels.kernels._labels import (
    MEAN,
    NONE,
    SUM,
    by_tile,
    counted,
    gather_logits,
    group_of,
    load_labels,
    reject_logits,
)
from trnx.nki_kernels.kernels._pieces import (
    load_piece,
    merge_pieces,
    minus_piece_maximum,
    pieces_of,
    sum_exponentials,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_cross_entropy = torch.ops.trnx.cross_entropy.default


@nki.jit
def cross_entropy_kernel(
    x: nl.NkiTensor, target: nl.NkiTensor, reduction: int, ignore_index: int, cores: int = 1
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """x `[N, C]`, target `[N]` or `[N, 2]` -> (loss, weight, top, total), as the op has them;
    `cores` share the rows."""
    rows = x.shape[0]
    length = rows if reduction == NONE else 1
    loss = nl.ndarray((length,), dtype=x.dtype, buffer=nl.shared_hbm)
    weight = nl.ndarray((1,), dtype=nl.float32, buffer=nl.shared_hbm)
    top = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    total = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    # Per partition: the sum of losses, and how many there are.
    sums = nl.ndarray((nl.tile_size.pmax, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=sums, value=0.0)
    done, end = share_of(rows, cores)
    while done < end:
        partitions, tiles = group_of(end, done)
        labels = load_labels(target, done, partitions, tiles, rows)
        lowest, totals = _row_sums(x, done, partitions, tiles)
        chosen = gather_logits(x, labels, done, ignore_index)
        losses = _losses(chosen, lowest, totals, counted(labels, ignore_index, nl.uint8))
        nisa.tensor_scalar(dst=lowest, data=lowest, op0=nl.multiply, operand0=-1.0)
        nisa.dma_copy(dst=by_tile(top, done, partitions, tiles), src=lowest)
        nisa.dma_copy(dst=by_tile(total, done, partitions, tiles), src=totals)
        if reduction == NONE:
            _store(by_tile(loss, done, partitions, tiles), losses)
        _add_up(sums[0:partitions, 0:1], losses)
        _add_up(sums[0:partitions, 1:2], counted(labels, ignore_index, nl.float32))
        done = done + partitions * tiles
    total_sums = sum_over_cores(sums, cores)
    if is_first():
        _store_sums(loss, weight, total_sums, reduction)
    return loss, weight, top, total


def _row_sums(
    x: nl.NkiTensor, start: int, partitions: int, tiles: int
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """The negative maximum of each row of a group, and the sum of exp(x - maximum)."""
    pieces = pieces_of(x.shape[1])
    lowest = nl.ndarray((partitions, tiles, pieces), dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((partitions, tiles, pieces), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(tiles):
        first = start + i * partitions
        for j in range(pieces):
            data = load_piece(x[first : first + partitions], j)
            minus_piece_maximum(lowest[:, i : i + 1, j], data)
            # Only their sum counts.
            unused = nl.ndarray(data.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
            sum_exponentials(unused, data, lowest[:, i : i + 1, j], sums[:, i : i + 1, j])
    bottom, _, totals = merge_pieces(lowest, sums)
    return bottom, totals


def _losses(
    chosen: nl.NkiTensor, lowest: nl.NkiTensor, totals: nl.NkiTensor, counts: nl.NkiTensor
) -> nl.NkiTensor:
    """log(totals) - (chosen + lowest), 0 where a row does not count."""
    logs = nl.ndarray(totals.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=logs, op=nl.log, data=totals)
    shifted = nl.ndarray(totals.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=shifted, data1=chosen, data2=lowest, op=nl.add)
    nisa.tensor_tensor(dst=logs, data1=logs, data2=shifted, op=nl.subtract)
    losses = nl.ndarray(totals.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=losses, value=0.0)
    # Not a product: the loss of a row that does not count may be infinite.
    nisa.tensor_copy_predicated(dst=losses, src=logs, predicate=counts)
    return losses


def _add_up(sums: nl.NkiTensor, values: nl.NkiTensor) -> None:
    """sums[partitions, 1] += the sums of values[partitions, tiles]."""
    found = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=found, op=nl.add, data=values, axis=1)
    nisa.tensor_tensor(dst=sums, data1=sums, data2=found, op=nl.add)


def _store(dst: nl.NkiTensor, values: nl.NkiTensor) -> None:
    rounded = nl.ndarray(values.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=values)
    nisa.dma_copy(dst=dst, src=rounded)


def _store_sums(
    loss: nl.NkiTensor, weight: nl.NkiTensor, sums: nl.NkiTensor, reduction: int
) -> None:
    """The sums over all partitions; their quotient for the mean.

    By a product with ones for each group of partitions, side by side in the array: TensorE adds up
    the partitions of one after another, which rounds equal losses in the same direction.
    """
    rows = nl.tile_size.pmax
    group = 64 if nisa.get_nc_version() == nisa.nc_version.gen2 else 32
    ones = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    parts = nl.ndarray((1, 2, rows // group), dtype=nl.float32, buffer=nl.psum)
    for start in range(0, rows, group):
        nisa.nc_matmul(
            dst=parts[:, :, start // group],
            stationary=ones[start : start + group],
            moving=sums[start : start + group],
            is_stationary_onezero=True,
            tile_position=(start, 0),
            tile_size=(group, 128),
        )
    both = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=both, op=nl.add, data=parts, axis=2)
    count = both[:, 1:2]
    _store(weight.reshape((1, 1)), count)
    if reduction == SUM:
        _store(loss.reshape((1, 1)), both[:, 0:1])
    if reduction == MEAN:
        inverse = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=count)
        mean = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=mean, data1=both[:, 0:1], data2=inverse, op=nl.multiply)
        _store(loss.reshape((1, 1)), mean)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, shapes and sizes."""
    del hw
    return reject_logits(b, ("x",))


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The bindings as they are."""
    del hw
    return Launch.of(cross_entropy_kernel, b, ("x", "target", "reduction", "ignore_index"))


def cost(b: Bindings) -> Cost:
    """Three operations a logit."""
    rows = b.x.shape[0]
    return Cost(vector_flops=3 * b.x.numel, hbm_bytes=b.x.nbytes + b.target.nbytes + 12 * rows)


def reference(x: torch.Tensor, target: torch.Tensor, reduction: int, ignore_index: int) -> Any:
    """trnx::cross_entropy."""
    return _cross_entropy(x, target, reduction, ignore_index)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and classes, vocabularies, ignored rows, masked and large logits, halves."""

    def sample(
        note: str,
        rows: int,
        classes: int,
        reduction: int = MEAN,
        dtype: torch.dtype = torch.float32,
        ignored: int | None = None,
        masked: int = 0,
        shift: float = 0.0,
    ) -> Sample:
        x = (torch.randn(rows, classes, generator=generator) * 3 + shift).to(dtype)
        x[:, :masked] = -float("inf")
        target = torch.randint(masked, classes, (rows,), generator=generator)
        if ignored is not None:
            target[::3] = ignored
        values = {"x": x, "target": target, "reduction": reduction}
        return Sample({**values, "ignore_index": -100 if ignored is None else ignored}, note)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    for classes in (1, 2, 511, 4096, 4097):
        yield sample(f"{classes} classes", 130, classes, NONE)
    yield sample("a sum", 200, 70, SUM)
    yield sample("more than a group", 8200, 10)
    yield sample("a vocabulary", 3, 30011)
    for reduction in (NONE, MEAN, SUM):
        yield sample(f"ignored, reduction {reduction}", 130, 70, reduction, ignored=-100)
    yield sample("an ignored class", 130, 70, ignored=3)
    yield sample("masked, and ignored", 130, 9000, NONE, ignored=-100, masked=5000)
    yield sample("large logits", 130, 70, NONE, shift=1e4)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 130, 600, dtype=dtype)


def _pattern(x: torch.Tensor, target: torch.Tensor, reduction: int, ignore_index: int) -> Any:
    return _cross_entropy(x, target, reduction, ignore_index)


register(
    KernelSpec(
        name="cross_entropy",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=cross_entropy_kernel,
        launch=launch,
    )
)
