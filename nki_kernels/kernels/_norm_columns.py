"""RMS and layer norm of few rows with K on the partitions, `[128, chunks, rows]`, as products read
them (`norm_linear.py`): all partitions work, and a product with ones adds up what they have.

Behind the last element of K the last chunk holds zeros, which products do not read.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._operands import MatmulOperand, fill_operand


def columns_of(operand: MatmulOperand, rows: int, depth: int) -> nl.NkiTensor:
    """All rows as `[128, chunks, rows]`, zeros behind the last element."""
    pmax = nl.tile_size.pmax
    chunks = (depth + pmax - 1) // pmax
    shape = (min(depth, pmax), chunks, rows)
    data = nl.ndarray(shape, dtype=operand.segments[0].dtype, buffer=nl.sbuf)
    if depth > pmax and depth % pmax > 0:
        nisa.memset(dst=data[:, chunks - 1, :], value=0.0)
    fill_operand(data, operand, 0, 0, depth)
    return data


def centred(data: nl.NkiTensor, depth: int) -> nl.NkiTensor:
    """`data - mean(data)` of each row in float32. The mean rounds as float32 elements do: what it
    leaves of theirs is small, and subtracted too, if all partitions subtracted one number."""
    result = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    pmax = nl.tile_size.pmax
    if depth > pmax and depth % pmax > 0:
        nisa.memset(dst=result[:, data.shape[1] - 1, :], value=0.0)
    total = _sums(data)
    if data.dtype == nl.float32:
        _subtract_mean(result, data, _first_in_all(total), depth)
        data, total = result, _sums(result)
    _subtract_mean(result, data, total, depth)
    return result


def _first_in_all(values: nl.NkiTensor) -> nl.NkiTensor:
    """The first partition's values `[partitions, rows]` in all. Sums over the partitions may be
    rounded in each of them on its own; a product with one term is not rounded."""
    ones = nl.ndarray((1, values.shape[0]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    bank = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=ones, moving=values[0:1])
    result = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=bank)
    return result


def _subtract_mean(dst: nl.NkiTensor, data: nl.NkiTensor, total: nl.NkiTensor, depth: int) -> None:
    """Writes the `depth` elements of each row, whose sum is `total`, not the zeros behind them."""
    mean = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=1.0 / depth)
    pmax = nl.tile_size.pmax
    chunks = data.shape[1]
    full = chunks if depth % pmax == 0 or depth < pmax else chunks - 1
    if full < chunks:
        _subtract(dst[0 : depth % pmax, full:chunks], data[0 : depth % pmax, full:chunks], mean)
    if full > 0:
        _subtract(dst[:, 0:full], data[:, 0:full], mean)


def _subtract(dst: nl.NkiTensor, data: nl.NkiTensor, mean: nl.NkiTensor) -> None:
    rows = mean[0 : data.shape[0]].expand_dim(1).broadcast(1, data.shape[1])
    nisa.tensor_tensor(dst=dst, data1=data, data2=rows, op=nl.subtract)


def scaled(
    data: nl.NkiTensor,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    dtype: object,
    depth: int,
    epsilon: nl.NkiTensor,
    rounds: bool,
) -> nl.NkiTensor:
    """`data / sqrt(mean(data^2) + epsilon) * weight + bias` in `dtype`; vectors `[128, chunks, 1]`,
    `epsilon[128, 1]`. What the weight multiplies is rounded first where it `rounds`.
    """
    partitions, chunks, rows = data.shape
    squares = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=squares, op=nl.square, data=data)
    total = _sums(squares)
    rstd = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    own = epsilon[0:partitions]
    nisa.activation(dst=rstd, op=nl.rsqrt, data=total, scale=1.0 / depth, bias=own)
    over_chunks = rstd.expand_dim(1).broadcast(1, chunks)
    last = dtype if rounds or (weight is None and bias is None) else nl.float32
    result = nl.ndarray(data.shape, dtype=last, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=data, data2=over_chunks, op=nl.multiply)
    if weight is not None:
        last = dtype if bias is None else nl.float32
        result = _with_vector(result, weight, last, nl.multiply)
    if bias is not None:
        result = _with_vector(result, bias, dtype, nl.add)
    return result


def _with_vector(
    data: nl.NkiTensor, vector: nl.NkiTensor, dtype: object, op: object
) -> nl.NkiTensor:
    result = nl.ndarray(data.shape, dtype=dtype, buffer=nl.sbuf)
    over_rows = vector.broadcast(2, data.shape[2])
    nisa.tensor_tensor(dst=result, data1=data, data2=over_rows, op=op)
    return result


def _sums(data: nl.NkiTensor) -> nl.NkiTensor:
    """The sum of each row, in every partition: `[128, rows]` in float32."""
    partitions, _, rows = data.shape
    sums = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=data.permute((0, 2, 1)), axis=2)
    ones = nl.ndarray((partitions, partitions), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    bank = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=ones, moving=sums)
    total = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=total, src=bank)
    return total
