"""Kernels that break no rule: functions of `nl` with their values."""

import ml_dtypes
import numpy as np
from functions_of_tiles import INTEGERS, XY, E, binary, function, unary
from template import NEW

KERNELS = (
    *binary(651, "add", np.add),
    *binary(686, "subtract", np.subtract),
    *binary(720, "multiply", np.multiply),
    *binary(770, "maximum", np.maximum),
    *binary(804, "minimum", np.minimum),
    *binary(1044, "less", np.less),
    *binary(1076, "greater", np.greater),
    function(754, "divide", "nl.divide(a, b)", lambda x, y: x / y),
    function(651, "add", "nl.add(a, b, dtype=nl.bfloat16)", lambda x, y: x + y, within=2.0**-8),
    function(1012, "equal", "nl.equal(a, a)", lambda x, y: np.ones((128, 64))),
    function(
        1108, "bitwise_and", "nl.bitwise_and(a, b)", lambda x, y: x & y, args=INTEGERS, within=0.0
    ),
    function(1159, "invert", "nl.invert(a)", lambda x, y: ~x, args=INTEGERS, within=0.0),
    function(
        1175, "left_shift", "nl.left_shift(a, 3)", lambda x, y: x << 3, args=INTEGERS, within=0.0
    ),
    function(
        1192, "right_shift", "nl.right_shift(a, 1)", lambda x, y: x >> 1, args=INTEGERS, within=0.0
    ),
    function(
        1209,
        "logical_and",
        "nl.logical_and(a, b)",
        lambda x, y: np.logical_and(x, y),
        args=INTEGERS,
    ),
    function(
        1260, "logical_not", "nl.logical_not(a)", lambda x, y: np.logical_not(x), args=INTEGERS
    ),
    unary(926, "abs", np.abs, 0.0),
    unary(956, "square", np.square),
    unary(1277, "exp", np.exp),
    unary(1305, "log", np.log),
    unary(1334, "sqrt", np.sqrt),
    unary(1362, "rsqrt", lambda x: 1 / np.sqrt(x)),
    unary(1392, "tanh", np.tanh),
    unary(1396, "sigmoid", lambda x: 1 / (1 + E(-x))),
    unary(1400, "relu", lambda x: np.maximum(x, 0)),
    unary(1424, "silu", lambda x: x / (1 + E(-x))),
    unary(1432, "softplus", lambda x: np.log1p(E(x))),
    unary(1448, "reciprocal", lambda x: 1 / x),
    unary(1503, "sin", np.sin),
    unary(1531, "cos", np.cos),
    unary(1611, "ceil", np.ceil, 0.0),
    unary(1645, "floor", np.floor, 0.0),
    unary(1679, "trunc", np.trunc, 0.0),
    unary(1714, "negative", np.negative, 0.0),
    unary(1746, "sign", np.sign, 0.0),
    unary(1585, "arctan", np.arctan),
    function(984, "power", "nl.power(a, 2.0)", lambda x, y: x * x, within=1e-4),
    function(1795, "mod", "nl.mod(a, 3.0)", lambda x, y: np.mod(x, 3), within=1e-4),
    function(1776, "fmod", "nl.fmod(a, 3.0)", lambda x, y: np.fmod(x, 3), within=1e-4),
    function(1503, "sin", "nl.sin(nl.multiply(a, 10.0))", lambda x, y: np.sin(x * 10), within=2e-3),
    function(1814, "sum", "nl.sum(a, axis=1)", lambda x, y: x.sum(1, keepdims=True)),
    function(
        1814, "sum", "nl.sum(a, axis=[1], keepdims=True)", lambda x, y: x.sum(1, keepdims=True)
    ),
    function(
        1814,
        "sum",
        "nl.sum(a.reshape((128, 4, 16)), axis=[1, 2], keepdims=True)",
        lambda x, y: x.sum(1).reshape(128, 1, 1),
    ),
    function(1832, "max", "nl.max(a, axis=1, keepdims=True)", lambda x, y: x.max(1, keepdims=True)),
    function(
        1850, "min", "nl.min(a, axis=-1, keepdims=True)", lambda x, y: x.min(1, keepdims=True)
    ),
    function(
        1868, "mean", "nl.mean(a, axis=1, keepdims=True)", lambda x, y: x.mean(1, keepdims=True)
    ),
    function(1905, "var", "nl.var(a, axis=1)", lambda x, y: x.var(1, keepdims=True), within=1e-4),
    function(
        1887,
        "prod",
        "nl.prod(a[:, 0:8], axis=1, keepdims=True)",
        lambda x, y: x[:, :8].prod(1, keepdims=True),
        within=1e-4,
    ),
    function(1923, "all", "nl.all(nl.greater(a, -100.0), axis=1)", None),
    function(
        1940,
        "softmax",
        "nl.softmax(a, axis=$axis)",
        lambda x, y: E(x) / E(x).sum(1, keepdims=True),
        within=1e-3,
        vary={"axis": ("1", "-1", "[1]")},
    ),
    function(
        1965,
        "rms_norm",
        "nl.rms_norm(a, b, axis=1, n=64)",
        lambda x, y: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * y,
        within=1e-4,
    ),
    function(1993, "where", "nl.where(nl.greater(a, b), a, b)", lambda x, y: np.maximum(x, y)),
    function(
        2053,
        "ones",
        "nl.ones((128, 64), dtype=nl.$dtype)",
        lambda x, y: np.ones((128, 64)),
        vary={"dtype": ("float32", "bfloat16", "int32")},
    ),
    function(
        2069,
        "full",
        "nl.full((128, 64), 3.0, dtype=nl.float32)",
        lambda x, y: np.full((128, 64), 3.0),
    ),
    function(2084, "zeros_like", "nl.zeros_like(a)", lambda x, y: np.zeros((128, 64))),
    function(
        2164,
        "broadcast_to",
        "nl.broadcast_to(a[:, 0:1], (128, 64))",
        lambda x, y: np.repeat(x[:, :1], 64, 1),
        within=0.0,
    ),
    function(
        2164,
        "broadcast_to",
        "nl.broadcast_to(a[0:1, :], (128, 64))",
        lambda x, y: np.repeat(x[:1], 128, 0),
        within=0.0,
    ),
    function(2148, "expand_dims", "nl.expand_dims(a, 1)", lambda x, y: x[:, None], within=0.0),
    function(2183, "transpose", "nl.transpose(a)", lambda x, y: x.T, within=0.0, on=NEW),
    function(2183, "transpose", "nl.transpose(a)", lambda x, y: x.T, within=1e-2, on=("trn1",)),
    function(
        2210, "matmul", "nl.matmul(a, b, transpose_x=True)", lambda x, y: x.T @ y, within=1e-2
    ),
    function(
        2210,
        "matmul",
        "nl.matmul(a, nl.load(z))",
        lambda x, y, z: x @ z,
        within=1e-2,
        args=(*XY, "z float32 64 512"),
    ),
    function(
        2271,
        "load_transpose2d",
        "nl.load_transpose2d(x)",
        lambda x, y: x.T,
        within=0.0,
        args=("x $dtype 128 64", "y float32 128 64"),
        vary={"dtype": ("float32", "bfloat16")},
    ),
    function(
        2283,
        "gather_flattened",
        "nl.gather_flattened(a, nl.load(i))",
        lambda x, y, i: np.take_along_axis(x, i.astype(np.int64), 1),
        within=0.0,
        args=(*XY, "i uint32 128 64"),
    ),
    function(
        2572,
        "load",
        "nl.load(x, dtype=nl.bfloat16)",
        lambda x, y: x.astype(ml_dtypes.bfloat16),
        within=0.0,
    ),
    function(2675, "rand", "nl.rand((128, 64), dtype=nl.float32)", None),
    function(
        2635,
        "shared_identity_matrix",
        "nl.shared_identity_matrix(n=$n, dtype=nl.$dtype)",
        None,
        vary={"n": ("32", "128"), "dtype": ("float32", "bfloat16", "uint8")},
    ),
)
