"""NKI: products of zeros while the first operands are on their way.

TensorE runs at half rate until it was active for about 3 us (dI/dt, the timing model's
`throttle_ns`; overview-summary-page.rst), which a kernel of 20 us notices. DMA takes about as long
to bring what the first products need, so TensorE may as well be busy.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

# At half rate seven products of a bank's 512 columns take 3 us.
_PRODUCTS = 7


def warm_up() -> None:
    """Keep TensorE busy for about 3 us; no values are read or written. Nothing on NeuronCore-v2,
    of which the guides know no throttle.
    """
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        return
    pmax, columns = nl.tile_size.pmax, nl.tile_size.psum_bank_fmax
    zeros = nl.ndarray((pmax, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    bank = nl.ndarray((pmax, columns), dtype=nl.float32, buffer=nl.psum)
    for _ in range(_PRODUCTS):
        nisa.nc_matmul(dst=bank, stationary=zeros[:, 0:pmax], moving=zeros)
