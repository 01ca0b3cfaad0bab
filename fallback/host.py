"""Which XLA regions this machine executes in eager, under `fallback="auto"`, because it is faster.

The plan is made for the device, where the region stays XLA's. A CPU is another matter: PyTorch has
libraries for products, convolutions, pooling and sorting that XLA's code for CPUs is 1.4 to 90
times slower than, and a call of XLA costs as much as about eight small ops. XLA gains where it
fuses. `scripts/bench/host_ops.py` measures all of this.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from trnx.fallback.cost import leaves
from trnx.fx_passes.nodes import is_compute, op_name
from trnx.fx_passes.symbolic import product

aten = torch.ops.aten

LIBRARY_OPS = frozenset(
    {
        aten.convolution,
        aten.convolution_backward,
        aten.mm,
        aten.addmm,
        aten.bmm,
        aten.baddbmm,
        aten.linear,
        aten.avg_pool2d,
        aten.avg_pool2d_backward,
        aten.max_pool2d_with_indices,
        aten.max_pool2d_with_indices_backward,
        aten._adaptive_avg_pool2d,
        aten.sort,
        aten.cumsum,
        aten.sin,
        aten.cos,
    }
)
# A region with fewer ops than these gains nothing from fusion; the second where tensors are small.
FUSED_OPS = 4
SMALL_FUSED_OPS = 8
SMALL_ELEMENTS = 1 << 16


def faster_in_eager(nodes: Sequence[fx.Node]) -> str | None:
    """Why eager is faster on this CPU for a region of these nodes, None where XLA is."""
    ops = [node for node in nodes if is_compute(node)]
    for node in ops:
        if getattr(node.target, "overloadpacket", None) in LIBRARY_OPS:
            return f"PyTorch's library has a faster {op_name(node)} for this CPU"
    if len(ops) < FUSED_OPS or (len(ops) < SMALL_FUSED_OPS and _elements(ops) < SMALL_ELEMENTS):
        return f"{len(ops)} ops are too little work for a call of XLA on this CPU"
    return None


def _elements(nodes: Sequence[fx.Node]) -> int:
    """What the nodes compute, by the sizes seen at capture."""
    values = (value for node in nodes for value in leaves(node.meta.get("val")))
    return sum(product(value.shape) for value in values if isinstance(value, torch.Tensor))
