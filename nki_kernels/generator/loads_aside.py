"""Loads by the queue of stores: a queue takes some 600 ns to trigger a transfer whose descriptors
are made during the run, which is longer than small transfers take. Tiles with several loads wait
for the one queue while the other one is idle.
"""

from __future__ import annotations

from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import Hardware


def with_loads_aside(region: TiledRegion, hw: Hardware) -> list[TiledRegion]:
    """`region` with every second load of a tile by the queue of stores; none where descriptors are
    made before the run, or where there is no second load. Before trn2 all are."""
    if hw.generation == 2 or region.is_static:
        return []
    moving = region.geometry.moving
    loads = [
        i.dst
        for i in region.instructions
        if i.call == "load" and i.dst.axes & moving and not region.is_turned(i.dst)
    ]
    return [region.in_phases(aside=frozenset(loads[1::2]))] if len(loads) > 1 else []
