"""Kernels that break no rule: functions of `nl` with their values."""

import ml_dtypes
import numpy as np
from template import NEW, Kernel

_NL = "nki/api/nki/language/__init__.py"
_ISA = "nki/api/nki/isa/__init__.py"
_XY = ("x float32 128 64", "y float32 128 64")
_CLOSE = 2e-5
_INTEGERS = ("x int32 128 64", "y int32 128 64")


def _function(
    line: int, name: str, call: str, want: object, setup: str = "", **given: object
) -> Kernel:
    """A function of `nl` on `a` and `b`, tiles [128, 64]."""
    body = f"""
a, b = nl.load(x), nl.load(y)
{setup}
c = {call}
return save(c)
"""
    return Kernel(
        f"nl.{name}",
        f"{_NL}:{line}",
        f"{name} as {call}",
        body,
        want=want,
        **({"args": _XY, "within": _CLOSE} | given),
    )


def _program(
    family: str, source: str, what: str, body: str, want: object, **given: object
) -> Kernel:
    return Kernel(
        family, source, what, body, want=want, **({"args": _XY, "within": _CLOSE} | given)
    )


def _binary(line: int, name: str, ufunc: object) -> tuple[Kernel, ...]:
    """A function of two tiles, of a tile and a number, and of a tile and a column."""
    return (
        _function(line, name, f"nl.{name}(a, b)", lambda x, y: ufunc(x, y)),
        _function(line, name, f"nl.{name}(a, 2.0)", lambda x, y: ufunc(x, np.float32(2))),
        _function(line, name, f"nl.{name}(a, b[:, 0:1])", lambda x, y: ufunc(x, y[:, 0:1])),
    )


def _unary(line: int, name: str, function: object, within: float = 1e-3) -> Kernel:
    positive = name in ("log", "sqrt", "rsqrt", "reciprocal")
    setup = "a = nl.add(nl.abs(a), 1.0)" if positive else ""
    return _function(
        line,
        name,
        f"nl.{name}(a)",
        lambda x, y: function(np.abs(x) + 1 if positive else x),
        setup,
        within=within,
    )


_P = np.arange(128)[:, None]
_E = np.exp

KERNELS = (
    *_binary(651, "add", np.add),
    *_binary(686, "subtract", np.subtract),
    *_binary(720, "multiply", np.multiply),
    *_binary(770, "maximum", np.maximum),
    *_binary(804, "minimum", np.minimum),
    *_binary(1044, "less", np.less),
    *_binary(1076, "greater", np.greater),
    _function(754, "divide", "nl.divide(a, b)", lambda x, y: x / y),
    _function(651, "add", "nl.add(a, b, dtype=nl.bfloat16)", lambda x, y: x + y, within=2.0**-8),
    _function(1012, "equal", "nl.equal(a, a)", lambda x, y: np.ones((128, 64))),
    _function(
        1108, "bitwise_and", "nl.bitwise_and(a, b)", lambda x, y: x & y, args=_INTEGERS, within=0.0
    ),
    _function(1159, "invert", "nl.invert(a)", lambda x, y: ~x, args=_INTEGERS, within=0.0),
    _function(
        1175, "left_shift", "nl.left_shift(a, 3)", lambda x, y: x << 3, args=_INTEGERS, within=0.0
    ),
    _function(
        1192, "right_shift", "nl.right_shift(a, 1)", lambda x, y: x >> 1, args=_INTEGERS, within=0.0
    ),
    _function(
        1209,
        "logical_and",
        "nl.logical_and(a, b)",
        lambda x, y: np.logical_and(x, y),
        args=_INTEGERS,
    ),
    _function(
        1260, "logical_not", "nl.logical_not(a)", lambda x, y: np.logical_not(x), args=_INTEGERS
    ),
    _unary(926, "abs", np.abs, 0.0),
    _unary(956, "square", np.square),
    _unary(1277, "exp", np.exp),
    _unary(1305, "log", np.log),
    _unary(1334, "sqrt", np.sqrt),
    _unary(1362, "rsqrt", lambda x: 1 / np.sqrt(x)),
    _unary(1392, "tanh", np.tanh),
    _unary(1396, "sigmoid", lambda x: 1 / (1 + _E(-x))),
    _unary(1400, "relu", lambda x: np.maximum(x, 0)),
    _unary(1424, "silu", lambda x: x / (1 + _E(-x))),
    _unary(1432, "softplus", lambda x: np.log1p(_E(x))),
    _unary(1448, "reciprocal", lambda x: 1 / x),
    _unary(1503, "sin", np.sin),
    _unary(1531, "cos", np.cos),
    _unary(1611, "ceil", np.ceil, 0.0),
    _unary(1645, "floor", np.floor, 0.0),
    _unary(1679, "trunc", np.trunc, 0.0),
    _unary(1714, "negative", np.negative, 0.0),
    _unary(1746, "sign", np.sign, 0.0),
    _unary(1585, "arctan", np.arctan),
    _function(984, "power", "nl.power(a, 2.0)", lambda x, y: x * x, within=1e-4),
    _function(1795, "mod", "nl.mod(a, 3.0)", lambda x, y: np.mod(x, 3), within=1e-4),
    _function(1776, "fmod", "nl.fmod(a, 3.0)", lambda x, y: np.fmod(x, 3), within=1e-4),
    _function(
        1503, "sin", "nl.sin(nl.multiply(a, 10.0))", lambda x, y: np.sin(x * 10), within=2e-3
    ),
    _function(1814, "sum", "nl.sum(a, axis=1)", lambda x, y: x.sum(1, keepdims=True)),
    _function(
        1814, "sum", "nl.sum(a, axis=[1], keepdims=True)", lambda x, y: x.sum(1, keepdims=True)
    ),
    _function(
        1814,
        "sum",
        "nl.sum(a.reshape((128, 4, 16)), axis=[1, 2], keepdims=True)",
        lambda x, y: x.sum(1).reshape(128, 1, 1),
    ),
    _function(
        1832, "max", "nl.max(a, axis=1, keepdims=True)", lambda x, y: x.max(1, keepdims=True)
    ),
    _function(
        1850, "min", "nl.min(a, axis=-1, keepdims=True)", lambda x, y: x.min(1, keepdims=True)
    ),
    _function(
        1868, "mean", "nl.mean(a, axis=1, keepdims=True)", lambda x, y: x.mean(1, keepdims=True)
    ),
    _function(1905, "var", "nl.var(a, axis=1)", lambda x, y: x.var(1, keepdims=True), within=1e-4),
    _function(
        1887,
        "prod",
        "nl.prod(a[:, 0:8], axis=1, keepdims=True)",
        lambda x, y: x[:, :8].prod(1, keepdims=True),
        within=1e-4,
    ),
    _function(1923, "all", "nl.all(nl.greater(a, -100.0), axis=1)", None),
    _function(
        1940,
        "softmax",
        "nl.softmax(a, axis=$axis)",
        lambda x, y: _E(x) / _E(x).sum(1, keepdims=True),
        within=1e-3,
        vary={"axis": ("1", "-1", "[1]")},
    ),
    _function(
        1965,
        "rms_norm",
        "nl.rms_norm(a, b, axis=1, n=64)",
        lambda x, y: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * y,
        within=1e-4,
    ),
    _function(1993, "where", "nl.where(nl.greater(a, b), a, b)", lambda x, y: np.maximum(x, y)),
    _function(
        2053,
        "ones",
        "nl.ones((128, 64), dtype=nl.$dtype)",
        lambda x, y: np.ones((128, 64)),
        vary={"dtype": ("float32", "bfloat16", "int32")},
    ),
    _function(
        2069,
        "full",
        "nl.full((128, 64), 3.0, dtype=nl.float32)",
        lambda x, y: np.full((128, 64), 3.0),
    ),
    _function(2084, "zeros_like", "nl.zeros_like(a)", lambda x, y: np.zeros((128, 64))),
    _function(
        2164,
        "broadcast_to",
        "nl.broadcast_to(a[:, 0:1], (128, 64))",
        lambda x, y: np.repeat(x[:, :1], 64, 1),
        within=0.0,
    ),
    _function(
        2164,
        "broadcast_to",
        "nl.broadcast_to(a[0:1, :], (128, 64))",
        lambda x, y: np.repeat(x[:1], 128, 0),
        within=0.0,
    ),
    _function(2148, "expand_dims", "nl.expand_dims(a, 1)", lambda x, y: x[:, None], within=0.0),
    _function(2183, "transpose", "nl.transpose(a)", lambda x, y: x.T, within=0.0, on=NEW),
    _function(2183, "transpose", "nl.transpose(a)", lambda x, y: x.T, within=1e-2, on=("trn1",)),
    _function(
        2210, "matmul", "nl.matmul(a, b, transpose_x=True)", lambda x, y: x.T @ y, within=1e-2
    ),
    _function(
        2210,
        "matmul",
        "nl.matmul(a, nl.load(z))",
        lambda x, y, z: x @ z,
        within=1e-2,
        args=(*_XY, "z float32 64 512"),
    ),
    _function(
        2271,
        "load_transpose2d",
        "nl.load_transpose2d(x)",
        lambda x, y: x.T,
        within=0.0,
        args=("x $dtype 128 64", "y float32 128 64"),
        vary={"dtype": ("float32", "bfloat16")},
    ),
    _function(
        2283,
        "gather_flattened",
        "nl.gather_flattened(a, nl.load(i))",
        lambda x, y, i: np.take_along_axis(x, i.astype(np.int64), 1),
        within=0.0,
        args=(*_XY, "i uint32 128 64"),
    ),
    _function(
        2572,
        "load",
        "nl.load(x, dtype=nl.bfloat16)",
        lambda x, y: x.astype(ml_dtypes.bfloat16),
        within=0.0,
    ),
    _function(2675, "rand", "nl.rand((128, 64), dtype=nl.float32)", None),
    _function(
        2635,
        "shared_identity_matrix",
        "nl.shared_identity_matrix(n=$n, dtype=nl.$dtype)",
        None,
        vary={"n": ("32", "128"), "dtype": ("float32", "bfloat16", "uint8")},
    ),
)
