"""`layer_norm_backward`: gradients of layer_norm with respect to its input, weight and bias.

Pattern `aten.native_layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight, bias, mask)`
with all three gradients wanted; float32, bfloat16 or float16, float32 inside. The gradients of
weight and bias are added up per partition over all tiles, and across partitions at the end, by a
product with ones on TensorE.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._rows import load_vector, run_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_TENSORS = ("grad", "x", "mean", "rstd", "weight")
# float32 tiles of a row that are live at once, and float32 vectors that all rows share, in bytes.
_ROW_BYTES = 20
_VECTOR_BYTES = 12
aten = torch.ops.aten


@nki.jit
def layer_norm_backward_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    mean: nl.NkiTensor,
    rstd: nl.NkiTensor,
    weight: nl.NkiTensor,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """grad and x of one shape, mean and rstd one value a row -> gradients of x, weight, bias."""
    pmax = nl.tile_size.pmax
    columns = weight.size
    rows = x.size // columns
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dweight = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    dbias = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    weights = load_vector(weight)
    weight_sums = nl.ndarray((pmax, columns), dtype=nl.float32, buffer=nl.sbuf)
    bias_sums = nl.ndarray((pmax, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=weight_sums, value=0.0)
    nisa.memset(dst=bias_sums, value=0.0)
    for start in range(0, rows, pmax):
        end = min(rows, start + pmax)
        count = end - start
        g = _load(grad.reshape((rows, columns))[start:end], grad.dtype)
        rstds = _load(rstd.reshape((rows, 1))[start:end], nl.float32)
        means = _load(mean.reshape((rows, 1))[start:end], nl.float32)
        normal = _normalise(_load(x.reshape((rows, columns))[start:end], x.dtype), means, rstds)
        sums = weight_sums[0:count]
        result = _input_gradient(g, normal, rstds, weights[0:count], sums, x.dtype)
        nisa.tensor_tensor(dst=bias_sums[0:count], data1=bias_sums[0:count], data2=g, op=nl.add)
        nisa.dma_copy(dst=dx.reshape((rows, columns))[start:end], src=result)
    _store_sum(dweight.reshape((1, columns)), weight_sums)
    _store_sum(dbias.reshape((1, columns)), bias_sums)
    return dx, dweight, dbias


def _load(source: nl.NkiTensor, dtype: str) -> nl.NkiTensor:
    tile = nl.ndarray(source.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def _normalise(x: nl.NkiTensor, mean: nl.NkiTensor, rstd: nl.NkiTensor) -> nl.NkiTensor:
    """(x - mean) * rstd"""
    normal = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=normal, data=x, op0=nl.subtract, operand0=mean, op1=nl.multiply, operand1=rstd
    )
    return normal


def _minus_mean(data: nl.NkiTensor) -> nl.NkiTensor:
    """The negative mean of each row, [partitions, 1]."""
    total = nl.ndarray((data.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=data, axis=1)
    mean = nl.ndarray((data.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=-1.0 / data.shape[1])
    return mean


def _input_gradient(
    g: nl.NkiTensor,
    normal: nl.NkiTensor,
    rstd: nl.NkiTensor,
    weights: nl.NkiTensor,
    weight_sums: nl.NkiTensor,
    dtype: str,
) -> nl.NkiTensor:
    """rstd * (gw - mean(gw) - normal * mean(gw * normal)), gw = g * weights; adds g * normal up."""
    product = nl.ndarray(g.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=g, data2=normal, op=nl.multiply)
    nisa.tensor_tensor(dst=weight_sums, data1=weight_sums, data2=product, op=nl.add)
    weighted = nl.ndarray(g.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=weighted, data1=product, data2=weights, op=nl.multiply)
    slope = _minus_mean(weighted)
    gw = nl.ndarray(g.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=gw, data1=g, data2=weights, op=nl.multiply)
    shift = _minus_mean(gw)
    inner = nl.ndarray(g.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=inner, data=normal, op0=nl.multiply, operand0=slope, op1=nl.add, operand1=gw
    )
    result = nl.ndarray(g.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=result, data=inner, op0=nl.add, operand0=shift, op1=nl.multiply, operand1=rstd
    )
    return result


def _store_sum(dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """dst[1, columns] = the sum over partitions, a PSUM bank at a time."""
    partitions, columns = sums.shape
    bank = nl.tile_size.psum_bank_fmax
    ones = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    total = nl.ndarray((1, columns), dtype=dst.dtype, buffer=nl.sbuf)
    for start in range(0, columns, bank):
        end = min(columns, start + bank)
        part = nl.ndarray((1, end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=part, stationary=ones, moving=sums[:, start:end], is_stationary_onezero=True
        )
        nisa.tensor_copy(dst=total[:, start:end], src=part)
    nisa.dma_copy(dst=dst, src=total)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, all three gradients, and the size of a row."""
    if b.weight is None or b.bias is None or list(b.output_mask) != [True, True, True]:
        return Reject("only the gradients of input, weight and bias together are computed")
    if reject := reject_dtypes(b, *_TENSORS):
        return reject
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no rows")
    if b.bias.dtype != b.weight.dtype:
        return Reject(f"weight is {b.weight.dtype} and bias {b.bias.dtype}")
    columns = math.prod(b.normalized_shape)
    if not run_of(columns, hw, _ROW_BYTES, _VECTOR_BYTES):
        return Reject(f"a row of {columns} elements does not fit in a partition of SBUF")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The kernel reads neither the bias nor the numbers."""
    del hw
    return Launch.of(layer_norm_backward_kernel, b, _TENSORS)


def cost(b: Bindings) -> Cost:
    """Fourteen operations an element, and the sums over partitions."""
    columns = math.prod(b.normalized_shape)
    crossing = sum(b[name].nbytes for name in _TENSORS)
    return Cost(
        matmul_flops=2 * 2 * 128 * columns,
        vector_flops=14 * b.x.numel,
        hbm_bytes=crossing + b.x.nbytes + 2 * b.weight.nbytes,
    )


def reference(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: list[bool],
) -> Any:
    """aten.native_layer_norm_backward in float32, rounded once."""
    wide = [None if t is None else t.float() for t in (grad, x, mean, rstd, weight, bias)]
    found = aten.native_layer_norm_backward.default(
        wide[0], wide[1], normalized_shape, *wide[2:], output_mask
    )
    kinds = [x, weight, bias]
    return tuple(
        None if f is None or k is None else f.to(k.dtype) for f, k in zip(found, kinds, strict=True)
    )


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, several dimensions, halves."""

    def sample(note: str, *shape: int, dims: int = 1, dtype: torch.dtype = torch.float32) -> Sample:
        normal = list(shape[len(shape) - dims :])
        grad, x = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        weight, bias = (torch.randn(normal, generator=generator).to(dtype) for _ in range(2))
        _, mean, rstd = aten.native_layer_norm.default(x, normal, weight, bias, 1e-5)
        values = {
            "grad": grad,
            "x": x,
            "normalized_shape": normal,
            "mean": mean,
            "rstd": rstd,
            "weight": weight,
            "bias": bias,
            "output_mask": [True, True, True],
        }
        return Sample(values, note)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    for columns in (8, 511, 513, 2500):
        yield sample(f"{columns} columns", 130, columns)
    yield sample("two dimensions", 7, 20, 30, dims=2)
    yield sample("a batch", 3, 50, 70)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 2, 70, 600, dtype=dtype)


def _pattern(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: list[bool],
) -> Any:
    return aten.native_layer_norm_backward.default(
        grad, x, normalized_shape, mean, rstd, weight, bias, output_mask
    )


register(
    KernelSpec(
        name="layer_norm_backward",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=layer_norm_backward_kernel,
        launch=launch,
    )
)
