"""Operators of the ALU as arguments of instructions: `op=nl.add`.

An operator is a token with a name: `nl.add`, or a numpy function of the same name, as older kernels
pass. Arithmetic operators compute in float32; comparisons and logical operators give 1.0 or 0.0.
Bitvec operators act on the bits of integers of one width.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trnx.simulator.isa.instruction import Emit
from trnx.simulator.language.operators.table import Operator, find


def token_name(token: Any) -> str:
    """The name by which an operator token is known, or its repr."""
    name = getattr(token, "__name__", None)
    return str(name) if name is not None else repr(token)


# What stands in for an operator of trn3 on earlier generations.
_EARLIER = {
    "abs_max": "; nl.abs, then nl.maximum, gives the magnitude",
    "abs_min": "; nl.abs, then nl.minimum, gives the magnitude",
}


def _instead_of(name: str, found: Operator | None) -> str:
    """What to write in place of something that is no operator of the ALU."""
    if name == "divide":
        return "multiply by what nisa.reciprocal gives"
    if found is not None and found.activation is not None:
        return f"nisa.activation(op=nl.{name}) computes it, on ScalarE"
    return "see the table of math operators"


def operator(
    emit: Emit, token: Any, argument: str, allowed: Collection[str] | None = None
) -> Operator:
    """The operator of `token`; raises IllegalInstructionError where there is none for this target.

    `allowed` restricts it to the names that the instruction takes.
    """
    name = token_name(token)
    found = find(name)
    if found is None or not found.is_alu:
        emit.illegal(f"{argument}={name} is not an ALU operator; {_instead_of(name, found)}")
    if allowed is not None and found.name not in allowed:
        emit.illegal(f"{argument}=nl.{name} is not supported; use one of {', '.join(allowed)}")
    if found.generation > emit.generation:
        needs = f"{argument}=nl.{name} needs trn3; the target is {emit.hardware.target}"
        emit.illegal(f"{needs}{_EARLIER.get(name, '')}")
    return found


def arithmetic(
    emit: Emit, token: Any, argument: str, allowed: Collection[str] | None = None
) -> Operator:
    """Like `operator`, and the operator is not bitvec."""
    found = operator(emit, token, argument, allowed)
    if found.is_bitvec:
        emit.illegal(f"{argument}=nl.{found.name} is a bitvec operator; not allowed")
    return found


def binary_arithmetic(
    emit: Emit, token: Any, argument: str, allowed: Collection[str] | None = None
) -> Operator:
    """Like `arithmetic`, and the operator takes two operands."""
    found = arithmetic(emit, token, argument, allowed)
    if found.is_unary:
        emit.illegal(f"{argument}=nl.{found.name} takes one operand; not allowed")
    return found
