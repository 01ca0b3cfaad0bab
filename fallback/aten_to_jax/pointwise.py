"""Pointwise arithmetic, rounding, logic, comparison and selection."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trnx.fallback.aten_to_jax.dtypes import (
    cast,
    compute,
    is_floating,
    is_integer,
    pointwise,
    promote,
)
from trnx.fallback.aten_to_jax.table import register, require


def _divide(x: Any, y: Any) -> Any:
    """x / y, rounded once.

    XLA's simplifier turns the division by a constant or a broadcast value into a product with the
    reciprocal, 1 / sqrt into rsqrt, and (x / y) / z into x / (y * z): each is one unit in the last
    place off where eager is not. It does not look through a barrier.
    """
    return lax.div(*lax.optimization_barrier(tuple(jnp.broadcast_arrays(x, y))))


def _reciprocal(x: Any) -> Any:
    return _divide(jnp.ones_like(x), x)


_FLOAT_UNARY = {
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lambda x: _reciprocal(jnp.sqrt(x)),
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma,
    "digamma": lambda x: jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x)),
    "sigmoid": jax.nn.sigmoid,
    "reciprocal": _reciprocal,
    "sinc": jnp.sinc,
    "special_i0e": lax.bessel_i0e,
    "special_i1e": lax.bessel_i1e,
    "i0": lambda x: jax.scipy.special.i0(x),
    "special_i1": lambda x: jax.scipy.special.i1(x),
    "special_ndtri": lambda x: jax.scipy.special.ndtri(x),
    "special_entr": lambda x: jnp.where(x > 0, -x * jnp.log(x), jnp.where(x == 0, 0.0, _below(x))),
    "deg2rad": jnp.deg2rad,
    "rad2deg": jnp.rad2deg,
}


def _below(x: Any) -> Any:
    return jnp.where(jnp.isnan(x), x, -jnp.inf)


def _sign(x: Any) -> Any:
    return x if x.dtype == np.bool_ else cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


def _rounding(function: Any) -> Any:
    return lambda x: function(x) if is_floating(x) else x


_SAME_UNARY = {
    "abs": lambda x: x if x.dtype == np.bool_ else jnp.abs(x),
    "neg": jnp.negative,
    "sign": _sign,
    "sgn": _sign,
    "floor": _rounding(jnp.floor),
    "ceil": _rounding(jnp.ceil),
    "trunc": _rounding(jnp.trunc),
    "fix": _rounding(jnp.trunc),
    "round": _rounding(jnp.round),
    "frac": lambda x: x - jnp.trunc(x),
    "square": lambda x: x * x,
    "relu": lambda x: jnp.maximum(x, cast(0, x.dtype)),
    "bitwise_not": jnp.bitwise_not,
    "logical_not": lambda x: x == 0,
    "isnan": lambda x: x != x,
    "isinf": lambda x: jnp.isinf(x),
    "isfinite": lambda x: jnp.isfinite(x),
    "isposinf": lambda x: jnp.isposinf(x) if is_floating(x) else jnp.zeros(x.shape, bool),
    "isneginf": lambda x: jnp.isneginf(x) if is_floating(x) else jnp.zeros(x.shape, bool),
    "signbit": lambda x: jnp.signbit(x) if is_floating(x) else x < 0,
}

for _name, _function in _FLOAT_UNARY.items():
    pointwise(_name, _function, floating=True)
for _name, _function in _SAME_UNARY.items():
    pointwise(_name, _function)


@register("round.decimals")
def _round_decimals(x: Any, *, decimals: int) -> Any:
    (x,) = compute(x)
    if is_integer(x):
        return x
    scale = float(10 ** abs(decimals))
    return jnp.round(x * scale) / scale if decimals >= 0 else jnp.round(x / scale) * scale


# ------------------------------------------------------------------------------------- arithmetic


@register("add.Tensor", "add.Scalar")
def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = compute(x, y)
    if x.dtype == np.bool_:
        return x | (y & bool(alpha))
    return x + (y if alpha == 1 else y * cast(alpha, y.dtype))


@register("sub.Tensor", "sub.Scalar")
def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = compute(x, y)
    return x - (y if alpha == 1 else y * cast(alpha, y.dtype))


@register("rsub.Tensor", "rsub.Scalar")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sub(y, x, alpha)


def _nonzero(y: Any) -> None:
    require(y != 0)


def _floor_divide(x: Any, y: Any) -> Any:
    if is_integer(x):
        _nonzero(y)
        return jnp.floor_divide(x, y)
    rest = lax.rem(x, y)
    quotient = _divide(x - rest, y)
    quotient = jnp.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    whole = jnp.floor(quotient)
    whole = jnp.where(quotient - whole > 0.5, whole + 1, whole)
    whole = jnp.where(quotient != 0, whole, jnp.copysign(jnp.zeros_like(x), _divide(x, y)))
    return jnp.where(y == 0, _divide(x, y), whole)


def _trunc_divide(x: Any, y: Any) -> Any:
    if is_integer(x):
        _nonzero(y)
        return lax.div(x, y)
    return jnp.trunc(_divide(x, y))


@register("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    x, y = jnp.broadcast_arrays(*compute(x, y, floating=rounding_mode is None))
    if rounding_mode is None:
        return _divide(x, y)
    return _floor_divide(x, y) if rounding_mode == "floor" else _trunc_divide(x, y)


@register("floor_divide", "floor_divide.Scalar")
def _floor_divide_entry(x: Any, y: Any) -> Any:
    return _floor_divide(*jnp.broadcast_arrays(*compute(x, y)))


def _remainder(x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    if is_integer(x):
        _nonzero(y)
    rest = lax.rem(x, y)
    return jnp.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _fmod(x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    if is_integer(x):
        _nonzero(y)
    return lax.rem(x, y)


def _power(x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    if x.dtype == np.bool_:
        return x | ~y
    if is_floating(x):
        return jnp.power(x, y)
    # Eager gives 1/x rounded towards zero for negative exponents: non-zero for 1 and -1 alone.
    unit = jnp.where(y % 2 == 0, jnp.ones_like(x), x)
    inverse = jnp.where((x == 1) | (x == -1), unit, 0) if _is_signed(x) else x
    return jnp.where(y < 0, inverse, _wrapping_power(x, y))


def _is_signed(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.signedinteger))


def _wrapping_power(x: Any, y: Any) -> Any:
    """Powers of integers modulo the width of the type; `jnp.power` reads 6 bits of the exponent."""

    def step(_: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        result, square, rest = state
        return jnp.where(rest & 1 == 1, result * square, result), square * square, rest >> 1

    bits = 8 * y.dtype.itemsize
    return lax.fori_loop(0, bits, step, (jnp.ones_like(x), x, y))[0]


def _gcd(x: Any, y: Any) -> Any:
    """Euclid as eager does it; `jnp.gcd` does not end for the least integer."""

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        a, b = state
        rest = lax.rem(b, jnp.where(a == 0, 1, a))
        return jnp.where(a == 0, 0, rest), jnp.where(a == 0, b, a)

    x, y = jnp.broadcast_arrays(jnp.abs(x), jnp.abs(y))
    return lax.while_loop(lambda state: jnp.any(state[0] != 0), step, (x, y))[1]


def _lcm(x: Any, y: Any) -> Any:
    divisor = _gcd(x, y)
    return jnp.abs(jnp.where(divisor == 0, 0, lax.div(x, jnp.where(divisor == 0, 1, divisor)) * y))


def _fmax(x: Any, y: Any) -> Any:
    return jnp.fmax(x, y) if is_floating(x) else jnp.maximum(x, y)


def _fmin(x: Any, y: Any) -> Any:
    return jnp.fmin(x, y) if is_floating(x) else jnp.minimum(x, y)


def _xlogy(x: Any, y: Any) -> Any:
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, 0.0, x * jnp.log(y)))


def _xlog1py(x: Any, y: Any) -> Any:
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, 0.0, x * jnp.log1p(y)))


def _logaddexp2(x: Any, y: Any) -> Any:
    top = jnp.maximum(x, y)
    low = jnp.log2(1 + jnp.exp2(-jnp.abs(x - y)))
    return jnp.where(jnp.isinf(x) & (x == y), x, top + low)


pointwise("mul.Tensor mul.Scalar", jnp.multiply)
pointwise("div.Tensor div.Scalar", _divide, floating=True)
pointwise("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor", _remainder)
pointwise("fmod.Tensor fmod.Scalar", _fmod)
pointwise("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", _power)
pointwise("maximum", jnp.maximum)
pointwise("minimum", jnp.minimum)
pointwise("fmax", _fmax)
pointwise("fmin", _fmin)
pointwise("atan2", jnp.arctan2, floating=True)
pointwise("hypot", jnp.hypot)
pointwise("copysign.Tensor copysign.Scalar", jnp.copysign, floating=True)
pointwise("logaddexp", jnp.logaddexp)
pointwise("logaddexp2", _logaddexp2)
pointwise("heaviside", lambda x, y: jnp.where(x == 0, y, cast(x > 0, x.dtype)))
pointwise("xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other", _xlogy, floating=True)
pointwise(
    "special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar",
    _xlog1py,
    floating=True,
)
pointwise("gcd", _gcd)
pointwise("lcm", _lcm)
pointwise("bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor", jnp.bitwise_and)
pointwise("bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor", jnp.bitwise_or)
pointwise("bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor", jnp.bitwise_xor)


@register("nextafter")
def _nextafter(x: Any, y: Any) -> Any:
    return jnp.nextafter(*promote(x, y))


# ------------------------------------------------------------------------- logic and comparison

for _name, _compare in {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}.items():
    pointwise(f"{_name}.Tensor {_name}.Scalar", _compare)
pointwise("logical_and", lambda x, y: (x != 0) & (y != 0))
pointwise("logical_or", lambda x, y: (x != 0) | (y != 0))
pointwise("logical_xor", lambda x, y: (x != 0) ^ (y != 0))


@register("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(condition: Any, x: Any, y: Any) -> Any:
    return jnp.where(condition != 0, *promote(x, y))


@register("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, cast(value, x.dtype), x)


# ----------------------------------------------------------------------------- ternary, clamping


@register("clamp", "clamp.Tensor")
def _clamp(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    bounds = [b for b in (low, high) if b is not None]
    x, *arrays = promote(x, *bounds)
    if low is not None:
        x = jnp.maximum(x, arrays[0])
    return x if high is None else jnp.minimum(x, arrays[-1])


@register("clamp_min", "clamp_min.Tensor")
def _clamp_min(x: Any, low: Any) -> Any:
    return jnp.maximum(*promote(x, low))


@register("clamp_max", "clamp_max.Tensor")
def _clamp_max(x: Any, high: Any) -> Any:
    return jnp.minimum(*promote(x, high))


@register("lerp.Scalar", "lerp.Tensor")
def _lerp(start: Any, end: Any, weight: Any) -> Any:
    start, end, weight = compute(start, end, weight)
    gap = end - start
    return jnp.where(jnp.abs(weight) < 0.5, start + weight * gap, end - gap * (1 - weight))


@register("addcmul")
def _addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    x, a, b = compute(x, a, b)
    return x + cast(value, x.dtype) * a * b


@register("addcdiv")
def _addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    x, a, b = compute(x, a, b)
    return x + _divide(cast(value, x.dtype) * a, b)


@register("nan_to_num")
def _nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if is_integer(x):
        return x
    limits = jnp.finfo(x.dtype)
    top = limits.max if posinf is None else posinf
    bottom = limits.min if neginf is None else neginf
    x = jnp.where(jnp.isnan(x), cast(0.0 if nan is None else float(nan), x.dtype), x)
    x = jnp.where(jnp.isposinf(x), jnp.asarray(top, x.dtype), x)
    return jnp.where(jnp.isneginf(x), jnp.asarray(bottom, x.dtype), x)


def _shift(function: Any) -> Any:
    def entry(x: Any, y: Any) -> Any:
        x, y = promote(x, y)
        return function(*jnp.broadcast_arrays(x, y))

    return entry


def _left(x: Any, y: Any) -> Any:
    bits = x.dtype.itemsize * 8
    return jnp.where((y < 0) | (y >= bits), 0, jnp.left_shift(x, jnp.clip(y, 0, bits - 1)))


def _right(x: Any, y: Any) -> Any:
    last = x.dtype.itemsize * 8 - 1
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    beyond = (y < 0) | (y > last)
    shifted = jnp.right_shift(x, jnp.where(beyond, last, y))
    return shifted if signed else jnp.where(beyond, 0, shifted)


register("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Tensor",
         "__lshift__.Scalar")(_shift(_left))  # fmt: skip
register("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Tensor",
         "__rshift__.Scalar")(_shift(_right))  # fmt: skip
