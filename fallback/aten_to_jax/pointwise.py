"""Pointwise arithmetic, rounding, logic, comparison and selection."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trnx.fallback.aten_to_jax.dtypes import (
    JAX_DTYPES,
    cast,
    compute,
    factors,
    is_floating,
    is_integer,
    ndim,
    pointwise,
    promote,
    result_dtype,
    wide,
)
from trnx.fallback.aten_to_jax.table import register, require


def divide(x: Any, y: Any) -> Any:
    """x / y, rounded once.

    XLA's simplifier turns the division by a constant or a broadcast value into a product with the
    reciprocal, 1 / sqrt into rsqrt, and (x / y) / z into x / (y * z): each is one unit in the last
    place off where eager is not. It does not look through a barrier.
    """
    return lax.div(*lax.optimization_barrier(tuple(jnp.broadcast_arrays(x, y))))


def _reciprocal(x: Any) -> Any:
    return divide(jnp.ones_like(x), x)


def _exp2(x: Any) -> Any:
    """XLA's own exp2 is exp(x log 2), which loses the last digits of large results."""
    return lax.pow(jnp.full_like(x, 2), x)


def _half_exponentials(x: Any) -> tuple[Any, Any]:
    """exp(x) / 2 and exp(-x) / 2, finite up to where cosh is; XLA has exp(x - log 2)."""
    root = jnp.exp(x / 2)
    return 0.5 * root * root, divide(divide(jnp.full_like(x, 0.5), root), root)


def _cosh(x: Any) -> Any:
    up, down = _half_exponentials(x)
    return up + down


def _sinh(x: Any) -> Any:
    up, down = _half_exponentials(x)
    return jnp.where(jnp.abs(x) < 1, jnp.sinh(x), up - down)


def _positive_zero(function: Any) -> Any:
    """`function` with +0 for both zeros, as in eager."""
    return lambda x: jnp.where(x == 0, 0.0, function(x))


_FLOAT_UNARY = {
    "exp": jnp.exp,
    "exp2": _exp2,
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
    "sinh": _sinh,
    "cosh": _cosh,
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
    "special_i1e": _positive_zero(lax.bessel_i1e),
    "i0": lambda x: jax.scipy.special.i0(x),
    "special_i1": _positive_zero(lambda x: jax.scipy.special.i1(x)),
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
    "relu": lambda x: jnp.where(x < 0, cast(0, x.dtype), x),
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
    if decimals >= 0:
        return divide(jnp.round(x * scale), cast(scale, x.dtype))
    return jnp.round(divide(x, cast(scale, x.dtype))) * scale


# ------------------------------------------------------------------------------------- arithmetic


def _is_zero(x: Any) -> bool:
    """XLA's simplifier leaves an addition of 0.0 out, which makes +0 of -0."""
    return isinstance(x, float) and x == 0


def _scaled(x: Any, y: Any, alpha: Any) -> tuple[Any, Any]:
    """x and alpha * y; in half precision, alpha is rounded to that."""
    dtype = JAX_DTYPES[result_dtype(x, y)]
    plain_zero = _is_zero(x) or _is_zero(y)
    x, y = compute(x, y)
    if alpha != 1:
        y = y * wide(cast(alpha, dtype))
    return lax.optimization_barrier((x, y)) if plain_zero else (x, y)


@register("add.Tensor", "add.Scalar")
def add(x: Any, y: Any, alpha: Any = 1) -> Any:
    """x + alpha * y; right for the sign of zero too."""
    x, y = _scaled(x, y, alpha)
    return x | y if x.dtype == np.bool_ else x + y


@register("sub.Tensor", "sub.Scalar")
def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    if JAX_DTYPES[result_dtype(x, y)].kind in "iu":
        return jnp.subtract(*_scaled(x, y, alpha))
    return add(x, y, -alpha)  # eager adds: the signs of zeros show it


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
    quotient = divide(x - rest, y)
    quotient = jnp.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    whole = jnp.floor(quotient)
    whole = jnp.where(quotient - whole > 0.5, whole + 1, whole)
    whole = jnp.where(quotient != 0, whole, jnp.copysign(jnp.zeros_like(x), divide(x, y)))
    return jnp.where(y == 0, divide(x, y), whole)


def _trunc_divide(x: Any, y: Any) -> Any:
    if is_integer(x):
        _nonzero(y)
        return lax.div(x, y)
    return jnp.trunc(divide(x, y))


@register("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return divide(*factors(x, y, floating=True))
    x, y = _stepwise(x, y)
    return _floor_divide(x, y) if rounding_mode == "floor" else _trunc_divide(x, y)


def _stepwise(x: Any, y: Any) -> Any:
    """Operands of a quotient that is rounded to a whole number: eager rounds every step to half
    precision, but not with a number."""
    return jnp.broadcast_arrays(*(promote(x, y) if ndim(y) else factors(x, y)))


@register("floor_divide", "floor_divide.Scalar")
def _floor_divide_entry(x: Any, y: Any) -> Any:
    return _floor_divide(*_stepwise(x, y))


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


_POWERS = {
    0.5: jnp.sqrt,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -0.5: lambda x: _reciprocal(jnp.sqrt(x)),
    -1: _reciprocal,
    -2: lambda x: _reciprocal(x * x),
}


@register("pow.Tensor_Scalar")
def _power_of_number(x: Any, exponent: Any) -> Any:
    """Eager has its own functions for some exponents: they differ at -inf and -0."""
    base, y = compute(x, exponent)
    rooted = abs(exponent) == 0.5 and x.dtype == np.float16  # not there
    special = _POWERS.get(exponent) if is_floating(base) and not rooted else None
    return _power(base, y) if special is None else special(base)


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
    parts = lax.div(x, jnp.where(divisor == 0, 1, divisor)), y
    if x.dtype.itemsize < 4:  # C promotes to int, and takes the absolute value of that
        parts = tuple(cast(v, np.dtype(np.int32)) for v in parts)
    product = jnp.abs(parts[0] * parts[1])
    return jnp.where(divisor == 0, 0, cast(product, x.dtype))


# Of two equal values (zeros of either sign) eager's vectors give the second, fmax and fmin the
# first, and clamping between numbers the tensor's.


def _maximum(x: Any, y: Any) -> Any:
    return jnp.where((x > y) | (x != x), x, y)


def _minimum(x: Any, y: Any) -> Any:
    return jnp.where((x < y) | (x != x), x, y)


def _fmax(x: Any, y: Any) -> Any:
    return jnp.where((x >= y) | (y != y), x, y)


def _fmin(x: Any, y: Any) -> Any:
    return jnp.where((x <= y) | (y != y), x, y)


def _xlogy(x: Any, y: Any) -> Any:
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, 0.0, x * jnp.log(y)))


def _xlog1py(x: Any, y: Any) -> Any:
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, 0.0, x * jnp.log1p(y)))


def _logaddexp2(x: Any, y: Any) -> Any:
    top = jnp.maximum(x, y)
    low = jnp.log2(1 + jnp.exp2(-jnp.abs(x - y)))
    return jnp.where(jnp.isinf(x) & (x == y), x, top + low)


register("mul.Tensor", "mul.Scalar")(lambda x, y: jnp.multiply(*factors(x, y)))
register("div.Tensor", "div.Scalar")(lambda x, y: divide(*factors(x, y, floating=True)))
pointwise("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor", _remainder)
pointwise("fmod.Tensor fmod.Scalar", _fmod)
pointwise("pow.Tensor_Tensor pow.Scalar", _power)
pointwise("maximum", _maximum)
pointwise("minimum", _minimum)
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


@register("clamp")
def clamp(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    """Between numbers, either of which may be None."""
    low, high = named.get("min", low), named.get("max", high)
    x, *bounds = promote(x, *(b for b in (low, high) if b is not None))
    if low is not None:
        x = _maximum(bounds[0], x)
    return x if high is None else _minimum(bounds[-1], x)


@register("clamp.Tensor")
def _clamp_tensor(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    x, *bounds = promote(x, *(b for b in (low, high) if b is not None))
    if low is not None:
        x = _maximum(x, bounds[0])
    return x if high is None else _minimum(x, bounds[-1])


@register("clamp_min")
def _clamp_min(x: Any, low: Any) -> Any:
    return clamp(x, low)


@register("clamp_max")
def _clamp_max(x: Any, high: Any) -> Any:
    return clamp(x, None, high)


@register("clamp_min.Tensor")
def _clamp_min_tensor(x: Any, low: Any) -> Any:
    return _maximum(*promote(x, low))


@register("clamp_max.Tensor")
def _clamp_max_tensor(x: Any, high: Any) -> Any:
    return _minimum(*promote(x, high))


@register("lerp.Scalar", "lerp.Tensor")
def _lerp(start: Any, end: Any, weight: Any) -> Any:
    start, end = compute(start, end)
    weight = cast(weight, start.dtype)
    gap = end - start
    return jnp.where(jnp.abs(weight) < 0.5, start + weight * gap, end - gap * (1 - weight))


@register("addcmul")
def _addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    x, a, b = compute(x, a, b)
    return x + cast(value, x.dtype) * a * b


@register("addcdiv")
def _addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    x, a, b = compute(x, a, b)
    return x + divide(cast(value, x.dtype) * a, b)


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
