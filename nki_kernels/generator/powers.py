"""Factors that are powers of two, in a product of bfloat16 with a sum of a tensor and a number.

`(x * 0.5) * (y + 1)`, as models write GELU, is `x * ((y + 1) * 0.5)`: one instruction computes the
sum and its factor, where a rounded `x * 0.5` takes a pass of its own. A factor below one makes
nothing infinite, and changes no bit of a sum with a number, which is zero or far above the least
normal number. `x * 0.5` may be below the normal numbers, and lose a bit that x has.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import torch

from trnx.nki_kernels.generator.ir import Value, values_of
from trnx.nki_kernels.generator.monotone import rebuilt

# Of factors and of numbers: so much less than what float32 holds that products are normal.
_LEAST = 2.0**-10


def move_powers_to_sums(roots: tuple[Value, ...], values: list[Value]) -> dict[Value, Value]:
    """What stands for each of `values`, which are all that `roots` are made of, operands first."""
    readers = Counter(a for v in values for a in values_of(v.args))
    readers.update(roots)
    new: dict[Value, Value] = {}
    for value in values:
        args = tuple(new[a] if isinstance(a, Value) else a for a in value.args)
        found = value if args == value.args else rebuilt(value, args)
        is_product = (value.op, value.name) == ("alu", "multiply")
        if is_product and all(readers[a] == 1 for a in values_of(value.args)):
            found = _moved(found)
        new[value] = found
    return new


def _moved(product: Value) -> Value:
    """A product with its factor at the sum, or as it is."""
    operands = values_of(product.args)
    for scaled, total in (operands, operands[::-1]) if len(operands) == 2 else ():
        parts, inner = _factor(scaled), _sum(total)
        if parts is not None and inner is not None:
            source, factor = parts
            made = Value("alu", "multiply", (inner, factor), inner.dtype, inner.axes)
            return dataclasses.replace(
                product, args=(source, dataclasses.replace(total, args=(made,)))
            )
    return product


def _of_a_number(value: Value, *names: str) -> tuple[Value, Value, float] | None:
    """What bfloat16 rounds, where that is one of these operators of a tensor and a number, and
    both of these."""
    if value.op != "cast" or value.dtype is not torch.bfloat16:
        return None
    (inner,) = values_of(value.args)
    sources = values_of(inner.args)
    numbers = [float(a) for a in inner.args if not isinstance(a, Value)]
    if inner.op != "alu" or inner.name not in names or len(sources) != 1 or len(numbers) != 1:
        return None
    return inner, sources[0], numbers[0]


def _factor(value: Value) -> tuple[Value, float] | None:
    """`x` and 2^-n of their rounded product."""
    found = _of_a_number(value, "multiply")
    if found is None:
        return None
    _, source, factor = found
    is_power = _LEAST <= factor < 1.0 and math.frexp(factor)[0] == 0.5
    alike = (source.dtype, source.axes) == (value.dtype, value.axes)
    return (source, factor) if is_power and alike else None


def _sum(value: Value) -> Value | None:
    """What is rounded, where it is a sum with a number that is not small."""
    found = _of_a_number(value, "add", "subtract")
    if found is None:
        return None
    inner, _, number = found
    return inner if _LEAST <= abs(number) < math.inf else None
