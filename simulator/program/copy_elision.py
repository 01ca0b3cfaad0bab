"""Copy elision: matrix products read what a copy was made of, and copies that nobody reads are left
out.

A kernel brings its operands on chip, and turns them there; on this machine each such step is a pass
over memory, several times as long as the product that reads the copy. Where neither the copy nor
its source is written in between, a product reads the source through a view instead. Where BLAS
takes no such view, or would read it too often, one pass brings the elements from where they were
first to memory in which they lie as they lay there, in place of the last of several copies. Checks
and times are those of the instructions, which stay as they were recorded.

The elements are the same. The host's BLAS may add the terms of a sum in another order where a
factor has other strides: it does for products of few rows or columns.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.regions import Region, is_gapless
from trnx.simulator.program.step_effects import EffectReader, Effects

# BLAS packs a factor whose columns lie apart more slowly than a dense one, by an eighth to a
# quarter of what the copy takes: a copy that products read more often than this is kept.
_MOST_READS = 4
# A copy of fewer elements takes about as long as any call of torch.
_LEAST_ELEMENTS = 1024
# Stands for memory that is not there yet: no address.
_NOWHERE = 0


@dataclass(eq=False, slots=True)
class _Copy:
    """What a step copies to `target`, or a part of that which came from one place. `origin` is
    where its elements were first, `by` the copy that brought them to where this one finds them.
    """

    step: int
    origin: Region
    target: Region
    by: _Copy | None = None
    # What brought the elements to the origin.
    before: list[_Copy] = field(default_factory=list)
    # False once something is written to the target or the origin.
    is_valid: bool = True
    is_read: bool = False
    read_elements: int = 0
    # Where a dense copy of the origin lies, in the order of its strides; once it is moved there.
    home: Region | None = None
    is_moved: bool = False
    # Where a product wants another view than the copy's origin.
    wants_home: bool = False
    # Whether all that reads it are products, which may read it at home, and copies.
    may_move: bool = True
    copied_by: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Read:
    """One argument of a step: the copies that it reads, and where the elements of one were before,
    which other copies may have brought there.
    """

    argument: int
    copies: list[_Copy]
    origin: Region | None = None
    copy: _Copy | None = None
    before: list[_Copy] = field(default_factory=list)
    is_redirected: bool = False
    # Where it reads the copy once that is moved.
    at_home: Region | None = None

    @property
    def place(self) -> Region | None:
        """Where the step reads instead; None for where it was recorded to read."""
        if self.copy is not None and self.copy.is_moved:
            return self.at_home
        return self.origin if self.is_redirected else None


@dataclass(eq=False, slots=True)
class _Analysis:
    """What reads what. `inputs` is how many of the slots a caller fills."""

    inputs: int
    # Parts of what each step copies.
    copies: dict[int, list[_Copy]] = field(default_factory=dict)
    reads: list[list[_Read]] = field(default_factory=list)
    _at: defaultdict[int, list[_Copy]] = field(default_factory=lambda: defaultdict(list))
    _from: defaultdict[int, list[_Copy]] = field(default_factory=lambda: defaultdict(list))

    def add(self, number: int, effects: Effects | None) -> None:
        """The next step."""
        if effects is None:
            every = [copy for copies in self._at.values() for copy in copies]
            for copy in every:
                copy.is_valid = copy.may_move = False
            self.reads.append([_Read(0, every)])
            return
        reads = [self._read(at, region) for at, region in effects.reads.items()]
        for at, read in zip(effects.reads, reads, strict=True):
            if effects.move is not None:
                for copy in read.copies:
                    copy.copied_by.append(number)
            else:
                is_factor = at in effects.factors
                self._redirect(read, effects.reads[at] if is_factor else None, effects.writes)
        self.reads.append(reads)
        # What came from where it goes is lost.
        parts = [] if effects.move is None else self._parts(number, *effects.move)
        for region in effects.writes:
            self._write(region)
        for copy in parts:
            self._at[copy.target.memory].append(copy)
            self._from[copy.origin.memory].append(copy)

    def _redirect(self, read: _Read, factor: Region | None, writes: Sequence[Region]) -> None:
        """To the origin of the copy, where a product can read it, or to a copy of that."""
        origin, copy = read.origin, read.copy
        for one in read.copies:
            one.may_move = one.may_move and one is copy and factor is not None
        if origin is None or copy is None or factor is None:
            return
        if _is_factor(origin) and not any(region.overlaps(origin) for region in writes):
            read.is_redirected = True
            read.before = self._reaching(origin)
            copy.read_elements += origin.numel
        else:
            copy.wants_home = True
        if copy.home is not None:
            read.at_home = factor.through(copy.target, copy.home)
        if read.at_home is None or not _is_factor(read.at_home):
            copy.may_move = False

    def _read(self, argument: int, region: Region) -> _Read:
        read = _Read(argument, self._reaching(region))
        for copy in read.copies:
            if copy.is_valid:
                read.origin = region.through(copy.target, copy.origin)
                if read.origin is not None:
                    read.copy = copy
                    break
        return read

    def _reaching(self, region: Region) -> list[_Copy]:
        """The copies that may have brought what is there."""
        return [one for one in self._at[region.memory] if one.target.overlaps(region)]

    def _write(self, region: Region) -> None:
        # The caller may pass the same memory as two inputs.
        is_input = -self.inputs <= region.memory < 0
        for memory in range(-self.inputs, 0) if is_input else (region.memory,):
            for copy in self._from[memory]:
                if copy.is_valid and (is_input or copy.origin.overlaps(region)):
                    copy.is_valid = False
        left = []
        for copy in self._at[region.memory]:
            if copy.target.overlaps(region):
                copy.is_valid = False
                if region.covers(copy.target):
                    continue
            left.append(copy)
        self._at[region.memory] = left

    def _parts(self, number: int, source: Region, target: Region) -> list[_Copy]:
        """A copy as one, or as the parts that other copies brought to its source."""
        if source.overlaps(target) or target.memory < 0:
            return []
        read = self.reads[-1][0]
        if read.copy is not None and read.origin is not None:
            found = [self._part(number, read.origin, target, read.copy)]
        else:
            found = self._divided(number, source, target, read.copies)
        # Not where this copy itself overwrites what it came from.
        if not found or any(one.origin.overlaps(target) for one in found):
            found = [self._part(number, source, target, None)]
        self.copies[number] = found
        return found

    def _divided(
        self, number: int, source: Region, target: Region, brought: Sequence[_Copy]
    ) -> list[_Copy]:
        """The parts that these copies brought; empty unless that is all of it."""
        valid = [copy for copy in brought if copy.is_valid]
        if len(valid) < 2 or sum(copy.target.numel for copy in valid) != source.numel:
            return []
        found = []
        for copy in valid:
            place = copy.target.through(source, target)
            if place is None or not is_gapless(place):
                return []
            found.append(self._part(number, copy.origin, place, copy))
        return found

    def _part(self, number: int, origin: Region, target: Region, by: _Copy | None) -> _Copy:
        copy = _Copy(number, origin, target, by)
        if by is not None:
            copy.before = self._reaching(origin)
            copy.home = Region(_NOWHERE, origin.dtype, target.shape, _dense_strides(origin), 0)
        return copy


def _dense_strides(origin: Region) -> tuple[int, ...]:
    """Strides of dense memory in which the elements have the order of the origin."""
    strides, step = [0] * len(origin.shape), 1
    for axis in sorted(range(len(strides)), key=lambda axis: (origin.strides[axis], -axis)):
        strides[axis] = step
        step *= origin.shape[axis]
    return tuple(strides)


def _is_factor(origin: Region) -> bool:
    """True where BLAS takes it as it is, by rows or by columns."""
    if len(origin.shape) != 2:
        return False
    rows, columns = origin.shape
    far, near = origin.strides
    return (near == 1 and far >= columns) or (far == 1 and near >= rows)


def _dropped(analysis: _Analysis) -> set[int]:
    """Numbers of the copies that nobody reads, once every read that goes to a copy which is kept
    reads the copy; those that are worth it are moved.
    """
    copies = [copy for parts in analysis.copies.values() for copy in parts]
    for copy in copies:
        is_worth = copy.target.numel >= _LEAST_ELEMENTS
        is_often = copy.read_elements > _MOST_READS * copy.target.numel
        can_move = is_worth and copy.may_move and copy.home is not None
        copy.is_moved = can_move and (is_often or copy.wants_home)
        copy.is_read = not is_worth or (is_often and not copy.is_moved)
    while True:
        unread = _unread(analysis)
        returned = _return_moved(analysis, unread)
        for reads in analysis.reads:
            for read in reads:
                if read.is_redirected and read.copy is not None and _is_kept(read.copy, unread):
                    read.is_redirected = False
                    returned = True
        if not returned:
            return unread


def _is_kept(copy: _Copy, unread: set[int]) -> bool:
    return copy.step not in unread and not copy.is_moved


def _return_moved(analysis: _Analysis, unread: set[int]) -> bool:
    """Leave where they were the copies that another step needs there, and those of which another
    copy that brought their elements is made all the same. True where there was one.
    """
    returned = False
    for parts in analysis.copies.values():
        stays = any(not copy.is_moved and copy.is_read for copy in parts)
        for copy in parts:
            if copy.is_moved and (
                stays
                or any(number not in unread for number in copy.copied_by)
                or copy.by is None
                or copy.by.step not in unread
            ):
                copy.is_moved, copy.is_read, returned = False, True, True
    return returned


def _unread(analysis: _Analysis) -> set[int]:
    unread = set()
    for number in range(len(analysis.reads) - 1, -1, -1):
        parts = analysis.copies.get(number)
        if parts is not None and not any(copy.is_read for copy in parts):
            unread.add(number)
            continue
        for one in _needed(parts, analysis.reads[number]):
            one.is_read = True
    return unread


def _needed(parts: Sequence[_Copy] | None, reads: Sequence[_Read]) -> Iterator[_Copy]:
    """The copies that a step reads."""
    if parts is not None and all(copy.is_moved or not copy.is_read for copy in parts):
        for copy in parts:
            yield from copy.before if copy.is_read else ()
        return
    for read in reads:
        is_moved = read.copy is not None and read.copy.is_moved
        yield from read.before if read.is_redirected and not is_moved else read.copies


@dataclass(frozen=True)
class Elided:
    """Steps that are left, and what they `used`, where that is known: the ids of views, and the
    addresses of own memory. `made` is own memory that is new: address -> bytes.
    """

    steps: list[Step]
    used: tuple[frozenset[int], frozenset[int]] | None
    made: Mapping[int, int]


def elide_copies(
    steps: Sequence[Step], slots: Sequence[Slot], inputs: int, blank: Mapping[int, int]
) -> Elided | None:
    """The steps without needless copies; None where there are none. The first `inputs` slots are
    those of the arguments; `blank` as in `Program`.
    """
    reader = EffectReader(slots, blank)
    analysis = _Analysis(inputs)
    for number, step in enumerate(steps):
        analysis.add(number, reader.effects(step))
    dropped = _dropped(analysis)
    if not dropped:
        return None
    redirection = _Redirection(reader)
    left: list[Step] = []
    for number, (step, reads) in enumerate(zip(steps, analysis.reads, strict=True)):
        moved = [copy for copy in analysis.copies.get(number, ()) if copy.is_moved]
        if number in dropped:
            continue
        if moved:
            left += [redirection.copy(copy) for copy in moved if copy.is_read]
        else:
            left.append(redirection.step(step, reads))
    return Elided(left, reader.used(left), redirection.made)


class _Redirection:
    """Makes steps with other arguments; equal ones of equal steps."""

    def __init__(self, reader: EffectReader) -> None:
        self._reader = reader
        self._steps: dict[tuple[int, ...], Step] = {}
        # Where copies to equal places are moved to.
        self._homes: dict[tuple[object, ...], int] = {}
        self.made: dict[int, int] = {}

    def step(self, step: Step, reads: Sequence[_Read]) -> Step:
        """The step, reading what was copied where a read is redirected."""
        views = {
            read.argument: self._reader.view(self._placed(place, read.copy))
            for read in reads
            if (place := read.place) is not None and read.copy is not None
        }
        if not views or type(step) is not functools.partial:
            return step
        args = [views.get(at, value) for at, value in enumerate(step.args)]
        key = (id(step), *map(id, args))
        if key not in self._steps:
            self._steps[key] = functools.partial(step.func, *args, **step.keywords)
        return self._steps[key]

    def copy(self, copy: _Copy) -> Step:
        """The step that copies from the origin to the home."""
        assert copy.home is not None
        target = self._reader.view(self._placed(copy.home, copy))
        return functools.partial(target.copy_, self._reader.view(copy.origin))

    def _placed(self, region: Region, copy: _Copy) -> Region:
        """The region in memory that is there."""
        if region.memory != _NOWHERE:
            return region
        assert copy.home is not None
        target = copy.target
        # What was overwritten there is overwritten here.
        place = (target.memory, target.dtype, target.shape, target.strides, target.offset)
        key = (*place, copy.home.strides)
        if key not in self._homes:
            nbytes = target.numel * target.dtype.itemsize
            self._homes[key] = self._reader.allocate(nbytes)
            self.made[self._homes[key]] = nbytes
        return Region(self._homes[key], region.dtype, region.shape, region.strides, region.offset)
