"""Accumulation groups of PSUM: where products lie, and where something has overwritten them since.

What a product adds to depends on it (`accumulate=None`), so instructions of the Tensor engine ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trnx.simulator.errors import IllegalInstructionError, Location
from trnx.simulator.findings import DISPUTED_LEGALITY, Findings
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.loops import LoopRecord
from trnx.simulator.program.observer import Observer, Recorded
from trnx.simulator.program.specification import InstructionSpec


class _Start(NamedTuple):
    """A product that overwrites its tile in every turn of a loop."""

    loop: LoopRecord
    where: Location


class PsumGroups(Observer):
    """`products` are the locations that hold a product."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.products = Shadows()
        # By storage that is older than the loop, until a turn reads it.
        self._starts: dict[int, _Start] = {}
        # Locations of a product that something else has overwritten since.
        self._modified = Shadows()

    def state(self, tensor: NkiTensor) -> Covered:
        """Whether none, some or all of a view's locations hold a product."""
        return self.products.of(tensor.storage).state(tensor)

    def is_modified(self, tensor: NkiTensor) -> bool:
        """True where another instruction has overwritten a product in the view."""
        modified = self._modified.get(tensor.storage.index)
        return modified is not None and modified.state(tensor) is not Covered.NONE

    def start_in_loop(self, tensor: NkiTensor, loop: LoopRecord, where: Location) -> None:
        """A product by `accumulate=None` in a register loop is the first in its tile, which was
        declared before the loop.
        """
        self._starts.setdefault(tensor.storage.index, _Start(loop, where))

    def watches(self, spec: InstructionSpec) -> bool:
        """DMA does not reach PSUM."""
        return spec.engines != (Engine.dma,)

    def on_instruction(self, instruction: Recorded) -> None:
        """Another engine's write ends what the Tensor engine accumulates there."""
        if self._starts:
            self._look_at_starts(instruction)
        for tensor in instruction.products:
            self.products.of(tensor.storage).mark(tensor)
        for tensor in instruction.writes:
            storage = tensor.storage
            products = self.products.get(storage.index)
            if products is None or products.is_empty:
                continue
            if instruction.engine is Engine.tensor:
                modified = self._modified.get(storage.index)
                if modified is not None:
                    modified.erase(tensor)
            elif products.state(tensor) is not Covered.NONE:
                self._modified.of(storage).mark(tensor)
                products.erase(tensor)

    def _look_at_starts(self, instruction: Recorded) -> None:
        """Warn of a read behind the loop of what a product overwrote in each turn."""
        for tensor, is_written in instruction.operands:
            start = self._starts.get(tensor.storage.index)
            if start is None or (is_written and start.loop.last < 0):
                continue
            del self._starts[tensor.storage.index]
            if not is_written and start.loop.last >= 0:
                self._findings.report(
                    IllegalInstructionError(
                        DISPUTED_LEGALITY,
                        "this product is the first of its group in every turn of the register loop "
                        f"at {start.loop.location}, so that {tensor.describe()} holds that of the "
                        f"last turn alone where {instruction.location} reads it; no source says "
                        "what accumulate=None becomes there. To add up the turns, start the group "
                        "before the loop (accumulate=False) and add in it (accumulate=True)",
                        start.where,
                    )
                )

    def on_freed(self, indices: Sequence[int]) -> None:
        """The memory goes to other tensors."""
        self.products.forget(indices)
        self._modified.forget(indices)
        for index in self._starts.keys() & set(indices):
            del self._starts[index]
