"""Kernels with one fault in a selection, scan, reduction, shuffle, random number, copy or fill."""

from calls_with_faults import INT, call
from template import NEW, OLD

_SELECT = ("x float32 128 64", "y float32 128 64", "k uint8 128 64")

KERNELS = (
    call(
        460,
        "the predicate has another type",
        "nisa.tensor_copy_predicated(dst=b, src=a, predicate=m)",
        setup="m = load(k, nl.$dtype)",
        args=_SELECT,
        vary={"dtype": ("int8", "float32", "int32")},
    ),
    call(
        461,
        "src and dst have other types",
        "nisa.tensor_copy_predicated(dst=e, src=a, predicate=m)",
        setup="m, e = load(k), load(y, nl.bfloat16)",
        args=_SELECT,
    ),
    call(
        455,
        "src and predicate are in PSUM",
        "nisa.tensor_copy_predicated(dst=b, src=in_psum(x), predicate=in_psum(k))",
        args=_SELECT,
    ),
    call(
        459,
        "the predicate has another size",
        "nisa.tensor_copy_predicated(dst=b, src=a, predicate=m[:, 0:32])",
        setup="m = load(k)",
        args=_SELECT,
    ),
    call(
        2905,
        "the predicate is of floats",
        "nisa.select_reduce(dst=d, predicate=b, on_true=a, on_false=0.0)",
    ),
    call(
        2901,
        "32-bit integers are selected",
        "nisa.select_reduce(dst=d, predicate=m, on_true=e, on_false=0.0)",
        setup="m, e = load(k), load(x, nl.$dtype)",
        args=_SELECT,
        vary={"dtype": ("int32",)},
    ),
    call(
        2895,
        "on_true and predicate are in PSUM",
        "nisa.select_reduce(dst=d, predicate=in_psum(k), on_true=in_psum(x), on_false=0.0)",
        args=_SELECT,
    ),
    call(
        2908,
        "a reduction other than the maximum",
        "nisa.select_reduce(dst=d, predicate=m, on_true=a, on_false=0.0, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_op=nl.$op)",
        setup="m, r = load(k), sb((128, 1))",
        args=_SELECT,
        vary={"op": ("add", "minimum")},
    ),
    call(
        2907,
        "the reduction is an integer",
        "nisa.select_reduce(dst=d, predicate=m, on_true=a, on_false=0.0, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        setup="m, r = load(k), sb((128, 1), nl.int32)",
        args=_SELECT,
    ),
    call(
        2812,
        "range_select on NeuronCore-v2",
        "nisa.range_select(dst=d, on_true_tile=a, comp_op0=nl.greater, comp_op1=nl.less, "
        "bound0=b[:, 0:1], bound1=b[:, 1:2], on_false_value=-3.4028235e+38)",
        on=("trn1",),
    ),
    call(
        2840,
        "a comparison that range_select has not",
        "nisa.range_select(dst=d, on_true_tile=a, comp_op0=nl.$op, comp_op1=nl.less, "
        "bound0=b[:, 0:1], bound1=b[:, 1:2], on_false_value=-3.4028235e+38)",
        on=NEW,
        vary={"op": ("not_equal", "add")},
    ),
    call(
        2852,
        "bounds are not float32",
        "nisa.range_select(dst=d, on_true_tile=a, comp_op0=nl.greater, comp_op1=nl.less, "
        "bound0=v, bound1=b[:, 1:2], on_false_value=-3.4028235e+38)",
        setup="v = load(y[:, 0:1], nl.$dtype)",
        on=NEW,
        vary={"dtype": ("bfloat16", "int32")},
    ),
    call(
        2872,
        "another value where the choice is false",
        "nisa.range_select(dst=d, on_true_tile=a, comp_op0=nl.greater, comp_op1=nl.less, "
        "bound0=b[:, 0:1], bound1=b[:, 1:2], on_false_value=$value)",
        on=NEW,
        vary={"value": ("0.0", "-1e9")},
    ),
    call(
        2878,
        "a reduction other than the maximum",
        "nisa.range_select(dst=d, on_true_tile=a, comp_op0=nl.greater, comp_op1=nl.less, "
        "bound0=b[:, 0:1], bound1=b[:, 1:2], reduce_op=nl.add, reduce_res=r, "
        "on_false_value=-3.4028235e+38)",
        setup="r = sb((128, 1))",
        on=NEW,
    ),
    call(
        2040,
        "both inputs in PSUM",
        "nisa.tensor_tensor_scan(dst=d, data0=in_psum(x), data1=in_psum(y), initial=0.0, "
        "op0=nl.multiply, op1=nl.add)",
    ),
    call(
        2036,
        "bits are scanned",
        "nisa.tensor_tensor_scan(dst=d, data0=a, data1=b, initial=0.0, op0=nl.bitwise_or, "
        "op1=nl.add)",
    ),
    call(
        2038,
        "a start of several columns",
        "nisa.tensor_tensor_scan(dst=d, data0=a, data1=b, initial=b[:, 0:2], op0=nl.multiply, "
        "op1=nl.add)",
    ),
    call(
        2035,
        "inputs of other sizes",
        "nisa.tensor_tensor_scan(dst=d, data0=a, data1=b[:, 0:32], initial=0.0, "
        "op0=nl.multiply, op1=nl.add)",
    ),
    call(
        2480,
        "both tiles in PSUM",
        "nisa.scalar_tensor_tensor(dst=d, data=in_psum(x), op0=nl.add, operand0=1.0, "
        "op1=nl.multiply, operand1=in_psum(y))",
    ),
    call(
        2474,
        "a bit operator",
        "nisa.scalar_tensor_tensor(dst=d, data=a, op0=nl.$op0, operand0=1.0, op1=nl.$op1, "
        "operand1=b)",
        vary={"op0": ("bitwise_and",), "op1": ("add", "bitwise_or")},
    ),
    call(
        2498,
        "operand1 has another size",
        "nisa.scalar_tensor_tensor(dst=d, data=a, op0=nl.add, operand0=1.0, op1=nl.add, "
        "operand1=b[:, 0:32])",
    ),
    call(
        2522,
        "a bit operator",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.bitwise_and, operand0=1.0, "
        "reduce_op=nl.add, reduce_res=r)",
        setup="r = sb((128, 1))",
    ),
    call(
        2530,
        "an operator that reduces nothing here",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=1.0, reduce_op=nl.$op, "
        "reduce_res=r)",
        setup="r = sb((128, 1))",
        vary={"op": ("subtract", "bitwise_or")},
    ),
    call(
        2590,
        "reverse0, which is not supported",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.subtract, operand0=1.0, "
        "reduce_op=nl.add, reduce_res=r, reverse0=True)",
        setup="r = sb((128, 1))",
    ),
    call(
        2605,
        "load_reduce without a start",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=1.0, reduce_op=nl.add, "
        "reduce_res=r, reduce_cmd=nisa.reduce_cmd.load_reduce)",
        setup="r = sb((128, 1))",
    ),
    call(
        2552,
        "a start without load_reduce",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=1.0, reduce_op=nl.add, "
        "reduce_res=r, reduce_init=1.0)",
        setup="r = sb((128, 1))",
    ),
    call(
        2529,
        "reduce_res has several columns",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=1.0, reduce_op=nl.add, "
        "reduce_res=r)",
        setup="r = sb((128, 2))",
    ),
    call(
        1963,
        "more than 512 elements",
        "nisa.bn_stats(dst=d[:, 0:6], data=c)",
        setup="c = load(z)",
        vary={"n": ("513", "1024")},
        args=("x float32 128 64", "y float32 128 64", "z float32 128 $n"),
    ),
    call(1945, "not 6 results", "nisa.bn_stats(dst=d[:, 0:$n], data=a)", vary={"n": ("5", "12")}),
    call(
        1988,
        "no triples",
        "nisa.bn_aggr(dst=d[:, 0:2], data=a[:, 0:$n])",
        vary={"n": ("4", "64")},
    ),
    call(2000, "not 2 results", "nisa.bn_aggr(dst=d[:, 0:3], data=a[:, 0:6])"),
    call(
        2070,
        "a mask that has not 32 elements",
        "nisa.nc_stream_shuffle(dst=d, src=a, shuffle_mask=[0] * $n)",
        vary={"n": ("16", "128")},
    ),
    call(
        2072,
        "a mask that leaves the quadrant",
        "nisa.nc_stream_shuffle(dst=d, src=a, shuffle_mask=[$n] * 32)",
        vary={"n": ("32", "200")},
    ),
    call(
        2081,
        "a shuffle changes the type",
        "nisa.nc_stream_shuffle(dst=e, src=a, shuffle_mask=[0] * 32)",
        setup="e = sb((128, 64), nl.bfloat16)",
    ),
    call(
        2082,
        "a shuffle changes the size",
        "nisa.nc_stream_shuffle(dst=d[:, 0:32], src=a, shuffle_mask=[0] * 32)",
    ),
    call(
        2094,
        "64 partitions from 32 on",
        "nisa.nc_stream_shuffle(dst=d[0:64], src=a[32:96], shuffle_mask=[0] * 32)",
    ),
    call(
        2139,
        "a probability of another type than integers take",
        "nisa.dropout(dst=e, data=c, prob=v)",
        args=INT,
        setup="c, v = load(x), sb((128, 1), nl.bfloat16); nisa.memset(v, value=0.5); "
        "e = sb((128, 64), nl.int32)",
    ),
    call(
        2143,
        "dst has another type than data",
        "nisa.dropout(dst=e, data=a, prob=0.5)",
        setup="e = sb((128, 64), nl.bfloat16)",
    ),
    call(
        2108,
        "random floats",
        "nisa.rng(dst=e)",
        setup="e = sb((128, 64), nl.$dtype)",
        vary={"dtype": ("float32", "bfloat16")},
    ),
    call(
        2117,
        "random numbers of GpSimd on NeuronCore-v2",
        "nisa.rng(dst=e, engine=nisa.engine.gpsimd)",
        setup="e = sb((128, 64), nl.uint32)",
        on=("trn1",),
    ),
    call(
        2118,
        "random numbers of GpSimd in PSUM",
        "nisa.rng(dst=e, engine=nisa.engine.gpsimd)",
        setup="e = ps((128, 64), nl.uint32)",
        on=NEW,
    ),
    call(
        2169,
        "a seed of several elements",
        "nisa.set_rng_seed(src_seeds=s)",
        setup="s = load(x)[0:$n, 0:$m]",
        args=INT,
        vary={"n": ("1", "2"), "m": ("2",)},
    ),
    call(
        2165,
        "a seed of 16 bits",
        "nisa.set_rng_seed(src_seeds=s)",
        setup="s = load(x, nl.int16)[0:1, 0:1]",
        args=INT,
    ),
    call(
        2196,
        "rand_set_state on NeuronCore-v2",
        "nisa.rand_set_state(src_seeds=s)",
        setup="s = load(x)[:, 0:6]",
        args=("x uint32 128 64", "y float32 128 64"),
        on=("trn1",),
    ),
    call(
        2192,
        "not 6 seeds",
        "nisa.rand_set_state(src_seeds=s)",
        setup="s = load(x)[:, 0:$n]",
        args=("x uint32 128 64", "y float32 128 64"),
        on=NEW,
        vary={"n": ("5", "24")},
    ),
    call(
        2188,
        "seeds are signed",
        "nisa.rand_set_state(src_seeds=s)",
        setup="s = load(x)[:, 0:6]",
        args=INT,
        on=NEW,
    ),
    call(
        2197,
        "the Vector Engine's state on NeuronCore-v3",
        "nisa.rand_set_state(src_seeds=s, engine=nisa.engine.vector)",
        setup="s = load(x)[:, 0:24]",
        args=("x uint32 128 64", "y float32 128 64"),
        on=("trn2",),
    ),
    call(
        2212,
        "the state goes to PSUM on NeuronCore-v3",
        "nisa.rand_get_state(dst=e)",
        setup="e = ps((128, 6), nl.uint32)",
        on=("trn2",),
    ),
    call(
        2216,
        "the state is signed",
        "nisa.rand_get_state(dst=e)",
        setup="e = sb((128, 6), nl.int32)",
        on=NEW,
    ),
    call(2235, "rand2 before NeuronCore-v4", "nisa.rand2(dst=d, min=0.0, max=1.0)", on=OLD),
    call(
        2264,
        "an empty range",
        "nisa.rand2(dst=d, min=$low, max=1.0)",
        on=("trn3",),
        vary={"low": ("1.0", "2.0")},
    ),
    call(
        2256,
        "a type that rand2 does not write",
        "nisa.rand2(dst=e, min=0.0, max=1.0)",
        setup="e = sb((128, 64), nl.float8_e4m3fn)",
        on=("trn3",),
    ),
    call(
        390,
        "a copy of another size",
        "nisa.tensor_copy(dst=d[$cut], src=a)",
        vary={"cut": ("0:64", ":, 0:32")},
    ),
    call(
        402,
        "GpSimd copies PSUM",
        "nisa.tensor_copy(dst=d, src=p, engine=nisa.engine.gpsimd)",
        setup="p = in_psum(x)",
    ),
    call(
        406,
        "the Scalar Engine copies on NeuronCore-v2",
        "nisa.tensor_copy(dst=d, src=a, engine=nisa.engine.scalar)",
        on=("trn1",),
    ),
    call(429, "HBM is copied", "nisa.tensor_copy(dst=d, src=x)"),
    call(
        430,
        "an engine that does not copy",
        "nisa.tensor_copy(dst=d, src=a, engine=nisa.engine.$engine)",
        vary={"engine": ("tensor", "sync")},
    ),
    call(
        439,
        "an engine that does not fill",
        "nisa.memset(dst=d, value=0.0, engine=nisa.engine.$engine)",
        vary={"engine": ("scalar", "tensor")},
    ),
    call(
        446,
        "a packed tile of ones",
        "nisa.memset(dst=e, value=1)",
        setup="e = sb((128, 16), nl.$dtype)",
        on=("trn3",),
        vary={"dtype": ("float8_e4m3fn_x4", "float8_e5m2_x4")},
    ),
    call(
        2765,
        "quantize_mx before NeuronCore-v4",
        "nisa.quantize_mx(dst=e, src=c, dst_scale=s)",
        setup="c, e, s = load(x, nl.bfloat16), sb((128, 16), nl.uint32), sb((128, 16), nl.uint8)",
        on=OLD,
    ),
    call(
        2773,
        "float32 is quantized",
        "nisa.quantize_mx(dst=e, src=a, dst_scale=s)",
        setup="e, s = sb((128, 16), nl.float8_e4m3fn_x4), sb((128, 16), nl.float8_e8m0fnu)",
        on=("trn3",),
    ),
    call(
        2788,
        "partitions are no multiple of 32",
        "nisa.quantize_mx(dst=e[0:$n], src=c[0:$n], dst_scale=s[0:$n])",
        setup="c, e, s = load(x, nl.bfloat16), sb((128, 16), nl.float8_e5m2_x4), "
        "sb((128, 16), nl.float8_e8m0fnu)",
        on=("trn3",),
        vary={"n": ("16", "100")},
    ),
    call(
        2791,
        "dst has another size than a quarter",
        "nisa.quantize_mx(dst=e, src=c, dst_scale=s)",
        setup="c, e, s = load(x, nl.bfloat16), sb((128, 64), nl.float8_e5m2_x4), "
        "sb((128, 64), nl.float8_e8m0fnu)",
        on=("trn3",),
    ),
)
