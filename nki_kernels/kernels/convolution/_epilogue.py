"""NKI helpers of convolutions: what happens to sums in PSUM before they are rounded.

Output channels lie on the partitions, so bias and batch norm are columns, which ScalarE applies
with the activation in one instruction. VectorE, whose clock is slower, takes four banks of nine
where it needs one instruction as well.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._matmul_epilogue import activation_function

_TURNS, _VECTOR_TURNS = 9, (1, 3, 5, 7)


class Epilogue(NamedTuple):
    """`activation(sum * scale + shift)`, and a residual before the activation.

    scale, shift: `[out channels, 1]` float32 in SBUF or None, shift with any scale.
    """

    scale: nl.NkiTensor | None
    shift: nl.NkiTensor | None
    activation: str


def lanes_of(then: Epilogue, start: int, end: int) -> Epilogue:
    """That of output channels on partitions `start .. end` alone."""
    scale = None if then.scale is None else then.scale[start:end]
    shift = None if then.shift is None else then.shift[start:end]
    return Epilogue(scale, shift, then.activation)


class Norm(NamedTuple):
    """Batch norm with given statistics: weight and bias may be None; all `[channels]` in HBM."""

    weight: nl.NkiTensor | None
    bias: nl.NkiTensor | None
    mean: nl.NkiTensor
    variance: nl.NkiTensor
    eps: float


class Rows(NamedTuple):
    """Output channels on `lanes` partitions from row `first` on: row r has channel
    `r % groups * many + number`, or all of them are there, `apart` rows each.
    """

    first: int
    lanes: int
    groups: int
    many: int
    number: int
    apart: int = 1


def _column(vector: nl.NkiTensor, rows: Rows) -> nl.NkiTensor:
    """Elements of a vector in HBM, those of `rows`, as float32 `[lanes, 1]` in SBUF."""
    raw = nl.ndarray((rows.lanes, 1), dtype=vector.dtype, buffer=nl.sbuf)
    source = vector.reshape((rows.groups, rows.many))[:, nl.ds(rows.number, 1)]
    place = 0
    if rows.apart > 1:
        nisa.dma_copy(dst=raw, src=source.expand_dim(1).broadcast(1, rows.apart))
        place = rows.lanes
    while place < rows.lanes:
        group = (rows.first + place) % rows.groups
        some = min(rows.groups - group, rows.lanes - place)
        nisa.dma_copy(dst=raw[nl.ds(place, some)], src=source[nl.ds(group, some)])
        place = place + some
    if vector.dtype == nl.float32:
        return raw
    column = nl.ndarray((rows.lanes, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=column, src=raw)
    return column


def columns_of(
    bias: nl.NkiTensor | None, norm: Norm | None, rows: Rows
) -> tuple[nl.NkiTensor | None, nl.NkiTensor | None]:
    """The scale and shift of these output channels."""
    shift = None if bias is None else _column(bias, rows)
    if norm is None:
        return None, shift
    scale = _column(norm.variance, rows)
    epsilon = nl.ndarray((rows.lanes, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=norm.eps)
    nisa.activation(dst=scale, op=nl.rsqrt, data=scale, bias=epsilon)
    if norm.weight is not None:
        weight = _column(norm.weight, rows)
        nisa.tensor_tensor(dst=scale, data1=scale, data2=weight, op=nl.multiply)
    # (sum + bias - mean) * scale + norm.bias
    centre = _column(norm.mean, rows)
    if shift is None:
        nisa.tensor_scalar(dst=centre, data=centre, op0=nl.multiply, operand0=-1.0)
    else:
        nisa.tensor_tensor(dst=centre, data1=shift, data2=centre, op=nl.subtract)
    nisa.tensor_tensor(dst=centre, data1=centre, data2=scale, op=nl.multiply)
    if norm.bias is not None:
        more = _column(norm.bias, rows)
        nisa.tensor_tensor(dst=centre, data1=centre, data2=more, op=nl.add)
    return scale, centre


def finish(
    dst: nl.NkiTensor, bank: nl.NkiTensor, added: nl.NkiTensor | None, then: Epilogue, turn: int
) -> None:
    """`dst` = the epilogue of `bank`; `added` is the residual there; `turn` counts banks."""
    if added is not None:
        _add_and_finish(dst, bank, added, then)
        return
    if is_simple(then) and turn % _TURNS in _VECTOR_TURNS:
        _on_vector(dst, bank, then)
    else:
        _on_scalar(dst, bank, then.scale, then.shift, then.activation)


def is_simple(then: Epilogue) -> bool:
    """Whether VectorE needs one instruction as well."""
    return then.activation == "none" or (then.activation == "relu" and then.scale is None)


def _on_scalar(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    scale: nl.NkiTensor | None,
    shift: nl.NkiTensor | None,
    activation: str,
) -> None:
    """`dst = activation(src * scale + shift)`."""
    function = activation_function(activation)
    if scale is not None:
        nisa.activation(dst=dst, op=function, data=src, scale=scale, bias=shift)
    elif shift is not None:
        nisa.activation(dst=dst, op=function, data=src, bias=shift)
    else:
        nisa.activation(dst=dst, op=function, data=src)


def _on_vector(dst: nl.NkiTensor, src: nl.NkiTensor, then: Epilogue) -> None:
    """The same in one instruction of VectorE: without a scale where there is an activation."""
    if then.scale is not None:
        nisa.tensor_scalar(
            dst=dst,
            data=src,
            op0=nl.multiply,
            operand0=then.scale,
            op1=nl.add,
            operand1=then.shift,
            engine=nisa.engine.vector,
        )
    elif then.shift is not None and then.activation == "relu":
        nisa.tensor_scalar(
            dst=dst, data=src, op0=nl.add, operand0=then.shift, op1=nl.maximum, operand1=0.0
        )
    elif then.shift is not None:
        nisa.tensor_scalar(
            dst=dst, data=src, op0=nl.add, operand0=then.shift, engine=nisa.engine.vector
        )
    elif then.activation == "relu":
        nisa.tensor_scalar(dst=dst, data=src, op0=nl.maximum, operand0=0.0)
    else:
        nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)


def _add_and_finish(
    dst: nl.NkiTensor, bank: nl.NkiTensor, added: nl.NkiTensor, then: Epilogue
) -> None:
    """With a residual: VectorE adds, ScalarE does what is left."""
    is_last = then.activation == "none" and then.scale is None
    total = dst if is_last else nl.ndarray(bank.shape, dtype=nl.float32, buffer=nl.sbuf)
    if then.scale is not None:
        nisa.scalar_tensor_tensor(
            dst=total, data=bank, op0=nl.multiply, operand0=then.scale, op1=nl.add, operand1=added
        )
        _on_scalar(dst, total, None, then.shift, then.activation)
        return
    if then.shift is not None:
        nisa.scalar_tensor_tensor(
            dst=total, data=bank, op0=nl.add, operand0=then.shift, op1=nl.add, operand1=added
        )
    else:
        nisa.tensor_tensor(dst=total, data1=bank, data2=added, op=nl.add)
    if not is_last:
        _on_scalar(dst, total, None, None, then.activation)
