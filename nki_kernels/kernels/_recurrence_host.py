"""Host side of the kernels of recurrent layers: the sizes of blocks, and what fits."""

from __future__ import annotations

from collections.abc import Iterable

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

# Elements of a partition in a block of steps, and the most steps and products of one.
_ELEMENTS, _STEPS, _PRODUCTS = 2048, 16, 1024
# Of SBUF, for the weights; the rest is for blocks of steps and what is loaded to be transposed.
_WEIGHTS_SHARE = 0.67


def block_sizes(gates: int, hidden: int, steps: int, batch: int) -> tuple[int, int]:
    """Steps of a block, and sequences at a time: what fits into a bank of PSUM and into SBUF."""
    chunks = -(-hidden // 128)
    most = min(512, max(1, _ELEMENTS // (gates * chunks)))
    columns = -(-batch // -(-batch // most))
    fitting = _ELEMENTS // (gates * chunks * columns)
    block = min(_STEPS, fitting, _PRODUCTS // (gates * chunks * chunks), steps)
    return max(1, block), columns


def reject_recurrence(
    b: Bindings, first: str, others: Iterable[str], hw: Hardware
) -> Reject | None:
    """A Reject where the tensors `first`, `weight` and `others` (those that are not None) have
    several dtypes or no elements, or `weight` does not fit into SBUF."""
    if reject := reject_dtypes(b, first):
        return reject
    for name in (first, "weight", *others):
        if b[name] is None:
            continue
        if b[name].dtype != b[first].dtype:
            return Reject(f"{name} is {b[name].dtype}, {first} {b[first].dtype}")
        if b[name].numel == 0:
            return Reject(f"{name}{b[name].shape} has no elements")
    rows, hidden = b.weight.shape
    chunks = -(-hidden // 128)
    size = rows // hidden * chunks * chunks * min(hidden, 128) * b.weight.dtype.itemsize
    most = int(hw.sbuf_partition_bytes * _WEIGHTS_SHARE)
    if size > most:
        return Reject(f"weight{b.weight.shape} takes {size} bytes of a partition, at most {most}")
    return None
