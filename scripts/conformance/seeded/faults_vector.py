"""Kernels with one fault in an instruction of the Vector or Scalar Engine on two tiles or one."""

from template import MARK, OLD, Kernel

_ISA = "nki/api/nki/isa/__init__.py"


def _call(line: int, what: str, call: str, setup: str = "", **given: object) -> Kernel:
    """`a`, `b` are tiles [128, 64] in SBUF, `d` an unwritten one; the result is `d`."""
    body = f"""
a, b, d = load(x), load(y), sb((128, 64))
{setup}
{call}  {MARK}
return save(d)
"""
    args = ("x float32 128 64", "y float32 128 64")
    family = call.partition("(")[0].removeprefix("nisa.").strip()
    return Kernel(family, f"{_ISA}:{line}", what, body, **({"args": args} | given))


_INT = ("x int32 128 64", "y int32 128 64")

KERNELS = (
    _call(
        1021,
        "tiles of other sizes",
        "nisa.tensor_tensor(dst=d, data1=a, data2=b[$cut], op=nl.$op)",
        vary={"cut": ("0:64", ":, 0:32"), "op": ("add", "maximum")},
    ),
    _call(
        1041,
        "both inputs in PSUM",
        "nisa.tensor_tensor(dst=d, data1=p, data2=q, op=nl.$op)",
        setup="p, q = in_psum(x), in_psum(y)",
        vary={"op": ("multiply", "subtract")},
    ),
    _call(
        1038,
        "nl.power with a tile in PSUM",
        "nisa.tensor_tensor(dst=d, data1=p, data2=b, op=nl.power)",
        setup="p = in_psum(x)",
    ),
    _call(
        1028,
        "bits of floats",
        "nisa.tensor_tensor(dst=d, data1=a, data2=b, op=nl.$op)",
        vary={"op": ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")},
    ),
    _call(
        1025,
        "an operator of one operand",
        "nisa.tensor_tensor(dst=d, data1=a, data2=b, op=nl.$op)",
        vary={"op": ("rsqrt", "abs", "exp")},
    ),
    _call(
        1020,
        "an engine that has no tensor_tensor",
        "nisa.tensor_tensor(dst=d, data1=a, data2=b, op=nl.add, engine=nisa.engine.$engine)",
        vary={"engine": ("scalar", "tensor")},
    ),
    _call(
        1038,
        "GpSimd writes PSUM",
        "nisa.tensor_tensor(dst=p, data1=a, data2=b, op=nl.add, engine=nisa.engine.gpsimd)",
        setup="p = ps((128, 64))",
    ),
    _call(1042, "an input in HBM", "nisa.tensor_tensor(dst=d, data1=x, data2=b, op=nl.add)"),
    _call(
        1021,
        "dst is smaller than the inputs",
        "nisa.tensor_tensor(dst=d[:, 0:63], data1=a, data2=b, op=nl.add)",
    ),
    _call(
        1113,
        "a bit operator beside an arithmetic one",
        "nisa.tensor_scalar(dst=e, data=a, op0=nl.bitwise_and, operand0=3, op1=nl.$op, operand1=2)",
        setup="e = sb((128, 64), nl.int32)",
        args=_INT,
        vary={"op": ("add", "multiply")},
    ),
    _call(
        1116,
        "bits of floats",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.$op, operand0=3)",
        vary={"op": ("bitwise_and", "left_shift")},
    ),
    _call(
        1115,
        "bits on another engine than Vector",
        "nisa.tensor_scalar(dst=e, data=a, op0=nl.bitwise_or, operand0=1, "
        "engine=nisa.engine.$engine)",
        setup="e = sb((128, 64), nl.int32)",
        args=_INT,
        vary={"engine": ("scalar", "gpsimd")},
    ),
    _call(
        1096,
        "an operand of several columns",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.add, operand0=b[:, 0:$n])",
        vary={"n": ("2", "64")},
    ),
    _call(
        1096,
        "an operand of fewer partitions",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.multiply, operand0=b[0:64, 0:1])",
    ),
    _call(
        1127,
        "an operand that is not float32",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.add, operand0=v)",
        setup="v = load(y[:, 0:1], nl.$dtype)",
        vary={"dtype": ("bfloat16", "float16", "int32")},
    ),
    _call(
        1120,
        "operators that the Scalar Engine does not combine",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.$op0, operand0=2.0, op1=nl.$op1, operand1=1.0, "
        "engine=nisa.engine.scalar)",
        on=("trn2",),
        vary={"op0": ("add", "subtract"), "op1": ("multiply", "maximum")},
    ),
    _call(
        1101,
        "operand1 without op1",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.add, operand0=1.0, operand1=2.0)",
    ),
    _call(
        1164,
        "an operand of an operator with one operand",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.$op, operand0=2.0)",
        vary={"op": ("abs",)},
    ),
    _call(
        1195,
        "the partition axis is reduced",
        "nisa.tensor_reduce(dst=d[:, 0:1], op=nl.add, data=a, axis=$axis)",
        vary={"axis": ("0", "(0, 1)")},
    ),
    _call(
        1194,
        "an inner axis is kept",
        "nisa.tensor_reduce(dst=d, op=nl.maximum, data=c, axis=1)",
        setup="c = load(z)",
        args=("x float32 128 64", "y float32 128 64", "z float32 128 4 64"),
    ),
    _call(
        1219,
        "dst has another size than the axes leave",
        "nisa.tensor_reduce(dst=d[:, 0:$n], op=nl.add, data=a, axis=1)",
        vary={"n": ("2", "64")},
    ),
    _call(
        1205,
        "bits of floats",
        "nisa.tensor_reduce(dst=d[:, 0:1], op=nl.$op, data=a, axis=1)",
        vary={"op": ("bitwise_or", "bitwise_and")},
    ),
    _call(
        1188,
        "an operator that reduces nothing",
        "nisa.tensor_reduce(dst=d[:, 0:1], op=nl.$op, data=a, axis=1)",
        vary={"op": ("equal", "power", "rsqrt", "abs_max")},
    ),
    _call(
        1239,
        "bits are negated",
        "nisa.tensor_reduce(dst=e, op=nl.bitwise_or, data=a, axis=1, negate=True)",
        setup="e = sb((128, 1), nl.int32)",
        args=_INT,
    ),
    _call(
        1285,
        "a cumulative bit operator",
        "nisa.tensor_scalar_cumulative(dst=d, src=a, op0=nl.bitwise_and, op1=nl.add, imm0=1.0)",
    ),
    _call(
        1286,
        "an operator that accumulates nothing",
        "nisa.tensor_scalar_cumulative(dst=d, src=a, op0=nl.add, op1=nl.$op, imm0=1.0)",
        vary={"op": ("equal", "abs_max")},
    ),
    _call(
        1288,
        "32-bit integers",
        "nisa.tensor_scalar_cumulative(dst=e, src=a, op0=nl.add, op1=nl.add, imm0=1.0)",
        setup="e = sb((128, 64), nl.$dtype)",
        vary={"dtype": ("int32", "uint32")},
    ),
    _call(
        1323,
        "imm0 is not float32",
        "nisa.tensor_scalar_cumulative(dst=d, src=a, op0=nl.add, op1=nl.add, imm0=v)",
        setup="v = load(y[:, 0:1], nl.bfloat16)",
    ),
    _call(
        1390,
        "data and dst have other partitions",
        "nisa.activation(dst=d[0:64], op=nl.$op, data=a)",
        vary={"op": ("exp", "copy")},
    ),
    _call(
        1341,
        "a reduction other than a sum",
        "nisa.activation(dst=d, op=nl.exp, data=a, reduce_op=nl.$op, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        setup="r = sb((128, 1))",
        vary={"op": ("maximum", "multiply")},
    ),
    _call(
        1382,
        "scale is not float32",
        "nisa.activation(dst=d, op=nl.exp, data=a, scale=v)",
        setup="v = load(y[:, 0:1], nl.$dtype)",
        vary={"dtype": ("bfloat16", "float16")},
    ),
    _call(
        1389,
        "bias is a number on NeuronCore-v2",
        "nisa.activation(dst=d, op=nl.$op, data=a, bias=1.0)",
        on=("trn1",),
        vary={"op": ("exp", "tanh")},
    ),
    _call(
        1387,
        "scale or bias has several columns",
        "nisa.activation(dst=d, op=nl.exp, data=a, $name=b[:, 0:2])",
        vary={"name": ("scale", "bias")},
    ),
    _call(
        1370,
        "data is in HBM",
        "nisa.activation(dst=d, op=nl.exp, data=x)",
    ),
    _call(
        1430,
        "no activation function",
        "nisa.activation(dst=d, op=nl.$op, data=a)",
        vary={"op": ("add", "cos", "floor", "maximum")},
    ),
    _call(
        1436,
        "reduce_res has several columns",
        "nisa.activation(dst=d, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        setup="r = sb((128, 2))",
    ),
    _call(
        1470,
        "a reduction other than a sum on NeuronCore-v2",
        "nisa.activation_reduce(dst=d, op=nl.exp, data=a, reduce_op=nl.maximum, reduce_res=r)",
        setup="r = sb((128, 1))",
        on=("trn1",),
    ),
    _call(
        1540,
        "activate2 before NeuronCore-v4",
        "nisa.activate2(dst=d, op=nl.exp, data=a, imm0=2.0, imm1=1.0, op0=nl.multiply, op1=nl.add)",
        on=OLD,
    ),
    _call(
        1549,
        "operators that activate2 does not combine",
        "nisa.activate2(dst=d, op=nl.exp, data=a, imm0=2.0, imm1=1.0, op0=nl.$op0, op1=nl.$op1)",
        on=("trn3",),
        vary={"op0": ("add", "maximum"), "op1": ("add", "multiply")},
    ),
    _call(
        1615,
        "a reduction that activate2 has not",
        "nisa.activate2(dst=d, op=nl.exp, data=a, imm0=2.0, imm1=1.0, op0=nl.multiply, "
        "op1=nl.add, reduce_op=nl.multiply, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        setup="r = sb((128, 1))",
        on=("trn3",),
    ),
    _call(
        2308,
        "exponential before NeuronCore-v4",
        "nisa.exponential(dst=d, src=a)",
        on=OLD,
    ),
    _call(
        2338,
        "exponential of another size",
        "nisa.exponential(dst=d[:, 0:32], src=a)",
        on=("trn3",),
    ),
    _call(
        2372,
        "a command that exponential has not",
        "nisa.exponential(dst=d, src=a, reduce_res=r, reduce_cmd=nisa.reduce_cmd.reset)",
        setup="r = sb((128, 1))",
        on=("trn3",),
    ),
    _call(
        2341,
        "a start value without load_reduce",
        "nisa.exponential(dst=d, src=a, reduce_res=r, reduce_init=1.0, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        setup="r = sb((128, 1))",
        on=("trn3",),
    ),
    _call(
        2424,
        "dst has another size",
        "nisa.reciprocal(dst=d[$cut], data=a)",
        vary={"cut": ("0:64", ":, 0:32")},
    ),
    _call(
        2435,
        "too few elements",
        "nisa.max8(dst=d[:, 0:8], src=a[:, 0:$n])",
        vary={"n": ("4", "7")},
    ),
    _call(
        2436,
        "dst has not 8 elements",
        "nisa.max8(dst=d[:, 0:$n], src=a)",
        vary={"n": ("4", "16")},
    ),
    _call(
        2435,
        "too many elements",
        "nisa.max8(dst=d[:, 0:8], src=c)",
        setup="c = sb((128, 16400), nl.bfloat16); nisa.memset(c, value=1.0)",
    ),
    _call(
        3145,
        "not 8 values",
        "nisa.nc_find_index8(dst=e, data=a, vals=b[:, 0:$n])",
        setup="e = sb((128, 8), nl.uint32)",
        vary={"n": ("4", "16")},
    ),
    _call(
        3146,
        "indices of another type",
        "nisa.nc_find_index8(dst=e, data=a, vals=b[:, 0:8])",
        setup="e = sb((128, 8), nl.$dtype)",
        vary={"dtype": ("int32", "float32", "uint8")},
    ),
    _call(
        3188,
        "not 8 values",
        "nisa.nc_match_replace8(dst=d, data=a, vals=b[:, 0:16], imm=0.0)",
    ),
)
