"""Products over neighbouring parts of one factor, with the other factor the same, as one product.

A kernel multiplies few rows by one bank's width of a weight at a time, which on this machine takes
longer than its share of the whole. The one product runs in the place of the first, if nothing since
then wrote a factor. Where the results are no neighbours, as each goes to a bank of its own, all go
to new memory, and what read the banks reads that.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import torch

from trnx.simulator.memory.storage import Step
from trnx.simulator.program.copy_analysis import as_factor, is_factor
from trnx.simulator.program.dead_steps import effects_of, fresh_memory
from trnx.simulator.program.product_merging import overwrites
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects

# Products with a result of at most so many rows or columns: others are bound by arithmetic.
_FEW = 32
# Products that become one, which bounds the search.
_MOST_TILES = 256
# Steps that touch a bank, which are looked through for its readers.
_MOST_TOUCHES = 2048
# Elements of the results of one product that go to new memory.
_MOST_MOVED = 1 << 18


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
        return as_factor(_longer(one, which, sum(self.sizes))) if which == self.axis else one


def _longer(region: Region, axis: int, size: int) -> Region:
    shape = (*region.shape[:axis], size, *region.shape[axis + 1 :])
    return Region(region.memory, region.dtype, shape, region.strides, region.offset)


def widen_products(steps: Sequence[Step], reader: EffectReader, inputs: int) -> Sequence[Step]:
    """The steps with such products as one. The first `inputs` slots are those of the arguments."""
    if sum(_is_product(step) for step in steps) < 2:
        return steps
    effects = effects_of(steps, reader)
    if effects is None:
        return steps
    search = _Products(steps, effects, inputs, fresh_memory(effects, reader.blank))
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
            overwrites(written, factor, self._inputs)
            for factor in effects.reads.values()
            for _, written in self._writes_between(factor, first, number)
        )

    def _writes_between(self, region: Region, first: int, end: int) -> Sequence[tuple[int, Region]]:
        """What steps from the first on write to the memory of a region, but for the end."""
        known = self._writes[self._home(region)]
        places = [bisect_left(known, number, key=itemgetter(0)) for number in (first, end)]
        return known[slice(*places)]

    def _is_touched(self, row: Sequence[int], number: int, out: Region) -> bool:
        known = self._touching[out.memory]
        for at in known[bisect_left(known, row[0]) :]:
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
        if out.memory not in self._fresh or len(self._touching[out.memory]) > _MOST_TOUCHES:
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


def _written(steps: Sequence[Step], rows: Sequence[_Row], reader: EffectReader) -> Sequence[Step]:
    """The steps with each row as one product, in the place of its first."""
    left: list[Step | None] = list(steps)
    for row in rows:
        axis = row.axis
        assert axis is not None
        factors = [reader.view(row.whole(which)) for which in (0, 1)]
        if row.is_in_place:
            out = _longer(row.outs[0], axis, sum(row.sizes))
        else:
            nbytes = sum(one.numel for one in row.outs) * row.outs[0].dtype.itemsize
            memory = reader.allocate(nbytes)
            places = _moved(row, memory)
            out = _longer(places[0], axis, sum(row.sizes))
            for readers, place in zip(row.readers, places, strict=True):
                for number, argument in readers or ():
                    left[number] = _reading(left[number], argument, reader.view(place))
        for number in row.numbers:
            left[number] = None
        left[row.numbers[0]] = functools.partial(torch.mm, *factors, out=reader.view(out))
    return [step for step in left if step is not None]


def _reading(step: Step | None, argument: int, view: torch.Tensor) -> Step:
    assert isinstance(step, functools.partial)
    args = [view if at == argument else value for at, value in enumerate(step.args)]
    return functools.partial(step.func, *args, **step.keywords)
