"""Product merging: matrix products that add up in one place, over neighbouring parts of their
common dimension, become one product.

TensorE contracts 128 rows at a time, and adds each product to what the bank holds. On this machine
each is a call of BLAS, which prepares its factors and reads and writes the bank; of a large factor
with few rows on the other side it then reads short pieces of memory. Factors are read where they
were before copies brought them on chip, if they still are there when the last part is multiplied: a
product runs in the place of that. Where the parts of a small factor do not lie as one matrix, as in
a row that is spread over the partitions, one pass over it gathers them, for all products that read
them.

The sums are those of the same terms; BLAS may add them in another order. Only float32 and float64
are merged: in narrower types every part rounds the sum.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from trnx.simulator.memory.storage import Step
from trnx.simulator.program.copy_analysis import CopyAnalysis, Read, as_factor, is_factor
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects

# Where the common dimension is, of the first factor and of the second.
_COMMON = (1, 0)
# A factor is gathered where the other one has so many times its elements, ...
_LEAST_RATIO = 8
# ... there are so many parts, as a pass is about as long as the call that two parts save, ...
_LEAST_GATHERED = 3
# ... and the result has at most so many rows or columns: others are bound by arithmetic.
_FEW = 32
# Elements that the larger factors of so few rows or columns have at least, those of all products
# that read one memory: fewer stay in the caches, where parts take little longer, and their sums
# round as recorded.
_LEAST_LARGE = 1 << 18
_EXACT = (torch.float32, torch.float64)

_Key = tuple[object, ...]


def _key(region: Region) -> _Key:
    return (region.memory, region.dtype, region.shape, region.strides, region.offset)


@dataclass(eq=False, slots=True)
class _Product:
    """Products of a run so far: their steps' numbers, the place to which all add up, what the first
    one adds to (None for nothing), and the parts of both factors.
    """

    numbers: list[int]
    out: Region
    start: Region | None
    factors: tuple[list[Region], list[Region]]

    def operands(self) -> Iterator[Region]:
        """What it reads, but for the place of the sum."""
        yield from self.factors[0]
        yield from self.factors[1]
        if self.start is not None:
            yield self.start

    def distance(self, which: int) -> int:
        """Elements between the first two parts of a factor."""
        return self.factors[which][1].offset - self.factors[which][0].offset

    def whole(self, which: int) -> Region | None:
        """The parts of a factor as one matrix that BLAS takes; None where they lie otherwise."""
        parts, axis = self.factors[which], _COMMON[which]
        first = parts[0]
        if self.distance(which) != first.shape[axis] * first.strides[axis]:
            return None
        shape = _with(first.shape, axis, sum(part.shape[axis] for part in parts))
        joined = as_factor(Region(first.memory, first.dtype, shape, first.strides, first.offset))
        return joined if is_factor(joined) else None

    def elements(self, which: int) -> int:
        """Of all parts of a factor."""
        return sum(part.numel for part in self.factors[which])

    @property
    def larger(self) -> int:
        """Which factor has more elements."""
        return int(self.elements(1) > self.elements(0))

    def continues_with(self, other: _Product) -> bool:
        """Whether the other product, alone, is the next part of this one."""
        if other.start is None or _key(other.start) != _key(self.out):
            return False
        parts = len(self.numbers)
        # A shorter part ends a run.
        if parts > 1 and self._length(-1) != self._length(0):
            return False
        if other._length(0) > self._length(0):
            return False
        for which, axis in enumerate(_COMMON):
            first, part = self.factors[which][0], other.factors[which][0]
            if not _is_alike(first, part, 1 - axis):
                return False
            if parts > 1 and part.offset - first.offset != parts * self.distance(which):
                return False
        return True

    def _length(self, part: int) -> int:
        return self.factors[0][part].shape[_COMMON[0]]


def _is_alike(first: Region, part: Region, axis: int) -> bool:
    """Whether two parts of one factor differ in their place, and in the common dimension, alone;
    `axis` is the other one.
    """
    if first.memory != part.memory or first.dtype is not part.dtype:
        return False
    # The stride of one element says nothing.
    steps = zip(part.shape, first.strides, part.strides, strict=True)
    is_same = all(size == 1 or step == own for size, step, own in steps)
    return is_same and first.shape[axis] == part.shape[axis] and first.offset < part.offset


def _product_of(
    number: int, effects: Effects, reads: Sequence[Read], inputs: int
) -> _Product | None:
    """A step that is a matrix product, of factors where they were first; None for other steps, and
    where a factor may lie in the place of the sum.
    """
    if not effects.factors:
        return None
    origin = {read.argument: read.origin for read in reads}
    first, second = (origin[at] or effects.reads[at] for at in effects.factors)
    (out,) = effects.writes
    start = effects.reads.get(0) if effects.factors[0] != 0 else None
    is_exact = out.dtype in _EXACT and out.dtype is first.dtype is second.dtype
    if not is_exact or not out.numel or not first.numel:
        return None
    factors = (first, second, *(effects.reads[at] for at in effects.factors))
    if any(overwrites(out, factor, inputs) for factor in factors):
        return None
    return _Product([number], out, start, ([first], [second]))


@dataclass(eq=False, slots=True)
class _Search:
    """Runs of products that may run as one. `inputs` is how many of the slots a caller fills."""

    inputs: int
    copies: CopyAnalysis
    found: list[_Product] = field(default_factory=list)
    _open: dict[_Key, _Product] = field(default_factory=dict)

    def add(self, number: int, effects: Effects | None) -> None:
        """The next step."""
        self.copies.add(number, effects)
        if effects is None:
            self.end()
            return
        product = _product_of(number, effects, self.copies.reads[-1], self.inputs)
        place = None if product is None else _key(product.out)
        run = None if place is None else self._open.get(place)
        is_next = product is not None and run is not None and run.continues_with(product)
        for key, other in list(self._open.items()):
            if not (is_next and other is run) and self._meets(other, effects):
                self._close(key)
        if product is None or place is None:
            return
        if is_next and run is not None:
            run.numbers.append(number)
            for parts, more in zip(run.factors, product.factors, strict=True):
                parts += more
        else:
            self._close(place)
            self._open[place] = product

    def end(self) -> None:
        """After the last step: nothing goes on."""
        for key in list(self._open):
            self._close(key)

    def _close(self, key: _Key) -> None:
        run = self._open.pop(key, None)
        if run is not None and len(run.numbers) > 1:
            self.found.append(run)

    def _meets(self, run: _Product, effects: Effects) -> bool:
        """Whether a step needs the sum so far, or writes what the run reads."""
        touched = (*effects.reads.values(), *effects.writes)
        if any(overwrites(run.out, region, self.inputs) for region in touched):
            return True
        return any(
            overwrites(region, operand, self.inputs)
            for region in effects.writes
            for operand in run.operands()
        )


def overwrites(written: Region, read: Region, inputs: int) -> bool:
    """Whether a write may change what is read: a caller may pass one memory as two inputs."""
    if -inputs <= written.memory < 0 and -inputs <= read.memory < 0:
        return True
    return written.overlaps(read)


def _worthwhile(found: Sequence[_Product]) -> dict[int, _Product]:
    """The runs that are one product, by the number of their last step."""
    read: defaultdict[int, int] = defaultdict(int)
    for run in found:
        read[run.factors[run.larger][0].memory] += run.elements(run.larger)
    return {
        run.numbers[-1]: run for run in found if _pays(run, read[run.factors[run.larger][0].memory])
    }


def _pays(product: _Product, read: int) -> bool:
    """Whether it is one product, after one pass over its smaller factor at the most; `read`:
    elements that products read of the memory of the larger one.
    """
    is_few = min(product.out.shape) <= _FEW
    if is_few and read < _LEAST_LARGE:
        return False
    gaps = [which for which in (0, 1) if product.whole(which) is None]
    if not gaps:
        return True
    if len(gaps) > 1 or len(product.numbers) < _LEAST_GATHERED or not is_few:
        return False
    return product.elements(gaps[0]) * _LEAST_RATIO <= product.elements(1 - gaps[0])


def merge_products(steps: Sequence[Step], reader: EffectReader, inputs: int) -> Sequence[Step]:
    """The steps with such products as one. The first `inputs` slots are those of the arguments."""
    if not any(_function(step) is torch.addmm for step in steps):
        return steps
    search = _Search(inputs, CopyAnalysis(inputs))
    for number, step in enumerate(steps):
        search.add(number, reader.effects(step))
    search.end()
    merged = _worthwhile(search.found)
    if not merged:
        return steps
    parts = {number for run in merged.values() for number in run.numbers}
    writer = _Writer(reader, inputs)
    for number, step in enumerate(steps):
        if number in merged:
            writer.product(merged[number])
        elif number not in parts:
            writer.step(step)
    return writer.steps


def _function(step: Step) -> object:
    return step.func if type(step) is functools.partial else step


class _Writer:
    """The steps that are left, in order; knows which gathered factors are still as they were."""

    def __init__(self, reader: EffectReader, inputs: int) -> None:
        self._reader = reader
        self._inputs = inputs
        self.steps: list[Step] = []
        self._homes: dict[_Key, Region] = {}
        # Of those that are up to date: what they were gathered from.
        self._gathered: dict[_Key, list[Region]] = {}

    def step(self, step: Step) -> None:
        """A step that stays as it is."""
        effects = self._reader.effects(step)
        if effects is None:
            self._gathered.clear()
        else:
            self._forget(effects.writes)
        self.steps.append(step)

    def product(self, run: _Product) -> None:
        """A run as one product."""
        factors = [self._reader.view(self._factor(run, which)) for which in (0, 1)]
        out = self._reader.view(run.out)
        if run.start is None:
            self.steps.append(functools.partial(torch.mm, *factors, out=out))
        else:
            start = self._reader.view(run.start)
            self.steps.append(functools.partial(torch.addmm, start, *factors, out=out))
        self._forget([run.out])

    def _forget(self, writes: Sequence[Region]) -> None:
        for key, parts in list(self._gathered.items()):
            if any(overwrites(one, part, self._inputs) for one in writes for part in parts):
                del self._gathered[key]

    def _factor(self, run: _Product, which: int) -> Region:
        return run.whole(which) or self._gather(run, which)

    def _gather(self, run: _Product, which: int) -> Region:
        """The factor in memory of its own, dense along the common dimension."""
        parts, axis = run.factors[which], _COMMON[which]
        first, last = parts[0], parts[-1]
        key = (which, len(parts), run.distance(which), *_key(first), last.shape)
        if key not in self._homes:
            self._homes[key] = self._home(parts, axis)
        home = self._homes[key]
        if key not in self._gathered:
            length = first.shape[axis]
            whole = len(parts) - (last.shape != first.shape)
            self._copy_parts(first, home, axis, whole, run.distance(which))
            if whole < len(parts):
                at = home.offset + whole * length
                end = Region(home.memory, home.dtype, last.shape, home.strides, at)
                self._copy_parts(last, end, axis, 1, 0)
            self._gathered[key] = list(parts)
        return home

    def _home(self, parts: Sequence[Region], axis: int) -> Region:
        first = parts[0]
        length = sum(part.shape[axis] for part in parts)
        nbytes = sum(part.numel for part in parts) * first.dtype.itemsize
        memory = self._reader.allocate(nbytes)
        strides = (length, 1) if axis == 1 else (1, length)
        return Region(memory, first.dtype, _with(first.shape, axis, length), strides, 0)

    def _copy_parts(
        self, first: Region, home: Region, axis: int, count: int, distance: int
    ) -> None:
        """Copy `count` parts of a factor, so many elements apart, to neighbouring places."""
        length, other = first.shape[axis], 1 - axis
        shape = (first.shape[other], count, length)
        source = (first.strides[other], distance, first.strides[axis])
        target = (home.strides[other], length, 1)
        read = self._reader.view(Region(first.memory, first.dtype, shape, source, first.offset))
        into = self._reader.view(Region(home.memory, home.dtype, shape, target, home.offset))
        self.steps.append(functools.partial(into.copy_, read))


def _with(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])
