"""`linear_activation_backward`: a product as the gradient of an activation, and what goes on behind
it.

x `[..., K]`, weight `[N, K]`, the activation's input `before` `[..., N]` -> `(x @ weight.T) *
activation'(before)`, `[..., N]`. Sums and the derivative, of ScalarE, are float32; there is one
rounding. float32, bfloat16 or float16, one dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import nki
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.kernels._matmul import Blocks, own_part, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand, segments_of
from trnx.nki_kernels.kernels._projections import blocks_of, layouts_of, reject_linear
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

# Those whose derivative is a function of ScalarE, by its name.
_BACKWARD: dict[str, Callable[..., Any]] = {
    "gelu_dx": aten.gelu_backward.default,
    "silu_dx": aten.silu_backward.default,
}


@nki.jit
def linear_activation_backward_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    before: nl.NkiTensor,
    activation: str,
    x_layout: str,
    x_merged: bool,
    weight_layout: str,
    block_rows: int,
    block_columns: int,
    block_depth: int,
    keep: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[..., K]`, weight `[N, K]`, before `[..., N]` -> `[..., N]`; `cores` share rows or
    columns."""
    rows, columns = x.size // x.shape[-1], weight.shape[0]
    out = nl.ndarray(before.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    product(
        out.reshape((rows, columns)),
        MatmulOperand(segments_of(x, x_merged), x_layout),
        MatmulOperand([weight], weight_layout),
        Blocks(block_rows, block_columns, block_depth, keep),
        Epilogue(None, before.reshape((rows, columns)), activation),
        own_part(rows, columns, cores),
        [],
    )
    return out


def _as_linear(b: Bindings) -> Bindings:
    """The same as bindings of a product with a residual."""
    return Bindings({"x": b.x, "weight": b.weight, "bias": None, "residual": b.before})


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """As `linear` with a residual."""
    del hw
    return reject_linear(_as_linear(b))


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides of x and weight allow, and the block sizes."""
    names = ("x", "weight", "before", "activation")
    given = (*layouts_of(b, hw), *blocks_of(b, hw))
    return Launch.of(linear_activation_backward_kernel, b, names, *given)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add, two operations an element; every operand crosses HBM once."""
    rows, depth = b.x.numel // max(b.x.shape[-1], 1), b.x.shape[-1]
    columns = b.weight.shape[0]
    return Cost(
        matmul_flops=2 * rows * columns * depth,
        vector_flops=2 * rows * columns,
        hbm_bytes=b.x.nbytes + b.weight.nbytes + 2 * b.before.nbytes,
    )


def reference(
    x: torch.Tensor, weight: torch.Tensor, before: torch.Tensor, activation: str
) -> torch.Tensor:
    """The same in float32, rounded once."""
    gradient = F.linear(x.float(), weight.float())
    result: torch.Tensor = _BACKWARD[activation](gradient, before.float())
    return result.to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, every activation, layouts, more than a block."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        depth: int,
        columns: int,
        dtype: torch.dtype = torch.float32,
        turned: bool = True,
        activation: str = "gelu_dx",
    ) -> Sample:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        weight = draw(columns, depth) / math.sqrt(depth)
        values = {
            "x": draw(*rows, depth),
            "weight": weight.mT.contiguous().mT if turned else weight,
            "before": 2 * draw(*rows, columns),
            "activation": activation,
        }
        return Sample(values, note)

    for rows in (1, 127, 128, 129, 300):
        yield sample(f"{rows} rows", (rows,), 130, 66)
    for depth in (1, 2, 129, 700):
        yield sample(f"K = {depth}", (260,), depth, 70, turned=depth == 129)
    for columns in (1, 513, 1030):
        yield sample(f"{columns} columns", (2, 140), 64, columns)
    yield sample("more rows than a block", (700,), 100, 2100)
    yield sample("deep K", (130,), 8200, 20)
    yield sample("silu", (130,), 64, 70, activation="silu_dx")
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (3, 100), 300, 140, dtype=dtype)


def _pattern(activation: str) -> Pattern:
    def pattern(x: torch.Tensor, weight: torch.Tensor, before: torch.Tensor) -> Any:
        gradient = aten.linear.default(x, weight, None)
        return _BACKWARD[activation](gradient, before)

    return Pattern(pattern, {"activation": activation})


register(
    KernelSpec(
        name="linear_activation_backward",
        patterns=tuple(map(_pattern, _BACKWARD)),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=linear_activation_backward_kernel,
        launch=launch,
        strided=frozenset({"x", "weight"}),
        fuses=True,
    )
)
