"""Kernels that break no rule: each instruction as the documentation allows it, with its values."""

import ml_dtypes
import numpy as np
from calls_of_tiles import ACTIVATIONS, BF16, INTEGERS, call, each, reference
from template import NEW

KERNELS = (
    *each(
        lambda op: call(
            1020,
            f"tensor_tensor with {op}",
            f"nisa.tensor_tensor(dst=d, data1=a, data2=b, op=nl.{op})",
            lambda x, y: reference(op)(x, y),
        ),
        "add",
        "subtract",
        "multiply",
        "maximum",
        "minimum",
        "less",
        "greater_equal",
        "not_equal",
    ),
    call(
        1042,
        "one input in PSUM",
        "nisa.tensor_tensor(dst=d, data1=$one, data2=$two, op=nl.add)",
        lambda x, y: x + y,
        setup="p, q = in_psum(x), in_psum(y)",
        vary={"one": ("p",), "two": ("b",)},
    ),
    call(
        1040,
        "the result in PSUM",
        "nisa.tensor_tensor(dst=p, data1=a, data2=b, op=nl.subtract)",
        lambda x, y: x - y,
        setup="p = ps((128, 64))",
        result="p",
    ),
    call(
        1031,
        "types mix",
        "nisa.tensor_tensor(dst=e, data1=c, data2=b, op=nl.multiply)",
        lambda x, y: x.astype(ml_dtypes.bfloat16).astype(np.float32) * y,
        within=BF16,
        setup="c, e = load(x, nl.bfloat16), sb((128, 64), nl.$dtype)",
        result="e",
        vary={"dtype": ("bfloat16", "float16", "float32")},
    ),
    call(
        1034,
        "exact sums of 32-bit integers",
        "nisa.tensor_tensor(dst=e, data1=c, data2=a, op=nl.add)",
        lambda x, y: x + np.int32(2**30 + 1),
        args=INTEGERS,
        within=0.0,
        setup="c, e = sb((128, 64), nl.int32), sb((128, 64), nl.int32); "
        "nisa.memset(c, value=2**30 + 1)",
        result="e",
    ),
    *each(
        lambda op: call(
            1028,
            f"bits of integers by {op}",
            f"nisa.tensor_tensor(dst=e, data1=a, data2=b, op=nl.{op})",
            lambda x, y: getattr(np, op)(x, y),
            args=INTEGERS,
            within=0.0,
            setup="e = sb((128, 64), nl.int32)",
            result="e",
        ),
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "left_shift",
        "right_shift",
    ),
    call(
        1026,
        "power",
        "nisa.tensor_tensor(dst=d, data1=c, data2=e, op=nl.power)",
        lambda x, y: (np.abs(x) + 1) ** 2,
        setup="c, e = sb((128, 64)), sb((128, 64)); "
        "nisa.tensor_scalar(c, a, op0=nl.abs, operand0=0.0, op1=nl.add, operand1=1.0); "
        "nisa.memset(e, value=2.0)",
    ),
    call(
        1021,
        "views of equal size with other shapes",
        "nisa.tensor_tensor(dst=d.reshape((128, 4, 16)), data1=a.reshape((128, 4, 16)), data2=b, "
        "op=nl.add)",
        lambda x, y: x + y,
    ),
    call(
        1020,
        "half of the partitions from 64 on",
        "nisa.tensor_tensor(dst=d[64:128], data1=a[64:128], data2=b[64:128], op=nl.add)",
        lambda x, y: (x + y)[64:],
        result="d[64:128]",
    ),
    call(
        1092,
        "two numbers",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.multiply, operand0=2.0, "
        "op1=nl.add, operand1=1.0)",
        lambda x, y: x * 2 + 1,
    ),
    call(
        1096,
        "two vectors",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.subtract, "
        "operand0=b[:, 3:4], op1=nl.multiply, operand1=b[:, 5:6])",
        lambda x, y: (x - y[:, 3:4]) * y[:, 5:6],
    ),
    call(
        1106,
        "operands the other way round",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.subtract, operand0=1.0, reverse0=True, "
        "op1=nl.subtract, operand1=b[:, 0:1], reverse1=True)",
        lambda x, y: y[:, 0:1] - (1 - x),
    ),
    call(
        1115,
        "bits with a number",
        "nisa.tensor_scalar(dst=e, data=a, op0=nl.bitwise_and, "
        "operand0=3, op1=nl.left_shift, operand1=2)",
        lambda x, y: (x & 3) << 2,
        args=INTEGERS,
        within=0.0,
        setup="e = sb((128, 64), nl.int32)",
        result="e",
    ),
    call(
        1120,
        "the Scalar Engine multiplies and adds",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.multiply, operand0=2.0, op1=nl.add, "
        "operand1=1.0, engine=nisa.engine.scalar)",
        lambda x, y: x * 2 + 1,
        on=NEW,
    ),
    call(
        1185,
        "GpSimd's rsqrt",
        "nisa.tensor_scalar(dst=d, data=c, op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.gpsimd)",
        lambda x, y: 1 / np.sqrt(np.abs(x) + 1),
        within=1e-4,
        setup="c = sb((128, 64)); nisa.tensor_scalar(c, a, op0=nl.abs, operand0=0.0, op1=nl.add, "
        "operand1=1.0)",
    ),
    call(
        1127,
        "integers in, floats out",
        "nisa.tensor_scalar(dst=d, data=a, op0=nl.multiply, operand0=0.5)",
        lambda x, y: x * 0.5,
        args=INTEGERS,
    ),
    *each(
        lambda op: call(
            1188,
            f"tensor_reduce by {op}",
            f"nisa.tensor_reduce(dst=r, op=nl.{op}, data=a, axis=1)",
            lambda x, y: {"add": np.sum, "maximum": np.max, "minimum": np.min}[op](
                x, 1, keepdims=True
            ),
            setup="r = sb((128, 1))",
            result="r",
        ),
        "add",
        "maximum",
        "minimum",
    ),
    call(
        1201,
        "inner axes of four",
        "nisa.tensor_reduce(dst=r, op=nl.add, data=c, axis=$axis)",
        lambda x, y: x.reshape(128, 4, 16).sum(2),
        setup="c, r = a.reshape((128, 4, 4, 4)), sb((128, 4))",
        result="r",
        vary={"axis": ("(2, 3)", "[2, 3]")},
    ),
    call(
        1205,
        "a sum is negated",
        "nisa.tensor_reduce(dst=r, op=nl.add, data=a, axis=1, negate=True)",
        lambda x, y: -x.sum(1, keepdims=True),
        setup="r = sb((128, 1))",
        result="r",
    ),
    call(
        1240,
        "reduced axes are kept",
        "nisa.tensor_reduce(dst=r, op=nl.maximum, data=a.reshape((128, 8, 8)), axis=2, "
        "keepdims=True)",
        lambda x, y: x.reshape(128, 8, 8).max(2, keepdims=True),
        setup="r = sb((128, 8, 1))",
        result="r",
    ),
    call(
        1205,
        "bits are reduced",
        "nisa.tensor_reduce(dst=r, op=nl.bitwise_or, data=a, axis=1)",
        lambda x, y: np.bitwise_or.reduce(x, 1, keepdims=True),
        args=INTEGERS,
        within=0.0,
        setup="r = sb((128, 1), nl.int32)",
        result="r",
    ),
    call(
        1246,
        "partitions are added",
        "nisa.tensor_partition_reduce(dst=d[0:1], op=nl.add, data=a)",
        lambda x, y: x.sum(0, keepdims=True),
        result="d[0:1]",
    ),
    call(
        1259,
        "a running sum",
        "nisa.tensor_scalar_cumulative(dst=d, src=a, op0=nl.multiply, op1=nl.add, imm0=2.0)",
        lambda x, y: np.cumsum(x * 2, 1),
        within=1e-4,
    ),
    call(
        1259,
        "a running maximum from a vector on",
        "nisa.tensor_scalar_cumulative(dst=d, src=a, op0=nl.add, op1=nl.maximum, imm0=1.0, "
        "imm1=b[:, 0:1], reduce_cmd=nisa.reduce_cmd.load_reduce)",
        lambda x, y: np.maximum(np.maximum.accumulate(x + 1, 1), y[:, 0:1]),
    ),
    *each(
        lambda op: call(
            1330,
            f"activation {op}",
            f"nisa.activation(dst=d, op=nl.{op}, data=a)",
            lambda x, y: ACTIVATIONS[op](x),
            within=1e-3,
        ),
        *ACTIVATIONS,
    ),
    call(
        1335,
        "scale and bias of a partition",
        "nisa.activation(dst=d, op=nl.tanh, data=a, scale=b[:, 0:1], bias=b[:, 1:2])",
        lambda x, y: np.tanh(x * y[:, 0:1] + y[:, 1:2]),
        within=1e-3,
    ),
    call(
        1389,
        "a number as bias",
        "nisa.activation(dst=d, op=nl.exp, data=a, scale=0.5, bias=$bias)",
        lambda x, y: np.exp(x * 0.5 - 1),
        within=1e-3,
        on=NEW,
        vary={"bias": ("-1.0",)},
    ),
    call(
        1383,
        "a bias of another type",
        "nisa.activation(dst=d, op=nl.exp, data=a, bias=v)",
        lambda x, y: np.exp(x + np.round(y[:, 0:1])),
        within=1e-3,
        setup="v = load(y[:, 0:1], nl.int32)",
    ),
    call(
        1347,
        "exponentials and their sum",
        "nisa.activation(dst=d, op=nl.exp, data=a, "
        "reduce_op=nl.add, reduce_res=r, reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        lambda x, y: np.exp(x).sum(1, keepdims=True),
        within=1e-3,
        setup="r = sb((128, 1))",
        result="r",
    ),
    call(
        1353,
        "a sum over two instructions",
        "nisa.activation(dst=d, op=nl.copy, data=b, reduce_op=nl.add, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reduce)",
        lambda x, y: (x + y).sum(1, keepdims=True),
        within=1e-3,
        setup="r = sb((128, 1)); nisa.activation(dst=d, op=nl.copy, data=a, reduce_op=nl.add, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        result="r",
    ),
    call(
        1455,
        "activation_reduce",
        "nisa.activation_reduce(dst=d, op=nl.square, data=a, reduce_op=nl.add, reduce_res=r)",
        lambda x, y: (x * x).sum(1, keepdims=True),
        within=1e-3,
        setup="r = sb((128, 1))",
        result="r",
    ),
    call(
        1549,
        "activate2",
        "nisa.activate2(dst=d, op=nl.$op, data=a, imm0=2.0, imm1=b[:, 0:1], "
        "op0=nl.multiply, op1=nl.subtract)",
        lambda x, y: np.tanh(x * 2 - y[:, 0:1]),
        within=1e-3,
        on=("trn3",),
        vary={"op": ("tanh",)},
    ),
    call(
        1560,
        "activate2 without operators",
        "nisa.activate2(dst=d, op=nl.exp, data=a, imm0=0.0, "
        "imm1=0.0, op0=nl.bypass, op1=nl.bypass)",
        lambda x, y: np.exp(x),
        within=1e-3,
        on=("trn3",),
    ),
    call(
        1615,
        "the largest magnitude",
        "nisa.activate2(dst=d, op=nl.copy, data=a, imm0=1.0, "
        "imm1=0.0, op0=nl.add, op1=nl.bypass, reduce_op=nl.maximum, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        lambda x, y: (x + 1).max(1, keepdims=True),
        setup="r = sb((128, 1))",
        result="r",
        on=("trn3",),
    ),
    call(
        2308,
        "exponential",
        "nisa.exponential(dst=d, src=a, max_value=b[:, 0:1])",
        lambda x, y: np.exp(x - y[:, 0:1]),
        within=1e-3,
        on=("trn3",),
    ),
    call(
        2378,
        "exponential from a start",
        "nisa.exponential(dst=d, src=a, reduce_res=r, reduce_init=1.0, "
        "reduce_cmd=nisa.reduce_cmd.load_reduce)",
        lambda x, y: np.exp(x).sum(1, keepdims=True) + 1,
        within=1e-3,
        setup="r = sb((128, 1))",
        result="r",
        on=("trn3",),
    ),
    call(2405, "reciprocal", "nisa.reciprocal(dst=d, data=a)", lambda x, y: 1 / x, within=1e-5),
    call(
        2430,
        "the eight largest",
        "nisa.max8(dst=r, src=a.reshape((128, 8, 8)))",
        lambda x, y: -np.sort(-x, 1)[:, :8],
        setup="r = sb((128, 8))",
        result="r",
        within=0.0,
    ),
    call(
        3136,
        "where the eight largest are",
        "nisa.nc_find_index8(dst=e, data=a, vals=r)",
        lambda x, y: np.argsort(-x, 1)[:, :8],
        within=0.0,
        result="e",
        setup="r, e = sb((128, 8)), sb((128, 8), nl.$dtype); nisa.max8(dst=r, src=a)",
        vary={"dtype": ("uint32", "uint16")},
    ),
    call(
        3158,
        "the eight largest are replaced",
        "nisa.nc_match_replace8(dst=d, data=a, vals=r, imm=0.0)",
        lambda x, y: np.where(x >= -np.sort(-x, 1)[:, 7:8], 0, x),
        within=0.0,
        setup="r = sb((128, 8)); nisa.max8(dst=r, src=a)",
    ),
)
