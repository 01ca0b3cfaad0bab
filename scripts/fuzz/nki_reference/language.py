"""Functions of nki.language that make a tile: element-wise ones, reductions, where, full, load.

They are one entry, whose calls name the function; the tile that a call makes is its `dst`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_reference import alu, functions
from nki_reference.dma import hbm_view
from nki_reference.machine import HALF_ULP, HBM, SBUF, Machine, reduce_rows
from nki_reference.numbers import Array
from nki_reference.program import Token, View
from nki_reference.program_builder import TAME, ProgramBuilder
from nki_reference.table import entry, never

DTYPES = ("float32", "bfloat16", "float16")
# nl.sin reduces its range, or not: the documents leave that open.
UNARY = tuple(name for name in functions.FUNCTIONS if name not in ("sin", "prelu"))
BINARY = (*alu.NATIVE, *alu.COMPARISONS, "divide")
REDUCTIONS = ("sum", "max", "min", "mean")
CONSTANTS = {"zeros": 0.0, "ones": 1.0}


def _call(
    s: ProgramBuilder, function: str, shape: tuple[int, ...], kind: str, /, **arguments: Any
) -> None:
    """A call that makes a tile of this shape and type."""
    made = s.storage(shape, kind, fresh=True)
    made.is_result = True
    dst = s.whole(made)
    s.call("language", function=Token(f"nl.{function}"), dst=dst, **arguments)
    s.pool.append(dst)


def _dtype(s: ProgramBuilder, *tiles: View) -> tuple[str, Token | None]:
    """The type of the result, and the argument that says so, if it has to be said."""
    kept = tiles[0].dtype
    if all(tile.dtype == kept for tile in tiles) and s.c.flag():
        return kept, None
    chosen = s.c.pick(DTYPES)
    return chosen, Token(f"nl.{chosen}")


def _draw_unary(s: ProgramBuilder) -> None:
    x = s.tile(s.extent(), DTYPES, SBUF)
    dtype, given = _dtype(s, x)
    _call(s, s.c.pick(UNARY), x.shape, dtype, x=x, dtype=given)


def _draw_binary(s: ProgramBuilder) -> None:
    x = s.tile(s.extent(), DTYPES, SBUF)
    shape = s.c.pick((x.shape, (x.partitions, *(1,) * (len(x.shape) - 1))))
    y: Any = s.whole(s.storage(shape, s.c.pick(DTYPES)))
    dtype, given = _dtype(s, x, y)
    if s.c.flag(30):
        y, given = s.number(), Token(f"nl.{dtype}")
    function = s.c.pick(BINARY)
    if function in alu.COMPARISONS:
        given = Token(f"nl.{dtype}")
    _call(s, function, x.shape, dtype, x=x, y=y, dtype=given)


def _draw_reduction(s: ProgramBuilder) -> None:
    x = s.tile(s.extent(), DTYPES, SBUF, kind=TAME)
    first = s.c.integer(1, len(x.shape) - 1)
    axis: Any = tuple(range(first, len(x.shape)))
    keepdims = first == 1 or s.c.flag()
    shape = x.shape[:first] + (1,) * (len(axis) if keepdims else 0)
    dtype, given = _dtype(s, x)
    axis = axis[0] if len(axis) == 1 and s.c.flag() else axis
    _call(s, s.c.pick(REDUCTIONS), shape, dtype, x=x, axis=axis, keepdims=keepdims, dtype=given)


def _draw_where(s: ProgramBuilder) -> None:
    x = s.tile(s.extent(), DTYPES, SBUF)
    flags = s.values.integers(0, 2, x.shape).astype(np.float32)
    condition = s.whole(s.storage(x.shape, "float32", values=flags))
    y = s.whole(s.storage(x.shape, s.c.pick(DTYPES)))
    dtype = s.c.pick(DTYPES)
    _call(s, "where", x.shape, dtype, condition=condition, x=x, y=y, dtype=Token(f"nl.{dtype}"))


def _draw_constant(s: ProgramBuilder) -> None:
    shape, dtype = s.extent(), s.c.pick(DTYPES)
    function = s.c.pick((*CONSTANTS, "full"))
    value = s.number() if function == "full" else None
    _call(s, function, shape, dtype, shape=shape, fill_value=value, dtype=Token(f"nl.{dtype}"))


_LONGEST_ROW = 8192


def _draw_load(s: ProgramBuilder) -> None:
    # A row of HBM goes to one partition.
    elements = min(math.prod(s.extent()), _LONGEST_ROW)
    src = hbm_view(s, elements, s.c.pick(DTYPES), dst=False)
    dtype, given = _dtype(s, src)
    _call(s, "load", src.shape, dtype, src=src, dtype=given)


DRAWS: tuple[Callable[[ProgramBuilder], None], ...] = (
    _draw_unary,
    _draw_binary,
    _draw_binary,
    _draw_reduction,
    _draw_where,
    _draw_constant,
    _draw_load,
)


def _draw(s: ProgramBuilder) -> None:
    s.c.pick(DRAWS)(s)


def _rows(m: Machine, operand: Any, like: View) -> Array:
    """An operand as float32 that broadcasts against [partitions, elements]."""
    return m.f32(operand) if isinstance(operand, View) else m.scalar_f32(operand, like)


@entry("language", _draw, is_exact=never)
def language(m: Machine, function: Token, dst: View, **operands: Any) -> None:
    """dst = function(**operands), computed in float32 and rounded once."""
    name = function.name
    x: Any = operands.get("x")
    if name == "load":
        m.tile(operands["src"], DTYPES, HBM)
        m.store(dst, m.f32(operands["src"]).reshape(dst.flat))
    elif "shape" in operands:
        value = CONSTANTS.get(name, operands.get("fill_value", 0.0))
        m.store(dst, np.full(dst.flat, value, dtype=np.float32))
    elif name == "where":
        chosen = m.f32(operands["condition"]) != 0
        m.store(dst, np.where(chosen, m.f32(x), m.f32(operands["y"])))
    elif name in REDUCTIONS:
        _reduce(m, name, dst, x, operands["axis"])
    elif name in BINARY:
        y = _rows(m, operands["y"], x)
        if name == "divide":
            values = m.f32(x) / y
            # By division, or by a product with the reciprocal.
            m.store(dst, values, np.abs(values.astype(np.float64)) * 4 * HALF_ULP + 2.0**-126)
        else:
            m.store(dst, alu.compute(name, m.f32(x), y))
    else:
        wide = m.f32(x).astype(np.float64)
        m.store(dst, *functions.evaluate(name, wide, wide, wide))


def _reduce(m: Machine, name: str, dst: View, x: View, axis: Any) -> None:
    first = axis if isinstance(axis, int) else min(axis)
    length = math.prod(x.shape[first:])
    rows = m.f32(x).astype(np.float64).reshape(-1, length)
    op = {"sum": "add", "mean": "add", "max": "maximum", "min": "minimum"}[name]
    result, error = reduce_rows(op, rows)
    if name == "mean":
        result, error = result / length, error / length + np.abs(result) * 4 * HALF_ULP
    m.store(dst, result.reshape(dst.flat), error.reshape(dst.flat))
