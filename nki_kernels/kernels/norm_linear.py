"""`norm_linear`: an RMS or layer norm of few rows, and one product, maybe activated, or three
(query, key, value) of it.

x `[..., K]`, norm_weight and norm_bias `[K]` or None, weights `[N, K]`, biases `[N]` or None; up to
128 rows of one dtype with the weights: float32, bfloat16 or float16. The weights stream while the
norm is computed. K is on the partitions from the start, as the products read it, so that the norm
of one row uses all of them, and nothing is transposed: a product with ones adds up the squares of
all partitions, and gives all of them the sum. Sums are float32; the norm is rounded to the dtype of
x, as what it stands for rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.language as nl
import torch
import torch.nn.functional as F

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers trnx::rms_norm
from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    COLUMN_UNIT,
    COLUMNS,
    leading_dims_merge,
    operand_layout,
    tile_columns,
    weight_layout,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._norm_columns import centred, columns_of, scaled
from trnx.nki_kernels.kernels._operands import MatmulOperand, segments_of
from trnx.nki_kernels.kernels._projections import (
    BIASES,
    WEIGHTS,
    biases_of,
    project,
    reject_projections,
    weights_of,
)
from trnx.nki_kernels.kernels._rows import offset_vector
from trnx.nki_kernels.kernels._scalar_table import early_epsilon
from trnx.nki_kernels.kernels._streamed import product_of_rows
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_rms_norm = torch.ops.trnx.rms_norm.default
_MOST_ROWS = 128
_HOW = ("offset", "rounds", "centres", "activation")
_ONE = dict.fromkeys((*WEIGHTS[1:], *BIASES[1:]))
# What an RMS norm is.
_RMS = {"norm_bias": None, "normalized_shape": None, "centres": False}
# What a layer norm is.
_LAYER = {"offset": 0.0, "rounds": False, "centres": True}


@nki.jit
def norm_linear_kernel(
    x: nl.NkiTensor,
    norm_weight: nl.NkiTensor | None,
    weight: nl.NkiTensor,
    weight_1: nl.NkiTensor | None,
    weight_2: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    bias_1: nl.NkiTensor | None,
    bias_2: nl.NkiTensor | None,
    norm_bias: nl.NkiTensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    centres: bool,
    activation: str,
    x_layout: str,
    x_merged: bool,
    vector_layouts: tuple[str, str],
    layouts: tuple[str, ...],
    block_columns: tuple[int, ...],
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """x `[..., K]`, norm_weight, norm_bias `[K]`, weights `[N, K]`, biases `[N]` -> `[..., N]` for
    each weight; `cores` share the columns.
    """
    depth = x.shape[-1]
    rows = x.size // depth
    weights = [weight]
    if weight_1 is not None:
        weights.append(weight_1)
    if weight_2 is not None:
        weights.append(weight_2)
    outs = []
    for one in weights:
        shape = x.shape[:-1] + (one.shape[0],)
        outs.append(nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm))
    parts = []
    has_work = False
    for one in weights:
        part = share_of(one.shape[0], cores, COLUMN_UNIT)
        parts.append(part)
        has_work = has_work or part[0] < part[1]
    if has_work:
        epsilon = early_epsilon(eps)
        data = columns_of(MatmulOperand(segments_of(x, x_merged), x_layout), rows, depth)
        factor = None
        if norm_weight is not None:
            row = MatmulOperand([norm_weight.reshape((1, depth))], vector_layouts[0])
            factor = offset_vector(columns_of(row, 1, depth), offset)
        addend = None
        if norm_bias is not None:
            row = MatmulOperand([norm_bias.reshape((1, depth))], vector_layouts[1])
            addend = columns_of(row, 1, depth)
        if centres:
            data = centred(data, depth)
        data = scaled(data, factor, addend, x.dtype, depth, epsilon, rounds)
        biases = [bias, bias_1, bias_2]
        for number in range(len(weights)):
            product_of_rows(
                outs[number].reshape((rows, weights[number].shape[0])),
                data,
                MatmulOperand([weights[number]], layouts[number]),
                block_columns[number],
                Epilogue(biases[number], None, activation),
                parts[number],
            )
    if len(outs) == 1:
        return outs[0]
    return outs[0], outs[1], outs[2]


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Up to 128 rows, K as far as the norm and a block of weights fit in SBUF, one dtype."""
    if reject := reject_dtypes(b, "x", "norm_weight", "norm_bias"):
        return reject
    if reject := reject_projections(b):
        return reject
    depth = b.x.shape[-1]
    for name, vector in (("norm_weight", b.norm_weight), ("norm_bias", b.norm_bias)):
        if vector is not None and vector.shape != (depth,):
            return Reject(f"{name}{vector.shape} is not the last dimension of x{b.x.shape}")
    if b.normalized_shape is not None and list(b.normalized_shape) != [depth]:
        return Reject(f"a norm over {b.normalized_shape}, not over the last dimension alone")
    rows = b.x.numel // depth
    if rows > _MOST_ROWS:
        return Reject(f"{rows} rows; more than {_MOST_ROWS} are normalised faster by themselves")
    if _norm_bytes(b, hw) > hw.sbuf_partition_bytes // 4:
        return Reject(f"{rows} rows of {depth} elements leave no room in SBUF for weights")
    if 0 in _block_columns(b, hw):
        return Reject(f"128 rows of a weight with K = {depth} do not fit in SBUF")
    return None


def _norm_bytes(b: Bindings, hw: Hardware) -> int:
    """Of x as it is loaded, of what the norm makes of it in float32, and of the result, a
    partition."""
    chunks = -(-b.x.shape[-1] // hw.partitions)
    rows = b.x.numel // b.x.shape[-1]
    wide = 2 + b.centres + (b.norm_bias is not None)
    return int(chunks * rows * (2 * b.x.dtype.itemsize + 4 * wide))


def _block_columns(b: Bindings, hw: Hardware) -> tuple[int, ...]:
    """Columns of a block of each weight, 0 where K is too deep for one."""
    rows, depth, itemsize = b.x.numel // b.x.shape[-1], b.x.shape[-1], b.x.dtype.itemsize
    return tuple(tile_columns(rows, w.shape[0], depth, itemsize, hw) for w in weights_of(b))


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides allow, and the blocks of columns."""
    vectors = tuple(
        COLUMNS if spec is None else operand_layout(spec, hw)
        for spec in (b.norm_weight, b.norm_bias)
    )
    rows = b.x.numel // b.x.shape[-1]
    layouts = tuple(weight_layout(rows, spec, hw) for spec in weights_of(b))
    names = ("x", "norm_weight", *WEIGHTS, *BIASES, "norm_bias", "eps", *_HOW)
    given = (operand_layout(b.x, hw), leading_dims_merge(b.x), vectors, layouts)
    return Launch.of(norm_linear_kernel, b, names, *given, _block_columns(b, hw))


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add, four to six operations an element of x; all operands cross HBM
    once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    columns = sum(spec.shape[0] for spec in weights_of(b))
    tensors = (b.x, b.norm_weight, b.norm_bias, *biases_of(b), *weights_of(b))
    return Cost(
        matmul_flops=2 * b.x.numel * columns,
        vector_flops=(4 + 2 * b.centres) * b.x.numel + rows * columns,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None)
        + rows * columns * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    weight: torch.Tensor,
    weight_1: torch.Tensor | None,
    weight_2: torch.Tensor | None,
    bias: torch.Tensor | None,
    bias_1: torch.Tensor | None,
    bias_2: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    normalized_shape: list[int] | None,
    eps: float,
    offset: float,
    rounds: bool,
    centres: bool,
    activation: str,
) -> Any:
    """The norm, rounded, and the products in float32, rounded once."""
    if centres:
        assert normalized_shape is not None
        scale = None if norm_weight is None else norm_weight.float()
        shift = None if norm_bias is None else norm_bias.float()
        normed = F.layer_norm(x.float(), normalized_shape, scale, shift, eps).to(x.dtype).float()
    else:
        normed = _rms_norm(x, norm_weight, eps, offset, rounds).float()

    def product(w: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        return ACTIVATIONS[activation](project(normed, w, added)).to(x.dtype)

    pairs = ((weight, bias), (weight_1, bias_1), (weight_2, bias_2))
    results = tuple(product(w, added) for w, added in pairs if w is not None)
    return results[0] if len(results) == 1 else results


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged rows, columns and K, both layouts, one weight and three."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        depth: int,
        *columns: int,
        dtype: torch.dtype = torch.float32,
        turned: bool = False,
        bias: bool = False,
        scaled: bool = True,
        offset: float = 0.0,
        rounds: bool = False,
        centres: bool = False,
        activation: str = "none",
    ) -> Sample:
        def matrix(count: int) -> torch.Tensor:
            w = (torch.randn(count, depth, generator=generator) / math.sqrt(depth)).to(dtype)
            return w.mT.contiguous().mT if turned else w

        x = torch.randn((*rows, depth), generator=generator).to(dtype)
        gamma = torch.randn(depth, generator=generator).to(dtype) if scaled else None
        weights = [matrix(count) for count in columns]
        named = dict(zip(WEIGHTS, [*weights, None, None], strict=False))
        added = [torch.randn(n, generator=generator).to(dtype) if bias else None for n in columns]
        beta = torch.randn(depth, generator=generator).to(dtype) if scaled and centres else None
        # An element of the norm may round to either neighbour.
        normed = _rms_norm(x, gamma, 1e-6, offset, rounds).float().abs()
        if centres:
            normed = aten.native_layer_norm.default(x, [depth], gamma, beta, 1e-6)[0].float().abs()
        spread = max(F.linear(normed, w.float().abs()).max().item() for w in weights)
        error = (1 + rounds) * torch.finfo(dtype).eps * spread
        named |= zip(BIASES, [*added, None, None], strict=False)
        how = {"eps": 1e-6, "offset": offset, "rounds": rounds, "centres": centres}
        norm: dict[str, Any] = {"norm_weight": gamma, "norm_bias": beta}
        norm["normalized_shape"] = [depth] if centres else None
        return Sample({"x": x, **norm, **named, **how, "activation": activation}, note, error)

    for rows in (1, 2, 127, 128):
        yield sample(f"{rows} rows", (rows,), 130, 66)
    for depth in (1, 2, 127, 128, 129, 513, 2300):
        yield sample(f"K = {depth}", (3,), depth, 70, bias=True)
        yield sample(f"K = {depth}, one row", (1,), depth, 70, turned=True)
    for columns in (1, 127, 129, 513):
        yield sample(f"N = {columns}", (2, 5), 66, columns, scaled=False)
    yield sample("query, key and value", (1, 4), 200, 320, 64, 64)
    yield sample("query, key and value with biases", (1, 4), 200, 320, 64, 66, bias=True)
    yield sample("1 + weight", (3,), 200, 140, offset=1.0)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (2, 20), 300, 140, dtype=dtype, turned=True)
        yield sample(f"{dtype}, three", (1,), 2100, 320, 70, 66, dtype=dtype)
        yield sample(f"{dtype}, 1 + weight", (5,), 300, 140, dtype=dtype, offset=1.0)
        yield sample(f"{dtype}, rounded twice", (5,), 300, 320, 70, 66, dtype=dtype, rounds=True)
    yield sample("one dimension", (), 96, 64)
    for depth in (1, 2, 127, 128, 129, 513, 2300):
        yield sample(f"layer norm, K = {depth}", (3,), depth, 70, centres=True, bias=True)
    for rows in (1, 127, 128):
        yield sample(f"layer norm, {rows} rows", (rows,), 200, 66, 70, 64, centres=True)
    yield sample("layer norm without weight", (2, 5), 66, 130, centres=True, scaled=False)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}, layer norm", (1, 5), 300, 140, dtype=dtype, centres=True)
    for activation in ACTIVATIONS:
        yield sample(f"then {activation}", (5,), 70, 66, bias=True, activation=activation)


def _rms_and_one(activation: str) -> Pattern:
    def pattern(
        x: torch.Tensor,
        norm_weight: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        offset: float,
        rounds: bool,
    ) -> Any:
        normed = _rms_norm(x, norm_weight, eps, offset, rounds)
        return ACTIVATIONS[activation](aten.linear.default(normed, weight, bias))

    return Pattern(pattern, {**_RMS, **_ONE, "activation": activation})


def _layer_and_one(activation: str) -> Pattern:
    def pattern(
        x: torch.Tensor,
        normalized_shape: list[int],
        norm_weight: torch.Tensor | None,
        norm_bias: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
    ) -> Any:
        normed = aten.native_layer_norm.default(x, normalized_shape, norm_weight, norm_bias, eps)
        return ACTIVATIONS[activation](aten.linear.default(normed[0], weight, bias))

    return Pattern(pattern, {**_LAYER, **_ONE, "activation": activation})


def _layer_and_three(
    x: torch.Tensor,
    normalized_shape: list[int],
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias: torch.Tensor | None,
    bias_1: torch.Tensor | None,
    bias_2: torch.Tensor | None,
    eps: float,
) -> Any:
    normed = aten.native_layer_norm.default(x, normalized_shape, norm_weight, norm_bias, eps)[0]
    return (
        aten.linear.default(normed, weight, bias),
        aten.linear.default(normed, weight_1, bias_1),
        aten.linear.default(normed, weight_2, bias_2),
    )


def _rms_and_three(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias: torch.Tensor | None,
    bias_1: torch.Tensor | None,
    bias_2: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
) -> Any:
    normed = _rms_norm(x, norm_weight, eps, offset, rounds)
    return (
        aten.linear.default(normed, weight, bias),
        aten.linear.default(normed, weight_1, bias_1),
        aten.linear.default(normed, weight_2, bias_2),
    )


register(
    KernelSpec(
        name="norm_linear",
        patterns=(
            *map(_rms_and_one, ACTIVATIONS),
            *map(_layer_and_one, ACTIVATIONS),
            Pattern(_rms_and_three, {**_RMS, "activation": "none"}),
            Pattern(_layer_and_three, {**_LAYER, "activation": "none"}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=norm_linear_kernel,
        launch=launch,
        strided=frozenset({"x", *WEIGHTS}),
        fuses=True,
    )
)
