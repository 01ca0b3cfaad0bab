"""NKI helpers of kernels: TensorE starts at its full rate."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def warm_operand() -> nl.NkiTensor:
    """For `warm_up`, `[128, 128]`."""
    pmax = nl.tile_size.pmax
    operand = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=operand, value=1.0)
    return operand


def warm_up(products: int, given: nl.NkiTensor | None = None) -> None:
    """Keep TensorE busy while the first operands are on their way: it works at half rate for the
    first 3 us (SDK tools/neuron-explorer/overview-summary-page.rst), in which a product takes 107
    ns. NeuronCore-v2 has no such limit. `given` is from `warm_operand`."""
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        return
    operand = warm_operand() if given is None else given
    unused = nl.ndarray(operand.shape, dtype=nl.float32, buffer=nl.psum)
    for _ in range(products):
        nisa.nc_matmul(dst=unused, stationary=operand, moving=operand)
