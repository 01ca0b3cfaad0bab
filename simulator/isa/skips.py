"""Gathers that may skip rows, and reads of what they or loops of no turns left unwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trnx.simulator.errors import Location, UninitialisedReadError
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import Step
from trnx.simulator.program.skipped_rows import NONE, none_of

if TYPE_CHECKING:
    from trnx.simulator.isa.access import Access

# The destination, whose elements stay.
KEPT = "dst"


def note_skips(
    emit: Access, dst: NkiTensor, rows: torch.Tensor, index: torch.Tensor, limit: int
) -> None:
    """The instruction leaves elements of `dst` as they are where `index` is out of bounds; `rows`,
    in dst's shape, has each element's place in the index.
    """
    initialised = emit.initialised
    # What a register loop writes in its first turn, it may skip in the second.
    if emit.is_in_loop or initialised.covers(dst):
        return
    skips, earlier = initialised.skips, initialised.skipped(dst)
    flags, conditions = skips.add_gather(index.numel())
    numbers = torch.tensor(conditions, dtype=torch.int32, device="cpu")[rows]
    unwritten = initialised.unwritten(dst)
    lacking = emit.scratch((index.numel(),), torch.bool)
    emit.step(lacking.copy_, _rows_where(unwritten, rows, index.numel()))
    if earlier is not None:
        for number in torch.unique(earlier[earlier != NONE]).tolist():
            own = _rows_where(earlier == number, rows, index.numel())
            for before, sources in skips.sources(number):
                emit.step(_carry, before, sources, own, lacking)
        unwritten = unwritten | (earlier != NONE)
    emit.step(_note, index, limit, lacking, flags)
    emit.skipped.append((torch.where(unwritten, numbers, none_of(dst)), KEPT))


def rows_of_elements(shape: Sequence[int], count: int) -> torch.Tensor:
    """In this shape: each element's place among `count` rows of equal size."""
    places = torch.arange(count, device="cpu").view(-1, 1)
    size = torch.Size(shape).numel()
    return places.expand(count, size // count).reshape(tuple(shape))


def hand_on(emit: Access, numbers: torch.Tensor, operand: str, tensor: NkiTensor) -> None:
    """A read of elements that gathers may have skipped: in the results, or a step that looks."""
    is_handed_on = emit.propagation.propagates(operand)
    if is_handed_on and operand == KEPT:
        emit.skipped.append((numbers, operand))
        return
    read = (f"{emit.name}: {operand} ({tensor.describe()})", emit.location)
    named = emit.initialised.skips.read_as(numbers, read)
    if is_handed_on:
        emit.skipped.append((named, operand))
    else:
        emit.steps += emit.initialised.skips.checks(named)


def unplaced(emit: Access) -> list[Step]:
    """Steps that look at what the instruction was to hand on to places that nobody can say."""
    skips, steps = emit.initialised.skips, []
    for numbers, operand in emit.skipped:
        for target in emit.writes:
            if skips.placed(emit.propagation, operand, numbers, target) is None:
                read = (f"{emit.name}: {operand}", emit.location)
                steps += skips.checks(skips.read_as(numbers, read))
    return steps


def require_rows_kept(emit: Access, rows: NkiTensor, operand: str, index: torch.Tensor) -> None:
    """Steps that look whether an index names rows that a gather before skipped."""
    initialised = emit.initialised
    numbers = initialised.skipped(rows)
    if numbers is None:
        return
    flat = numbers.reshape(numbers.shape[0], -1)
    for number in torch.unique(flat[flat != NONE]).tolist():
        own = (flat == number).any(1)
        what = f"{emit.name}: {operand} ({rows.describe()}) {initialised.skips.why(number)}"
        for flags, sources in initialised.skips.sources(number):
            emit.step(_require_kept, flags, sources, own, index, what, emit.location)


def _require_kept(
    flags: torch.Tensor,
    sources: torch.Tensor,
    rows: torch.Tensor,
    index: torch.Tensor,
    what: str,
    where: Location | None,
) -> None:
    if bool(flags[sources].any()):
        wide = index.to(torch.int64).view(-1)
        inside = wide[(wide >= 0) & (wide < len(rows))]
        if bool(rows[inside].any()):
            raise UninitialisedReadError("uninitialised-read", what, where)


def _rows_where(chosen: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    found = torch.zeros(count, dtype=torch.bool, device="cpu")
    found[rows[chosen]] = True
    return found


def _carry(
    flags: torch.Tensor, sources: torch.Tensor, rows: torch.Tensor, lacking: torch.Tensor
) -> None:
    if bool(flags[sources].any()):
        lacking.logical_or_(rows)


def _note(index: torch.Tensor, limit: int, lacking: torch.Tensor, flags: torch.Tensor) -> None:
    """Flag the rows that are lacking and have an index out of bounds."""
    wide = index.to(torch.int64).view(-1)
    torch.logical_and(lacking, (wide < 0) | (wide >= limit), out=flags)
