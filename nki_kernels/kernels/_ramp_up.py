"""NKI: TensorE at its full rate when the first operands come.

"On Trn2 and Trn3 the Tensor Engine starts at roughly 50 % utilization [...] and ramps to full over
about the first ~3 microseconds after work begins", and stays there while it is busy half of the
time (neuron-explorer/overview-summary-page.rst). What it works on does not matter there, so it
works on zeros while the first loads are on their way, which takes 2 us. NeuronCore-v2 has no such
limit.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

# Columns of a product, which take 213 ns at half the rate, and products: for 2 us, before which no
# load is there (nki-dma-bandwidth-guide.rst), and for more than 3 us.
_COLUMNS = 256
_SHORT, _LONG = 9, 15


def ramp_up(is_long: bool) -> None:
    """Products of zeros that nobody reads; `is_long`: until the full rate is reached, even if
    operands come before, as products on half of the array only keep it.
    """
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        return
    zeros = nl.ndarray((nl.tile_size.pmax, _COLUMNS), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    sums = nl.ndarray((nl.tile_size.pmax, _COLUMNS), dtype=nl.float32, buffer=nl.psum)
    for _ in range(_LONG if is_long else _SHORT):
        nisa.nc_matmul(dst=sums, stationary=zeros[:, 0 : nl.tile_size.pmax], moving=zeros)
