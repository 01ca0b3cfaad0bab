"""`convolution_weight_gradient`: the gradient of the weight of a convolution.

`aten.convolution_backward` with this gradient alone, as the canonical graph has it; of 1, 2 or 3
dimensions, also of a transposed convolution, whose input and gradient change places; any groups.
float32, bfloat16, float16; sums are float32, rounded once.
"""

from __future__ import annotations

from dataclasses import replace

import nki
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.convolution._depthwise_gradient import depthwise_gradient_kernel
from trnx.nki_kernels.kernels.convolution._depthwise_gradient_host import strips_plan
from trnx.nki_kernels.kernels.convolution._descriptors import is_gradient_static
from trnx.nki_kernels.kernels.convolution._strips_gradient import strips_gradient_kernel
from trnx.nki_kernels.kernels.convolution._strips_host import cut_plan
from trnx.nki_kernels.kernels.convolution._weight_gradient import weight_gradient
from trnx.nki_kernels.kernels.convolution._weight_host import (
    cost,
    groups_together,
    keeps,
    pattern,
    plan,
    reference,
    supports,
    turns_by_dma,
    windows_of,
)
from trnx.nki_kernels.kernels.convolution._weight_rows import weight_rows_kernel
from trnx.nki_kernels.kernels.convolution._weight_rows_host import rows_plan
from trnx.nki_kernels.kernels.convolution._weight_samples import samples
from trnx.nki_kernels.kernels.convolution._weight_shares import (
    GRADIENT,
    IMAGES,
    UNIT,
    WINDOW,
    part_of_core,
    what_may_be_shared,
)
from trnx.nki_kernels.kernels.convolution._weight_start import warm_products
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch, Pattern
from trnx.simulator.hardware import Hardware

_NAMES = ("grad", "x", "transposed")


@nki.jit
def convolution_weight_gradient_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    transposed: bool,
    shape: tuple[int, ...],
    groups: int,
    together: int,
    numbers: tuple[tuple[int, ...], ...],
    keeps: tuple[bool, bool],
    is_turned: bool,
    is_static: bool,
    products: int,
    shared: str,
    cores: int = 1,
) -> nl.NkiTensor:
    """grad and x `[N, C, ...]` -> `shape`, that of the weight. `together` groups are one product,
    of which the blocks on the diagonal are wanted. `is_turned`: DMA transposes. `is_static`:
    descriptors are made before the run (nki-dge.rst). `products` keep TensorE busy until the first
    operands are there. `cores` share what is `shared` (`_weight_shares.py`).
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tensors = (x, grad) if transposed else (grad, x)
    how = (keeps, is_turned, is_static, products)
    if shared in (WINDOW, GRADIENT):
        axis = 1 if shared == WINDOW else 0
        first, end = share_of(shape[axis], cores, UNIT)
        some = nl.ds(first, end - first)
        if end > first and axis == 1:
            both = (tensors[0], tensors[1][:, some])
            weight_gradient(out[:, some], both, (1, 1), numbers, how, 0, False)
        elif end > first:
            both = (tensors[0][:, some], tensors[1])
            weight_gradient(out[some], both, (1, 1), numbers, how, 0, False)
    else:
        count = (groups, together)
        weight_gradient(out, tensors, count, numbers, how, cores, shared == IMAGES)
    return out


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The shape of the weight, and how groups and positions are blocked."""
    found = _without_transposes(b, hw)
    return _by_position(b, what_may_be_shared(b, hw)[0], hw) if found is None else found


def other_shares(b: Bindings, hw: Hardware) -> list[Launch]:
    """Those of other parts of the work that may be as fast."""
    if _without_transposes(b, hw) is not None:
        return []
    return [_by_position(b, shared, hw) for shared in what_may_be_shared(b, hw)[1:]]


def _without_transposes(b: Bindings, hw: Hardware) -> Launch | None:
    """By rows or strips of images; None where other ways are faster, or the only ones."""
    if (rows := rows_plan(b, windows_of(b), hw)) is not None:
        is_turned, axes = rows
        given = tuple(tuple(axis) for axis in axes)
        return Launch.of(weight_rows_kernel, b, _NAMES, b.weight.shape, is_turned, given)
    numbers = plan(b, hw)
    kept = keeps(b, numbers, hw)
    few = is_gradient_static(b, numbers, all(kept), turns_by_dma(b, hw), hw)
    if (found := strips_plan(b, windows_of(b), hw)) is not None:
        both, strips = found
        how = (tuple(tuple(axis) for axis in both), (*strips[:-1], int(strips.is_static)))
        rest = (groups_together(b, hw), numbers, kept, few)
        launch = Launch.of(depthwise_gradient_kernel, b, _NAMES, b.weight.shape, *how, *rest)
        return replace(launch, unknown_trips=0)
    if (cut := cut_plan(b, windows_of(b), hw)) is not None:
        fields = tuple(tuple(axis) for axis in cut[0])
        parts = tuple(int(part) for part in cut[1])
        more = (b.weight.shape, fields, parts, numbers, kept, few)
        return replace(Launch.of(strips_gradient_kernel, b, _NAMES, *more), unknown_trips=0)
    return None


def _by_position(b: Bindings, shared: str, hw: Hardware) -> Launch:
    """Position by position; cores share what is `shared`."""
    its = part_of_core(b, shared, hw)
    numbers, is_turned = plan(its, hw), turns_by_dma(its, hw)
    kept = keeps(its, numbers, hw)
    few = is_gradient_static(its, numbers, all(kept), is_turned, hw)
    products = warm_products(its, numbers, is_turned, hw)
    how = (b.groups, groups_together(b, hw), numbers, kept, is_turned, few, products, shared)
    return Launch.of(convolution_weight_gradient_kernel, b, _NAMES, b.weight.shape, *how)


register(
    KernelSpec(
        name="convolution_weight_gradient",
        patterns=(Pattern(pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=convolution_weight_gradient_kernel,
        launch=launch,
        other_shares=other_shares,
        is_operator=True,
    )
)
