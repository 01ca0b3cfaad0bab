"""Steps that an extremum goes through: `amax(f(x))` is `f(amax(x))` where f never falls.

The values after the reduction are fewer, and the reduction begins with what was loaded. Only steps
that nothing else reads move. Each is total and keeps NaN, so that a NaN stays the extremum; a sum
or product with a number rounds monotonically, so that what moves exactly is equal bit for bit. A
sum with a tensor does not move: -inf + inf would be NaN where no other element is.

Functions of ScalarE move where there is much to compute: after the reduction nothing hides that
ScalarE loads their table. The table of the only function is loaded before the first tile is there,
so that this one moves where there is less to compute, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping

from trnx.nki_kernels.generator.ir import Operand, Value, values_of

_EXTREMA = ("maximum", "minimum")
# Functions of ScalarE that rise everywhere.
_RISING = ("sigmoid", "tanh", "exp")
# Elements that ScalarE computes in about three times the load of a table, 128 at a time, and in
# about the latency of an instruction more.
_MANY, _MANY_OF_ONE = 2**19, 2**16


def move_behind_extrema(
    roots: tuple[Value, ...], values: list[Value], sizes: Mapping[int, int]
) -> dict[Value, Value]:
    """What stands for each of `values`, which are all that `roots` are made of, operands first;
    `sizes` are those of the labels."""
    readers = Counter(a for v in values for a in values_of(v.args))
    readers.update(roots)
    many = _MANY if len({v.name for v in values if v.op == "unary"}) > 1 else _MANY_OF_ONE
    new: dict[Value, Value] = {}
    for value in values:
        steps = _steps(value, readers, sizes, many)
        if steps:
            new[value] = _moved(value, steps, new)
            continue
        args = tuple(new[a] if isinstance(a, Value) else a for a in value.args)
        new[value] = value if args == value.args else rebuilt(value, args)
    return new


def _moved(reduction: Value, steps: list[Value], new: dict[Value, Value]) -> Value:
    """`steps`, the last one first, applied to the extremum of what they read."""
    reduced = _reduced(reduction)
    source = _source(steps[-1], reduced)
    assert source is not None
    made = dataclasses.replace(reduction, args=(new[source],), axes=source.axes - reduced)
    if source.dtype is not made.dtype:  # an extremum is one of the values
        made = Value("cast", "copy", (made,), source.dtype, made.axes)
    for step in reversed(steps):
        inner = _source(step, reduced)
        args = tuple(
            made if a is inner else new[a] if isinstance(a, Value) else a for a in step.args
        )
        made = dataclasses.replace(step, args=args, axes=step.axes - reduced)
    return made


def rebuilt(value: Value, args: tuple[Operand, ...]) -> Value:
    """`value` with other `args`; a cast of what has its dtype already is that."""
    first = args[0]
    is_cast = value.op == "cast" and isinstance(first, Value)
    if is_cast and (first.dtype, first.axes) == (value.dtype, value.axes):  # type: ignore[union-attr]
        return first  # type: ignore[return-value]
    return dataclasses.replace(value, args=args)


def _reduced(reduction: Value) -> frozenset[int]:
    (source,) = values_of(reduction.args)
    return source.axes - reduction.axes


def _steps(
    reduction: Value, readers: Counter[Value], sizes: Mapping[int, int], many: int
) -> list[Value]:
    """The steps that a `reduction` goes through, the one that it reads first; of functions those of
    `many` elements."""
    if reduction.op != "reduce" or reduction.name not in _EXTREMA:
        return []
    reduced, steps = _reduced(reduction), list[Value]()
    (value,) = values_of(reduction.args)
    while readers[value] == 1 and (source := _source(value, reduced)) is not None:
        if value.op == "unary" and math.prod(sizes[d] for d in value.axes) < many:
            break
        steps.append(value)
        value = source
    # VectorE reduces what is rounded at twice the rate.
    while steps and steps[-1].op == "cast" and _narrows(steps[-1]):
        steps.pop()
    return steps


def _narrows(cast: Value) -> bool:
    (source,) = values_of(cast.args)
    return cast.dtype.itemsize < source.dtype.itemsize


def _source(step: Value, reduced: frozenset[int]) -> Value | None:
    """What `step` never falls in, the one operand that varies along all `reduced` axes; None where
    there is none."""
    varying = [a for a in values_of(step.args) if a.axes & reduced]
    if len(varying) != 1 or not reduced <= varying[0].axes:
        return None
    (source,) = varying
    if not (step.dtype.is_floating_point and source.dtype.is_floating_point):
        return None
    others = [a for a in step.args if a is not source]
    return source if _rises(step, source, others) else None


def _rises(step: Value, source: Value, others: list[Operand]) -> bool:
    if step.op in ("cast", "unary"):
        return step.op == "cast" or step.name in _RISING
    if step.op != "alu" or len(others) != 1:
        return False
    (other,) = others
    if step.name in _EXTREMA:
        return isinstance(other, Value) or not math.isnan(other)
    if isinstance(other, Value) or not math.isfinite(other):
        return False
    is_first = step.args[0] is source
    return (
        step.name == "add"
        or (step.name == "subtract" and is_first)
        or (step.name == "multiply" and other > 0)
    )
