"""Scans on VectorE along the flattened free dimensions: tensor_tensor_scan,
tensor_scalar_cumulative.

The state of a scan is float32 and is not rounded to dst between elements. A scan is a loop over
elements, each one a numpy call over all partitions. Source: the entries of these names in SDK
nki.isa.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trnx.simulator.costs.vector import on_vector, scanned
from trnx.simulator.isa.accumulators import accumulator, require_command
from trnx.simulator.isa.alu import arithmetic, binary_arithmetic
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import (
    match_tiles,
    not_both_in_psum,
    require_dtype,
    scalar,
)
from trnx.simulator.language.enums import Engine, ReduceCmd
from trnx.simulator.language.operators.table import Operator
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition

_Array = npt.NDArray[np.float32]
# f(a, b, out=out) on one row of all partitions.
_RowFunction = Callable[..., Any]


def _binary(op: Operator, reverse: bool) -> _RowFunction:
    """`f(a, b, out=out)` of `a <op> b`, or `b <op> a` when reversed, on numpy rows."""
    ufunc = op.ufunc
    if ufunc is None:
        return _through_torch(op.function, reverse)
    if op.is_exact:
        # Comparisons give booleans, which numpy does not write into a float array.
        return _boolean(ufunc, reverse)
    if reverse:
        return lambda a, b, out: ufunc(b, a, out=out)
    return ufunc


def _boolean(ufunc: Callable[..., Any], reverse: bool) -> _RowFunction:
    def apply(a: _Array, b: _Array, out: _Array) -> None:
        out[...] = ufunc(b, a) if reverse else ufunc(a, b)

    return apply


def _through_torch(function: Callable[..., Any], reverse: bool) -> _RowFunction:
    def apply(a: _Array, b: _Array, out: _Array) -> None:
        left, right = torch.from_numpy(a), torch.from_numpy(b)
        if reverse:
            left, right = right, left
        function(left, right, out=torch.from_numpy(out))

    return apply


def _rows(columns: torch.Tensor) -> list[_Array]:
    return list(columns.numpy())


def _scan(
    first: _RowFunction,
    second: _RowFunction,
    data0: list[_Array],
    data1: list[_Array],
    results: list[_Array],
    initial: _Array,
) -> None:
    """result[i] = second(first(data0[i], result[i - 1]), data1[i])."""
    states = itertools.chain((initial,), results)
    with np.errstate(all="ignore"):
        for a, state, b, result in zip(data0, states, data1, results, strict=False):
            first(a, state, out=result)
            second(result, b, out=result)


@instruction(engines=(Engine.vector,), undefined=by_partition(), cost=(on_vector(scanned),))
def tensor_tensor_scan(
    emit: Emit,
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """dst[i] = (data0[i] <op0> dst[i - 1]) <op1> data1[i] along the free dimensions."""
    first = binary_arithmetic(emit, op0, "op0")
    second = binary_arithmetic(emit, op1, "op1")
    match_tiles(emit, dst, data0=data0, data1=data1)
    not_both_in_psum(emit, data0, data1, "data0 and data1")
    partitions, length = dst.shape[0], dst.free_size
    shape = (partitions, length)
    state = scalar(emit, initial, "initial", data0, shape, any_dtype=True)
    columns = [emit.scratch((length, partitions)) for _ in range(3)]
    for column, tile, label in zip(columns, (data0, data1), ("data0", "data1"), strict=False):
        emit.step(column.t().copy_, emit.read_f32(tile, label, shape=shape))
    start = emit.scratch((partitions, 1))
    emit.step(start.copy_, state)
    out = emit.write_f32(dst, "dst", shape=shape)
    # Made once for the memory, which the scans of a kernel share.
    rows = (emit.derived(_rows, column) for column in columns)
    initial_row = start.view(-1).numpy()
    emit.step(_scan, _binary(first, reverse0), _binary(second, reverse1), *rows, initial_row)
    emit.step(out.copy_, columns[2].t())


_CUMULATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
_CUMULATIVE_COMMANDS = (ReduceCmd.reset_reduce, ReduceCmd.reduce, ReduceCmd.load_reduce)
_CUMULATIVE_DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "uint8",
    "uint16",
    "int8",
    "int16",
)


def _cumulate(values: _Array, alternate: bool, ufunc: Any) -> None:
    """Accumulate `values` along axis 1 in place; `alternate` flips the sign of every other element.

    r[i] = x[i] - r[i-1] is a running sum of terms with alternating signs, exactly.
    """
    with np.errstate(all="ignore"):
        if alternate:
            np.negative(values[:, 1::2], out=values[:, 1::2])
        ufunc.accumulate(values, 1, out=values)
        if alternate:
            np.negative(values[:, 1::2], out=values[:, 1::2])


@instruction(engines=(Engine.vector,), undefined=by_partition(), indirect=("dst", "src"))
def tensor_scalar_cumulative(
    emit: Emit,
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    name: str | None = None,
) -> None:
    """dst[i] = register = (src[i] <op0> imm0) <op1> register along the free dimensions."""
    first = arithmetic(emit, op0, "op0")
    second = binary_arithmetic(emit, op1, "op1", _CUMULATIVE)
    require_command(emit, reduce_cmd, _CUMULATIVE_COMMANDS)
    emit.require(
        imm1 is not None or reduce_cmd is not ReduceCmd.load_reduce,
        "reduce_cmd.load_reduce needs imm1, the initial value",
    )
    match_tiles(emit, dst, src=src)
    require_dtype(emit, "src", src, _CUMULATIVE_DTYPES)
    require_dtype(emit, "dst", dst, _CUMULATIVE_DTYPES)
    shape = (dst.shape[0], dst.free_size)
    value = emit.read_f32(src, "src", shape=shape)
    operand = None if first.is_unary else scalar(emit, imm0, "imm0", src, shape)
    registers = accumulator(emit, Engine.vector, src, reduce_cmd)
    if reduce_cmd is ReduceCmd.load_reduce:
        emit.step(registers.copy_, scalar(emit, imm1, "imm1", src, shape))
    elif reduce_cmd is ReduceCmd.reset_reduce:
        emit.step(registers.fill_, second.identity)
    out = emit.write_f32(dst, "dst", shape=shape)
    work = emit.scratch(shape)
    emit.step(first.function, *first.arguments(value, operand, False), out=work)
    emit.step(second.function, work[:, :1], registers, out=work[:, :1])
    ufunc = np.add if second.name == "subtract" else second.ufunc
    emit.step(_cumulate, work.numpy(), second.name == "subtract", ufunc)
    emit.step(registers.copy_, work[:, -1:])
    emit.step(out.copy_, work)
