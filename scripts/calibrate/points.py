"""Published measurements, as data. `ns` is what was measured.

Sources are in the public documentation repository aws-neuron/aws-neuron-sdk (images of its
profiler; +-10 ns where read off a picture). Row names: B3 and B4 single instructions, C whole
kernels, A2 DMA. Rows B4 are a third party's (its p50 is half of the profiled time, as in
`held_out.py`). `measure` names the function of `measures.py` that predicts the point, with its
arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """One measurement. `bar` is the error allowed (None: printed, not judged); `sets` the constant
    that was taken from it, `tells` further constants that could be taken from it as well.
    """

    name: str
    target: str
    what: str
    ns: float
    measure: tuple[Any, ...]
    source: str
    bar: float | None = 0.10
    sets: str = ""
    tells: tuple[str, ...] = ()


def _kernel(
    name: str,
    target: str,
    what: str,
    ms: float,
    bar: float,
    kernel: str,
    *rest: Any,
    sets: str = "",
    tells: tuple[str, ...] = (),
) -> Point:
    if target == "trn2":
        dtype, source = "float32", "kernel-optimization.rst, nki/img/how-to"
    else:
        dtype, source = "bfloat16", "tag v2.23.0, tutorials/matrix_multiplication.rst:339-356"
    what = f"matmul 4096x8192x8192 {dtype}, {what}"
    measure = ("matmul", dtype, kernel, *rest)
    return Point(name, target, what, ms * 1e6, measure, source, bar, sets, tells)


_GUIDE = "nki_perf_guide.rst"
_HOW_TO = "nki/img/how-to/v3..v5-zoom.png"
_INTRO = "nki/img/overviews/nki-dma-intro-3/5/6.png"
_QUANT = "nki/library/specs/images/profile_phase_2/3.png"
_KDA = "Jerry2423/kda-for-trainium workspaces/{}/candidates.jsonl, VectorE's share of 2 x p50"

POINTS = (
    Point("B3-1", "trn1", "tensor_tensor multiply fp32 N=8192", 14987,
          ("latency", "multiply", 8192, "float32"), f"{_GUIDE} fig10",
          sets="vector_latency_cycles"),
    Point("B3-2", "trn1", "tensor_tensor add fp32 N=8192, 64 partitions", 14968,
          ("latency", "add", 8192, "float32", False, 64), f"{_GUIDE} fig17",
          tells=("vector_latency_cycles",)),
    Point("B3-3", "trn1", "activation copy fp32 N=1", 159,
          ("latency", "identity", 1, "float32"), f"{_GUIDE} fig16", sets="scalar_latency_cycles"),
    Point("B3-3b", "trn1", "the same, from one to the next that needs it", 189,
          ("spacing", "identity", 1, "float32"), f"{_GUIDE} fig16", sets="handoff_ns"),
    Point("B3-4", "trn1", "activation fp32 N=8192", 6000,
          ("latency", "identity", 8192, "float32"), f"{_GUIDE} fig10",
          tells=("scalar_latency_cycles",)),
    Point("B3-5", "trn1", "nc_matmul bf16 128x1 by N=128", 188,
          ("product", "bfloat16", 1, 128), f"{_GUIDE} fig20", sets="matmul_latency_cycles"),
    Point("B3-6", "trn1", "nc_matmul bf16 128x96 by N=128", 219,
          ("product", "bfloat16", 96, 128), f"{_GUIDE} fig18", tells=("matmul_latency_cycles",)),
    Point("B3-7", "trn1", "load weights bf16, 1 column", 67,
          ("weights", 1, False), f"{_GUIDE} fig20", sets="weights_latency_cycles"),
    Point("B3-8", "trn1", "semaphore", 9, ("semaphore",), f"{_GUIDE} fig12", bar=None,
          sets="semaphore_ns"),
    Point("B3-9", "trn2", "nc_matmul fp32 128x128 by 512, one pass", 597,
          ("product", "float32", 128, 512), _HOW_TO, tells=("matmul_latency_cycles",)),
    Point("B3-9b", "trn2", "the same, from one pass to the next", 430,
          ("product_interval", "float32", 128, 512), _HOW_TO),
    Point("B3-10", "trn2", "load weights fp32, 128 columns", 195,
          ("weights", 128, True), _HOW_TO, tells=("weights_latency_cycles",)),
    Point("B3-11", "trn2", "tensor_tensor add fp32 PSUM + SBUF N=512", 691,
          ("latency", "add", 512, "float32", True), _HOW_TO, tells=("vector_latency_cycles",)),
    Point("B3-11b", "trn2", "the same, from one to the next", 605,
          ("interval", "add", 512, "float32", True), _HOW_TO, tells=("vector_issue_cycles",)),
    Point("B3-12", "trn2", "tensor_copy fp32 SBUF to SBUF N=512", 420,
          ("latency", "copy", 512, "float32"), _HOW_TO, sets="vector_latency_cycles"),
    Point("B3-12b", "trn2", "the same, from one to the next", 343,
          ("interval", "copy", 512, "float32"), _HOW_TO, sets="vector_issue_cycles"),
    Point("B3-13", "trn2", "tensor_copy fp32 PSUM to SBUF N=512", 696,
          ("latency", "copy", 512, "float32", True), _HOW_TO, tells=("vector_latency_cycles",)),
    Point("B3-14", "trn2", "scalar_tensor_tensor bf16, PSUM operand, N=512, to the next", 640,
          ("interval", "select", 512, "bfloat16", True), _QUANT, bar=None,
          tells=("vector_issue_cycles",)),
    Point("B3-15", "trn2", "tensor_reduce bf16 N=16384", 17200,
          ("latency", "maximum", 16384, "bfloat16"), _QUANT),
    Point("B3-16", "trn2", "tensor_scalar bf16 to fp8 N=16384", 8800,
          ("latency", "quantize", 16384, "bfloat16"), _QUANT, bar=None),
    Point("B3-17", "trn2", "activation exp bf16 N=128", 397,
          ("latency", "exp", 128, "bfloat16"), _INTRO, sets="scalar_latency_cycles"),
    Point("B3-17b", "trn2", "activation exp bf16 N=4096", 3717,
          ("latency", "exp", 4096, "bfloat16"), _INTRO, tells=("scalar_latency_cycles",)),
    Point("B3-18", "trn2", "activation_reduce square N=16384 with its table", 15260,
          ("with_table", "square_sum", 16384, "bfloat16"), _QUANT, tells=("scalar_table_ns",)),
    Point("B3-19", "trn2", "table load", 1280, ("table",), _INTRO, sets="scalar_table_ns"),
    Point("B4-1", "trn2", "scalar_tensor_tensor fp32 SBUF N=512, busy time of one of 1368", 647,
          ("interval", "select", 512, "float32"), _KDA.format("adamw")),
    Point("B4-2", "trn2", "the same, N=2304, of 304", 2530,
          ("interval", "select", 2304, "float32"), _KDA.format("adamw")),
    Point("B4-3", "trn2", "tensor_tensor multiply fp32 SBUF N=2048, of 768", 2263,
          ("interval", "multiply", 2048, "float32"), _KDA.format("rope_single_freq_apply")),
    _kernel("C1", "trn2", "blocked in M, N, K", 28.30, 0.05, "blocked_in_depth", 8, 2, 8),
    _kernel("C2", "trn2", "hoisted loads", 28.20, 0.05, "hoisted"),
    _kernel("C3", "trn2", "tiled", 39.89, 0.20, "tiled"),
    _kernel("C4", "trn2", "blocked in M, N", 28.41, 0.05, "blocked", 2, 1),
    _kernel("C5-tiled", "trn1", "tiled", 51.80, 0.20, "tiled", sets="dma_small_row_rate"),
    _kernel("C5-hoisted", "trn1", "hoisted loads", 42.96, 0.20, "hoisted",
            tells=("dma_small_row_rate",)),
    _kernel("C5-blocked", "trn1", "blocked in M, N", 22.07, 0.20, "blocked", 2, 2,
            sets="dma_small_row_bytes", tells=("dma_small_row_rate",)),
    _kernel("C5-full", "trn1", "blocked in M, N, K", 6.97, 0.05, "blocked_in_depth", 16, 2, 8),
    Point("C12", "trn2", "DMA 4 x 8 KiB, one engine: transfer", 1416,
          ("transfer", 4, 4096), _INTRO, bar=0.20),
    Point("C12b", "trn2", "DMA 128 x 256 B: one engine's part", 97,
          ("transfer", 128, 128), _INTRO, bar=0.20),
    Point("C12c", "trn2", "DMA 128 x 256 B: first byte to last", 468,
          ("window", 128, 128), _INTRO, bar=0.20, sets="dma_stagger_ns"),
    Point("C13", "trn1", "DMA 128 x 2 KiB under load", 3046,
          ("transfer", 128, 1024), "nki tutorial mamba, profile 4k_chan_load_var", bar=None,
          tells=("dma_small_row_rate", "dma_small_row_bytes")),
)  # fmt: skip
