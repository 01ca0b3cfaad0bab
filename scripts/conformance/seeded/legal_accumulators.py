"""Kernels that break no rule: chains of accumulations, transposes and sums by DMA."""

import ml_dtypes
import numpy as np
from calls_of_tiles import CLOSE, ISA, XY, call
from template import NEW, Kernel

_X = ("x float32 128 64",)
_V4 = ("trn3",)


def _transpose(line: int, what: str, shape: str, options: str = "", **given: object) -> Kernel:
    """`x` in HBM goes to a tile of this shape, all axes in the order of `order`."""
    order = given.pop("order", (1, 0))
    body = f"""
d = sb({shape}, x.dtype)
nisa.dma_transpose(dst=d, src=x{options})
return save(d)
"""
    given = {"args": ("x bfloat16 16 128",)} | given
    return Kernel(
        "dma_transpose", f"{ISA}:{line}", what, body, want=lambda x: x.transpose(order), **given
    )


def _gathered(columns: int) -> Kernel:
    rows = 128 * columns
    body = f"""
j, d = load(i), sb((128, {rows}), nl.bfloat16)
rows = x.ap(pattern=[[128, {rows}], [1, 128]], vector_offset=j, indirect_dim=0)
nisa.dma_transpose(dst=d, src=rows, axes=(1, 0))
return save(d)
"""
    return Kernel(
        "dma_transpose", f"{ISA}:908", f"{columns} columns of indices", body,
        on=NEW, args=("x bfloat16 256 128", f"i uint32 128 {columns}"),
        want=lambda x, i: x[i.T.flatten()].T,
    )  # fmt: skip


KERNELS = (
    call(
        1354,
        "a sum that other activations do not touch",
        "nisa.activation(dst=d, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=r)",
        lambda x, y: (x * x).sum(1, keepdims=True),
        setup="r = sb((128, 1))\n"
        "nisa.activation(dst=d, op=nl.square, data=a, reduce_op=nl.add, "
        "reduce_cmd=nisa.reduce_cmd.reset)\n"
        "nisa.activation(dst=d, op=nl.exp, data=a)\n"
        "nisa.activation(dst=d, op=nl.square, data=a, reduce_op=nl.add, "
        "reduce_cmd=nisa.reduce_cmd.reduce)",
        result="r",
    ),
    call(
        1356,
        "a sum over the turns of a register loop",
        "nisa.activation(dst=d, op=nl.copy, data=a, reduce_op=nl.add, reduce_res=r)",
        lambda x, y: 3 * x.sum(1, keepdims=True),
        setup="r = sb((128, 1))\n"
        "nisa.activation(dst=d, op=nl.copy, data=a, reduce_op=nl.add, "
        "reduce_cmd=nisa.reduce_cmd.reset)\n"
        "def body(i):\n"
        "    nisa.activation(dst=d, op=nl.copy, data=a, reduce_op=nl.add, "
        "reduce_cmd=nisa.reduce_cmd.reduce)\n"
        "nl.fori_loop(0, 3, body)",
        result="r",
    ),
    call(
        2544,
        "a negated maximum over two tiles",
        "nisa.tensor_scalar_reduce(dst=d, data=b, op0=nl.multiply, operand0=2.0, "
        "reduce_op=nl.maximum, reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=r, "
        "reduce_res_negate=True)",
        lambda x, y: -2 * np.maximum(x, y).max(1, keepdims=True),
        setup="r = sb((128, 1))\n"
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.multiply, operand0=2.0, "
        "reduce_op=nl.maximum)",
        result="r",
        within=0.0,
    ),
    call(
        2545,
        "a sum on top of a column",
        "nisa.tensor_scalar_reduce(dst=d, data=a, op0=nl.add, operand0=0.0, reduce_op=nl.add, "
        "reduce_cmd=nisa.reduce_cmd.load_reduce, reduce_init=b[:, 3:4], reduce_res=r)",
        lambda x, y: x.sum(1, keepdims=True) + y[:, 3:4],
        setup="r = sb((128, 1))",
        result="r",
    ),
    call(
        2352,
        "a sum of exponentials over two tiles",
        "nisa.exponential(dst=d, src=b, max_value=1.5, reduce_cmd=nisa.reduce_cmd.reduce, "
        "reduce_res=r)",
        lambda x, y: (np.exp(x - 1.5) + np.exp(y - 1.5)).sum(1, keepdims=True),
        setup="r = sb((128, 1))\n"
        "nisa.exponential(dst=d, src=a)\n"
        "nisa.exponential(dst=d, src=a, max_value=1.5, reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        result="r",
        on=_V4,
    ),
    call(
        1299,
        "alternating sums go on",
        "nisa.tensor_scalar_cumulative(dst=d[:, 32:64], src=a[:, 32:64], op0=nl.add, "
        "op1=nl.add, imm0=1.0, reduce_cmd=nisa.reduce_cmd.reduce)",
        lambda x, y: np.cumsum(x + 1, 1),
        setup="nisa.tensor_scalar_cumulative(dst=d[:, 0:32], src=a[:, 0:32], op0=nl.add, "
        "op1=nl.add, imm0=1.0)",
    ),
    call(
        1641,
        "the largest by its absolute value keeps its sign",
        "nisa.activate2(dst=d, op=nl.copy, data=a, imm0=2.0, imm1=0.0, op0=nl.multiply, "
        "op1=nl.bypass, reduce_op=nl.abs_max, reduce_cmd=nisa.reduce_cmd.reset_reduce, "
        "reduce_res=r)",
        lambda x, y: np.take_along_axis(2 * x, np.abs(x).argmax(1)[:, None], 1),
        setup="r = sb((128, 1))",
        result="r",
        within=0.0,
        on=_V4,
    ),
    _transpose(873, "two axes", "(128, 16)"),
    _transpose(883, "two axes by hardware DGE", "(128, 16)",
               ", axes=(1, 0), dge_mode=nisa.dge_mode.hwdge", on=NEW),
    _transpose(874, "three axes", "(32, 4, 16)", order=(2, 1, 0), args=("x bfloat16 16 4 32",)),
    _transpose(875, "four axes", "(32, 3, 5, 16)", ", axes=(3, 1, 2, 0)", order=(3, 1, 2, 0),
               args=("x bfloat16 16 3 5 32",)),
    _transpose(873, "float32", "(64, 128)", args=_X),
    _gathered(1),
    _gathered(2),
    call(
        2661,
        "a sum of tiles in SBUF and HBM",
        "nisa.dma_compute(dst=d, srcs=[a, b, x], reduce_op=nl.add, scales=[1.0, 1.0, 1.0])",
        lambda x, y: (x + y) + x,
        within=CLOSE,
    ),
    call(2716, "16 sources", "nisa.dma_compute(dst=d, srcs=[a] * 16, reduce_op=nl.add)",
         lambda x, y: 16 * x),
    call(
        2704,
        "a sum is converted",
        "nisa.dma_compute(dst=e, srcs=[a, b], reduce_op=nl.add)",
        lambda x, y: (x + y).astype(ml_dtypes.bfloat16),
        setup="e = sb((128, 64), nl.bfloat16)",
        result="e",
        within=0.0,
    ),
    call(
        2682,
        "gathered rows are added",
        "nisa.dma_compute(dst=b, srcs=[x.ap(pattern=[[64, 128], [1, 64]], vector_offset=j, "
        "indirect_dim=0), b], reduce_op=nl.add)",
        lambda x, y, i: x[i[:, 0]] + y,
        setup="j = load(i)",
        result="b",
        args=(*XY, "i uint32 128 1"),
        on=NEW,
    ),
)  # fmt: skip
