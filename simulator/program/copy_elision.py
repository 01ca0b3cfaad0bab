"""Copy elision: matrix products read what a copy was made of, and copies that nobody reads are left
out.

A kernel brings its operands on chip, and turns them there; on this machine each such step is a pass
over memory, several times as long as the product that reads the copy. Where neither the copy nor
its source is written in between, a product reads the source through a view instead. Checks and
times are those of the instructions, which stay as they were recorded.

The elements are the same. The host's BLAS may add the terms of a sum in another order where a
factor has other strides: it does for products of few rows or columns.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects

# BLAS packs a factor whose columns lie apart more slowly than a dense one, by an eighth to a
# quarter of what the copy takes: a copy that products read more often than this is kept.
_MOST_READS = 4
# A copy of fewer elements takes about as long as any call of torch.
_LEAST_ELEMENTS = 1024


@dataclass(eq=False, slots=True)
class _Copy:
    """A step that copies `source` to `target`. `origin` is where its elements were first."""

    step: int
    origin: Region
    target: Region
    # False once something is written to the target or the origin.
    is_valid: bool = True
    is_read: bool = False
    read_elements: int = 0


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


@dataclass(eq=False, slots=True)
class _Analysis:
    """What reads what. `inputs` is how many of the slots a caller fills."""

    inputs: int
    copies: dict[int, _Copy] = field(default_factory=dict)
    reads: list[list[_Read]] = field(default_factory=list)
    _at: defaultdict[int, list[_Copy]] = field(default_factory=lambda: defaultdict(list))
    _from: defaultdict[int, list[_Copy]] = field(default_factory=lambda: defaultdict(list))

    def add(self, number: int, effects: Effects | None) -> None:
        """The next step."""
        if effects is None:
            every = [copy for copies in self._at.values() for copy in copies]
            for copy in every:
                copy.is_valid = False
            self.reads.append([_Read(0, every)])
            return
        reads = [self._read(at, region) for at, region in effects.reads.items()]
        for read in reads:
            if read.argument in effects.factors:
                self._redirect(read, effects.writes)
        self.reads.append(reads)
        for region in effects.writes:
            self._write(region)
        if effects.move is not None:
            source, target = effects.move
            self._copy(number, source, target)

    def _redirect(self, read: _Read, writes: Sequence[Region]) -> None:
        """To the origin of the copy, where a product can read it."""
        origin, copy = read.origin, read.copy
        if origin is None or copy is None or not _is_factor(origin):
            return
        if not any(region.overlaps(origin) for region in writes):
            read.is_redirected = True
            read.before = self._reaching(origin)
            copy.read_elements += origin.numel

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

    def _copy(self, number: int, source: Region, target: Region) -> None:
        if source.overlaps(target) or target.memory < 0:
            return
        origin = source
        for read in self.reads[-1]:
            if read.copy is not None:
                origin = source.through(read.copy.target, read.copy.origin) or source
        # Not where this copy itself has overwritten a part of it.
        origin = source if origin.overlaps(target) else origin
        copy = self.copies[number] = _Copy(number, origin, target)
        self._at[target.memory].append(copy)
        self._from[origin.memory].append(copy)


def _is_factor(origin: Region) -> bool:
    """True where BLAS takes it as it is, by rows or by columns."""
    if len(origin.shape) != 2:
        return False
    rows, columns = origin.shape
    far, near = origin.strides
    return (near == 1 and far >= columns) or (far == 1 and near >= rows)


def _dropped(analysis: _Analysis) -> set[int]:
    """Numbers of the copies that nobody reads, once every read that goes to a copy which is kept
    reads the copy.
    """
    for copy in analysis.copies.values():
        is_worth = copy.target.numel >= _LEAST_ELEMENTS
        copy.is_read = not is_worth or copy.read_elements > _MOST_READS * copy.target.numel
    while True:
        unread = _unread(analysis)
        returned = False
        for reads in analysis.reads:
            for read in reads:
                if read.is_redirected and read.copy is not None and read.copy.step not in unread:
                    read.is_redirected = False
                    returned = True
        if not returned:
            return unread


def _unread(analysis: _Analysis) -> set[int]:
    unread = set()
    for number in range(len(analysis.reads) - 1, -1, -1):
        copy = analysis.copies.get(number)
        if copy is not None and not copy.is_read:
            unread.add(number)
            continue
        for read in analysis.reads[number]:
            for one in read.before if read.is_redirected else read.copies:
                one.is_read = True
    return unread


@dataclass(frozen=True)
class Elided:
    """Steps that are left, and what they `used`, where that is known: the ids of views, and the
    addresses of own memory.
    """

    steps: list[Step]
    used: tuple[frozenset[int], frozenset[int]] | None


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
    left = [
        redirection.step(step, reads)
        for number, (step, reads) in enumerate(zip(steps, analysis.reads, strict=True))
        if number not in dropped
    ]
    return Elided(left, reader.used(left))


class _Redirection:
    """Makes steps with other arguments; equal ones of equal steps."""

    def __init__(self, reader: EffectReader) -> None:
        self._reader = reader
        self._steps: dict[tuple[int, ...], Step] = {}

    def step(self, step: Step, reads: Sequence[_Read]) -> Step:
        """The step, reading what was copied where a read is redirected."""
        views = {
            read.argument: self._reader.view(read.origin)
            for read in reads
            if read.is_redirected and read.origin is not None
        }
        if not views or type(step) is not functools.partial:
            return step
        args = [views.get(at, value) for at, value in enumerate(step.args)]
        key = (id(step), *map(id, args))
        if key not in self._steps:
            self._steps[key] = functools.partial(step.func, *args, **step.keywords)
        return self._steps[key]
