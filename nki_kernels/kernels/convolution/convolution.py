"""`convolution`: `aten.convolution` of 1, 2 or 3 dimensions, with what usually follows it.

Any stride, padding, dilation, groups and output padding, also transposed; bias, batch norm with
given statistics, a residual and an activation are applied to the float32 sums, and there is one
rounding. No input is copied for kernel positions: see `_product.py`. float32, bfloat16, float16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import nki
import nki.language as nl

from trnx.nki_kernels.kernels._blocking import DMA, operand_layout
from trnx.nki_kernels.kernels.convolution._convolve import convolve
from trnx.nki_kernels.kernels.convolution._depthwise import depthwise_kernel
from trnx.nki_kernels.kernels.convolution._depthwise_plan import depthwise_plan, is_depthwise
from trnx.nki_kernels.kernels.convolution._depthwise_product import depthwise_product_kernel
from trnx.nki_kernels.kernels.convolution._depthwise_product_host import (
    doubled_plan,
    products_of_core,
    products_plan,
    products_shift,
    products_skew,
    tile_of,
)
from trnx.nki_kernels.kernels.convolution._depthwise_turns_host import products_ahead
from trnx.nki_kernels.kernels.convolution._descriptors import (
    is_depthwise_static,
    is_products_static,
    is_static,
)
from trnx.nki_kernels.kernels.convolution._epilogue import Norm
from trnx.nki_kernels.kernels.convolution._filters import Operands
from trnx.nki_kernels.kernels.convolution._geometry import blocks, plan
from trnx.nki_kernels.kernels.convolution._host import (
    NAMES,
    cost,
    problem_of,
    reference,
    result_shape,
    rows_apart,
    supports,
    windows_of,
)
from trnx.nki_kernels.kernels.convolution._patterns import patterns
from trnx.nki_kernels.kernels.convolution._plan import plan_of
from trnx.nki_kernels.kernels.convolution._pointwise import pointwise_kernel
from trnx.nki_kernels.kernels.convolution._pointwise_host import (
    POINTWISE_NAMES,
    is_pointwise,
    outs_together,
)
from trnx.nki_kernels.kernels.convolution._samples import samples
from trnx.nki_kernels.kernels.convolution._sharing import sharing_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec


@nki.jit
def convolution_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    residual: nl.NkiTensor | None,
    norm_weight: nl.NkiTensor | None,
    norm_bias: nl.NkiTensor | None,
    mean: nl.NkiTensor | None,
    variance: nl.NkiTensor | None,
    eps: float,
    activation: str,
    transposed: bool,
    groups: int,
    shape: tuple[int, ...],
    numbers: tuple[Any, ...],
    apart: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[N, C, ...]`, weight as in torch, vectors `[out channels]`; residual, result: `shape`.
    `apart`: rows of the result that a row of x makes by itself. `cores` share blocks of outputs, or
    channels.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    norm = None
    if mean is not None:
        norm = Norm(norm_weight, norm_bias, mean, variance, eps)
    given = Operands(out, x, weight, bias, norm, residual, activation, transposed, apart)
    convolve(given, groups, plan_of(numbers), cores)
    return out


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The shape of the result, and how the convolution is blocked."""
    if is_depthwise(b):
        return _depthwise_launch(b, hw)
    if is_pointwise(b, windows_of(b), hw):
        together = outs_together(b.weight.shape[0], hw)
        return Launch.of(pointwise_kernel, b, POINTWISE_NAMES, result_shape(b), together)
    matrix = TensorSpec.dense(b.weight.shape[:2], b.weight.dtype)
    layout = "" if b.transposed else operand_layout(matrix, hw)
    problem = problem_of(b)
    volumes = b.x.shape[0] if b.x.ndim == 5 else 1
    sharing = sharing_of(problem, hw)
    # Weights of blocks side by side are transposed by TensorE.
    turns = problem.taps == 1 and sharing.streams == 1 and layout == DMA
    few = is_static(problem, blocks(problem, hw), sharing.fold, b.groups * volumes, turns)
    how = plan(problem, layout, few, volumes, hw)
    apart = rows_apart(b)
    return Launch.of(convolution_kernel, b, NAMES, result_shape(b), how, apart)


def _depthwise_launch(b: Bindings, hw: Hardware) -> Launch:
    """By products, or by VectorE."""
    windows = windows_of(b)
    numbers, has_images = depthwise_plan(b, windows, hw)
    its, on, by_channels = products_of_core(b, windows, has_images, hw)
    products = products_plan(its, windows, on)
    if products is None:
        few = is_depthwise_static(b, numbers, has_images)
        return Launch.of(depthwise_kernel, b, NAMES, result_shape(b), numbers, has_images, few)
    one = replace(hw, cores=1)
    if supports(b, one) is None:
        # What is done again comes rarely, and in as few blocks as on one core.
        numbers, has_images = depthwise_plan(b, windows, one)
    few = is_depthwise_static(b, numbers, has_images)
    doubled = doubled_plan(its, windows, on) if few else None
    if doubled is not None and not is_products_static(b, doubled):
        doubled = None
    products = doubled or products
    few = few and is_products_static(b, products)
    shift, skew = products_shift(its, windows, on), products_skew(its, windows, on)
    ahead = products_ahead(its, windows, hw)
    how = (products, tile_of(its, windows, on), shift, skew, doubled is not None, ahead)
    more = (result_shape(b), *how, numbers, has_images, few, by_channels)
    launch = Launch.of(depthwise_product_kernel, b, NAMES, *more)
    return replace(launch, unknown_trips=0)


register(
    KernelSpec(
        name="convolution",
        patterns=patterns(),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=convolution_kernel,
        launch=launch,
        is_operator=True,
    )
)
