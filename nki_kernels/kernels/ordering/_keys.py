"""Keys: float32 numbers in the order that torch gives values, NaN included, for VectorE's search.

What is searched is the largest key. Above or below every number there must be room for NaN and,
at -inf, for what was found already, so that infinities become large finite numbers. Half precision
leaves room there; in float32 the four finite numbers of each sign with the greatest magnitude
become one key, and keep the order of their positions.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

_INF = float("inf")
FOUND = -_INF  # less than every key
_STEP = 2.0**104  # between neighbours there
_NAN = (2.0**24 - 1) * _STEP  # the largest float32
_INFINITE = _NAN - _STEP
_FINITE = _NAN - 3 * _STEP
_RAISE = 2.0**-23  # _FINITE * (1 + _RAISE) is rounded to _INFINITE


def write_keys(keys: nl.NkiTensor, values: nl.NkiTensor, largest: bool) -> None:
    """`keys[P, lines, n]` of the `values[P, lines, n]`; the smallest is searched as the largest
    of the negated."""
    signed = values
    if not largest:
        signed = nl.ndarray(keys.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=signed, op=nl.copy, data=values, scale=-1.0)
    bound = _INFINITE
    if values.dtype == nl.float32:
        bound = _FINITE
    nisa.tensor_scalar(
        dst=keys, data=signed, op0=nl.maximum, operand0=-bound, op1=nl.minimum, operand1=bound
    )
    if values.dtype == nl.float32:
        _raise_infinities(keys, signed)
    is_nan = nl.ndarray(keys.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=is_nan, data=signed, op0=nl.greater_equal, operand0=-_INF, op1=nl.equal, operand1=0.0
    )
    nan = -_NAN
    if largest:
        nan = _NAN
    nisa.tensor_copy_predicated(dst=keys, src=nan, predicate=is_nan)


def _raise_infinities(keys: nl.NkiTensor, values: nl.NkiTensor) -> None:
    """Their keys away from those of finite numbers."""
    factor = nl.ndarray(keys.shape, dtype=nl.float32, buffer=nl.sbuf)
    # Of infinity and NaN 0 times the number is NaN, which differs from 0.
    nisa.tensor_scalar(
        dst=factor, data=values, op0=nl.multiply, operand0=0.0, op1=nl.not_equal, operand1=0.0
    )
    nisa.tensor_scalar(
        dst=factor, data=factor, op0=nl.multiply, operand0=_RAISE, op1=nl.add, operand1=1.0
    )
    nisa.tensor_tensor(dst=keys, data1=keys, data2=factor, op=nl.multiply)
