"""What the steps of a Program copy, and who reads it: where the elements that a step reads were
first, and whether they are still there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from trnx.simulator.program.equal_products import are_equal
from trnx.simulator.program.regions import Region, is_gapless
from trnx.simulator.program.step_effects import Effects

# Stands for memory that is not there yet: no address.
NOWHERE = 0
# Writes to parts of a copy that are kept in mind.
_MOST_PARTS = 16


@dataclass(eq=False, slots=True)
class Copy:
    """What a step copies to `target`, or a part of that which came from one place. `origin` is
    where its elements were first, `by` the copy that brought them to where this one finds them.
    """

    step: int
    origin: Region
    target: Region
    by: Copy | None = None
    # What brought the elements to the origin.
    before: list[Copy] = field(default_factory=list)
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
    # Parts of the target that were overwritten.
    lost: list[Region] = field(default_factory=list)

    def is_gone(self, written: Region) -> bool:
        """Whether nothing of the target is left after a write to a part of it."""
        if written.covers(self.target):
            return True
        is_part = written.dtype is self.target.dtype and self.target.covers(written)
        if len(self.lost) == _MOST_PARTS or not is_part or not is_gapless(written):
            return False
        if not any(one.overlaps(written) for one in self.lost):
            self.lost.append(written)
        return sum([one.numel for one in self.lost]) == self.target.numel


@dataclass(eq=False, slots=True)
class Read:
    """One argument of a step: the copies that it reads, and where the elements of one were before,
    which other copies may have brought there.
    """

    argument: int
    copies: list[Copy]
    origin: Region | None = None
    copy: Copy | None = None
    before: list[Copy] = field(default_factory=list)
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
class CopyAnalysis:
    """What reads what. `inputs` is how many of the slots a caller fills. Where it `keeps_bits`,
    products read factors elsewhere only if their sums round alike there.
    """

    inputs: int
    keeps_bits: bool = False
    # Parts of what each step copies.
    copies: dict[int, list[Copy]] = field(default_factory=dict)
    reads: list[list[Read]] = field(default_factory=list)
    _at: defaultdict[int, list[Copy]] = field(default_factory=lambda: defaultdict(list))
    _from: defaultdict[int, list[Copy]] = field(default_factory=lambda: defaultdict(list))

    def add(self, number: int, effects: Effects | None) -> None:
        """The next step."""
        if effects is None:
            every = [copy for copies in self._at.values() for copy in copies]
            for copy in every:
                copy.is_valid = copy.may_move = False
            self.reads.append([Read(0, every)])
            return
        reads = [self._read(at, region) for at, region in effects.reads.items()]
        for at, read in zip(effects.reads, reads, strict=True):
            if effects.move is not None:
                for copy in read.copies:
                    copy.copied_by.append(number)
            elif at in effects.factors:
                self._redirect_factor(read, effects.reads[at], effects.writes)
            else:
                self._redirect(read, effects)
        if effects.factors and self.keeps_bits:
            _keep_bits(effects, reads)
        self.reads.append(reads)
        # What came from where it goes is lost.
        parts = [] if effects.move is None else self._parts(number, *effects.move)
        for region in effects.writes:
            self._write(region)
        for copy in parts:
            self._at[copy.target.memory].append(copy)
            self._from[copy.origin.memory].append(copy)

    def _redirect(self, read: Read, effects: Effects) -> None:
        """To the origin of the copy, where that makes no difference to the step's values."""
        for one in read.copies:
            one.may_move = False
        origin = read.origin
        if origin is None or self._may_write(effects.writes, origin):
            return
        if effects.is_indifferent(read.argument, origin):
            read.is_redirected = True
            read.before = self._reaching(origin)

    def _redirect_factor(self, read: Read, factor: Region, writes: Sequence[Region]) -> None:
        """To the origin of the copy, where a product can read it, or to a copy of that."""
        copy = read.copy
        for one in read.copies:
            one.may_move = one.may_move and one is copy
        if read.origin is None or copy is None:
            return
        origin = read.origin = self._first(read.origin)
        if is_factor(origin) and not self._may_write(writes, origin):
            read.is_redirected = True
            read.before = self._reaching(origin)
            copy.read_elements += origin.numel
        else:
            copy.wants_home = True
        if copy.home is not None:
            read.at_home = factor.through(copy.target, copy.home)
        if read.at_home is None or not is_factor(read.at_home):
            copy.may_move = False

    def _may_write(self, writes: Sequence[Region], place: Region) -> bool:
        # The caller may pass the same memory as two inputs.
        return any(
            one.overlaps(place) or (self._is_input(one) and self._is_input(place)) for one in writes
        )

    def _is_input(self, region: Region) -> bool:
        return -self.inputs <= region.memory < 0

    def _read(self, argument: int, region: Region) -> Read:
        read = Read(argument, self._reaching(region))
        for copy in read.copies:
            if copy.is_valid:
                read.origin = region.through(copy.target, copy.origin)
                if read.origin is not None:
                    read.copy = copy
                    break
        return read

    def _first(self, origin: Region) -> Region:
        """Where the elements of a factor were before, as far as a product can read them: a part of
        what was copied may have come from one place where all of it did not.
        """
        place = as_factor(origin)
        for copy in reversed(self._at[place.memory]):
            if copy.is_valid and (before := place.through(copy.target, copy.origin)) is not None:
                before = as_factor(before)
                return self._first(before) if is_factor(before) else place
        return place

    def _reaching(self, region: Region) -> list[Copy]:
        """The copies that may have brought what is there."""
        return [one for one in self._at[region.memory] if one.target.overlaps(region)]

    def _write(self, region: Region) -> None:
        # The caller may pass the same memory as two inputs.
        is_input = self._is_input(region)
        for memory in range(-self.inputs, 0) if is_input else (region.memory,):
            for copy in self._from[memory]:
                if copy.is_valid and (is_input or copy.origin.overlaps(region)):
                    copy.is_valid = False
        left = []
        for copy in self._at[region.memory]:
            if copy.target.overlaps(region):
                copy.is_valid = False
                if copy.is_gone(region):
                    continue
            left.append(copy)
        self._at[region.memory] = left

    def _parts(self, number: int, source: Region, target: Region) -> list[Copy]:
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
        self, number: int, source: Region, target: Region, brought: Sequence[Copy]
    ) -> list[Copy]:
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

    def _part(self, number: int, origin: Region, target: Region, by: Copy | None) -> Copy:
        copy = Copy(number, origin, target, by)
        if by is not None:
            copy.before = self._reaching(origin)
        if by is not None and not self.keeps_bits:
            copy.home = Region(NOWHERE, origin.dtype, target.shape, _dense_strides(origin), 0)
        return copy


def _keep_bits(effects: Effects, reads: Sequence[Read]) -> None:
    """Leave the factors of a product where they were recorded, if it would give other bits."""
    moved = [read for read in reads if read.is_redirected]
    places = {read.argument: read.origin for read in moved if read.origin is not None}
    if not places or are_equal(effects, places):
        return
    for read in moved:
        read.is_redirected, read.before = False, []
        if read.copy is not None:
            read.copy.read_elements -= effects.reads[read.argument].numel


def _dense_strides(origin: Region) -> tuple[int, ...]:
    """Strides of dense memory in which the elements have the order of the origin."""
    strides, step = [0] * len(origin.shape), 1
    for axis in sorted(range(len(strides)), key=lambda axis: (origin.strides[axis], -axis)):
        strides[axis] = step
        step *= origin.shape[axis]
    return tuple(strides)


def as_factor(region: Region) -> Region:
    """With strides that BLAS takes where a row or a column is all of it: they say nothing then."""
    if len(region.shape) != 2 or 1 not in region.shape:
        return region
    (rows, columns), (far, near) = region.shape, region.strides
    row = (columns if near == 1 else 1, near)
    strides = row if columns > 1 else (far if rows > 1 else 1, 1)
    if strides == region.strides:
        return region
    return Region(region.memory, region.dtype, region.shape, strides, region.offset)


def is_factor(origin: Region) -> bool:
    """True where BLAS takes it as it is, by rows or by columns."""
    if len(origin.shape) != 2:
        return False
    rows, columns = origin.shape
    far, near = origin.strides
    return (near == 1 and far >= columns) or (far == 1 and near >= rows)
