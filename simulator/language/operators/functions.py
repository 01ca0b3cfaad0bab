"""How operators compute where torch has no function of that form: `function(x, out=out)` and
`function(a, b, out=out)`.

They compute in float32 (bitvec operators on signed integers of the width), may get one tensor as
input and as output, and write `out` in place whatever its strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from trnx.simulator.errors import IllegalInstructionError

Function = Callable[..., Any]

_aten = torch.ops.aten


def not_on_tiles(*operands: Any, out: torch.Tensor) -> None:  # noqa: ARG001
    """Of operators that only instructions take. Raises IllegalInstructionError."""
    raise IllegalInstructionError(
        "operator", "the operator has no function on tiles; declare it with function=..."
    )


_GELU_SIGMOID = 1.702  # x * sigmoid(1.702 x)
_GELU_TANH = math.sqrt(2 / math.pi)  # x / 2 * (1 + tanh(_GELU_TANH * (x + 0.044715 x**3)))


def copy(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """x itself."""
    if x is not out:
        out.copy_(x)


def gelu(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """x * Phi(x)."""
    # gelu's oneDNN path does not write an `out` with gaps (seen on torch 2.13).
    if out.is_contiguous():
        _aten.gelu.out(x, out=out)
    else:
        out.copy_(torch.nn.functional.gelu(x))


def gelu_tanh(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """gelu by its tanh form."""
    # 0.5 * (1 + tanh(u)) is sigmoid(2 u), which is faster.
    inner = torch.mul(x, x)
    inner.mul_(2 * _GELU_TANH * 0.044715).add_(2 * _GELU_TANH).mul_(x).sigmoid_()
    torch.mul(x, inner, out=out)


def gelu_sigmoid(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """gelu as x * sigmoid(1.702 x)."""
    torch.mul(x, torch.sigmoid(x * _GELU_SIGMOID), out=out)


def gelu_sigmoid_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """The derivative of `gelu_sigmoid`."""
    gate = torch.sigmoid(x * _GELU_SIGMOID)
    torch.mul(gate, 1 + _GELU_SIGMOID * x * (1 - gate), out=out)


_ONE = torch.ones((), dtype=torch.float32, device="cpu")


def gelu_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """The derivative of `gelu`."""
    # The backward formula with a gradient of 1; its oneDNN path has the same defect as gelu's.
    if out.is_contiguous() and x.is_contiguous():
        _aten.gelu_backward.grad_input(_ONE.expand_as(x), x, grad_input=out)
    else:
        out.copy_(_aten.gelu_backward(_ONE.expand_as(x), x))


def silu_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """The derivative of silu."""
    _aten.silu_backward.grad_input(_ONE.expand_as(x), x, grad_input=out)


def erf_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """The derivative of erf."""
    torch.mul(torch.exp(-x * x), 2 / math.sqrt(math.pi), out=out)


def sin_of_scalar_engine(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """A sine up to +-pi, beyond that a cubic about it: ScalarE does not reduce the range."""
    beyond = x - torch.copysign(torch.full((), math.pi), x)
    cubic = beyond * (beyond * beyond * (1 / 6) - 1)
    out.copy_(torch.where(x.abs() <= math.pi, torch.sin(x), cubic))


def prelu(slope: float | torch.Tensor) -> Function:
    """x where x > 0, else slope * x; `slope` is a number or one value per partition."""

    def apply(x: torch.Tensor, *, out: torch.Tensor) -> None:
        out.copy_(torch.where(x > 0, x, x * slope))

    return apply


def relu(a: torch.Tensor, *, out: torch.Tensor) -> None:
    """max(a, 0), which torch offers with `out=` only as a clamp."""
    torch.clamp_min(a, 0.0, out=out)


def abs_max(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """The operand with the larger magnitude."""
    # On a tie the second operand wins (nl.abs_max).
    torch.where(a.abs() > b.abs(), a, b, out=out)


def abs_min(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """The operand with the smaller magnitude."""
    torch.where(a.abs() < b.abs(), a, b, out=out)


def logical_right_shift(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """Shift `a` right and fill with zeros; both are signed integers of one width that hold bits."""
    bits = 8 * a.element_size()
    wide = a.to(torch.int64)
    if bits < 64:
        wide &= (1 << bits) - 1
    shift = b.to(torch.int64)
    result = torch.bitwise_right_shift(wide, shift.clamp(0, 63))
    out.copy_(torch.where((shift >= 0) & (shift < bits), result, 0))


def left_shift(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """Shift left; by the width or more, or by less than 0: 0."""
    bits = 8 * a.element_size()
    in_range = (b >= 0) & (b < bits)
    shifted = torch.bitwise_left_shift(a, b.clamp(0, bits - 1))
    out.copy_(torch.where(in_range, shifted, 0))


def logical_not(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """1 where x is 0, else 0."""
    torch.eq(x, 0, out=out)
