"""Maxima that a softmax or a logsumexp subtracts from what is bounded anyway: they cost two passes
and, where tiles are many, a phase.

`exp(x - m) / sum(exp(x - m))` and `log(sum(exp(x - m))) + m` do not depend on m but for rounding: m
keeps the exponentials from overflow, and their sum from vanishing. Where x is within 60 of zero,
as what tanh and sigmoid give, or what is capped by them, exponentials and sums of 2^24 of them are
normal float32 numbers, and bfloat16 ones, with m = 0 too. NaN stays NaN.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from trnx.nki_kernels.generator.ir import Operand, Value, values_of
from trnx.nki_kernels.generator.signs import without

_MOST = 60.0
# What functions of ScalarE give; a cast may round away from zero by a part in 2^8.
_RANGES = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0)}
_ROUNDED = 1 + 2.0**-7
_ANYTHING = (-math.inf, math.inf)
_Range = tuple[float, float]


def without_needless_extrema(roots: tuple[Value, ...], values: list[Value]) -> dict[Value, Value]:
    """What stands for each of `values`, which are all that `roots` are made of, operands first."""
    ranges: dict[Value, _Range] = {}
    for value in values:
        ranges[value] = _range_of(value, ranges)
    readers = _Readers(roots, values)
    dropped: dict[Value, Value] = {}
    for value in values:
        if (value.op, value.name) == ("reduce", "maximum"):
            low, high = ranges[values_of(value.args)[0]]
            if low >= -_MOST and high <= _MOST:
                dropped |= readers.shifts_by(value)
    return without(dropped, roots, values)


def _range_of(value: Value, ranges: Mapping[Value, _Range]) -> _Range:
    """Between which numbers all of `value` lies that is not NaN."""
    given = [ranges[a] if isinstance(a, Value) else (float(a), float(a)) for a in value.args]
    if value.op == "unary" and value.name in _RANGES:
        return _RANGES[value.name]
    if value.op == "cast" and value.dtype.is_floating_point:
        found = [x * _ROUNDED for x in given[0]]
    elif (value.op, value.name) == ("unary", "abs"):
        found = [0.0, *map(abs, given[0])]
    elif value.op == "alu" and value.dtype.is_floating_point and len(given) == 2:
        found = _corners(value.name, *given)
    else:
        return _ANYTHING
    return _ANYTHING if any(map(math.isnan, found)) else (min(found), max(found))


def _corners(name: str, a: _Range, b: _Range) -> list[float]:
    """An operator at the ends of its operands' ranges, which it is monotone between."""
    pairs = [(x, y) for x in a for y in b]
    if name == "add":
        return [x + y for x, y in pairs]
    if name == "subtract":
        return [x - y for x, y in pairs]
    if name == "multiply":
        return [x * y for x, y in pairs]
    if name in ("maximum", "minimum"):
        pick = max if name == "maximum" else min
        return [pick(x, y) for x, y in pairs]
    return [*_ANYTHING]


class _Readers:
    """What reads each value of a graph."""

    def __init__(self, roots: Sequence[Value], values: Sequence[Value]) -> None:
        self._roots = frozenset(roots)
        self._readers: dict[Value, list[Value]] = defaultdict(list)
        for value in values:
            for operand in dict.fromkeys(values_of(value.args)):
                self._readers[operand].append(value)

    def shifts_by(self, most: Value) -> dict[Value, Value]:
        """Where `most` is subtracted and added again, and what is left there without it; none
        where anything else depends on it."""
        (x,) = values_of(most.args)
        ends = self._ends(most)
        shifts = [v for v in ends or () if _is(v, "subtract") and v.args[0] is x]
        sums = [v for v in ends or () if _is(v, "add")]
        weights = self._ends(shifts[0]) if len(shifts) == 1 else None
        if not ends or len(ends) != 1 + len(sums) or not weights or len(weights) != 1:
            return {}
        (weight,) = weights
        readers = self._ends(weight) if weight.name == "exp" else None
        totals = [v for v in readers or () if v.op == "reduce"]
        if not readers or len(totals) != 1 or not _adds_up(totals[0], x.axes - most.axes):
            return {}
        scaled = [v for v in readers if v.op != "reduce"]
        logs = self._logs(totals[0], weight, scaled)
        if logs is None or not all(_combines(v, "add", (*logs, most)) for v in sums):
            return {}
        if any(set(self._ends(log) or [log]) - set(sums) for log in logs):
            return {}
        left = {v: a for v in sums for a in values_of(v.args) if _uncast(a) is not most}
        return {shifts[0]: x, **left} if len(left) == len(sums) else {}

    def _logs(
        self, total: Value, weight: Value, scaled: Sequence[Value]
    ) -> tuple[Value, ...] | None:
        """The logarithms of a `total`; None where it is read by more than these and by reciprocals,
        which all of the `scaled` weights are products with."""
        readers = self._ends(total)
        if readers is None:
            return None
        logs = tuple(v for v in readers if (v.op, v.name) == ("unary", "log"))
        inverses = [v for v in readers if v.op == "reciprocal"]
        products = [p for v in inverses for p in self._ends(v) or [v]]
        if len(logs) + len(inverses) != len(readers) or set(products) != set(scaled):
            return None
        is_scaled = all(_combines(p, "multiply", (*inverses, weight)) for p in products)
        return logs if is_scaled else None

    def _ends(self, value: Value) -> list[Value] | None:
        """What reads a value, or a cast of it; None where one of these is a result, or of a type
        without the range of float32."""
        if value in self._roots or value.dtype not in (torch.float32, torch.bfloat16):
            return None
        found: list[Value] = []
        for reader in self._readers[value]:
            ends = self._ends(reader) if reader.op == "cast" else [reader]
            if ends is None:
                return None
            found += ends
        return list(dict.fromkeys(found))


def _is(value: Value, name: str) -> bool:
    return (value.op, value.name) == ("alu", name)


def _adds_up(value: Value, reduced: frozenset[int]) -> bool:
    (source,) = values_of(value.args)
    return value.name == "add" and source.axes - value.axes == reduced


def _combines(value: Value, name: str, operands: Sequence[Value]) -> bool:
    """Whether a value is an operator of two of these, which differ."""
    found = {_uncast(a) for a in value.args if isinstance(a, Value)}
    return _is(value, name) and len(found) == 2 and found <= set(operands)


def _uncast(x: Operand) -> Operand:
    while isinstance(x, Value) and x.op == "cast":
        (x,) = x.args
    return x
