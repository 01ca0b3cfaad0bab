"""When the cores of a logical one share the images of the gradient of a weight (host side).

Otherwise they share its channels: then each core reads one of the tensors whole.
"""

from __future__ import annotations

from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._weight_product import BANKS, OVERLAPPING_BANKS
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

# Bytes of a partition for sums of the whole result.
_SUMS_BYTES = 49152
# For an exchange: the cores meet, and what it brings is added, rounded and stored (docs/timing.md).
_EXCHANGE_SECONDS = 2e-6


def shares_images(b: Bindings, keeps: tuple[bool, bool], hw: Hardware) -> bool:
    """Whether cores share images, of which each has one or more, rather than the passes over all of
    them for some channels each; SBUF has a place for sums of the whole result. `keeps`: transposes
    that passes share.
    """
    chunks, width = -(-b.weight.shape[0] // hw.partitions), b.weight.numel // b.weight.shape[0]
    if hw.cores == 1 or b.groups > 1 or chunks * width * 4 > _SUMS_BYTES:
        return False
    passes = _passes(b, all(keeps), hw)
    return bool(b.x.shape[0] >= hw.cores and _by_images(b, hw) < _by_channels(b, passes, hw))


def _passes(b: Bindings, is_kept: bool, hw: Hardware) -> int:
    """Over all positions; see `_weight_gradient.py`."""
    channels, width = b.weight.shape[:2]
    taps = b.weight.numel // (channels * width)
    lanes = min(width, hw.partitions)
    bank = float32_per_bank(hw)
    banks = -(-taps // max(1, bank // lanes))  # of some channels of the window
    tiles = -(-width // (lanes * max(1, bank // (lanes * taps))))
    chunks = -(-channels // hw.partitions)
    if chunks == 1 and tiles == 1:
        return int(min(hw.cores, -(-width // hw.partitions)))
    pieces = -(-chunks // (max(1, OVERLAPPING_BANKS // banks) if is_kept else BANKS))
    while tiles * pieces % hw.cores > 0 and pieces < chunks:
        pieces += 1
    return int(tiles * pieces)


def _by_images(b: Bindings, hw: Hardware) -> float:
    """Seconds of the transfers where each core has some images: half of the sums cross from each to
    the other, and the cores wait for them.
    """
    images = -(-b.x.shape[0] // hw.cores) * hw.cores / b.x.shape[0]
    read = images * (b.x.nbytes + b.grad.nbytes) / hw.stream_bytes_per_second
    exchanged = 4 * b.weight.numel / hw.cores
    return float(read + _EXCHANGE_SECONDS + 2 * exchanged / hw.dma_bytes_per_second)


def _by_channels(b: Bindings, passes: int, hw: Hardware) -> float:
    """The same where each core has some passes: one of them is alone."""
    if passes == 1:
        return float((b.x.nbytes + b.grad.nbytes) / hw.dma_bytes_per_second)
    channels = max(b.weight.shape[:2])
    chunks = -(-channels // hw.partitions)
    share = max(-(-passes // hw.cores) / passes, -(-chunks // hw.cores) * hw.partitions / channels)
    larger, smaller = sorted((b.x.nbytes, b.grad.nbytes), reverse=True)
    nbytes = hw.cores * (min(1, share) * larger + smaller)
    return float(nbytes / hw.stream_bytes_per_second)


def images_of_core(b: Bindings, hw: Hardware) -> Bindings:
    """The gradient of the images that the first core has."""
    images = -(-b.x.shape[0] // hw.cores)
    its = {
        name: TensorSpec.dense((images, *b[name].shape[1:]), b[name].dtype)
        for name in ("grad", "x")
    }
    return Bindings({**b, **its})
