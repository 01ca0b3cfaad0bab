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
        r"/test_moe_block_tkg\.py",
        r"Validation failed for \['out'\]",
        "theirs",
        "golden values route tokens in float32; where the fourth and the fifth expert's logits of "
        "a token are alike in bfloat16, the kernel takes the other one, and that row differs",
    ),
    Explanation(
        r"/core/moe/moe_cte/|/experimental/moe/test_bwmm_shard_on_H\.py",
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
)


def explain(result: dict[str, Any]) -> Explanation | None:
    """The first row that fits a failed case."""
    text = f"{result['message']}\n{result.get('text', '')}"
    for row in EXPLANATIONS:
        if re.search(row.case, result["case"]) and re.search(row.message, text):
            return row
    return None
