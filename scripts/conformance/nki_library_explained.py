"""Why cases of nki-library fail: each row says what the message looks like and whose defect it is.

A failure that no row explains is ours until somebody has looked at it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Explanation:
    """`case` and `message` are searched in the case's name and in what it printed."""

    case: str
    message: str
    whose: str  # "theirs" or "ours"
    reason: str


EXPLANATIONS = (
    Explanation(
        r"/test_attention_block_tkg\.py::.*\[MODEL_WIP_\w+_(256|512|1024)-.*-bfloat16-2-",
        r"Validation failed",
        "theirs",
        "more than 128 tokens go to qkv_cte, which scales for QuantizationType.STATIC alone: the "
        "scales of .ROW are not applied, and V is clipped at 240",
    ),
    Explanation(
        r"/test_attention_block_tkg\.py",
        r"MemoryError|can't allocate memory|status -9",
        "theirs",
        "golden values hold float32 copies of whole caches for every rank: an array of 4 GiB for "
        "0.5 GB of inputs (contexts of 262144)",
    ),
    Explanation(
        r"/test_transformer_tkg\.py",
        r"MemoryError|can't allocate memory|status -9",
        "ours",
        "every rank gets arrays of its own, as a kernel may write into them: 6 GB for the 0.9 GB "
        "of inputs that the suite gives to 4 ranks",
    ),
    Explanation(
        r"/core/moe/moe_cte/",
        r"\[capacity\]",
        "ours",
        "fills more PSUM tiles than there are banks before it drains the first, or more SBUF than "
        "there is; the device's compiler moves instructions and spills to HBM "
        "(SDK memory-hierarchy-overview.rst), the simulator counts what is live in program order",
    ),
    Explanation(
        r"/core/output_projection/test_output_proj_tkg\.py",
        r"\[capacity\]",
        "ours",
        "loads the weights of all products before the first one; the device's compiler loads them "
        "later or spills, the simulator counts what is live in program order",
    ),
    Explanation(
        r"/core/(mlp/test_mlp_cte|qkv/test_qkv_cte|rmsnorm/test_rmsnorm_quant)\.py",
        r"MemoryError|can't allocate memory|status -9",
        "theirs",
        "random inputs in float64, golden values and their comparison in float32 and float64: 5.1 "
        "GB were measured for 0.6 GB of inputs (qkv_cte), 3.6 for 0.16 (rmsnorm_quant)",
    ),
    Explanation(
        r"/core/moe(_block)?/|/experimental/moe/",
        r"MemoryError|can't allocate memory|status -9",
        "theirs",
        "random weights are made in float64, four times what the kernel gets, and golden values "
        "hold float32 copies: 8 GB for 128 experts",
    ),
    Explanation(
        r"/loss/test_cross_entropy_",
        r"MemoryError|can't allocate memory|status -9",
        "theirs",
        "random inputs in float64, golden values and their comparison take up to 18 times the "
        "memory of a case's inputs, the simulation 4 times",
    ),
    Explanation(
        r"/core/attention/test_attention_(bwd|cte)\.py",
        r"MemoryError|can't allocate memory|status -9",
        "theirs",
        "golden values (of the backward pass inputs, too) hold float32 scores [heads, queries, "
        "keys] four times and more: 34 GB for 32 heads and 8192 positions, 17 GB for one head and "
        "32768; the simulation needs the inputs and some 100 MB",
    ),
    Explanation(
        r"/core/attention/test_attention_tkg\.py::.*test_attn_tkg_slow",
        r"MemoryError|can't allocate memory|status -9",
        "theirs",
        "random inputs are made in float64 for the whole cache: 16 GiB for each of keys and values "
        "of 1024 sequences",
    ),
)


def explain(result: dict[str, Any]) -> Explanation | None:
    """The first row that fits a failed case."""
    text = f"{result['message']}\n{result.get('text', '')}"
    for row in EXPLANATIONS:
        if re.search(row.case, result["case"]) and re.search(row.message, text):
            return row
    return None
