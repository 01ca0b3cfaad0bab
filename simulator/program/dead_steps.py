"""Steps whose results nobody reads, and copies of results that can be written where they go.

A kernel brings a result from PSUM to SBUF and from there to HBM, and clears accumulators that an
instruction writes all the same. What computes a tile that is only copied then writes to where the
copy would have brought it, if the elements lie alike there, so that it computes the same bits.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import torch

from trnx.simulator.memory.storage import Step
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects

_NOTHING = Effects({}, ())
# Writes of a memory that are looked at to tell whether it is written before it is read.
_MOST_PARTS = 8


def drop_dead_steps(
    steps: Sequence[Step], reader: EffectReader, unread: Collection[int] = ()
) -> Sequence[Step]:
    """The steps without those that write what nobody reads; `unread` are the numbers of slots that
    a run writes all the same, and whose caller does not read them.
    """
    effects = effects_of(steps, reader)
    if effects is None:
        return steps
    fresh = {*fresh_memory(effects, reader.blank), *unread}
    live: defaultdict[int, list[Region]] = defaultdict(list)
    left: list[Step] = []
    for step, one in zip(reversed(steps), reversed(effects), strict=True):
        if one.is_pure and not any(_is_live(region, live, fresh) for region in one.writes):
            continue
        left.append(step)
        for region in one.writes if one.is_pure else ():
            live[region.memory] = [part for part in live[region.memory] if not region.covers(part)]
        for region in one.reads.values():
            if not any(part.is_same(region) for part in live[region.memory]):
                live[region.memory].append(region)
    left.reverse()
    return left


def effects_of(steps: Sequence[Step], reader: EffectReader) -> list[Effects] | None:
    """Those of all steps; None where a step may touch everything."""
    found = [reader.effects(step) for step in steps]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def fresh_memory(effects: Sequence[Effects], blank: Collection[int]) -> set[int]:
    """Own memory of which a run reads only what it has written before: `blank`, and more."""
    written: defaultdict[int, list[Region]] = defaultdict(list)
    carried: set[int] = set()
    for one in effects:
        for region in one.reads.values():
            memory = region.memory
            if memory in blank or memory < 0 or memory in carried:
                continue
            if not any(part.covers(region) for part in written[memory]):
                carried.add(memory)
        for region in one.writes if one.is_pure else ():
            if region.memory not in blank and len(written[region.memory]) < _MOST_PARTS:
                written[region.memory].append(region)
    return {memory for memory in (*written, *blank) if memory >= 0} - carried


def _is_live(region: Region, live: Mapping[int, Sequence[Region]], fresh: Collection[int]) -> bool:
    """What is not fresh is read by the caller, or by the next run."""
    if region.memory not in fresh:
        return True
    return any(one.overlaps(region) for one in live[region.memory])


def write_in_place(steps: Sequence[Step], reader: EffectReader, inputs: int) -> Sequence[Step]:
    """The steps, with results written to where copies bring them, without those copies. The first
    `inputs` slots are those of the arguments.
    """
    effects = effects_of(steps, reader)
    if effects is None:
        return steps
    placement = _Placement(steps, effects, reader, inputs, fresh_memory(effects, reader.blank))
    for number in range(len(steps) - 1, -1, -1):
        placement.try_copy(number)
    return [step for step, one in zip(placement.steps, effects, strict=True) if one is not _NOTHING]


class _Placement:
    """Steps with their effects, and which of them touch a memory, in order."""

    def __init__(
        self,
        steps: Sequence[Step],
        effects: list[Effects],
        reader: EffectReader,
        inputs: int,
        fresh: Collection[int],
    ) -> None:
        self.steps = list(steps)
        self._effects = effects
        self._reader = reader
        self._inputs = inputs
        self._fresh = fresh
        self._touching: defaultdict[int, list[int]] = defaultdict(list)
        for number, one in enumerate(effects):
            for memory in {region.memory for region in (*one.reads.values(), *one.writes)}:
                self._touching[memory].append(number)

    def try_copy(self, number: int) -> None:
        """Leave out a copy whose source can be written to its target."""
        move = self._effects[number].move
        if move is None:
            return
        source, target = move
        # The memory of one input may be that of another one.
        is_apart = target.memory < -self._inputs or target.memory in self._fresh
        if not is_apart or source.memory not in self._fresh or not source.lies_like(target):
            return
        writer = self._writer(number, source)
        if writer is None or not self._is_dead_after(number, source):
            return
        if any(self._touches(at, target) for at in self._between(writer, number, target)):
            return
        # In the shape of the step that wrote it.
        form = self._effects[writer].writes[0]
        place = Region(target.memory, form.dtype, form.shape, form.strides, target.offset)
        made = _writing_to(self.steps[writer], self._reader.view(place))
        if made is None or self._touches(writer, target):
            return
        self._touching[source.memory].remove(number)
        self._touching[target.memory].remove(number)
        if writer not in self._touching[target.memory]:
            insort(self._touching[target.memory], writer)
        self.steps[writer] = made
        written = self._reader.effects(made)
        assert written is not None
        self._effects[writer] = written
        self._effects[number] = _NOTHING

    def _writer(self, number: int, source: Region) -> int | None:
        """The one step that wrote the source of the copy, if nothing else touched it since."""
        known = self._touching[source.memory]
        for at in reversed(known[: bisect_left(known, number)]):
            if self._touches(at, source):
                effects = self._effects[at]
                is_all = len(effects.writes) == 1 and _is_all_of(effects.writes[0], source)
                return at if is_all and effects.is_pure else None
        return None

    def _is_dead_after(self, number: int, source: Region) -> bool:
        known = self._touching[source.memory]
        for at in known[bisect_right(known, number) :]:
            effects = self._effects[at]
            if any(one.overlaps(source) for one in effects.reads.values()):
                return False
            if effects.is_pure and any(one.covers(source) for one in effects.writes):
                return True
        return True

    def _between(self, first: int, last: int, region: Region) -> Sequence[int]:
        known = self._touching[region.memory]
        return known[bisect_right(known, first) : bisect_left(known, last)]

    def _touches(self, number: int, region: Region) -> bool:
        effects = self._effects[number]
        return any(one.overlaps(region) for one in (*effects.reads.values(), *effects.writes))


def _is_all_of(written: Region, source: Region) -> bool:
    """Whether both have the same elements in the same order, but for dimensions of one element."""
    places = [
        [axis for axis in zip(one.shape, one.strides, strict=True) if axis[0] != 1]
        for one in (written, source)
    ]
    is_there = written.memory == source.memory and written.offset == source.offset
    return is_there and written.dtype is source.dtype and places[0] == places[1]


def _writing_to(step: Step, target: torch.Tensor) -> Step | None:
    """The step with another tensor to write to; None where that is not known."""
    if type(step) is not functools.partial:
        return None
    if isinstance(step.keywords.get("out"), torch.Tensor):
        return functools.partial(step.func, *step.args, **{**step.keywords, "out": target})
    owner = getattr(step.func, "__self__", None)
    if isinstance(owner, torch.Tensor) and step.func.__name__ == "copy_":
        return functools.partial(target.copy_, *step.args, **step.keywords)
    return None
