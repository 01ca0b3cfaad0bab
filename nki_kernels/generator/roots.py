"""Roots of what is reduced, in bfloat16, as powers of VectorE: ScalarE loads a table for its root,
and another one for what comes next, in each tile, which takes longer than a few values.

The root of a number of 8 bits is at least 2^-18 (relative) away from the middle of two such
numbers, whose square has 18 bits: a power within 2^-22 rounds to what the root rounds to. The power
of a number without a sign differs from its root nowhere else: -0.0 and -inf have a sign.
"""

from __future__ import annotations

import torch

from trnx.nki_kernels.generator.ir import Value, values_of
from trnx.nki_kernels.generator.monotone import rebuilt
from trnx.nki_kernels.generator.signs import without_sign


def roots_as_powers(roots: tuple[Value, ...], values: list[Value]) -> dict[Value, Value]:
    """What stands for each of `values`, which are all that `roots` are made of, operands first."""
    del roots  # which keep their types
    unsigned = without_sign(values)
    new: dict[Value, Value] = {}
    for value in values:
        args = tuple(new[a] if isinstance(a, Value) else a for a in value.args)
        if value.op == "cast" and _is_root_of_total(value, unsigned):
            (source,) = values_of(args[0].args)  # type: ignore[union-attr]
            args = (Value("alu", "power", (source, 0.5), torch.float32, source.axes),)
        new[value] = value if args == value.args else rebuilt(value, args)
    return new


def _is_root_of_total(rounded: Value, unsigned: frozenset[Value]) -> bool:
    """Whether bfloat16 rounds the root of a bfloat16 that is made of a reduction by numbers."""
    (root,) = values_of(rounded.args)
    if (root.op, root.name, rounded.dtype) != ("unary", "sqrt", torch.bfloat16):
        return False
    (source,) = values_of(root.args)
    if source.dtype is not torch.bfloat16 or source not in unsigned:
        return False
    while source.op in ("alu", "cast") and len(values_of(source.args)) == 1:
        (source,) = values_of(source.args)
    return source.op == "reduce"
