"""When the sides of a convolution of one channel a group by products have banks of their own (host
side); see `_depthwise_turns.py`.
"""

from __future__ import annotations

import math

from trnx.nki_kernels.kernels.convolution._depthwise_blocks import (
    LEAST_CYCLES,
    bank_for,
    block_of,
    outputs_of_phase,
    problem_of,
)
from trnx.nki_kernels.kernels.convolution._depthwise_product_host import products_skew, tile_of
from trnx.nki_kernels.kernels.convolution._geometry import input_bytes
from trnx.nki_kernels.kernels.convolution._sharing import PARTITIONS_PER_ENGINE
from trnx.nki_kernels.kernels.convolution._windows import Window
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Until weights and a transfer of no bytes are there, from the first product that keeps TensorE busy
# on, and between two DMA engines of a transfer; such a product, at half rate (docs/timing.md).
_FIRST_SECONDS, _ENGINE_SECONDS, _PRODUCT_SECONDS = 1.08e-6, 25e-9, 107e-9
# Until all diagonals of the first weights can be made.
_WEIGHT_SECONDS = 1.55e-6
_ENGINES = 16


def products_ahead(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Products that keep TensorE busy until the first inputs are there, where sides have banks of
    their own; else 0: where outputs have columns of an epilogue or phases; where cores share HBM,
    so that TensorE would wait, and slow down, amid the first sides; where a side's products take
    longer than its load, as one alone leaves tiles of the array idle; or where the first inputs
    come behind the diagonals, which then need not be made row by row.
    """
    is_plain = b.bias is None and b.mean is None and not b.transposed
    if hw.cores > 1 or not is_plain or products_skew(b, windows, hw) == 0:
        return 0
    problem, tile = problem_of(b, windows, hw), tile_of(b, windows, hw)
    bank = bank_for(b, problem, hw)
    block = block_of(b, problem, bank, (tile, 0), hw)
    count = hw.partitions // tile
    load = PARTITIONS_PER_ENGINE * input_bytes(problem, *block, 1, hw) / hw.dma_engine_rate
    banks = -(-block[0] // bank[0]) * -(-min(block[1], outputs_of_phase(problem.rows)) // bank[1])
    cycles = banks * problem.taps * count * max(LEAST_CYCLES, math.prod(bank) / count**2)
    # The first side has transfers of one tile where it has the last channels.
    engines = _ENGINES // count if b.groups % hw.partitions > 0 else _ENGINES
    first = _FIRST_SECONDS + _ENGINE_SECONDS * engines + load
    diagonals = _WEIGHT_SECONDS + problem.taps * tile / hw.vector_clock
    if load * hw.pe_clock < cycles or first > diagonals:
        return 0
    return int(first / _PRODUCT_SECONDS)
