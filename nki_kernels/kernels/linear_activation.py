"""`linear_activation`: an activation of a product, and the product, which its gradient reads.

x `[..., K]`, weight `[N, K]`, bias `[N]` or None -> `activation(product)` and `product =
x @ weight.T + bias`, both `[..., N]`. The product is rounded before the activation, as it is where
both are ops of their own. Sums are float32. float32, bfloat16 or float16, one dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.kernels._matmul import Blocks, own_part, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand, segments_of
from trnx.nki_kernels.kernels._projections import blocks_of, layouts_of, reject_linear
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


@nki.jit
def linear_activation_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    activation: str,
    x_layout: str,
    x_merged: bool,
    weight_layout: str,
    block_rows: int,
    block_columns: int,
    block_depth: int,
    keep: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """x `[..., K]`, weight `[N, K]`, bias `[N]` -> `[..., N]` twice, the activation first; `cores`
    share rows or columns."""
    rows, columns = x.size // x.shape[-1], weight.shape[0]
    shape = x.shape[:-1] + (columns,)
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    before = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    product(
        out.reshape((rows, columns)),
        MatmulOperand(segments_of(x, x_merged), x_layout),
        MatmulOperand([weight], weight_layout),
        Blocks(block_rows, block_columns, block_depth, keep),
        Epilogue(bias, None, activation, None, before.reshape((rows, columns))),
        own_part(rows, columns, cores),
        [],
    )
    return out, before


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """What `linear` takes with a bias `[N]`, as far as all of K fits in SBUF."""
    if reject := reject_linear(Bindings({**b, "residual": None})):
        return reject
    if b.bias is not None and b.bias.ndim != 1:
        return Reject(f"bias has shape {b.bias.shape}, not ({b.weight.shape[0]},)")
    if blocks_of(b, hw)[2] < b.x.shape[-1]:
        return Reject(f"K = {b.x.shape[-1]} of a block of columns does not fit in SBUF")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides of x and weight allow, and the block sizes."""
    names = ("x", "weight", "bias", "activation")
    return Launch.of(linear_activation_kernel, b, names, *layouts_of(b, hw), *blocks_of(b, hw))


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; every operand crosses HBM once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    columns = b.weight.shape[0]
    tensors = (b.x, b.weight, b.bias)
    return Cost(
        matmul_flops=2 * b.x.numel * columns,
        vector_flops=3 * rows * columns,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None)
        + 2 * rows * columns * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product in float32, rounded, and the activation of that."""
    added = None if bias is None else bias.float()
    before = F.linear(x.float(), weight.float(), added).to(x.dtype)
    return ACTIVATIONS[activation](before.float()).to(x.dtype), before


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, every activation."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        depth: int,
        columns: int,
        dtype: torch.dtype = torch.float32,
        turned: bool = False,
        bias: bool = True,
        activation: str = "gelu",
    ) -> Sample:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        x = draw(*rows, depth)
        weight = draw(columns, depth) / math.sqrt(depth)
        values = {
            "x": x,
            "weight": weight.mT.contiguous().mT if turned else weight,
            "bias": draw(columns) if bias else None,
            "activation": activation,
        }
        # The product may round to either neighbour, and no activation is steeper than 1.2.
        largest = F.linear(x.float(), weight.float()).abs().max().item() + 4
        return Sample(values, note, 1.2 * torch.finfo(dtype).eps * largest)

    for rows in (1, 127, 128, 129, 300):
        yield sample(f"{rows} rows", (rows,), 130, 66)
    for depth in (1, 2, 129, 700):
        yield sample(f"K = {depth}", (260,), depth, 70, turned=depth == 129)
    for columns in (1, 513, 1030):
        yield sample(f"{columns} columns", (2, 140), 64, columns, bias=columns > 1)
    yield sample("more rows than a block", (700,), 100, 2100)
    for activation in _WITH_GRADIENT:
        yield sample(activation, (130,), 64, 70, activation=activation)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (3, 100), 300, 140, dtype=dtype)


# Those whose gradient reads what they are of.
_WITH_GRADIENT = ("gelu", "gelu_tanh", "quick_gelu", "silu")


def _pattern(activation: str) -> Pattern:
    def pattern(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        before = aten.linear.default(x, weight, bias)
        return ACTIVATIONS[activation](before), before

    return Pattern(pattern, {"activation": activation})


register(
    KernelSpec(
        name="linear_activation",
        patterns=tuple(map(_pattern, _WITH_GRADIENT)),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=linear_activation_kernel,
        launch=launch,
        strided=frozenset({"x", "weight"}),
        fuses=True,
    )
)
