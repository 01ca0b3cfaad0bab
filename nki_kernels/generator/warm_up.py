"""Products that keep TensorE busy until its operands are there: it works at half rate for the first
3 us, and again after it was idle for a while (SDK tools/neuron-explorer/
overview-summary-page.rst). Where results wait for sums and transposes of TensorE, each of which
waits for the one before, that counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_text import call
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware

# The name of the function that has the products, and the columns of each.
_NAME, _COLUMNS = "_warm_up", 512
# TensorE begins after its operand is written, and is idle so long before the products that others
# wait for, in ns: these may wait for none of the first ones.
_FIRST, _IDLE = 250.0, 200.0
# Products take time to record.
_MOST = 64
# Where TensorE has enough to do, some more: its first products may wait then. Of so few tiles alone
# is an estimate sure to run all, and no pace is that of tiles that have waited.
_MORE, _FEW = 3, 8
# What they must save, in ns.
_WORTH = 50.0


def warmed(region: TiledRegion, ns: float, hw: Hardware) -> list[TiledRegion]:
    """The region, which takes `ns` by estimate, with such products before the tiles of each phase;
    none where these save nothing."""
    best, counts = (ns, region), list[int]()
    is_long = region.across is not None and region.geometry.tiles > region.across.steps
    is_few = (region.across.steps if region.across else region.geometry.tiles_of_core) <= _FEW
    if is_long or not timing(hw).throttle_ns:
        return []
    while len(counts) < len(waits := region.in_phases(warm_up=tuple(counts)).waits_of_products(hw)):
        count = _products(waits[len(counts)], hw, is_cold=not counts)
        is_slow = not counts and count * 2 * _COLUMNS * 1e9 / hw.pe_clock < timing(hw).throttle_ns
        if sum(counts) + count + _MORE > _MOST or not (counts or count) or (is_slow and not is_few):
            break
        more = (0, _MORE) if is_few else (0,)
        ways = [region.in_phases(warm_up=(*counts, count + n)) for n in more if count]
        tried = [(way.estimated_ns(hw), way) for way in ways]
        best = min([best, *tried], key=lambda pair: pair[0])
        better = min(tried, key=lambda pair: pair[0], default=None)
        counts.append(better[1].warm_up[-1] if better else 0)
    return [best[1]] if best[0] < ns - _WORTH else []


def _products(wait: float, hw: Hardware, *, is_cold: bool) -> int:
    """How many end before TensorE has waited so many ns, 0 where it never works: at half rate until
    it was busy for the time of the limit where it `is_cold`."""
    if math.isinf(wait):
        return 0
    each, left = _COLUMNS * 1e9 / hw.pe_clock, max(0.0, wait - _IDLE)
    if not is_cold:
        return int(left / each)
    left = max(0.0, left - _FIRST)
    slow = min(left, timing(hw).throttle_ns)
    return int(slow / (2 * each)) + int((left - slow) / each)


def warm_up_function(counts: Sequence[int]) -> list[str]:
    """The lines of the function, none where there are no such products."""
    if not any(counts):
        return []
    product = ["dst=unused", "stationary=ones[:, 0:128]", "moving=ones"]
    body = [
        f"unused = nl.ndarray((128, {_COLUMNS}), dtype=nl.float32, buffer=nl.psum)",
        "for _ in range(products):",
        *indent(call("nisa.nc_matmul", product)),
    ]
    return ["", f"def {_NAME}(ones, products):", *indent(body), ""]


def warm_up_calls(counts: Sequence[int], phase: int) -> list[str]:
    """The lines before the tiles of a phase, if there are any: before all others those that write
    the operand."""
    count = counts[phase] if phase < len(counts) else 0
    operand = [
        f"warm = nl.ndarray((128, {_COLUMNS}), dtype=nl.bfloat16, buffer=nl.sbuf)",
        "nisa.memset(dst=warm, value=1.0)",
    ]
    lines = [f"{_NAME}(warm, {count})"] if count else []
    return lines if phase or not count else [*operand, *lines]
