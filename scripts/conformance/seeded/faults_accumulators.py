"""Kernels with one fault in what accumulator registers hold, or in a transpose or sum by DMA."""

from calls_with_faults import ISA, call
from template import MARK, NEW, OLD, Kernel

_SELECT = ("x float32 128 64", "y float32 128 64", "k uint8 128 64")
_V4 = ("trn3",)


def _transpose(line: int, what: str, options: str, **given: object) -> Kernel:
    """`x` in HBM goes to `d` of shape `to` and of type `dtype`, in SBUF or by `made`."""
    shape, dtype = given.pop("to", "(128, 16)"), given.pop("dtype", "bfloat16")
    before = given.pop("before", "src = x")
    body = f"""
d = {given.pop("made", "sb")}({shape}, nl.{dtype})
{before}
nisa.dma_transpose(dst=d, src=src{options})  {MARK}
return save(d)
"""
    args = given.pop("args", ("x bfloat16 16 128",))
    return Kernel("dma_transpose", f"{ISA}:{line}", what, body, args=args, **given)


def _gathered(line: int, what: str, options: str = "", **given: object) -> Kernel:
    """Rows that `i` names are transposed, `rows` of them."""
    rows, index = given.pop("rows", 128), given.pop("index", "uint32 128 1")
    before = f"""
j = load(i)
src = x.ap(pattern=[[128, {rows}], [1, 128]], vector_offset=j, indirect_dim=0)"""
    args = (given.pop("data", "x bfloat16 256 128"), f"i {index}")
    given = {"on": NEW, "to": f"(128, {rows})"} | given
    return _transpose(line, what, f", axes=(1, 0){options}", before=before, args=args, **given)


KERNELS = (
    call(
        1356,
        "registers that nothing has set are added to",
        "nisa.activation(dst=d, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reduce)",
        setup="r = sb((128, 1))",
    ),
    call(
        1360,
        "registers that nothing has set are read",
        "nisa.activation(dst=d, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=r)",
        setup="r = sb((128, 1))",
    ),
    call(
        1356,
        "half of the registers are set",
        "nisa.activation(dst=d, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reduce)",
        setup="r = sb((128, 1)); nisa.activation(dst=d[0:64], op=nl.exp, data=a[0:64], "
        "reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset)",
    ),
    call(
        2544,
        "registers that nothing has set are added to",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=1.0, reduce_op=nl.$op, "
        "reduce_res=r, reduce_cmd=nisa.reduce_cmd.reduce)",
        setup="r = sb((128, 1))",
        vary={"op": ("add", "maximum")},
    ),
    call(
        1299,
        "registers that nothing has set are added to",
        "nisa.tensor_scalar_cumulative(dst=d, src=a, op0=nl.add, op1=nl.add, imm0=1.0, "
        "reduce_cmd=nisa.reduce_cmd.reduce)",
    ),
    call(
        2357,
        "registers are added to after idle",
        "nisa.exponential(dst=d, src=a, reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=r)",
        setup="r = sb((128, 1)); nisa.exponential(dst=d, src=a, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce); nisa.exponential(dst=d, src=b)",
        on=_V4,
    ),
    call(
        2357,
        "registers are added to after idle of another instruction",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=1.0, "
        "reduce_op=nl.maximum, reduce_res=r, reduce_cmd=nisa.reduce_cmd.reduce)",
        setup="r, m = sb((128, 1)), load(k); nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, "
        "operand0=1.0, reduce_op=nl.maximum); "
        "nisa.select_reduce(dst=d, predicate=m, on_true=a, on_false=0.0)",
        args=_SELECT,
    ),
    call(
        2943,
        "a maximum without a command",
        "nisa.select_reduce(dst=d, predicate=m, on_true=a, on_false=0.0, reduce_res=r)",
        setup="r, m = sb((128, 1)), load(k)",
        args=_SELECT,
    ),
    _transpose(
        887,
        "four bytes by hardware DGE",
        ", dge_mode=nisa.dge_mode.hwdge",
        dtype="float32",
        args=("x float32 16 128",),
        on=NEW,
    ),
    _transpose(
        883,
        "other than 16 rows by hardware DGE",
        ", dge_mode=nisa.dge_mode.hwdge",
        to="(128, $rows)",
        args=("x bfloat16 $rows 128",),
        on=NEW,
        vary={"rows": ("8", "24", "32")},
    ),
    _transpose(1011, "hardware DGE on NeuronCore-v2", ", dge_mode=nisa.dge_mode.hwdge",
               on=("trn1",)),
    _transpose(880, "software DGE without indices", ", dge_mode=nisa.dge_mode.swdge"),
    _transpose(1007, "another type", "", dtype="float16"),
    _transpose(1009, "axes that stay", ", axes=(0, 1)", to="(16, 128)"),
    _transpose(
        1009,
        "the first two of three axes",
        ", axes=(1, 0, 2)",
        to="(4, 16, 32)",
        args=("x bfloat16 16 4 32",),
    ),
    _transpose(871, "dst is not turned", "", to="(16, 128)"),
    _transpose(1006, "dst is in PSUM", "", made="ps"),
    _transpose(1010, "a priority before NeuronCore-v4", ", priority=0", on=OLD),
    _transpose(1016, "skips without indices", ", oob_mode=nisa.oob_mode.skip"),
    _gathered(903, "signed indices", index="int32 128 1"),
    _gathered(901, "24 indices", index="uint32 24 1", rows=24),
    _gathered(902, "two columns of 64 indices", index="uint32 64 2"),
    _gathered(899, "fewer indices than rows", index="uint32 64 1"),
    _gathered(896, "four bytes", data="x float32 256 128", dtype="float32"),
    _gathered(905, "indices on NeuronCore-v2", on=("trn1",)),
    _gathered(891, "indices by hardware DGE", ", dge_mode=nisa.dge_mode.hwdge"),
    call(
        2664,
        "a sum by DMA with another operator",
        "nisa.dma_compute(dst=d, srcs=[a, b], reduce_op=nl.$op)",
        vary={"op": ("maximum", "multiply")},
    ),
    call(
        2665,
        "a scale other than 1",
        "nisa.dma_compute(dst=d, srcs=[a, b], reduce_op=nl.add, scales=[1.0, 0.5])",
    ),
    call(
        2721,
        "fewer scales than sources",
        "nisa.dma_compute(dst=d, srcs=[a, b], reduce_op=nl.add, scales=[1.0])",
    ),
    call(2716, "17 sources", "nisa.dma_compute(dst=d, srcs=[a] * 17, reduce_op=nl.add)"),
    call(
        2715,
        "numbers of elements differ",
        "nisa.dma_compute(dst=d, srcs=[a, b[:, 0:32]], reduce_op=nl.add)",
    ),
    call(
        2698,
        "a source is in PSUM",
        "nisa.dma_compute(dst=d, srcs=[a, p], reduce_op=nl.add)",
        setup="p = in_psum(y)",
    ),
    call(
        2690,
        "a gather whose indices are not unique",
        "nisa.dma_compute(dst=b, srcs=[x.ap(pattern=[[64, 128], [1, 64]], vector_offset=j, "
        "indirect_dim=0), b], reduce_op=nl.add, unique_indices=False)",
        setup="j = load(i)",
        args=("x float32 128 64", "y float32 128 64", "i uint32 128 1"),
        on=NEW,
    ),
)  # fmt: skip
