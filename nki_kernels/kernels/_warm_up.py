"""NKI helper of kernels: TensorE starts at its full rate."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def warm_up(products: int) -> None:
    """Keep TensorE busy while the first operands are on their way: it works at half rate for the
    first 3 us (SDK tools/neuron-explorer/overview-summary-page.rst), in which a product takes 107
    ns. NeuronCore-v2 has no such limit."""
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        return
    pmax = nl.tile_size.pmax
    operand = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=operand, value=1.0)
    unused = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.psum)
    for _ in range(products):
        nisa.nc_matmul(dst=unused, stationary=operand, moving=operand)
