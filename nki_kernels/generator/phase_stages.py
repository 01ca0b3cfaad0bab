"""Stages of phases: how the tiles of a phase overlap, as `stages.py` says for tiles of whole rows.

What a tile adds to the accumulator of its reduction waits for the engine that gave it, so the
addition on VectorE stands in a stage of its own where another engine did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.across import Across, Phase
from trnx.nki_kernels.generator.engines import VECTOR, engine_of, table_loads
from trnx.nki_kernels.generator.instruction import EACH_TILE
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.stages import cut_stages


@dataclass(frozen=True)
class PhaseStages:
    """The stage of each of a phase's instructions, of what is added to accumulators, and of its
    stores; `carried` are the values that each stage but the last hands to the next one."""

    phase: Phase
    of_instructions: Sequence[int]
    of_additions: Mapping[Value, int]
    of_stores: Mapping[int, int]
    carried: Sequence[Sequence[Value]]

    @property
    def depth(self) -> int:
        """How many stages there are."""
        return len(self.carried) + 1

    def orders(self) -> tuple[list[int], list[int]]:
        """The stages as even and as odd steps run them: where ScalarE changes its table of
        functions, every other step runs them backwards (`TileCalls.alternates`)."""
        forwards = list(range(self.depth))
        alternates = self.depth > 1 and table_loads(self.phase.each) > 0
        return forwards[::-1] if alternates else forwards, forwards


def cut_phase(
    across: Across,
    phase: Phase,
    most: int,
    later: Collection[Value] = (),
    *,
    apart: bool = False,
) -> PhaseStages:
    """`phase` in at most `most` stages; `apart` as in `cut_stages`. The results `later` are stored
    a stage after the one that gives them."""
    combined = {i.reads()[0] for i in phase.combines}
    alone = _without_tiles(across, phase, combined)
    stages = cut_stages(phase.each, most, across.moves, apart=apart)
    additions: dict[Value, int] = {}
    made: dict[Value, int] = {}
    for i, stage in zip(phase.each, stages, strict=True):
        made.update(dict.fromkeys(i.writes(), stage))
        for part in combined.intersection(i.writes()):
            waits = part not in alone and (apart or engine_of(i) != VECTOR)
            additions[part] = min(stage + waits, most - 1)
    stores = {
        n: made.get(across.results[n], 0)
        + (across.results[n] in later and across.varies(across.results[n]))
        for n in phase.stores
    }
    first, last = dict(made), dict(made)
    touched = [(v, stage) for i, stage in zip(phase.each, stages, strict=True) for v in i.reads()]
    touched += additions.items()
    touched += [(across.results[n], stage) for n, stage in stores.items()]
    depth = 1 + max([*stages, *additions.values(), *stores.values()], default=0)
    touched += [(v, depth - 1) for v in phase.kept]
    for i, stage in zip(phase.each, stages, strict=True):
        for v in i.writes():
            first[v] = min(first[v], stage)
    for v, stage in touched:
        if v in last:
            last[v] = max(last[v], stage)
    for v in alone:
        first.pop(v, None)
    carried = [[v for v in first if first[v] <= at < last[v]] for at in range(depth - 1)]
    return PhaseStages(phase, stages, additions, stores, carried)


def _without_tiles(across: Across, phase: Phase, combined: set[Value]) -> set[Value]:
    """What a tile adds to an accumulator in place, or writes into a column of one."""
    found = {i.dst for i in phase.each if i.dst in combined and EACH_TILE not in i.dst.axes}
    for combine in phase.combines:
        if across.in_columns(combine):
            found.add(combine.reads()[0])
        elif pair := across.in_one_phase(combine):
            found |= {combine.reads()[0], pair[0]}
    return found
