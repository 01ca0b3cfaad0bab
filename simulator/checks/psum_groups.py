"""Accumulation groups of PSUM: where products lie, and where something has overwritten them since.

What a product adds to depends on it (`accumulate=None`), so instructions of the Tensor engine ask.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnx.simulator.language.enums import Engine
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.observer import Observer, Recorded
from trnx.simulator.program.specification import InstructionSpec


class PsumGroups(Observer):
    """`products` are the locations that hold a product."""

    def __init__(self) -> None:
        self.products = Shadows()
        # Locations of a product that something else has overwritten since.
        self._modified = Shadows()

    def state(self, tensor: NkiTensor) -> Covered:
        """Whether none, some or all of a view's locations hold a product."""
        return self.products.of(tensor.storage).state(tensor)

    def is_modified(self, tensor: NkiTensor) -> bool:
        """True where another instruction has overwritten a product in the view."""
        modified = self._modified.get(tensor.storage.index)
        return modified is not None and modified.state(tensor) is not Covered.NONE

    def watches(self, spec: InstructionSpec) -> bool:
        """DMA does not reach PSUM."""
        return spec.engines != (Engine.dma,)

    def on_instruction(self, instruction: Recorded) -> None:
        """Another engine's write ends what the Tensor engine accumulates there."""
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

    def on_freed(self, indices: Sequence[int]) -> None:
        """The memory goes to other tensors."""
        self.products.forget(indices)
        self._modified.forget(indices)
