"""Half precision that is rounded once after two steps in place of after each: one instruction has
both then.

An absolute value, and an extremum with what half precision holds, neither move a value past
another one nor make a new one: `abs(round(x))` is `round(abs(x))` bit for bit, and
`max(round(x), y)` is `round(max(x, y))`. So the rounding before such a step is left out where a
step with a number comes before it: VectorE computes both in float32 and rounds on writing.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from trnx.nki_kernels.generator.ir import COMPARISONS, Operand, Value, values_of
from trnx.nki_kernels.generator.monotone import rebuilt

_HALVES = (torch.bfloat16, torch.float16)
_EXTREMA = ("maximum", "minimum")


def with_late_rounding(roots: tuple[Value, ...], values: list[Value]) -> dict[Value, Value]:
    """What stands for each of `values`, which are all that `roots` are made of, operands first."""
    readers: dict[Value, list[Value | None]] = defaultdict(list)
    for root in roots:
        readers[root].append(None)
    for value in values:
        for operand in values_of(value.args):
            readers[operand].append(value)
    new: dict[Value, Value] = {}
    for value in values:
        args = [new[a] if isinstance(a, Value) else a for a in value.args]
        for at, given in enumerate(value.args):
            others = [*args[:at], *args[at + 1 :]]
            if isinstance(given, Value) and _is_rounded_late(value, given, others, readers):
                rounded = args[at]
                assert isinstance(rounded, Value)
                if _is_step(rounded):
                    args[at] = rounded.args[0]
                    break
        new[value] = value if tuple(args) == value.args else rebuilt(value, tuple(args))
    return new


def _is_rounded_late(
    value: Value,
    given: Value,
    others: list[Operand],
    readers: dict[Value, list[Value | None]],
) -> bool:
    """Whether `value` is a step that may come before the rounding of its operand `given`, which
    nothing else reads, with `others`; what reads it rounds it to the same type."""
    if (given.op, given.dtype in _HALVES, given.axes) != ("cast", True, value.axes):
        return False
    (source,) = values_of(given.args)
    if len(readers[given]) != 1 or len(readers[source]) != 1:
        return False
    rounds = all(r is not None and (r.op, r.dtype) == ("cast", given.dtype) for r in readers[value])
    is_abs = (value.op, value.name) == ("unary", "abs")
    is_extremum = value.op == "alu" and value.name in _EXTREMA
    return rounds and (is_abs or (is_extremum and all(_has(given.dtype, x) for x in others)))


def _has(dtype: torch.dtype, x: Operand) -> bool:
    """Whether half precision holds `x`."""
    if isinstance(x, Value):
        return x.dtype is dtype
    return torch.tensor(x, dtype=torch.float64).to(dtype).item() == x


def _is_step(rounded: Value) -> bool:
    """Whether what is rounded is a step with a number on what has half precision, so that it is no
    second step itself."""
    (source,) = values_of(rounded.args)
    if source.op != "alu" or source.name in COMPARISONS or source.dtype is not torch.float32:
        return False
    operands = values_of(source.args)
    alone = len(operands) == 1 and len(source.args) == 2
    return alone and operands[0].dtype in _HALVES and operands[0].axes == rounded.axes
