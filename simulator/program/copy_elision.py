"""Copy elision: steps read what a copy was made of, and copies that nobody reads are left out.

A kernel brings its operands on chip, and turns them there; on this machine each such step is a pass
over memory, several times as long as the product that reads the copy. Where neither the copy nor
its source is written in between, a product reads the source through a view instead, and so does
another step to whose values that makes no difference (`Effects.is_indifferent`). Where BLAS
takes no such view, or would read it too often, one pass brings the elements from where they were
first to memory in which they lie as they lay there, in place of the last of several copies. Checks
and times are those of the instructions, which stay as they were recorded.

The elements are the same. The host's BLAS may add the terms of a sum in another order where a
factor has other strides: it does for products of few rows or columns.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from trnx.simulator.memory.storage import Step
from trnx.simulator.program.copy_analysis import NOWHERE, Copy, CopyAnalysis, Read
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader

# BLAS packs a factor whose columns lie apart more slowly than a dense one, by an eighth to a
# quarter of what the copy takes: a copy that products read more often than this is kept.
_MOST_READS = 4
# A copy of fewer elements takes about as long as any call of torch.
_LEAST_ELEMENTS = 1024


def _dropped(analysis: CopyAnalysis) -> set[int]:
    """Numbers of the copies that nobody reads, once every read that goes to a copy which is kept
    reads the copy; those that are worth it are moved.
    """
    copies = [copy for parts in analysis.copies.values() for copy in parts]
    for copy in copies:
        is_worth = copy.target.numel >= _LEAST_ELEMENTS
        is_often = copy.read_elements > _MOST_READS * copy.target.numel
        can_move = is_worth and copy.may_move and copy.home is not None
        copy.is_moved = can_move and (is_often or copy.wants_home)
        copy.is_read = is_often and not copy.is_moved
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


def _is_kept(copy: Copy, unread: set[int]) -> bool:
    return copy.step not in unread and not copy.is_moved


def _return_moved(analysis: CopyAnalysis, unread: set[int]) -> bool:
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


def _unread(analysis: CopyAnalysis) -> set[int]:
    unread = set()
    for number in range(len(analysis.reads) - 1, -1, -1):
        parts = analysis.copies.get(number)
        if parts is not None and not any(copy.is_read for copy in parts):
            unread.add(number)
            continue
        for one in _needed(parts, analysis.reads[number]):
            one.is_read = True
    return unread


def _needed(parts: Sequence[Copy] | None, reads: Sequence[Read]) -> Iterator[Copy]:
    """The copies that a step reads."""
    if parts is not None and all(copy.is_moved or not copy.is_read for copy in parts):
        for copy in parts:
            yield from copy.before if copy.is_read else ()
        return
    for read in reads:
        is_moved = read.copy is not None and read.copy.is_moved
        yield from read.before if read.is_redirected and not is_moved else read.copies


def elide_copies(
    steps: Sequence[Step], reader: EffectReader, inputs: int, keeps_bits: bool = False
) -> Sequence[Step]:
    """The steps without needless copies. The first `inputs` slots are those of the arguments. Where
    it `keeps_bits`, sums round as recorded, and no copy is moved.
    """
    analysis = CopyAnalysis(inputs, keeps_bits)
    for number, step in enumerate(steps):
        analysis.add(number, reader.effects(step))
    dropped = _dropped(analysis)
    if not dropped:
        return steps
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
    return left


class _Redirection:
    """Makes steps with other arguments; equal ones of equal steps."""

    def __init__(self, reader: EffectReader) -> None:
        self._reader = reader
        self._steps: dict[tuple[int, ...], Step] = {}
        # Where copies to equal places are moved to.
        self._homes: dict[tuple[object, ...], int] = {}

    def step(self, step: Step, reads: Sequence[Read]) -> Step:
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

    def copy(self, copy: Copy) -> Step:
        """The step that copies from the origin to the home."""
        assert copy.home is not None
        target = self._reader.view(self._placed(copy.home, copy))
        return functools.partial(target.copy_, self._reader.view(copy.origin))

    def _placed(self, region: Region, copy: Copy) -> Region:
        """The region in memory that is there."""
        if region.memory != NOWHERE:
            return region
        assert copy.home is not None
        target = copy.target
        # What was overwritten there is overwritten here.
        place = (target.memory, target.dtype, target.shape, target.strides, target.offset)
        key = (*place, copy.home.strides)
        if key not in self._homes:
            nbytes = target.numel * target.dtype.itemsize
            self._homes[key] = self._reader.allocate(nbytes)
        return Region(self._homes[key], region.dtype, region.shape, region.strides, region.offset)
