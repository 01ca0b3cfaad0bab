"""Permutations inside a partition: a tensor that lies in another order in memory than its tile.

DMA moves such a tensor in the order of its memory, in long runs, and an engine copies between that
order and the tile's. GpSimd takes no longer for large steps (`simulator/costs/vector.py`), VectorE
half of its rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from trnx.nki_kernels.generator.engines import GPSIMD
from trnx.nki_kernels.generator.geometry import Strides
from trnx.nki_kernels.generator.instruction import Instruction, Tile
from trnx.nki_kernels.generator.ir import Dims, Value
from trnx.nki_kernels.generator.strided_walks import NEAR_BYTES
from trnx.nki_kernels.generator.tiled_region import TiledRegion

# A copy pays where it makes the runs of DMA so many times as long.
_LONGER = 2


def in_own_order(region: TiledRegion) -> TiledRegion:
    """`region` with the loads and results that have longer runs in the order of their memory moved
    in that order; the same region where there are none. An int64 tile, of two words an element,
    stays in the order of the space."""
    instructions: list[Instruction] = []
    layouts: dict[Value, Dims] = {}
    loads = dict(region.load_strides)
    for i in region.instructions:
        order = None
        if i.call == "load" and not region.is_turned(i.dst):
            order = _own_order(region, i.dst, region.load_strides[i.dst])
        if order is None:
            instructions.append(i)
            continue
        value = i.dst
        raw = dataclasses.replace(value)  # a value of its own
        loads[raw] = loads.pop(value)
        layouts[raw] = order
        instructions += [dataclasses.replace(i, dst=raw), _copy(region, raw, value, order)]
    held = dict(region.held)
    for value, order in _results(region).items():
        old = region.held[value]
        new = Value("cast", "copy", (old,), old.dtype, old.axes)
        layouts[new], held[value] = order, new
        instructions.append(_copy(region, old, new, order))
    if not layouts:
        return region
    return dataclasses.replace(
        region,
        instructions=instructions,
        stages=[0] * len(instructions),
        load_strides=loads,
        held=held,
        layouts=layouts,
    )


def _results(region: TiledRegion) -> Mapping[Value, Dims]:
    """The values of results that are stored in an order of their own, the same for all of each."""
    found: dict[Value, set[Dims | None]] = {}
    for output, strides in zip(region.outputs, region.output_strides, strict=True):
        order = _own_order(region, region.held[output.value], strides)
        found.setdefault(output.value, set()).add(order)
    single = {value: orders.pop() for value, orders in found.items() if len(orders) == 1}
    return {value: order for value, order in single.items() if order is not None}


def _own_order(region: TiledRegion, value: Value, strides: Strides) -> Dims | None:
    """The free axes of a tile in the order of its memory, where that makes runs longer."""
    labels = region.labels(value)
    own = tuple(sorted(labels, key=lambda d: -strides.get(d, 0)))  # stable
    is_apart = region.geometry.interleaved and region.geometry.folded
    if own == labels or value.dtype is torch.int64 or is_apart:
        return None
    run = region.geometry.run
    return own if run(own, strides) >= _LONGER * run(labels, strides) else None


def _copy(region: TiledRegion, source: Value, target: Value, order: Dims) -> Instruction:
    """The copy between a tile whose axes lie in `order` and one in the order of the space."""
    labels = region.labels(target)
    inner = labels[-1]
    counts = map(region.geometry.count, order[order.index(inner) + 1 :])
    other = map(region.geometry.count, labels[labels.index(order[-1]) + 1 :])
    step = min(math.prod(counts), math.prod(other)) * target.dtype.itemsize
    engine = GPSIMD if step > NEAR_BYTES else None
    return Instruction("tensor_copy", target, (("src", Tile(source, target)),), engine=engine)
