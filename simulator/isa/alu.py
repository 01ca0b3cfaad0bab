"""ALU operators: what `nl.add`, `nl.is_equal`... mean when they are passed to an instruction.

An operator is a token with a name: `nl.add`, or a numpy function of the same name, as older kernels
pass. Arithmetic operators compute in float32; comparisons and logical operators give 1.0 or 0.0.
Bitvec operators act on the bits of integers of one width. The table follows "Supported Math
Operators for NKI ISA" (SDK/nki/api/nki.api.shared.rst); abs_max and abs_min exist from generation 4
on.

`AluOp.function` is called as `function(a, b, out=out)`, unary ones as `function(a, out=out)`; it
allocates nothing in the common operators and writes `out` in place whatever its strides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from trnx.simulator.isa.instruction import Emit

Function = Callable[..., Any]


@dataclass(frozen=True)
class AluOp:
    """One operator.

    `is_exact`: results are 0 or 1. `is_integer`: exact on 32-bit integers where an instruction asks
    for that. `identity`: of its reduction; None where it has none.
    """

    name: str
    function: Function
    is_unary: bool = False
    is_bitvec: bool = False
    is_exact: bool = False
    is_integer: bool = False
    identity: float | None = None
    generation: int = 2

    def arguments(self, a: Any, b: Any, reverse: bool) -> tuple[Any, ...]:
        """Positional arguments of `function` for `a <op> b`, or `b <op> a` when reversed."""
        if self.is_unary:
            return (a,)
        return (b, a) if reverse else (a, b)


def relu(a: torch.Tensor, *, out: torch.Tensor) -> None:
    """max(a, 0), which torch offers with `out=` only as a clamp."""
    torch.clamp_min(a, 0.0, out=out)


def _abs_max(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    # On a tie the second operand wins (nl.abs_max).
    torch.where(a.abs() > b.abs(), a, b, out=out)


def _abs_min(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
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


def _left_shift(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    bits = 8 * a.element_size()
    in_range = (b >= 0) & (b < bits)
    shifted = torch.bitwise_left_shift(a, b.clamp(0, bits - 1))
    out.copy_(torch.where(in_range, shifted, 0))


def _table(*operators: AluOp) -> dict[str, AluOp]:
    return {operator.name: operator for operator in operators}


def _compare(name: str, function: Function) -> AluOp:
    return AluOp(name, function, is_exact=True, is_integer=True)


_INFINITY = float("inf")

OPERATORS: dict[str, AluOp] = _table(
    AluOp("add", torch.add, is_integer=True, identity=0.0),
    AluOp("subtract", torch.sub, is_integer=True, identity=0.0),
    AluOp("multiply", torch.mul, is_integer=True, identity=1.0),
    AluOp("maximum", torch.maximum, is_integer=True, identity=-_INFINITY),
    AluOp("minimum", torch.minimum, is_integer=True, identity=_INFINITY),
    _compare("equal", torch.eq),
    _compare("not_equal", torch.ne),
    _compare("greater_equal", torch.ge),
    _compare("greater", torch.gt),
    _compare("less_equal", torch.le),
    _compare("less", torch.lt),
    AluOp("logical_and", torch.logical_and, is_exact=True, is_integer=True, identity=1.0),
    AluOp("logical_or", torch.logical_or, is_exact=True, is_integer=True, identity=0.0),
    AluOp("logical_xor", torch.logical_xor, is_exact=True, is_integer=True, identity=0.0),
    AluOp("power", torch.pow),
    AluOp("abs_max", _abs_max, identity=0.0, generation=4),
    AluOp("abs_min", _abs_min, identity=_INFINITY, generation=4),
    AluOp("abs", torch.abs, is_unary=True),
    AluOp("square", torch.square, is_unary=True),
    AluOp("relu", relu, is_unary=True),
    AluOp("rsqrt", torch.rsqrt, is_unary=True),
    AluOp("reciprocal", torch.reciprocal, is_unary=True),
    AluOp("invert", torch.bitwise_not, is_unary=True, is_bitvec=True),
    AluOp("bitwise_and", torch.bitwise_and, is_bitvec=True, identity=-1.0),
    AluOp("bitwise_or", torch.bitwise_or, is_bitvec=True, identity=0.0),
    AluOp("bitwise_xor", torch.bitwise_xor, is_bitvec=True, identity=0.0),
    AluOp("left_shift", _left_shift, is_bitvec=True),
    AluOp("right_shift", logical_right_shift, is_bitvec=True),
)

# Names under which numpy or the reductions of nki.language know the same operators.
_ALIASES = {
    "max": "maximum",
    "min": "minimum",
    "absolute": "abs",
    "sum": "add",
    "prod": "multiply",
    "bitwise_not": "invert",
    "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "pow": "power",
}


def token_name(token: Any) -> str:
    """The name by which an operator token is known, or its repr."""
    name = getattr(token, "__name__", None)
    return str(name) if name is not None else repr(token)


def operator(
    emit: Emit, token: Any, argument: str, allowed: Collection[str] | None = None
) -> AluOp:
    """The operator of `token`; raises IllegalInstructionError where there is none for this target.

    `allowed` restricts it to the names that the instruction takes.
    """
    name = token_name(token)
    found = OPERATORS.get(_ALIASES.get(name, name))
    if found is None:
        emit.illegal(f"{argument}={name} is not an ALU operator; see the table of math operators")
    if allowed is not None and found.name not in allowed:
        emit.illegal(f"{argument}=nl.{name} is not supported; use one of {', '.join(allowed)}")
    if found.generation > emit.generation:
        emit.illegal(f"{argument}=nl.{name} needs trn3; the target is {emit.hardware.target}")
    return found


def arithmetic(
    emit: Emit, token: Any, argument: str, allowed: Collection[str] | None = None
) -> AluOp:
    """Like `operator`, and the operator is not bitvec."""
    found = operator(emit, token, argument, allowed)
    if found.is_bitvec:
        emit.illegal(f"{argument}=nl.{found.name} is a bitvec operator; not allowed")
    return found


def binary_arithmetic(
    emit: Emit, token: Any, argument: str, allowed: Collection[str] | None = None
) -> AluOp:
    """Like `arithmetic`, and the operator takes two operands."""
    found = arithmetic(emit, token, argument, allowed)
    if found.is_unary:
        emit.illegal(f"{argument}=nl.{found.name} takes one operand; not allowed")
    return found
