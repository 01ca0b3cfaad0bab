"""`norm_linear`: an RMS norm of few rows, and one product or three (query, key, value) of it.

x `[..., K]`, norm_weight `[K]` or None, weights `[N, K]`, biases `[N]` or None; up to 128 rows of
one dtype with the weights: float32, bfloat16 or float16. The weights stream while the norm is
computed. K is on the partitions from the start, as the products read it, so that the norm
of one row uses all of them, and nothing is transposed: a product with ones adds up the squares of
all partitions, and gives all of them the sum. Sums are float32; the norm is rounded to the dtype of
x, as what it stands for rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch
import torch.nn.functional as F

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers trnx::rms_norm
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    COLUMN_UNIT,
    COLUMNS,
    leading_dims_merge,
    operand_layout,
    tile_columns,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._matmul import (
    Epilogue,
    MatmulOperand,
    fill_operand,
    product_of_tile,
    segments_of,
)
from trnx.nki_kernels.kernels._rows import offset_vector
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_rms_norm = torch.ops.trnx.rms_norm.default
_MOST_ROWS = 128
_WEIGHTS = ("weight", "weight_1", "weight_2")
_BIASES = ("bias", "bias_1", "bias_2")


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
    eps: float,
    offset: float,
    rounds: bool,
    x_layout: str,
    x_merged: bool,
    vector_layout: str,
    layouts: tuple[str, ...],
    block_columns: tuple[int, ...],
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """x `[..., K]`, norm_weight `[K]`, weights `[N, K]`, biases `[N]` -> `[..., N]` for each
    weight; `cores` share the columns.
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
        data = _columns_of(MatmulOperand(segments_of(x, x_merged), x_layout), rows, depth)
        vector = None
        if norm_weight is not None:
            row = norm_weight.reshape((1, depth))
            vector = _columns_of(MatmulOperand([row], vector_layout), 1, depth)
            vector = offset_vector(vector, offset)
        data = _normalised(data, vector, depth, eps, rounds)
        biases = [bias, bias_1, bias_2]
        for number in range(len(weights)):
            product_of_tile(
                outs[number].reshape((rows, weights[number].shape[0])),
                data,
                MatmulOperand([weights[number]], layouts[number]),
                block_columns[number],
                Epilogue(biases[number], None, "none"),
                parts[number],
            )
    if len(outs) == 1:
        return outs[0]
    return outs[0], outs[1], outs[2]


def _columns_of(operand: MatmulOperand, rows: int, depth: int) -> nl.NkiTensor:
    """All rows as `[128, chunks, rows]`, zeros behind the last element."""
    pmax = nl.tile_size.pmax
    chunks = (depth + pmax - 1) // pmax
    shape = (min(depth, pmax), chunks, rows)
    data = nl.ndarray(shape, dtype=operand.segments[0].dtype, buffer=nl.sbuf)
    if depth > pmax and depth % pmax > 0:
        nisa.memset(dst=data[:, chunks - 1, :], value=0.0)
    fill_operand(data, operand, 0, 0, depth)
    return data


def _normalised(
    data: nl.NkiTensor, vector: nl.NkiTensor | None, depth: int, eps: float, rounds: bool
) -> nl.NkiTensor:
    """`data / sqrt(mean(data^2) + eps) * vector`, all with K on partitions and chunks."""
    partitions, chunks, rows = data.shape
    squares = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=squares, op=nl.square, data=data)
    sums = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=squares.permute((0, 2, 1)), axis=2)
    ones = nl.ndarray((partitions, partitions), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    bank = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=ones, moving=sums)
    total = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=total, src=bank)
    epsilon = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    rstd = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=rstd, op=nl.rsqrt, data=total, scale=1.0 / depth, bias=epsilon)
    over_chunks = rstd.expand_dim(1).broadcast(1, chunks)
    result = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    if vector is None:
        nisa.tensor_tensor(dst=result, data1=data, data2=over_chunks, op=nl.multiply)
        return result
    dtype = data.dtype if rounds else nl.float32
    scaled = nl.ndarray(data.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=scaled, data1=data, data2=over_chunks, op=nl.multiply)
    over_rows = vector.broadcast(2, rows)
    nisa.tensor_tensor(dst=result, data1=scaled, data2=over_rows, op=nl.multiply)
    return result


def _weights(b: Bindings) -> list[Any]:
    return [b[name] for name in _WEIGHTS if b[name] is not None]


def _biases(b: Bindings) -> list[Any]:
    """One for each weight, None where there is none."""
    return [b[name] for name in _BIASES[: len(_weights(b))]]


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Up to 128 rows, K as far as the norm and a block of weights fit in SBUF, one dtype."""
    if reject := reject_dtypes(b, "x", "norm_weight"):
        return reject
    weights = _weights(b)
    for spec in (*weights, *_biases(b)):
        if spec is not None and spec.dtype != b.x.dtype:
            return Reject(f"a weight is {spec.dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.x.ndim == 0 or any(spec.ndim != 2 for spec in weights):
        return Reject(f"x{b.x.shape} has no rows, or a weight is no matrix")
    if b.x.numel == 0 or any(spec.numel == 0 for spec in weights):
        return Reject(f"an empty product: x{b.x.shape}")
    depth = b.x.shape[-1]
    if any(spec.shape[1] != depth for spec in weights):
        return Reject(f"x{b.x.shape} and a weight differ in their last dimension")
    if b.norm_weight is not None and b.norm_weight.shape != (depth,):
        return Reject(f"norm_weight{b.norm_weight.shape} is not the last dimension of x{b.x.shape}")
    for spec, bias in zip(weights, _biases(b), strict=True):
        if bias is not None and bias.shape != (spec.shape[0],):
            return Reject(f"a bias has shape {bias.shape}, not ({spec.shape[0]},)")
    rows = b.x.numel // depth
    if rows > _MOST_ROWS:
        return Reject(f"{rows} rows; more than {_MOST_ROWS} are normalised faster by themselves")
    if _norm_bytes(b, hw) > hw.sbuf_partition_bytes // 4:
        return Reject(f"{rows} rows of {depth} elements leave no room in SBUF for weights")
    if 0 in _block_columns(b, hw):
        return Reject(f"128 rows of a weight with K = {depth} do not fit in SBUF")
    return None


def _norm_bytes(b: Bindings, hw: Hardware) -> int:
    """Of x as it is loaded, of squares and scaled in float32, and of the result, a partition."""
    chunks = -(-b.x.shape[-1] // hw.partitions)
    rows = b.x.numel // b.x.shape[-1]
    return int(chunks * rows * (2 * b.x.dtype.itemsize + 8))


def _block_columns(b: Bindings, hw: Hardware) -> tuple[int, ...]:
    """Columns of a block of each weight, 0 where K is too deep for one."""
    rows, depth, itemsize = b.x.numel // b.x.shape[-1], b.x.shape[-1], b.x.dtype.itemsize
    return tuple(tile_columns(rows, w.shape[0], depth, itemsize, hw) for w in _weights(b))


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides allow, and the blocks of columns."""
    vector = COLUMNS
    if b.norm_weight is not None:
        vector = operand_layout(b.norm_weight, hw)
    layouts = tuple(operand_layout(spec, hw) for spec in _weights(b))
    names = ("x", "norm_weight", *_WEIGHTS, *_BIASES, "eps", "offset", "rounds")
    given = (operand_layout(b.x, hw), leading_dims_merge(b.x), vector, layouts)
    return Launch.of(norm_linear_kernel, b, names, *given, _block_columns(b, hw))


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add, four operations an element of x; all operands cross HBM once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    columns = sum(spec.shape[0] for spec in _weights(b))
    tensors = (b.x, b.norm_weight, *_biases(b), *_weights(b))
    return Cost(
        matmul_flops=2 * b.x.numel * columns,
        vector_flops=4 * b.x.numel + rows * columns,
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
    eps: float,
    offset: float,
    rounds: bool,
) -> Any:
    """trnx::rms_norm, rounded, and the products in float32, rounded once."""
    normed = _rms_norm(x, norm_weight, eps, offset, rounds).float()

    def product(w: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        return F.linear(normed, w.float(), None if added is None else added.float()).to(x.dtype)

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
    ) -> Sample:
        def matrix(count: int) -> torch.Tensor:
            w = (torch.randn(count, depth, generator=generator) / math.sqrt(depth)).to(dtype)
            return w.mT.contiguous().mT if turned else w

        x = torch.randn((*rows, depth), generator=generator).to(dtype)
        gamma = torch.randn(depth, generator=generator).to(dtype) if scaled else None
        weights = [matrix(count) for count in columns]
        named = dict(zip(_WEIGHTS, [*weights, None, None], strict=False))
        added = [torch.randn(n, generator=generator).to(dtype) if bias else None for n in columns]
        # An element of the norm may round to either neighbour.
        normed = _rms_norm(x, gamma, 1e-6, offset, rounds).float().abs()
        spread = max(F.linear(normed, w.float().abs()).max().item() for w in weights)
        error = (1 + rounds) * torch.finfo(dtype).eps * spread
        named |= zip(_BIASES, [*added, None, None], strict=False)
        how = {"eps": 1e-6, "offset": offset, "rounds": rounds}
        return Sample({"x": x, "norm_weight": gamma, **named, **how}, note, error)

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


def _one(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
) -> Any:
    return aten.linear.default(_rms_norm(x, norm_weight, eps, offset, rounds), weight, bias)


def _three(
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
            Pattern(_one, dict.fromkeys((*_WEIGHTS[1:], *_BIASES[1:]))),
            Pattern(_three),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=norm_linear_kernel,
        launch=launch,
        strided=frozenset({"x", *_WEIGHTS}),
        fuses=True,
    )
)
