"""How TensorE starts in gradients of weights whose operands DMA transposes (host side)."""

from __future__ import annotations

from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._sharing import PARTITIONS_PER_ENGINE
from trnx.nki_kernels.kernels.convolution._turned import splits_images
from trnx.nki_kernels.kernels.convolution._weight_host import groups_together
from trnx.nki_kernels.kernels.convolution._weight_product import BANKS, WARM_UP
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Products, at half rate, behind which TensorE is at its full rate.
_COLD = 28
# A DMA's trigger, and its start and end (docs/timing.md); that TensorE may wait when it is warm.
_TRIGGER_SECONDS, _TRANSFER_SECONDS, _IDLE_SECONDS = 0.6e-6, 1.3e-6, 0.2e-6


def warm_products(
    b: Bindings, numbers: tuple[tuple[int, ...], ...], is_turned: bool, hw: Hardware
) -> int:
    """Products that keep TensorE busy until all images are there, where `numbers`, the fields of
    the axes, have them in one block: at half rate until it is warm, at full rate then.
    """
    every, images = numbers[0][0], numbers[0][6]
    positions = numbers[1][0] * numbers[2][0]
    together = groups_together(b, hw)
    channels = (
        min(b.weight.shape[0] // b.groups * together, BANKS * hw.partitions),
        min(b.weight.shape[1] * together, float32_per_bank(hw)),
    )
    # Of several blocks it waits again, and is not warm for the last one.
    if images < every or not is_turned:
        return WARM_UP
    if splits_images(images, positions, max(channels), hw.partitions):
        return WARM_UP
    some = min(images, max(1, hw.partitions // positions))
    each = -(-images // some) * max(1, positions // hw.partitions) * b.x.dtype.itemsize
    engine = hw.dma_engine_rate / PARTITIONS_PER_ENGINE
    triggers = (some * len(channels) - 1) * _TRIGGER_SECONDS
    there = max(sum(channels) * each / engine, triggers + each * channels[1] / engine)
    product = hw.partitions / hw.pe_clock
    full_rate = (there + _TRANSFER_SECONDS - _IDLE_SECONDS) / product - 2 * _COLD
    return max(WARM_UP, _COLD + int(full_rate))
