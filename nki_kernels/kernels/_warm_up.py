"""NKI: transposes of zeros while the first operands are on their way.

TensorE runs at half rate until it was active for about 3 us (dI/dt, the timing model's
`throttle_ns`; overview-summary-page.rst), which a kernel of 20 us notices. DMA takes about as long
to bring what the first products need, so TensorE may as well be busy.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

# At half rate 20 transposes of 128 columns take 2 us, which is when the first operands are there.
_TRANSPOSES = 20
# Moving columns of a kernel, about 7 us of them, below which its first products are not worth it.
_LEAST_COLUMNS = 16384


def warm_up(columns: int) -> None:
    """Keep TensorE busy for about 2 us where it has so many moving columns to come; no values are
    read or written. Nothing on NeuronCore-v2, of which the guides know no throttle.
    """
    if nisa.get_nc_version() == nisa.nc_version.gen2 or columns < _LEAST_COLUMNS:
        return
    pmax = nl.tile_size.pmax
    zeros = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    bank = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.psum)
    for _ in range(_TRANSPOSES):
        # A transpose is no product that counts as work of the kernel.
        nisa.nc_transpose(dst=bank, data=zeros, engine=nisa.engine.tensor)
