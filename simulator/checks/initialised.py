"""Initialised data: which elements something has written, and reads of others.

Kernels move whole tiles of which a part is filled, and use that part alone: engines work on every
lane anyway. So instructions propagate "nothing has written this", as memory checkers do and as
their declarations say (`program.propagation`). The finding comes where it matters: a result of the
kernel, an address, what crosses partitions. It is then the first read's, with the first read's
line. A read of which every element is missing is a finding at once. A destination that keeps some
elements is not read: what is missing there stays so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trnx.simulator.checks.loop_writes import LoopWrites
from trnx.simulator.checks.overlap import ManualOverlap
from trnx.simulator.checks.predicated_halves import PredicatedHalves
from trnx.simulator.errors import FindingError, Location
from trnx.simulator.findings import Findings
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import Storage
from trnx.simulator.program.observer import Observer, Recorded
from trnx.simulator.program.propagation import Propagation
from trnx.simulator.program.skipped_rows import NONE, SkippedRows, none_of

# The destination, where an instruction reads it: what it does not write stays as it is.
KEPT = "dst"


class InitialisedData(Observer):
    """`written` has the elements that hold something; `products` are those of matrix products."""

    def __init__(self, findings: Findings, products: Shadows) -> None:
        self._findings = findings
        self.written = Shadows()
        self.overlap = ManualOverlap(self.written, products)
        # The read from which elements of a storage have their lack of a value.
        self._undefined: dict[int, FindingError] = {}
        self._halves = PredicatedHalves()
        self.skips = SkippedRows()
        self.loop_writes = LoopWrites(self.written, self.skips)

    def mark_all(self, storage: Storage) -> None:
        """The whole storage holds something: an argument, a constant."""
        self.written.of(storage).full = True

    def covers(self, tensor: NkiTensor) -> bool:
        """True where every element of a view holds something."""
        return self.written.covers(tensor)

    def undefined(self, tensor: NkiTensor) -> FindingError | None:
        """The read from which elements have their lack of a value, if one was propagated."""
        return self._undefined.get(tensor.storage.index)

    def unwritten(self, tensor: NkiTensor) -> torch.Tensor:
        """True where elements of a view hold nothing, whatever values a run has."""
        missing = self.written.of(tensor.storage).mask(tensor) == 0
        numbers = self.skips.of(tensor)
        return missing if numbers is None else missing & (numbers == NONE)

    def skipped(self, tensor: NkiTensor) -> torch.Tensor | None:
        """Conditions of elements that hold nothing for some values of a run; None for none."""
        numbers = self.skips.of(tensor)
        if numbers is None:
            return None
        missing = self.written.of(tensor.storage).mask(tensor) == 0
        found = torch.where(missing, numbers, NONE)
        return found if bool((found != NONE).any()) else None

    def lost_to(self, tensor: NkiTensor) -> tuple[str, Location | None] | None:
        """The tensor that was written over this one at its address, and where; if one was."""
        return self.overlap.lost.get(tensor.storage.index)

    def completes(self, tensor: NkiTensor, predicate: NkiTensor, is_reversed: bool) -> bool:
        """True where a copy by this predicate writes all that one by its opposite left."""
        return self._halves.completes(tensor, predicate, is_reversed)

    def missing(
        self, propagation: Propagation, operand: str, tensor: NkiTensor
    ) -> torch.Tensor | None:
        """What is missing in an operand, if the instruction propagates it; else None. Where all is
        missing, nothing sensible can come of it, unless it is a destination that keeps elements.
        """
        if tensor.indirection is not None or not propagation.propagates(operand):
            return None
        missing = self.unwritten(tensor)
        if operand == KEPT:
            return missing
        return None if bool(missing.all()) and self.undefined(tensor) is None else missing

    def on_instruction(self, instruction: Recorded) -> None:
        """What it writes holds something from now on, but for what its reads lack."""
        for tensor in instruction.writes:
            if tensor.storage.place is not None:
                self.overlap.overwrite(tensor)
            self.loop_writes.note(instruction.core, tensor)
            self.written.mark(tensor)
            self._halves.overwrite(tensor)
        if instruction.missing:
            self._propagate(instruction)
        if instruction.skipped:
            self._propagate_skipped(instruction)

    def _propagate(self, instruction: Recorded) -> None:
        """What its reads miss is missing in what it writes."""
        for missing, operand, finding in instruction.missing:
            for target in instruction.writes:
                mask = instruction.propagation.place(operand, missing, target)
                if mask is None or target.indirection is not None:
                    self._findings.report(finding)
                elif bool(mask.any()):
                    self.written.of(target.storage).unmark(target, mask)
                    self.skips.clear(target, mask)
                    if operand == KEPT:
                        continue  # who reads it reads what nothing has written
                    self._undefined.setdefault(target.storage.index, finding)

    def _propagate_skipped(self, instruction: Recorded) -> None:
        """What gathers may have skipped in its reads may be missing in what it writes."""
        for target in instruction.writes:
            found = none_of(target)
            for numbers, operand in instruction.skipped:
                placed = self.skips.placed(instruction.propagation, operand, numbers, target)
                if placed is not None:
                    found = self.skips.either(found, placed)
            if target.indirection is None:
                shadow = self.written.of(target.storage)
                chosen = (found != NONE) & (shadow.mask(target) != 0)
                shadow.unmark(target, chosen)
                self.skips.put(target, chosen, found)

    def on_freed(self, indices: Sequence[int]) -> None:
        """Nothing can be read there any more."""
        self.written.forget(indices)
        self._halves.forget(indices)
        self.skips.forget(indices)
        for index in self._undefined.keys() & indices:
            del self._undefined[index]
