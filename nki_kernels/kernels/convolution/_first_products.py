"""What the first products and stores of a small convolution wait for (host side)."""

from __future__ import annotations

from trnx.nki_kernels.kernels.convolution._filters import FIRST_CHUNKS
from trnx.nki_kernels.kernels.convolution._plan import WARM_UP
from trnx.nki_kernels.kernels.convolution._sharing import PARTITIONS_PER_ENGINE, Sharing
from trnx.nki_kernels.kernels.convolution._windows import Problem
from trnx.simulator.hardware import Hardware

# Until a transfer of no bytes is there, from the first product that keeps TensorE busy on; the time
# of such a product, at half rate (docs/timing.md).
_FIRST_SECONDS, _PRODUCT_SECONDS = 1.46e-6, 107e-9
_QUADRANT = 32  # partitions between those that an instruction may begin at
_STORE_BYTES = 2048  # of a partition, that are worth a transfer of their own


def warm_up_products(problem: Problem, input_bytes: int, hw: Hardware) -> int:
    """Products that keep TensorE busy until weights that DMA transposes are there, behind
    `input_bytes` of a partition: of transfers that wait for no trigger.
    """
    outs = min(problem.out_channels, FIRST_CHUNKS * hw.partitions)
    weights = -(-problem.channels // hw.partitions) * outs * problem.itemsize
    nbytes = PARTITIONS_PER_ENGINE * (input_bytes + weights)
    seconds = _FIRST_SECONDS + nbytes / hw.dma_engine_rate
    return min(WARM_UP, int(seconds / _PRODUCT_SECONDS))


def fills_rows(problem: Problem, sharing: Sharing, hw: Hardware) -> bool:
    """Whether rows of the array that have no channels have zeros: TensorE comes to its full rate
    later where its products have some of the rows (docs/timing.md). Only where the channels end
    where instructions may begin, so that no load waits for the zeros.
    """
    is_half = hw.partitions // 2 < problem.channels < hw.partitions
    is_alone = problem.taps * sharing.blocks * sharing.fold == 1
    return is_alone and is_half and problem.channels % _QUADRANT == 0


def chunks_together(result_bytes: int, are_free: bool) -> int:
    """Chunks of output channels, each of `result_bytes` of a partition, that one transfer stores:
    as many as are worth a trigger; one where triggers `are_free` and DMA waits for the first one.
    """
    return 1 if are_free else max(1, _STORE_BYTES // result_bytes)
