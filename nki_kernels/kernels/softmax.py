"""`softmax`: softmax and log-softmax over the last dimension.

Patterns `aten._softmax(x, dim, half_to_float)` and `aten._log_softmax` of float32, bfloat16 or
float16; float32 inside. A row that fits in a partition is loaded once; a longer one (a vocabulary)
is read three times: for its maximum, for the sum of its exponentials, and for the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._rows import combine_rows, load_rows, rows_of, run_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_CHUNK = 4096  # columns of a long row that are in SBUF at once
aten = torch.ops.aten


@nki.jit
def softmax_kernel(x: nl.NkiTensor, is_log: bool, to_float32: bool, fold: int) -> nl.NkiTensor:
    """x `[..., D]` -> the same shape; `fold` rows per partition, 0 where a row must be cut."""
    dtype = nl.float32 if to_float32 else x.dtype
    out = nl.ndarray(x.shape, dtype=dtype, buffer=nl.shared_hbm)
    columns = x.shape[-1]
    rows = x.size // columns
    flat = x.reshape((rows, columns))
    flat_out = out.reshape((rows, columns))
    done = 0
    while done < rows:
        partitions = min(nl.tile_size.pmax, rows - done)
        run = min(max(fold, 1), (rows - done) // partitions)
        if fold == 0:
            _long_rows(flat, flat_out, done, partitions, is_log)
        else:
            data = load_rows(flat, done, partitions, run)
            result = _log_softmax(data, dtype) if is_log else _softmax(data, dtype)
            nisa.dma_copy(dst=rows_of(flat_out, done, partitions, run), src=result)
        done = done + partitions * run
    return out


def _per_row(data: nl.NkiTensor) -> nl.NkiTensor:
    return nl.ndarray((data.shape[0], data.shape[1]), dtype=nl.float32, buffer=nl.sbuf)


def _exponentials(data: nl.NkiTensor, highest: nl.NkiTensor, totals: nl.NkiTensor) -> nl.NkiTensor:
    """exp(data - highest), whose row sums go to `totals`."""
    weights = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    if data.shape[1] == 1:
        lowest = _per_row(data)
        nisa.tensor_scalar(dst=lowest, data=highest, op0=nl.multiply, operand0=-1.0)
        nisa.activation(
            dst=weights,
            op=nl.exp,
            data=data,
            bias=lowest,
            reduce_op=nl.add,
            reduce_res=totals,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
    else:
        shifted = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        combine_rows(shifted, data, highest, nl.subtract)
        nisa.activation(dst=weights, op=nl.exp, data=shifted)
        nisa.tensor_reduce(dst=totals, op=nl.add, data=weights, axis=2)
    return weights


def _softmax(data: nl.NkiTensor, dtype: str) -> nl.NkiTensor:
    highest = _per_row(data)
    totals = _per_row(data)
    nisa.tensor_reduce(dst=highest, op=nl.maximum, data=data, axis=2)
    weights = _exponentials(data, highest, totals)
    inverse = _per_row(data)
    nisa.reciprocal(dst=inverse, data=totals)
    result = nl.ndarray(data.shape, dtype=dtype, buffer=nl.sbuf)
    combine_rows(result, weights, inverse, nl.multiply)
    return result


def _log_softmax(data: nl.NkiTensor, dtype: str) -> nl.NkiTensor:
    highest = _per_row(data)
    totals = _per_row(data)
    nisa.tensor_reduce(dst=highest, op=nl.maximum, data=data, axis=2)
    _exponentials(data, highest, totals)
    logs = _per_row(data)
    nisa.activation(dst=logs, op=nl.log, data=totals)
    result = nl.ndarray(data.shape, dtype=dtype, buffer=nl.sbuf)
    _subtract_both(result, data, highest, logs)
    return result


def _subtract_both(
    dst: nl.NkiTensor, data: nl.NkiTensor, highest: nl.NkiTensor, logs: nl.NkiTensor
) -> None:
    """dst = (data - highest) - logs; their sum first would round away small logarithms."""
    if data.shape[1] == 1:
        nisa.tensor_scalar(
            dst=dst, data=data, op0=nl.subtract, operand0=highest, op1=nl.subtract, operand1=logs
        )
    else:
        shifted = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        combine_rows(shifted, data, highest, nl.subtract)
        combine_rows(dst, shifted, logs, nl.subtract)


def _long_rows(
    x: nl.NkiTensor, out: nl.NkiTensor, start: int, partitions: int, is_log: bool
) -> None:
    """Rows that do not fit: three passes over chunks of columns."""
    columns = x.shape[1]
    rows = x[start : start + partitions]
    chunks = (columns + _CHUNK - 1) // _CHUNK
    maxima = nl.ndarray((partitions, chunks), dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((partitions, chunks), dtype=nl.float32, buffer=nl.sbuf)
    highest = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    totals = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(chunks):
        data = _load_chunk(rows, i)
        nisa.tensor_reduce(dst=maxima[:, i : i + 1], op=nl.maximum, data=data, axis=2)
    nisa.tensor_reduce(dst=highest, op=nl.maximum, data=maxima, axis=1)
    for i in range(chunks):
        _exponentials(_load_chunk(rows, i), highest, sums[:, i : i + 1])
    nisa.tensor_reduce(dst=totals, op=nl.add, data=sums, axis=1)
    logs = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    inverse = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    if is_log:
        nisa.activation(dst=logs, op=nl.log, data=totals)
    else:
        nisa.reciprocal(dst=inverse, data=totals)
    for i in range(chunks):
        data = _load_chunk(rows, i)
        result = nl.ndarray(data.shape, dtype=out.dtype, buffer=nl.sbuf)
        if is_log:
            _subtract_both(result, data, highest, logs)
        else:
            weights = _exponentials(data, highest, sums[:, i : i + 1])
            combine_rows(result, weights, inverse, nl.multiply)
        end = min(columns, (i + 1) * _CHUNK)
        target = out[start : start + partitions, i * _CHUNK : end]
        nisa.dma_copy(dst=target.expand_dim(1), src=result)


def _load_chunk(rows: nl.NkiTensor, index: int) -> nl.NkiTensor:
    end = min(rows.shape[1], (index + 1) * _CHUNK)
    part = rows[:, index * _CHUNK : end]
    tile = nl.ndarray((part.shape[0], 1, part.shape[1]), dtype=part.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=part.expand_dim(1))
    return tile


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtype, and that the dimension is the last."""
    del hw
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.ndim == 0 or b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no rows")
    if b.dim % b.x.ndim != b.x.ndim - 1:
        return Reject(f"dim {b.dim} is not the last dimension of x{b.x.shape}")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Rows per partition from the size of a row."""
    fold = run_of(b.x.shape[-1], hw, 8, 0)
    return Launch.of(softmax_kernel, b, ("x", "is_log", "half_to_float"), fold)


def cost(b: Bindings) -> Cost:
    """Five operations an element."""
    result = b.x.numel * (4 if b.half_to_float else b.x.dtype.itemsize)
    return Cost(vector_flops=5 * b.x.numel, hbm_bytes=b.x.nbytes + result)


def reference(x: torch.Tensor, dim: int, half_to_float: bool, is_log: bool) -> torch.Tensor:
    """The same in float32, rounded once (eager on the CPU rounds x - max to bfloat16)."""
    op = aten._log_softmax.default if is_log else aten._softmax.default
    result: torch.Tensor = op(x.float(), dim, False)
    return result if half_to_float else result.to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, rows longer than SBUF, masked rows, halves."""

    def sample(
        note: str,
        *shape: int,
        is_log: bool,
        dtype: torch.dtype = torch.float32,
        masked: bool = False,
    ) -> Sample:
        x = (torch.randn(shape, generator=generator) * 4).to(dtype)
        if masked:
            x[..., x.shape[-1] // 2 :] = -float("inf")
        values = {"x": x, "dim": len(shape) - 1, "half_to_float": False, "is_log": is_log}
        return Sample(values, f"log, {note}" if is_log else note)

    for is_log in (False, True):
        for rows in (1, 127, 128, 129, 513):
            yield sample(f"{rows} rows", rows, 70, is_log=is_log)
        for columns in (1, 2, 511, 513, 3000):
            yield sample(f"{columns} columns", 130, columns, is_log=is_log)
        yield sample("a vocabulary", 2, 3, 30011, is_log=is_log)
        yield sample("masked", 2, 3, 40, 50, is_log=is_log, masked=True)
        for dtype in (torch.bfloat16, torch.float16):
            yield sample(f"{dtype}", 2, 70, 600, is_log=is_log, dtype=dtype)


def _softmax_pattern(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    return aten._softmax.default(x, dim, half_to_float)


def _log_softmax_pattern(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    return aten._log_softmax.default(x, dim, half_to_float)


register(
    KernelSpec(
        name="softmax",
        patterns=(
            Pattern(_softmax_pattern, {"is_log": False}),
            Pattern(_log_softmax_pattern, {"is_log": True}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=softmax_kernel,
        launch=launch,
    )
)
