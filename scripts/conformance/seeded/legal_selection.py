"""Kernels that break no rule: selections, scans, statistics, shuffles, random numbers, copies."""

import numpy as np
from template import NEW, Kernel

_ISA = "nki/api/nki/isa/__init__.py"
_XY = ("x float32 128 64", "y float32 128 64")
_BF16 = 2.0**-7
_CLOSE = 2e-5


def _call(
    line: int, what: str, call: str, want: object = None, setup: str = "", **given: object
) -> Kernel:
    """`a`, `b` are tiles [128, 64] in SBUF, `d` an unwritten one; the result is `d`."""
    result = given.pop("result", "d")
    body = f"""
a, b, d = load(x), load(y), sb((128, 64))
{setup}
{call}
return save({result})
"""
    family = call.partition("(")[0].removeprefix("nisa.").strip()
    return Kernel(
        family, f"{_ISA}:{line}", what, body, want=want, **({"args": _XY, "within": _CLOSE} | given)
    )


def _reference(operator: str) -> dict[str, object]:
    return {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
        "minimum": np.minimum, "less": np.less, "greater_equal": np.greater_equal,
        "equal": np.equal, "not_equal": np.not_equal, "divide": np.divide,
    }[operator]  # fmt: skip


def _each(make: object, *names: str) -> tuple[Kernel, ...]:
    """A kernel for each name; its values depend on it."""
    return tuple(make(name) for name in names)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


_ACTIVATIONS = {
    "exp": np.exp, "tanh": np.tanh, "square": np.square, "copy": lambda x: x, "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0), "sigmoid": _sigmoid, "silu": lambda x: x * _sigmoid(x),
    "sign": np.sign, "softplus": lambda x: np.log1p(np.exp(x)),
}  # fmt: skip
_INTEGERS = ("x int32 128 64", "y int32 128 64")

KERNELS = (
    _call(
        464,
        "a predicated copy",
        "nisa.tensor_copy_predicated(dst=b, src=a, predicate=m)",
        lambda x, y, k: np.where(k > 0, x, y),
        within=0.0,
        result="b",
        setup="m = load(k, nl.$dtype)",
        args=(*_XY, "k int32 128 64"),
        vary={"dtype": ("uint8", "uint16", "uint32")},
    ),
    _call(
        465,
        "two predicated copies fill a tile",
        "nisa.tensor_copy_predicated(dst=d, src=b, predicate=m, reverse_pred=True)",
        lambda x, y, k: np.where(k > 0, x, y),
        within=0.0,
        setup="m = load(k, nl.uint8); nisa.tensor_copy_predicated(dst=d, src=a, predicate=m)",
        args=(*_XY, "k int32 128 64"),
    ),
    _call(
        2888,
        "select_reduce",
        "nisa.select_reduce(dst=d, predicate=m, on_true=a, on_false=0.0, "
        "reduce_res=r, reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        lambda x, y, k: np.where(k > 0, x, 0).max(1, keepdims=True),
        within=0.0,
        setup="m, r = load(k, nl.$dtype), sb((128, 1))",
        result="r",
        args=(*_XY, "k int32 128 64"),
        vary={"dtype": ("uint8", "int8", "int16", "uint16")},
    ),
    _call(
        2812,
        "range_select",
        "nisa.range_select(dst=d, on_true_tile=a, comp_op0=nl.greater_equal, "
        "comp_op1=nl.less, bound0=lo, bound1=hi, on_false_value=-3.4028235e+38)",
        lambda x, y: np.where(
            (np.arange(64) >= 8) & (np.arange(64) < 40), x, np.float32(-3.4028235e38)
        ),
        setup="lo, hi = sb((128, 1)), sb((128, 1)); nisa.memset(lo, value=8.0); "
        "nisa.memset(hi, value=40.0)",
        on=NEW,
        within=0.0,
    ),
    _call(
        2020,
        "a scan",
        "nisa.tensor_tensor_scan(dst=d, data0=c, data1=b, initial=0.0, "
        "op0=nl.multiply, op1=nl.add)",
        lambda x, y: np.cumsum(y, 1),
        within=1e-4,
        setup="c = sb((128, 64)); nisa.memset(c, value=1.0)",
    ),
    _call(
        2035,
        "a scan from a vector on, one input in PSUM",
        "nisa.tensor_tensor_scan(dst=d, data0=in_psum(x), data1=b, initial=b[:, 0:1], "
        "op0=nl.maximum, op1=nl.$op)",
        None,
        vary={"op": ("add", "minimum")},
    ),
    _call(
        2462,
        "two operators",
        "nisa.scalar_tensor_tensor(dst=d, data=a, op0=nl.multiply, "
        "operand0=$operand, op1=nl.add, operand1=b)",
        lambda x, y: x * 2 + y,
        setup="v = sb((128, 1)); nisa.memset(v, value=2.0)",
        vary={"operand": ("2.0", "v")},
    ),
    _call(
        2520,
        "a sum beside a result",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.multiply, "
        "operand0=2.0, reduce_op=nl.add, reduce_res=r)",
        lambda x, y: (2 * x).sum(1, keepdims=True),
        setup="r = sb((128, 1))",
        result="r",
        within=1e-4,
    ),
    _call(
        2545,
        "a maximum from a start, negated",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=0.0, reduce_op=nl.maximum, "
        "reduce_res=r, reduce_cmd=nisa.reduce_cmd.load_reduce, reduce_init=$init, "
        "reduce_res_negate=True)",
        lambda x, y: -np.maximum(x.max(1, keepdims=True), 1.0),
        setup="r, v = sb((128, 1)), sb((128, 1)); nisa.memset(v, value=1.0)",
        result="r",
        vary={"init": ("1.0", "v")},
    ),
    _call(
        1942,
        "mean and variance",
        "nisa.bn_aggr(dst=r, data=s)",
        lambda x, y: np.stack([x.mean(1), x.var(1)], 1),
        within=1e-4,
        result="r",
        setup="r, s = sb((128, 2)), sb((128, 2, 6)); nisa.bn_stats(dst=s[:, 0], data=a[:, 0:32]); "
        "nisa.bn_stats(dst=s[:, 1], data=a[:, 32:64])",
    ),
    _call(
        2066,
        "a shuffle",
        "nisa.nc_stream_shuffle(dst=d, src=a, shuffle_mask=list(range(31, -1, -1)))",
        lambda x, y: x.reshape(4, 32, 64)[:, ::-1].reshape(128, 64),
        within=0.0,
    ),
    _call(
        2073,
        "a shuffle that leaves partitions",
        "nisa.nc_stream_shuffle(dst=b, src=a, shuffle_mask=[0] * 16 + [255] * 16)",
        lambda x, y: np.where((np.arange(128) % 32 < 16)[:, None], x[np.arange(128) // 32 * 32], y),
        result="b",
        within=0.0,
    ),
    _call(
        2094,
        "a shuffle between quadrants",
        "nisa.nc_stream_shuffle(dst=d[$to:$to + 32], src=a[32:64], shuffle_mask=[5] * 32)",
        lambda x, y: np.repeat(x[37:38], 32, 0),
        result="d[$to:$to + 32]",
        within=0.0,
        vary={"to": ("0", "64", "96")},
    ),
    _call(
        2076,
        "a shuffle in place",
        "nisa.nc_stream_shuffle(dst=a, src=a, shuffle_mask=[1] * 32)",
        lambda x, y: np.repeat(x[1::32], 32, 0),
        result="a",
        within=0.0,
    ),
    _call(
        2130,
        "nothing is dropped, or all",
        "nisa.dropout(dst=d, data=a, prob=$prob)",
        lambda x, y: x,
        vary={"prob": ("0.0",)},
        within=0.0,
    ),
    _call(
        2108,
        "random integers",
        "nisa.rng(dst=e)",
        None,
        setup="e = sb((128, 64), nl.$dtype)",
        result="e",
        vary={"dtype": ("uint8", "int16", "uint32")},
    ),
    _call(
        2117,
        "random integers of GpSimd",
        "nisa.rng(dst=e, engine=nisa.engine.gpsimd)",
        None,
        setup="e = sb((128, 64), nl.uint32)",
        result="e",
        on=NEW,
    ),
    _call(
        2150,
        "equal seeds give equal numbers",
        "nisa.tensor_tensor(dst=d, data1=e, data2=f, op=nl.not_equal)",
        lambda x, y: np.zeros((128, 64)),
        within=0.0,
        args=_INTEGERS,
        setup="e, f = sb((128, 64), nl.uint32), sb((128, 64), nl.uint32); "
        "nisa.set_rng_seed(src_seeds=a[0:1, 0:1]); nisa.rng(dst=e); "
        "nisa.set_rng_seed(src_seeds=a[0:1, 0:1]); nisa.rng(dst=f)",
    ),
    _call(
        2180,
        "seeds of GpSimd",
        "nisa.rng(dst=e, engine=nisa.engine.gpsimd)",
        None,
        setup="e, s = sb((128, 64), nl.uint32), load(x)[:, 0:6]; nisa.rand_set_state(src_seeds=s)",
        result="e",
        args=("x uint32 128 64", "y float32 128 64"),
        on=NEW,
    ),
    _call(
        2212,
        "the state of the generator",
        "nisa.rand_get_state(dst=e)",
        None,
        setup="e, s = sb((128, 6), nl.uint32), load(x)[:, 0:6]; nisa.rand_set_state(src_seeds=s)",
        result="e",
        args=("x uint32 128 64", "y float32 128 64"),
        on=NEW,
    ),
    _call(2235, "uniform numbers", "nisa.rand2(dst=d, min=0.0, max=1.0)", None, on=("trn3",)),
    _call(
        390,
        "a copy between PSUM and SBUF",
        "nisa.tensor_copy(dst=d, src=p, engine=nisa.engine.$engine)",
        lambda x, y: x,
        setup="p = in_psum(x)",
        within=0.0,
        vary={"engine": ("vector", "unknown")},
    ),
    _call(
        397,
        "a copy keeps all bits",
        "nisa.tensor_copy(dst=e, src=a, engine=nisa.engine.$engine)",
        lambda x, y: x,
        args=_INTEGERS,
        within=0.0,
        setup="e = sb((128, 64), nl.int32)",
        result="e",
        vary={"engine": ("vector", "gpsimd")},
    ),
    _call(
        390,
        "a copy to another quadrant",
        "nisa.tensor_copy(dst=d[$to:$to + 32], src=a[32:64])",
        lambda x, y: x[32:64],
        within=0.0,
        result="d[$to:$to + 32]",
        vary={"to": ("0", "96")},
    ),
    _call(
        390,
        "a copy between halves",
        "nisa.tensor_copy(dst=d[64:128], src=a[0:64])",
        lambda x, y: x[:64],
        within=0.0,
        result="d[64:128]",
    ),
    _call(
        435,
        "a fill of any type",
        "nisa.memset(dst=e, value=1)",
        lambda x, y: np.ones((128, 64)),
        setup="e = sb((128, 64), nl.$dtype)",
        result="e",
        within=0.0,
        vary={"dtype": ("int8", "uint16", "int32", "float16", "bfloat16", "float32")},
    ),
    _call(
        1700,
        "iota",
        "nisa.iota(dst=e, pattern=[[16, 4], [1, 16]], offset=5, channel_multiplier=64)",
        lambda x, y: 5 + 64 * np.arange(128)[:, None] + np.arange(64),
        within=0.0,
        setup="e = sb((128, 64), nl.$dtype)",
        result="e",
        vary={"dtype": ("int32", "float32", "uint16")},
    ),
    _call(
        1750,
        "a causal mask",
        "nisa.affine_select(dst=d, pattern=[[-1, 64]], channel_multiplier=1, "
        "on_true_tile=a, on_false_value=-1e9, cmp_op=nl.greater_equal)",
        lambda x, y: np.where(np.arange(128)[:, None] >= np.arange(64), x, np.float32(-1e9)),
        within=0.0,
    ),
    _call(
        1885,
        "nc_n_gather",
        "nisa.nc_n_gather(dst=d, data=a, indices=g)",
        lambda x, y, i: np.take_along_axis(x, i.astype(np.int64), 1),
        within=0.0,
        setup="g = load(i)",
        args=(*_XY, "i uint32 128 64"),
    ),
    _call(
        1840,
        "local_gather",
        "nisa.local_gather(dst=e, src_buffer=a, index=g, num_elem_per_idx=$n)",
        None,
        setup="g = load(i, nl.uint16); e = sb((128, 64 * $n))",
        result="e",
        args=(*_XY, "i int32 128 4"),
        vary={"n": ("1", "2")},
    ),
    _call(
        3230,
        "nonzero_with_count",
        "nisa.nonzero_with_count(dst=e, src=c, index_offset=$offset)",
        None,
        setup="c, e = load(x), sb((128, 65), nl.int32); nisa.memset(e, value=0)",
        result="e",
        on=NEW,
        vary={"offset": ("0", "16")},
    ),
    _call(
        3330,
        "topk",
        "nisa.topk(val_dst=v, idx_dst=e, src=c, n=64)",
        None,
        result="v",
        setup="c, v, e = load(x, nl.bfloat16), sb((128, 8), nl.bfloat16), sb((128, 8), nl.uint32)",
    ),
    _call(
        2430,
        "sequence_bounds",
        "nisa.sequence_bounds(dst=e, segment_ids=s)",
        None,
        result="e",
        setup="s, e = sb((1, 8)), sb((1, 2, 8)); nisa.memset(s, value=1.0)",
    ),
)
