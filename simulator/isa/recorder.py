"""What instructions ask of who records them, and of the checks that know what memory holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from trnx.simulator.errors import FindingError, Location
from trnx.simulator.language import recorder
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import Storage
from trnx.simulator.multicore.cores import Cores, GridRecorder
from trnx.simulator.program.propagation import Propagation

if TYPE_CHECKING:
    from trnx.simulator.isa.recording import Recording


class InitialisedData(Protocol):
    """Which elements hold something: `checks.initialised`."""

    @property
    def written(self) -> Shadows:
        """The elements."""

    def covers(self, tensor: NkiTensor) -> bool:
        """True where every element of a view holds something."""

    def undefined(self, tensor: NkiTensor) -> FindingError | None:
        """The read from which elements have their lack of a value, if one was propagated."""

    def lost_to(self, tensor: NkiTensor) -> tuple[str, Location | None] | None:
        """The tensor that was written over this one at its address, and where; if one was."""

    def missing(
        self, propagation: Propagation, operand: str, tensor: NkiTensor
    ) -> torch.Tensor | None:
        """What is missing in an operand, if the instruction propagates it; else None."""


class PsumGroups(Protocol):
    """Which locations of PSUM hold a product: `checks.psum_groups`."""

    @property
    def products(self) -> Shadows:
        """The locations."""

    def state(self, tensor: NkiTensor) -> Covered:
        """Whether none, some or all of a view's locations hold a product."""

    def mark(self, tensor: NkiTensor) -> None:
        """A product is written there."""

    def is_modified(self, tensor: NkiTensor) -> bool:
        """True where another instruction has overwritten a product in the view."""


class Recorder(recorder.Recorder, GridRecorder, Protocol):
    """Of the programs of a grid; `grid` is the launch's."""

    grid: tuple[int, ...]
    cores: Cores

    @property
    def initialised(self) -> InitialisedData:
        """The check of reads."""

    @property
    def psum_groups(self) -> PsumGroups:
        """The check of accumulation."""

    @property
    def keeps_copies(self) -> bool:
        """True where every write to a tensor on chip between two steps is known."""

    @property
    def compares_turns(self) -> bool:
        """True in a register loop of which races are judged turn by turn."""

    def record(self, instruction: Recording) -> int:
        """Append one instruction; executes its steps when the trace has values."""

    def rendezvous(self, about: Storage | None) -> None:
        """All programs of the grid wait for each other here."""

    def derived(self, function: Callable[[torch.Tensor], Any], view: torch.Tensor) -> Any:
        """`function(view)`, one object for all that ask; `function` may not read or write."""

    def engine_state(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """State of an engine that lives across instructions; every run starts with zeros."""


# Whoever records is the recorder of instructions, too.
current = cast(Callable[[str], Recorder], recorder.current)
