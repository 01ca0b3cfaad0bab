"""Products of one input, one with a residual or up to three: bindings, checks and reference (host
side).

x `[..., K]`; `weight`, `weight_1`, `weight_2` `[N, K]`, the last two maybe None; `bias`, `bias_1`,
`bias_2` `[N]` or None.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    block_sizes,
    leading_dims_merge,
    operand_layout,
    part_sizes,
    shares_rows,
)
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

WEIGHTS = ("weight", "weight_1", "weight_2")
BIASES = ("bias", "bias_1", "bias_2")


def weights_of(b: Bindings) -> list[Any]:
    """Those that there are."""
    return [b[name] for name in WEIGHTS if b[name] is not None]


def biases_of(b: Bindings) -> list[Any]:
    """One for each weight, None where there is none."""
    return [b[name] for name in BIASES[: len(weights_of(b))]]


def reject_projections(b: Bindings) -> Reject | None:
    """Why the products are none of one dtype and of fitting sizes, or are empty."""
    weights, biases = weights_of(b), biases_of(b)
    for spec in (*weights, *biases):
        if spec is not None and spec.dtype != b.x.dtype:
            return Reject(f"a weight is {spec.dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.x.ndim == 0 or any(spec.ndim != 2 for spec in weights):
        return Reject(f"x{b.x.shape} has no rows, or a weight is no matrix")
    if b.x.numel == 0 or any(spec.numel == 0 for spec in weights):
        return Reject(f"an empty product: x{b.x.shape}")
    if any(spec.shape[1] != b.x.shape[-1] for spec in weights):
        return Reject(f"x{b.x.shape} and a weight differ in their last dimension")
    for spec, bias in zip(weights, biases, strict=True):
        if bias is not None and bias.shape != (spec.shape[0],):
            return Reject(f"a bias has shape {bias.shape}, not ({spec.shape[0]},)")
    return None


def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """One of the products in float32, of x in float32."""
    return F.linear(x, weight.float(), None if bias is None else bias.float())


def reject_linear(b: Bindings) -> Reject | None:
    """Why `x`, `weight`, `bias` and `residual` are no product of one dtype and fitting sizes."""
    operands = {"weight": b.weight, "bias": b.bias, "residual": b.residual}
    if reject := reject_dtypes(b, "x"):
        return reject
    for name, spec in operands.items():
        if spec is not None and spec.dtype != b.x.dtype:
            return Reject(f"{name} is {spec.dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.x.ndim < 1 or b.weight.ndim != 2:
        return Reject(f"x has {b.x.ndim} and weight has {b.weight.ndim} dimensions, not >= 1 and 2")
    if b.x.shape[-1] != b.weight.shape[1]:
        return Reject(f"x{b.x.shape} and weight{b.weight.shape} differ in their last dimension")
    if b.x.numel == 0 or b.weight.numel == 0:
        return Reject(f"an empty product: x{b.x.shape}, weight{b.weight.shape}")
    result = (*b.x.shape[:-1], b.weight.shape[0])
    ones = (1,) * (0 if b.bias is None else min(b.bias.ndim, len(result)) - 1)
    if b.bias is not None and b.bias.shape != (*ones, b.weight.shape[0]):
        return Reject(f"bias has shape {b.bias.shape}, not ({b.weight.shape[0]},)")
    if b.residual is not None and b.residual.shape != result:
        return Reject(f"the added tensor has shape {b.residual.shape}, the product {result}")
    return None


def layouts_of(b: Bindings, hw: Hardware) -> tuple[str, bool, str]:
    """How `x` and `weight` get to the partitions; the second is whether leading dimensions of x
    merge into one."""
    return operand_layout(b.x, hw), leading_dims_merge(b.x), operand_layout(b.weight, hw)


def blocks_of(b: Bindings, hw: Hardware) -> tuple[int, int, int, bool]:
    """`block_sizes` of a product of which cores share the rows or the columns."""
    return blocks_of_part(b, hw, shares_rows(b.x.numel // b.x.shape[-1], b.weight.shape[0]))


def blocks_of_part(b: Bindings, hw: Hardware, by_rows: bool) -> tuple[int, int, int, bool]:
    """The same where it is decided which."""
    rows, depth = b.x.numel // b.x.shape[-1], b.x.shape[-1]
    part = part_sizes(rows, b.weight.shape[0], hw.cores, by_rows)
    return block_sizes(*part, depth, b.x.dtype.itemsize, hw)
