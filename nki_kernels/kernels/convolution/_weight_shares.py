"""What the cores of a logical one share of the gradient of a weight (host side).

Images, of which each core has float32 sums of the whole result, and sends the other one half; or
channels of the window or of the gradient, where each core reads one of the tensors whole; or, where
there are groups, passes over all of both.
"""

from __future__ import annotations

from trnx.nki_kernels.kernels.convolution._weight_host import tensor_seconds
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

PASSES, IMAGES, WINDOW, GRADIENT = "passes", "images", "window", "gradient"
# Channels of a core are some times so many, but for the last ones.
UNIT = 32
# Bytes of a partition for sums of the whole result.
_SUMS_BYTES = 49152
# For an exchange: the cores meet, and what it brings is added, rounded and stored (docs/timing.md).
_EXCHANGE_SECONDS = 2e-6
# The part of loads or products that does not overlap with the others, by schedule.
_APART = 0.4
# Times the least estimate: beyond that another way is not worth a schedule.
_NEAR = 1.25


def what_may_be_shared(b: Bindings, hw: Hardware) -> list[str]:
    """First that by which a core is done first by estimate, then others that are near to it."""
    if hw.cores == 1 or b.groups > 1:
        return [PASSES]
    ways = [WINDOW, GRADIENT]
    if b.x.shape[0] >= hw.cores and _sums_bytes(b, hw) <= _SUMS_BYTES:
        ways.append(IMAGES)
    seconds = {way: _seconds(b, way, hw) for way in ways}
    least = min(seconds.values())
    return sorted((way for way in ways if seconds[way] <= _NEAR * least), key=seconds.__getitem__)


def part_of_core(b: Bindings, way: str, hw: Hardware) -> Bindings:
    """The gradient that the first core computes, of all of `b`."""
    if way == PASSES:
        return b
    images, (rows, width) = int(b.x.shape[0]), (int(n) for n in b.weight.shape[:2])
    if way == IMAGES:
        images = -(-images // hw.cores)
    elif way == WINDOW:
        width = min(width, -(-width // (hw.cores * UNIT)) * UNIT)
    else:
        rows = min(rows, -(-rows // (hw.cores * UNIT)) * UNIT)
    dense, window = ("x", "grad") if b.transposed else ("grad", "x")
    kernel = b.weight.shape[2:]
    shapes = {
        dense: (images, rows * b[dense].shape[1] // b.weight.shape[0], *b[dense].shape[2:]),
        window: (images, width * b[window].shape[1] // b.weight.shape[1], *b[window].shape[2:]),
        "weight": (rows, width, *kernel),
    }
    its = {name: TensorSpec.dense(shape, b[name].dtype) for name, shape in shapes.items()}
    return Bindings({**b, **its})


def _sums_bytes(b: Bindings, hw: Hardware) -> int:
    """Of a partition, for float32 sums of the whole result."""
    return int(-(-b.weight.shape[0] // hw.partitions) * b.weight.numel // b.weight.shape[0] * 4)


def _seconds(b: Bindings, way: str, hw: Hardware) -> float:
    """Of a core: its products, or its loads and, of images, what crosses from each to the other."""
    its = part_of_core(b, way, hw)
    loads = (its.x.nbytes + its.grad.nbytes) * hw.cores / hw.stream_bytes_per_second
    products = tensor_seconds(its, hw)
    seconds = max(loads, products) + _APART * min(loads, products)
    if way == IMAGES:
        exchanged = 4 * b.weight.numel / hw.cores
        seconds += _EXCHANGE_SECONDS + 2 * exchanged / hw.dma_bytes_per_second
    return float(seconds)
