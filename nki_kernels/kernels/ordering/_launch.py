"""What `topk` and `sort` share: which lines their kernel takes, its launch, its cost."""

from __future__ import annotations

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._lines import lines_of, reject_lines
from trnx.nki_kernels.kernels.ordering._search import first_in_order_kernel
from trnx.nki_kernels.spec import Bindings, Cost, Launch
from trnx.simulator.errors import Reject

_LANES = 128
_TILE = 1024  # elements of a partition at a time
_MOST_LINES = 64  # of a partition at a time
_MOST_SEARCHES = 1 << 15  # instructions of the program are three for each
_EIGHT = 8


def reject_order(b: Bindings, count: int, longest: int) -> Reject | None:
    """A Reject where the first `count` elements of lines are not found on NKI."""
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.numel == 0 or b.x.ndim == 0 or count == 0:
        return Reject(f"x{b.x.shape} has no dimensions or no elements, or none are asked for")
    lines = lines_of(b.x.shape, b.dim % b.x.ndim)
    if reject := reject_lines(lines, longest, "the kernel"):
        return reject
    searches = lines[0][0] * -(-lines[1][0] // _LANES) * -(-count // _EIGHT)
    if searches > _MOST_SEARCHES:
        return Reject(f"{searches} searches of 128 lines; the kernel takes {_MOST_SEARCHES}")
    return None


def launch_order(b: Bindings, count: int, largest: bool) -> Launch:
    """The launch that finds the first `count` elements of the lines of x along `dim`."""
    dim = b.dim % b.x.ndim
    shape = (*b.x.shape[:dim], count, *b.x.shape[dim + 1 :])
    lines = lines_of(b.x.shape, dim)
    fold = max(1, min(_MOST_LINES, _TILE // lines[2][0], -(-lines[1][0] // _LANES)))
    constants = (lines, lines_of(shape, dim), fold, shape, largest)
    return Launch.of(first_in_order_kernel, b, ("x",), *constants)


def order_cost(b: Bindings, count: int) -> Cost:
    """Three passes over x for every eight elements, and five for the keys; results are written."""
    rounds = -(-count // _EIGHT)
    found = b.x.numel // b.x.shape[b.dim] * count
    written = found * (b.x.dtype.itemsize + 8)
    return Cost(
        vector_flops=(5 + 3 * rounds) * b.x.numel + 2 * found, hbm_bytes=b.x.nbytes + written
    )
