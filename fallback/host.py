"""Which XLA regions this machine executes in eager, under `fallback="auto"`.

The plan is made for the device, where the region stays XLA's. A CPU is another matter, by speed:
PyTorch has libraries for products, convolutions, pooling and sorting that XLA's code for CPUs is
1.4 to 90 times slower than, and a call of XLA costs as much as about eight small ops
(`scripts/bench/host_ops.py` measures all of this). And by values: XLA's CPU client takes denormal
numbers for zero, and contracts products and sums, where eager does not. So what XLA executes here
are fused chains of integers and bools.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from trnx.fallback.cost import leaves
from trnx.fx_passes.nodes import is_compute, op_name
from trnx.nki_kernels.hints import product

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


def why_eager(nodes: Sequence[fx.Node]) -> str | None:
    """Why eager executes a region of these nodes on this CPU, None where XLA does."""
    ops = [node for node in nodes if is_compute(node)]
    for node in ops:
        if getattr(node.target, "overloadpacket", None) in LIBRARY_OPS:
            return f"PyTorch's library has a faster {op_name(node)} for this CPU"
    if len(ops) < FUSED_OPS or (len(ops) < SMALL_FUSED_OPS and _elements(ops) < SMALL_ELEMENTS):
        return f"{len(ops)} ops are too little work for a call of XLA on this CPU"
    if any(_is_floating(n) for node in ops for n in (node, *node.all_input_nodes)):
        return "XLA flushes denormal numbers on a CPU, which eager keeps"
    return None


def _is_floating(node: fx.Node) -> bool:
    values = leaves(node.meta.get("val"))
    return any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


def _elements(nodes: Sequence[fx.Node]) -> int:
    """What the nodes compute, by the sizes seen at capture."""
    values = (value for node in nodes for value in leaves(node.meta.get("val")))
    return sum(product(value.shape) for value in values if isinstance(value, torch.Tensor))
