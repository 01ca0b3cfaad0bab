"""Activation functions in float64, and the error that an evaluation in float32 may have."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nki_reference.numbers import Array

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """The error function, element by element."""
    return np.asarray(_erf(x), dtype=np.float64)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    with np.errstate(all="ignore"):
        small = np.exp(-np.abs(x))
        return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _gelu(x: Array) -> Array:
    return np.where(np.isneginf(x), np.nan, x * 0.5 * (1 + erf(x / math.sqrt(2))))


def _gelu_dx(x: Array) -> Array:
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return np.asarray(0.5 * (1 + erf(x / math.sqrt(2))) + x * density)


def _gelu_tanh(x: Array) -> Array:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(x * sigmoid(2 * inner))


def _gelu_sigmoid_dx(x: Array) -> Array:
    gate = sigmoid(1.702 * x)
    return np.asarray(gate * (1 + 1.702 * x * (1 - gate)))


def _silu_dx(x: Array) -> Array:
    gate = sigmoid(x)
    return np.asarray(gate * (1 + x * (1 - gate)))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sin(x: Array) -> Array:
    # No range reduction: a cubic about +-pi goes on outside of [-pi, pi].
    beyond = x - np.copysign(math.pi, x)
    return np.where(np.abs(x) <= math.pi, np.sin(x), beyond**3 / 6 - beyond)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "prelu": lambda x: np.where(x > 0, x, x * 0),
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": _silu_dx,
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "erf": erf,
    "erf_dx": lambda x: np.exp(-x * x) * 2 / math.sqrt(math.pi),
    "exp": np.exp,
    "log": np.log,
    "sin": _sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
    "abs": np.abs,
}
EXACT = ("copy", "relu", "sign", "abs")
# Input ranges of the table "Supported Activation Functions"; others take every number.
RANGES: dict[str, tuple[float, float]] = {
    "log": (2.0**-64, 2.0**64),
    "arctan": (-math.pi / 2, math.pi / 2),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
}
RECIPROCAL_RANGE = (2.0**-42, 2.0**42)
# Where intermediate results overflow; exact functions go on.
HUGE = 1e37


def in_range(name: str, x: Array) -> Array:
    """Where the documents say what the function gives. `sin` is defined everywhere."""
    size = np.abs(x)
    if name in EXACT:
        return np.isfinite(x.astype(np.float32))
    if name == "reciprocal":
        low, high = RECIPROCAL_RANGE
        return (size >= low) & (size <= high)
    if name in RANGES:
        low, high = RANGES[name]
        return (x >= low) & (x <= high)
    return size <= HUGE


def evaluate(name: str, low: Array, middle: Array, high: Array) -> tuple[Array, Array]:
    """(values, errors) of the function where its argument lies in [low, high].

    The range of the argument is carried through by its ends and by what the function does between
    them; outside of the documented input range every result is right.
    """
    function = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        value = function(middle)
        spread = np.fmax(np.abs(function(low) - value), np.abs(function(high) - value))
        # Between the ends a function may bend; none of them has a steeper slope than its ends'
        # by more than this factor on so short an interval.
        error = 2 * spread
        if name not in EXACT:
            # The terms of which these functions are made are no larger than 1 + |x|.
            scale = np.abs(value) + np.where(np.abs(value) < 1e-3, np.abs(middle) * 1e-4, 0)
            size = np.abs(middle)
            terms = size if name.startswith("gelu") else np.minimum(1.0, size)
            error = error + scale * 2.0**-18 + 3e-7 * terms + 1e-37
        error = np.where(in_range(name, middle), error, np.inf)
        return value, np.where(np.isnan(error), np.inf, error)
