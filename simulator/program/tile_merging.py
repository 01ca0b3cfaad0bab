"""Tile merging: steps of one form over neighbouring tiles become one step over all of them.

A kernel goes through its tiles one by one, at most 128 partitions and one bank wide. On this machine
a step of so few elements takes as long as the call, and a product of one row with a part of a weight
longer than its share of the whole.

* Products of few rows whose parts of one factor are neighbours, and whose other factor is the same,
  are one product. Where each part goes to a bank of its own, all go to new memory, and what read
  the banks reads that.
* Element-wise steps on tiles at equal distances are one step with a dimension more.

The one step runs in the place of the first; a step joins it where nothing since then touched what it
writes, or wrote what it reads. Elements are computed by the same operators: torch computes dense
ones in vectors, as eager mode does with whole tensors.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from trnx.simulator.language.operators import functions
from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.copy_analysis import is_factor
from trnx.simulator.program.dead_steps import effects_of, fresh_memory
from trnx.simulator.program.product_merging import overwrites
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects

# Products with a result of at most so many rows or columns: others are bound by arithmetic.
_FEW = 32
# Elements of a tile, and of all tiles of one step: larger ones would leave the caches.
_MOST_OF_TILE = 8192
_MOST_OF_STEP = 1 << 15
# Products that become one, which bounds the search.
_MOST_TILES = 256
# Elements of the results of one product that go to new memory.
_MOST_MOVED = 1 << 18

_ELEMENTWISE = frozenset({
    torch.abs, torch.add, torch.div, torch.eq, torch.exp, torch.ge, torch.gt, torch.le, torch.log,
    torch.lt, torch.maximum, torch.minimum, torch.mul, torch.ne, torch.neg, torch.reciprocal,
    torch.rsqrt, torch.sigmoid, torch.sqrt, torch.square, torch.sub, torch.tanh,
})  # fmt: skip


def merge_tiles(
    steps: Sequence[Step], slots: Sequence[Slot], inputs: int, blank: Mapping[int, int]
) -> tuple[Sequence[Step], Mapping[int, int]]:
    """The steps with such steps as one, and own memory that is new: address -> bytes. The first
    `inputs` slots are those of the arguments; `blank` as in `Program`.
    """
    reader = EffectReader(slots, blank)
    products, made = _merge_products(steps, reader, inputs, blank)
    return _merge_elementwise(products, reader, inputs), made


# ---- products


@dataclass(eq=False, slots=True)
class _Row:
    """Products over neighbouring parts of a factor: `axis` 0 for rows of the first one, 1 for
    columns of the second one, None as long as there is one product."""

    numbers: list[int]
    factors: tuple[Region, Region]
    outs: list[Region]
    # Steps that read each result: (number of the step, number of its argument).
    readers: list[list[tuple[int, int]] | None]
    axis: int | None = None
    sizes: list[int] = field(default_factory=list)

    @property
    def is_in_place(self) -> bool:
        """Whether the results are neighbours as they are."""
        first, axis = self.outs[0], self.axis
        assert axis is not None
        start = 0
        for out, size in zip(self.outs, self.sizes, strict=True):
            if out.memory != first.memory or out.dtype is not first.dtype:
                return False
            steps = zip(out.shape, out.strides, first.strides, strict=True)
            if any(n > 1 and step != own for n, step, own in steps):
                return False
            if out.offset != first.offset + start * first.strides[axis]:
                return False
            start += size
        return first.strides[axis] > 0

    def whole(self, which: int) -> Region:
        """A factor of the one product."""
        one = self.factors[which]
        return _longer(one, which, sum(self.sizes)) if which == self.axis else one


def _longer(region: Region, axis: int, size: int) -> Region:
    shape = (*region.shape[:axis], size, *region.shape[axis + 1 :])
    return Region(region.memory, region.dtype, shape, region.strides, region.offset)


def _merge_products(
    steps: Sequence[Step], reader: EffectReader, inputs: int, blank: Mapping[int, int]
) -> tuple[Sequence[Step], Mapping[int, int]]:
    if sum(_is_product(step) for step in steps) < 2:
        return steps, {}
    effects = effects_of(steps, reader)
    if effects is None:
        return steps, {}
    search = _Products(steps, effects, inputs, fresh_memory(effects, blank))
    return _written(steps, search.rows(), reader)


def _is_product(step: Step) -> bool:
    return type(step) is functools.partial and step.func is torch.mm


class _Products:
    """Finds the products that may run as one."""

    def __init__(
        self,
        steps: Sequence[Step],
        effects: Sequence[Effects],
        inputs: int,
        fresh: Collection[int],
    ) -> None:
        self._steps = steps
        self._effects = effects
        self._inputs = inputs
        self._fresh = fresh
        self._touching: defaultdict[int, list[int]] = defaultdict(list)
        # What is written, and by which step: of all inputs as of one memory.
        self._writes: defaultdict[int, list[tuple[int, Region]]] = defaultdict(list)
        for number, one in enumerate(effects):
            for memory in {region.memory for region in (*one.reads.values(), *one.writes)}:
                self._touching[memory].append(number)
            for region in one.writes:
                self._writes[self._home(region)].append((number, region))

    def _home(self, region: Region) -> int:
        return -1 if -self._inputs <= region.memory < 0 else region.memory

    def rows(self) -> list[_Row]:
        """Those of more than one product."""
        found: list[_Row] = []
        last: _Row | None = None
        for number, (step, one) in enumerate(zip(self._steps, self._effects, strict=True)):
            if not _is_product(step) or min(one.writes[0].shape) > _FEW or not one.writes[0].numel:
                continue
            if last is not None and self._joins(last, number, one):
                continue
            factors = (one.reads[0], one.reads[1])
            last = _Row([number], factors, [one.writes[0]], [self._readers(number)])
            found.append(last)
        return [row for row in found if len(row.numbers) > 1]

    def _joins(self, row: _Row, number: int, effects: Effects) -> bool:
        """Add a product to a row where that may be."""
        axis = self._axis(row, effects)
        if axis is None or len(row.numbers) == _MOST_TILES:
            return False
        size = effects.writes[0].shape[axis]
        sizes = row.sizes or [row.outs[0].shape[axis]]
        readers = self._readers(number)
        longer = _Row(
            [*row.numbers, number], row.factors, [*row.outs, effects.writes[0]],
            [*row.readers, readers], axis, [*sizes, size],
        )  # fmt: skip
        if not is_factor(longer.whole(axis)) or self._meets(row.numbers[0], number, effects):
            return False
        if longer.is_in_place:
            # Nothing may see the result before its time.
            if self._is_touched(row.numbers, number, effects.writes[0]):
                return False
        elif None in longer.readers or not self._may_move(longer):
            return False
        row.numbers, row.outs, row.readers = longer.numbers, longer.outs, longer.readers
        row.axis, row.sizes = axis, longer.sizes
        return True

    def _axis(self, row: _Row, effects: Effects) -> int | None:
        """Which factor goes on where the row ends; the other one is the same."""
        for axis in (0, 1) if row.axis is None else (row.axis,):
            one, other = row.factors[axis], effects.reads[axis]
            if not row.factors[1 - axis].is_same(effects.reads[1 - axis]):
                continue
            sizes = row.sizes or [one.shape[axis]]
            is_shorter = other.shape[axis] <= sizes[0] == sizes[-1]
            is_next = other.offset == one.offset + sum(sizes) * one.strides[axis]
            is_alike = (
                other.memory == one.memory
                and other.dtype is one.dtype
                and other.strides == one.strides
                and other.shape[1 - axis] == one.shape[1 - axis]
            )
            if is_alike and is_next and is_shorter:
                return axis
        return None

    def _meets(self, first: int, number: int, effects: Effects) -> bool:
        """Whether a step since the first one writes a factor."""
        return any(
            first <= at < number and overwrites(written, factor, self._inputs)
            for factor in effects.reads.values()
            for at, written in self._writes[self._home(factor)]
        )

    def _is_touched(self, row: Sequence[int], number: int, out: Region) -> bool:
        known = self._touching[out.memory]
        for at in known[bisect_right(known, row[0] - 1) :]:
            if at >= number:
                return False
            one = self._effects[at]
            if any(region.overlaps(out) for region in (*one.reads.values(), *one.writes)):
                return True
        return False

    def _may_move(self, row: _Row) -> bool:
        """Whether what reads the results gives the same values where they lie in new memory."""
        if sum(out.numel for out in row.outs) > _MOST_MOVED:
            return False
        moved = _moved(row, 0)
        for readers, place in zip(row.readers, moved, strict=True):
            for number, argument in readers or ():
                effects = self._effects[number]
                if effects.move is None and not effects.is_indifferent(argument, place):
                    return False
        return True

    def _readers(self, number: int) -> list[tuple[int, int]] | None:
        """Who reads the result, until it is overwritten; None where that cannot be moved."""
        out = self._effects[number].writes[0]
        if out.memory not in self._fresh:
            return None
        found: list[tuple[int, int]] = []
        known = self._touching[out.memory]
        for at in known[bisect_right(known, number) :]:
            effects = self._effects[at]
            for argument, region in effects.reads.items():
                if region.overlaps(out):
                    step = self._steps[at]
                    is_argument = type(step) is functools.partial and 0 <= argument < len(step.args)
                    if not region.is_same(out) or not is_argument:
                        return None
                    found.append((at, argument))
            written = [region for region in effects.writes if region.overlaps(out)]
            if written:
                is_end = effects.is_pure and any(region.covers(out) for region in written)
                is_read = bool(found) and found[-1][0] == at
                return found if is_end and not is_read else None
        return found


def _moved(row: _Row, memory: int) -> list[Region]:
    """Where the results lie in new memory, side by side."""
    first, axis = row.outs[0], row.axis
    assert axis is not None
    total = sum(row.sizes)
    width = first.shape[1] if axis == 0 else total
    places, start = [], 0
    for out, size in zip(row.outs, row.sizes, strict=True):
        offset = start * (width if axis == 0 else 1)
        places.append(Region(memory, out.dtype, out.shape, (width, 1), offset))
        start += size
    return places


def _written(
    steps: Sequence[Step], rows: Sequence[_Row], reader: EffectReader
) -> tuple[Sequence[Step], Mapping[int, int]]:
    """The steps with each row as one product, in the place of its first."""
    left: list[Step | None] = list(steps)
    made: dict[int, int] = {}
    for row in rows:
        axis = row.axis
        assert axis is not None
        factors = [reader.view(row.whole(which)) for which in (0, 1)]
        if row.is_in_place:
            out = _longer(row.outs[0], axis, sum(row.sizes))
        else:
            nbytes = sum(one.numel for one in row.outs) * row.outs[0].dtype.itemsize
            memory = reader.allocate(nbytes)
            made[memory] = nbytes
            places = _moved(row, memory)
            out = _longer(places[0], axis, sum(row.sizes))
            for readers, place in zip(row.readers, places, strict=True):
                for number, argument in readers or ():
                    left[number] = _reading(left[number], argument, reader.view(place))
        for number in row.numbers:
            left[number] = None
        left[row.numbers[0]] = functools.partial(torch.mm, *factors, out=reader.view(out))
    return [step for step in left if step is not None], made


def _reading(step: Step | None, argument: int, view: torch.Tensor) -> Step:
    assert isinstance(step, functools.partial)
    args = [view if at == argument else value for at, value in enumerate(step.args)]
    return functools.partial(step.func, *args, **step.keywords)


# ---- element-wise steps


@dataclass(eq=False, slots=True)
class _Group:
    """Steps of one form: their first one, its tensors (reads, then the one that is written), how
    far each is from that of the next step, and how many steps there are."""

    step: functools.partial[Any]
    regions: tuple[Region, ...]
    number: int
    distances: tuple[int, ...] | None = None
    count: int = 1

    def distances_to(self, regions: Sequence[Region]) -> tuple[int, ...] | None:
        """Those of the next step, None where it does not lie as the next one does."""
        far = []
        for own, other in zip(self.regions, regions, strict=True):
            distance, rest = divmod(other.offset - own.offset, self.count)
            if own.memory != other.memory or rest or distance < 0:
                return None
            # A tensor with fewer dimensions is repeated over the tiles, where all read it.
            if distance and len(own.shape) != len(self.regions[-1].shape):
                return None
            far.append(distance)
        # Of operands that all tiles share, a function makes a result of one tile.
        is_shared = "out" in self.step.keywords and not any(far[:-1])
        is_uneven = self.distances is not None and tuple(far) != self.distances
        return None if not far[-1] or is_shared or is_uneven else tuple(far)


def _merge_elementwise(
    steps: Sequence[Step], reader: EffectReader, inputs: int
) -> Sequence[Step]:
    merger = _Merger(reader, inputs)
    for step in steps:
        merger.add(step)
    return merger.steps()


def _form(step: Step, effects: Effects, regions: Sequence[Region], inputs: int) -> Any:
    """Steps with equal forms differ in the offsets of their tensors alone; None for steps that are
    not element-wise, or too large to gain."""
    if type(step) is not functools.partial or not effects.is_pure or len(effects.writes) != 1:
        return None
    out = regions[-1]
    if not 0 < out.numel <= _MOST_OF_TILE or -inputs <= out.memory < 0:
        return None
    name = _name(step)
    if name is None or any(len(one.shape) > len(out.shape) for one in regions):
        return None
    constants = tuple(
        (type(value), value) if not isinstance(value, torch.Tensor) else None
        for value in (*step.args, *step.keywords.values())
    )
    places = tuple((one.memory, one.dtype, one.shape, one.strides) for one in regions)
    return name, constants, tuple(step.keywords), places


def _name(step: functools.partial[Any]) -> Any:
    """What an element-wise step computes."""
    function = step.func
    if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, torch.Tensor):
        name = function.__name__
        return name if name in ("copy_", "fill_", "zero_") and not step.keywords else None
    if tuple(step.keywords) != ("out",):
        return None
    is_ours = type(function) is FunctionType and function.__module__ == functions.__name__
    if function in _ELEMENTWISE or (is_ours and not function.__closure__):
        return function
    return None


class _Merger:
    """The steps so far, and who touches which memory."""

    def __init__(self, reader: EffectReader, inputs: int) -> None:
        self._reader = reader
        self._inputs = inputs
        self._steps: list[Step | _Group] = []
        self._groups: dict[Any, _Group] = {}
        # By memory: the number of the step, what it touches, whether it writes there.
        self._touches: defaultdict[int, list[tuple[int, Region, bool]]] = defaultdict(list)
        # The last step that wrote an input.
        self._input_written = -1

    def add(self, step: Step) -> None:
        """The next step."""
        effects = self._reader.effects(step)
        if effects is None:
            self._groups.clear()
            self._steps.append(step)
            return
        regions = (*effects.reads.values(), *effects.writes)
        form = _form(step, effects, regions, self._inputs)
        if form is None:
            self._append(step, effects)
            return
        group = self._groups.get(form)
        if group is not None and self._joins(group, effects, regions):
            self._note(group.number, effects)
            return
        assert isinstance(step, functools.partial)
        made = self._groups[form] = _Group(step, regions, len(self._steps))
        self._append(made, effects)

    def _append(self, step: Step | _Group, effects: Effects) -> None:
        self._note(len(self._steps), effects)
        self._steps.append(step)

    def _note(self, number: int, effects: Effects) -> None:
        for region in effects.reads.values():
            self._touches[region.memory].append((number, region, False))
        for region in effects.writes:
            self._touches[region.memory].append((number, region, True))
            if self._is_input(region):
                self._input_written = max(self._input_written, number)

    def _is_input(self, region: Region) -> bool:
        return -self._inputs <= region.memory < 0

    def _joins(self, group: _Group, effects: Effects, regions: Sequence[Region]) -> bool:
        distances = group.distances_to(regions)
        if distances is None or (group.count + 1) * regions[-1].numel > _MOST_OF_STEP:
            return False
        if any(self._meets(region, group.number, False) for region in effects.reads.values()):
            return False
        if self._meets(regions[-1], group.number, True):
            return False
        group.distances, group.count = distances, group.count + 1
        return True

    def _meets(self, region: Region, number: int, is_written: bool) -> bool:
        """Whether a step from this number on touches what is written, or writes what is read."""
        if self._is_input(region) and self._input_written >= number:
            return True
        return any(
            at >= number and (is_written or writes) and region.overlaps(other)
            for at, other, writes in self._touches[region.memory]
        )

    def steps(self) -> list[Step]:
        """The steps that are left."""
        return [self._step(one) if isinstance(one, _Group) else one for one in self._steps]

    def _step(self, group: _Group) -> Step:
        if group.count == 1:
            return group.step
        step, (*read, out) = group.step, self._views(group)
        given = iter(read)
        args = [next(given) if isinstance(a, torch.Tensor) else a for a in step.args]
        if step.keywords:
            return functools.partial(step.func, *args, out=out)
        return functools.partial(getattr(out, step.func.__name__), *args)

    def _views(self, group: _Group) -> Iterator[torch.Tensor]:
        """The tensors of the first step, with a dimension of tiles in front."""
        assert group.distances is not None
        for region, distance in zip(group.regions, group.distances, strict=True):
            if distance:
                shape, strides = (group.count, *region.shape), (distance, *region.strides)
                place = (shape, strides, region.offset)
                region = Region(region.memory, region.dtype, *place)
            yield self._reader.view(region)
