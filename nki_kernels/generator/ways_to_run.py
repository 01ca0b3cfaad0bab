"""The ways to run the instructions of a cut region: on which engines, and in which stages.

The engines are the default ones, those that balance the work, or two that share instructions.
Tiles run one after another, in stages that overlap, or stage by stage.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from trnx.nki_kernels.generator.across import Across
from trnx.nki_kernels.generator.engines import (
    SCALAR,
    TENSOR,
    EngineCosts,
    assign_engines,
    share_in_step,
    table_loads,
    table_of_call,
)
from trnx.nki_kernels.generator.instruction import Instruction
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.row_by_row import row_by_row
from trnx.nki_kernels.generator.shared_sums import with_shared_sums
from trnx.nki_kernels.generator.stages import LEAST_TILES, MOST_STAGES, cut_stages
from trnx.nki_kernels.generator.strided_walks import walks_in_steps
from trnx.nki_kernels.generator.tiled_region import TiledRegion, elements
from trnx.nki_kernels.generator.totals_in_psum import totals_for_scalar, with_steps
from trnx.simulator.hardware import Hardware

# Tiles that all run a stage before any runs the next one: they stay in SBUF.
_MOST_BY_STAGE = 12
# Stages of tiles that run in any order.
_MOST_LISTED = 16
# Bytes of a partition that all tiles have of the values of a tail, each of which has that fraction
# of a tile's elements at the most.
_MOST_OF_TAIL, _LITTLE = 2**15, 4
# Elements of a partition from which on work between phases is more than the latency of a chain, in
# which changing engines takes time.
_WIDE = 512


def _placed(region: TiledRegion, hw: Hardware, *, shared: bool = False) -> TiledRegion:
    """`region` with the engines of its instructions; two may have one `shared`."""
    geometry, across = region.geometry, region.across

    def repeated(value: Value) -> int:
        return elements(value, geometry) if value.axes & geometry.moving else 0

    # Phases load a table once; in stages the last one of a tile is the first one of the next.
    tables = 0 if across else max(0, table_loads(region.instructions) - 1)
    costs = EngineCosts(
        hw, repeated, region.layouts, halved=region.halved,
        in_steps=lambda instruction: walks_in_steps(instruction, geometry),
    )  # fmt: skip
    fixed: frozenset[Value] = frozenset()
    if across:
        copied = totals_for_scalar(across) if hw.generation > 2 else frozenset[Value]()
        costs = dataclasses.replace(costs, often=_often(across), copied=copied)
        fixed = frozenset(v for v in across.once() if repeated(v) < _WIDE)
    if shared:
        instructions = share_in_step(
            region.instructions,
            costs,
            lambda value: geometry.cut_along(region.labels(value)),
            fixed,
        )
        region = with_shared_sums(dataclasses.replace(region, instructions=instructions), hw)
        costs = dataclasses.replace(costs, to=(SCALAR,))
    placed: dict[int, list[Instruction]] = {}
    for part, stored in _apart_in_time(region):
        found = assign_engines(part, costs, stored, fixed, tables)
        placed.update(zip(map(id, part), found, strict=True))
    every = [one for i in region.instructions for one in placed.get(id(i), [i])]
    return dataclasses.replace(region, instructions=every, stages=[0] * len(every))


def _often(across: Across) -> dict[Value, float]:
    """How often a tile has what is computed between phases."""
    totals = [i.dst for i in across.instructions if i.call == "combine"]
    return dict.fromkeys([*across.once(), *totals], 1 / across.steps)


def _apart_in_time(region: TiledRegion) -> list[tuple[Sequence[Instruction], list[Value]]]:
    """The instructions of tiles that may run beside each other, with the values that are stored
    then: those of each phase, or all. A phase waits for all tiles of the one before, and where
    these are all that there are, an engine that is idle in one has no work of another to do."""
    stored = [region.held[output.value] for output in region.outputs]
    if region.across is None or region.geometry.tiles > region.across.steps:
        return [(region.instructions, stored)]
    phases = region.across.phases("all")
    return [(phase.each, [stored[n] for n in phase.stores]) for phase in phases]


def _placings(region: TiledRegion, hw: Hardware) -> list[TiledRegion]:
    """`region` with its engines, and where two of them share instructions, so too."""
    alone, shared = _placed(region, hw), _placed(region, hw, shared=True)
    is_shared = any(i.beside is not None for i in shared.instructions)
    return [alone, shared] if is_shared else [alone]


def placed_across(region: TiledRegion, hw: Hardware) -> list[TiledRegion]:
    """`region` with its engines: TensorE adds up what it can, or VectorE does."""
    across = region.across
    assert across is not None
    on_tensor = [
        dataclasses.replace(i, engine=TENSOR) if across.sums_on_tensor(i) else i
        for i in region.instructions
    ]
    every = [with_steps(dataclasses.replace(region, instructions=on_tensor))]
    if on_tensor != list(region.instructions):
        every.append(region)
    return [one for way in every for one in (*_placings(way, hw), way)]


def ways_of_rows(region: TiledRegion, hw: Hardware, most: int) -> list[TiledRegion]:
    """The ways to run the instructions of `region`, also with sums of functions row by row: one
    tile after another, and where tiles are many, or two where ScalarE changes its table of
    functions, in at most `most` stages, on the engines that balance the work or on those that are
    the default; so that ScalarE loads each table once, few tiles also stage by stage, and many with
    a tail of the stages that have little of each tile."""
    every = [region, *row_by_row(region)]
    return [way for one in every for way in _ways_of_rows(one, hw, most)]


def _ways_of_rows(region: TiledRegion, hw: Hardware, most: int) -> list[TiledRegion]:
    geometry = region.geometry
    least = 2 if table_loads(region.instructions) else LEAST_TILES
    tiles = geometry.tiles_of_core
    placed = [region, *_placings(region, hw)] if geometry.tiles > 1 else [region]

    if 1 < tiles <= _MOST_BY_STAGE and table_loads(region.instructions):
        in_turn = [_cut(one, MOST_STAGES) for one in placed]
        placed += [dataclasses.replace(one, by_stage=True) for one in in_turn if one.depth > 1]
    if tiles < least:
        return placed
    staged = [
        _cut(one, min(most, tiles - 1), apart=apart)
        for apart in (False, True)
        for one in placed
        if not one.by_stage
    ]
    tails = [found for one in staged for found in _with_tail(one)]
    return [*staged, *tails, *placed]


def by_stage(regions: Sequence[TiledRegion]) -> list[TiledRegion]:
    """Those of `regions` that have several tiles, and few, as they run by stage, with instructions
    that wait for each other in stages apart; one of those with equal instructions."""
    found = [one for region in regions for one in _as_listed(region)]
    return list({one.key: one for one in found}.values())


def _as_listed(region: TiledRegion) -> list[TiledRegion]:
    if region.across is not None:
        if region.kept_tiles or not 1 < region.across.steps <= _MOST_BY_STAGE:
            return []
        staged = region.in_phases(phase_stages=_MOST_LISTED, apart=True, by_stage=True)
        return [staged] if any(one.depth > 1 for one in staged.staged_phases) else []
    if not 1 < region.geometry.tiles_of_core <= _MOST_BY_STAGE:
        return []
    staged = _cut(region, _MOST_LISTED, apart=True)
    return [dataclasses.replace(staged, by_stage=True, tail=0)] if staged.depth > 1 else []


def _cut(region: TiledRegion, most: int, *, apart: bool = False) -> TiledRegion:
    """`region`, of whole rows, in at most so many stages."""
    moving = region.geometry.moving
    stages = cut_stages(region.instructions, most, lambda v: bool(v.axes & moving), apart=apart)
    return dataclasses.replace(region, stages=stages, stores_apart=region.turns_stores)


def _with_tail(region: TiledRegion) -> list[TiledRegion]:
    """`region`, of some stages, with a tail of those from the first one on that changes ScalarE's
    table of functions and has little of each tile, as what becomes of totals, if there is one."""
    pairs = list(zip(region.instructions, region.stages, strict=True))
    tables = sorted((s, table) for i, s in pairs if (table := table_of_call(i)))
    changes = [b[0] for a, b in itertools.pairwise(tables) if a[1] != b[1] and a[0] < b[0]]
    carried = region.carried()

    def is_small(stage: int) -> bool:
        values = [*carried[stage - 1], *(v for i, s in pairs if s >= stage for v in i.writes())]
        sizes = [elements(v, region.geometry) for v in values]
        nbytes = sum(v.dtype.itemsize * n for v, n in zip(values, sizes, strict=True))
        is_little = _LITTLE * max(sizes, default=0) <= whole
        return is_little and nbytes * region.geometry.tiles_of_core <= _MOST_OF_TAIL

    whole = max(elements(v, region.geometry) for i in region.instructions for v in i.writes())
    tail = next(filter(is_small, changes), 0)
    return [dataclasses.replace(region, tail=tail)] if tail else []


def ways_of_phases(region: TiledRegion) -> list[TiledRegion]:
    """`region` with the tiles of its phases one after another, in stages where some overlap, and
    where ScalarE changes its table of functions within a phase of few tiles stage by stage."""
    assert region.across is not None
    steps = region.across.steps
    staged = region.in_phases(phase_stages=MOST_STAGES)
    if steps < 2 or not any(phase.depth > 1 for phase in staged.staged_phases):
        return [region] if steps < LEAST_TILES else [region, *_apart(staged)]
    found = [region] if steps < LEAST_TILES else [region, staged, *_apart(staged)]
    tables = any(table_loads(one.phase.each) for one in staged.staged_phases)
    if tables and steps <= _MOST_BY_STAGE:
        found.append(staged.in_phases(by_stage=True))
    return found


def _apart(staged: TiledRegion) -> list[TiledRegion]:
    """The region with the instructions of an engine that wait for each other apart, if any do."""
    apart = staged.in_phases(apart=True)
    depths = ([one.depth for one in way.staged_phases] for way in (staged, apart))
    before, after = depths
    return [apart] if before != after else []
