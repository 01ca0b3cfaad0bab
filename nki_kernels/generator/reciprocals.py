"""Reciprocals of sums of exp(x - max(x)), which softmax multiplies by.

VectorE takes eight cycles an element for a reciprocal, and one for a power, whose exponent is -1
here; the error of powers is not published. Such a sum is 1 or more, because its largest exponential
is 1, and NaN stays NaN.

Where a partition has few elements VectorE's reciprocal takes less than the table of ScalarE's,
after which ScalarE loads that of the next function; quotients (`division.py`) ask for ScalarE's as
they are mostly of many.
"""

from __future__ import annotations

from trnx.nki_kernels.generator.ir import Value, values_of

# Elements of a partition from which on eight cycles for each are more than the fixed time of an
# instruction.
MANY = 16
# With fewer elements than this VectorE's takes much less than the load of a table: of more it would
# be work of the engine that has the most of it.
FEW = 32


def is_from_one(value: Value) -> bool:
    """Whether `value` is the sum of exp(x - max(x)) over what the maximum is taken over."""
    total = _without_casts(value)
    if (total.op, total.name) != ("reduce", "add"):
        return False
    weights = _without_casts(*values_of(total.args))
    if (weights.op, weights.name) != ("unary", "exp"):
        return False
    shifted = _without_casts(*values_of(weights.args))
    operands = values_of(shifted.args)
    if (shifted.op, shifted.name) != ("alu", "subtract") or len(operands) != 2:
        return False
    x, most = map(_without_casts, operands)
    if (most.op, most.name) != ("reduce", "maximum") or most.axes != total.axes:
        return False
    return _without_casts(*values_of(most.args)) is x


def _without_casts(value: Value) -> Value:
    """What `value` is rounded from; a float of fewer bits than float32 is a value of it."""
    while value.op == "cast":
        (value,) = values_of(value.args)
    return value
