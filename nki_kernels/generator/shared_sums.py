"""What VectorE and GpSimd both add to the accumulators of a phase's tiles: the rows of a tile that
are added up as they are have places of their own there, so each engine has some of them.
"""

from __future__ import annotations

import dataclasses

from trnx.nki_kernels.generator.engines import GPSIMD, TENSOR
from trnx.nki_kernels.generator.instruction import Beside, Instruction
from trnx.nki_kernels.generator.tiled_region import TiledRegion, elements
from trnx.simulator.hardware import Hardware

# Smaller tiles are not shared: each addition waits for the one before.
_LEAST_SHARED = 512


def with_shared_sums(region: TiledRegion, hw: Hardware) -> TiledRegion:
    """`region` with the accumulators of its phases shared, where VectorE adds tiles to them. On
    trn1 both engines would take turns."""
    if region.across is None or hw.generation == 2:
        return region
    every = [_shared(i, region, hw) for i in region.instructions]
    return dataclasses.replace(region, instructions=every)


def _shared(instruction: Instruction, region: TiledRegion, hw: Hardware) -> Instruction:
    """`instruction`, or what is as long on both engines: GpSimd reads two tiles one by one."""
    across = region.across
    assert across is not None
    if instruction.dst not in region.halved or instruction.engine == TENSOR:
        return instruction
    (source,) = instruction.reads()
    reduced, _ = across.free(source)
    size = elements(source, region.geometry)
    if len(reduced) != 1 or size < _LEAST_SHARED:
        return instruction
    # VectorE waits for what it added before, about as long as GpSimd takes to begin.
    alone, other = size / hw.vector_clock, 2 * size / hw.gpsimd_clock
    rows = region.geometry.count(reduced[0])
    count = round(rows * alone / (alone + other))
    if count < 1:
        return instruction
    beside = Beside(dataclasses.replace(instruction, engine=GPSIMD), reduced[0], count, rows)
    return dataclasses.replace(instruction, beside=beside)
