"""What instructions ask of who records them, and of the checks that know what memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import torch

from trnx.simulator.errors import FindingError, Location
from trnx.simulator.isa.template_lookup import Templates
from trnx.simulator.language import recorder
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import Step, Storage
from trnx.simulator.multicore.cores import Cores, GridRecorder
from trnx.simulator.program.loops import LoopRecord, Loops
from trnx.simulator.program.observer import Recorded
from trnx.simulator.program.propagation import Propagation
from trnx.simulator.program.skipped_rows import SkippedRows


class InitialisedData(Protocol):
    """Which elements hold something; what is asked of `checks.initialised`."""

    @property
    def written(self) -> Shadows: ...
    @property
    def skips(self) -> SkippedRows: ...
    def covers(self, tensor: NkiTensor) -> bool: ...
    def unwritten(self, tensor: NkiTensor) -> torch.Tensor: ...
    def skipped(self, tensor: NkiTensor) -> torch.Tensor | None: ...
    def undefined(self, tensor: NkiTensor) -> FindingError | None: ...
    def lost_to(self, tensor: NkiTensor) -> tuple[str, Location | None] | None: ...
    def completes(self, tensor: NkiTensor, predicate: NkiTensor, is_reversed: bool) -> bool: ...
    def missing(
        self, propagation: Propagation, operand: str, tensor: NkiTensor
    ) -> torch.Tensor | None: ...


class PsumGroups(Protocol):
    """Which locations of PSUM hold a product; what is asked of `checks.psum_groups`."""

    @property
    def products(self) -> Shadows: ...
    def state(self, tensor: NkiTensor) -> Covered: ...
    def is_modified(self, tensor: NkiTensor) -> bool: ...
    def start_in_loop(self, tensor: NkiTensor, loop: LoopRecord, where: Location) -> None: ...


class Recorder(recorder.Recorder, GridRecorder, Protocol):
    """What is asked of `frontend.simulator.Simulator`; `grid` is the launch's."""

    grid: tuple[int, ...]
    cores: Cores
    templates: Templates

    @property
    def loops(self) -> Loops: ...
    @property
    def initialised(self) -> InitialisedData: ...
    @property
    def psum_groups(self) -> PsumGroups: ...
    @property
    def keeps_copies(self) -> bool: ...
    @property
    def compares_turns(self) -> bool: ...
    def record(self, instruction: Recorded, steps: Sequence[Step]) -> int: ...
    def shared(self, steps: Iterable[Step]) -> list[Step]: ...
    def rendezvous(self, about: Storage | None) -> None: ...
    def derived(self, function: Callable[[torch.Tensor], Any], view: torch.Tensor) -> Any: ...
    def engine_state(
        self, key: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor: ...


# Whoever records is the recorder of instructions, too.
current = cast(Callable[[str], Recorder], recorder.current)
