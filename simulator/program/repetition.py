"""What a Program executes when it runs again and again: fewer steps that give the same bits.

For kernels that are called through `simulate`, or traced and run. A compiled model's Programs are
shortened beforehand, where sums may round otherwise (`shortening.shorten`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.shortening import shorten_exactly

# Finding the fewer steps takes about as long as so many runs.
RUNS_AS_RECORDED = 4


class Repetition:
    """The runs of one Program, under its lock."""

    def __init__(self) -> None:
        self.runs = 0
        self._fewer: list[Step] | None = None

    def steps(
        self, recorded: Sequence[Step], slots: Sequence[Slot], inputs: int, blank: Mapping[int, int]
    ) -> Sequence[Step]:
        """Those of the next run, whose results lie apart from its arguments; parameters as in
        `shorten`.
        """
        self.runs += 1
        if self.runs <= RUNS_AS_RECORDED:
            return recorded
        if self._fewer is None:
            with torch.inference_mode(False), torch.no_grad():
                self._fewer = shorten_exactly(recorded, slots, inputs, blank)
            # New views have no memory yet.
            for slot in slots:
                slot.release()
        return self._fewer
