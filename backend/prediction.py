"""What a kernel takes on the target, for partition, `explain` and `profile`: the schedule of its
Program, remembered by launch.

The Program is the one that the simulator runner replays, so predicting costs a schedule and no
second trace. A kernel of more than LONGEST instructions (by its own count of work) is not traced
to its end while a model compiles: its time is estimated from the schedule of its first ones.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch

from trnx.backend.cache.predictions import kept_seconds
from trnx.backend.cores import Choice, choose, launches_of
from trnx.backend.programs import PROGRAMS, ProgramCache, traced_beginning
from trnx.backend.torch_internals import without_fake_mode
from trnx.fx_passes.match import bindings_spec
from trnx.fx_passes.region import KernelMatch
from trnx.nki_kernels.keys import key_of
from trnx.nki_kernels.spec import Bindings, Cost, Kernel, Launch
from trnx.simulator.hardware import Hardware
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program
from trnx.simulator.timing.estimate import flops_seconds, hbm_seconds, vector_seconds

if TYPE_CHECKING:
    from trnx.simulator.timing.profile import Profile

log = logging.getLogger(__name__)

Basis = Literal["schedule", "estimate"]

# About a second of tracing and scheduling for one launch (README.md has the times).
LONGEST = 20_000
# Instructions of a longer one that are, of all its cores.
PART = 6_000
# Launches remembered; a number and a key each.
CAPACITY = 4096
# Sizes of a kernel of the package for which its work and launches are remembered.
PLANNED = 256

# What one instruction does at most: 128 x 128 x 512 products, 128 x 512 elements, 64 KiB of a DMA.
_INSTRUCTION = Cost(2 * 128 * 128 * 512, 128 * 512, 64 * 1024)


@dataclass(frozen=True)
class Prediction:
    """Time of a kernel as a region of a launched graph; computed when it is first asked for.

    `copy_seconds` make operands contiguous that the kernel does not take as they are. `launches`
    are the ways to launch it, none where the kernel cannot plan one.
    """

    hardware: Hardware
    cost: Cost
    launches: tuple[Launch, ...]
    copy_seconds: float
    owner: Predictions = field(repr=False)

    @property
    def launch(self) -> Launch | None:
        """The fastest launch."""
        return None if self.choice is None else self.choice.launch

    @property
    def choice(self) -> Choice | None:
        """The fastest launch, and why it has fewer cores than there are."""
        return self.owner.choice(self.launches, self.cost, self.hardware) if self.launches else None

    @property
    def seconds(self) -> float:
        """Predicted seconds, copies included."""
        return self.owner.seconds(self)[0] + self.copy_seconds

    @property
    def basis(self) -> Basis:
        """What the seconds rest on: the `schedule` of the instructions, or an `estimate`."""
        return self.owner.seconds(self)[1]

    def profile(self) -> Profile | None:
        """The profile behind a schedule, else None; traced again if the Program is gone."""
        if self.launch is None or self.basis == "estimate":
            return None
        from trnx.simulator.timing.profile import profile_program

        program = self.owner.program(self.launch, self.hardware)
        return profile_program(program, self.hardware, self.launch.unknown_trips)


@dataclass(frozen=True)
class _Work:
    """What a kernel does for some bindings, and the ways to launch it."""

    kernel: Kernel
    launches: tuple[Launch, ...]
    cost: Cost


def _work_of(kernel: Kernel, b: Bindings, hw: Hardware) -> _Work:
    """Raises what `launches_of` raises."""
    return _Work(kernel, launches_of(kernel, b, hw), kernel.cost(b))


class Predictions:
    """Predictions of one process, for every target; the least recently used ones leave first."""

    def __init__(self, programs: ProgramCache = PROGRAMS, capacity: int = CAPACITY) -> None:
        self._programs = programs
        self._known: LruCache[tuple[float, Basis]] = LruCache(capacity)
        self._planned: LruCache[_Work] = LruCache(PLANNED)

    def of(self, match: KernelMatch, hw: Hardware) -> Prediction:
        """The prediction for the sizes seen at capture."""
        b, copied = _as_launched(match)
        try:
            work = self._work(match.kernel, b, hw)
        except Exception:  # the fallback boundary: the executable meets it, and says so
            log.info("kernel %s cannot be planned for a prediction", match.kernel.name,
                     exc_info=True)  # fmt: skip
            work = _Work(match.kernel, (), match.kernel.cost(b))
        # A copy reads and writes once, and is a region of its own.
        copies = sum(hw.region_seconds + 2 * hbm_seconds(hw, size) for size in copied)
        return Prediction(hw, work.cost, work.launches, copies, self)

    def seconds(self, prediction: Prediction) -> tuple[float, Basis]:
        """Seconds without copies, and their basis."""
        launch, hw = prediction.launch, prediction.hardware
        if launch is None:
            return estimated_seconds(None, prediction.cost, hw), "estimate"
        return self._of_launch(launch, prediction.cost, hw)

    def scheduled_seconds(self, launch: Launch, cost: Cost, hw: Hardware) -> float | None:
        """Seconds by the schedule of a launch, None where it is only estimated."""
        seconds, basis = self._of_launch(launch, cost, hw)
        return seconds if basis == "schedule" else None

    def choice(self, launches: Sequence[Launch], cost: Cost, hw: Hardware) -> Choice:
        """The fastest of some launches of one kernel."""
        return choose(launches, cost, hw, lambda launch: self._of_launch(launch, cost, hw)[0])

    def launch(self, kernel: Kernel, b: Bindings, hw: Hardware) -> Launch:
        """How a kernel is launched for these bindings. Raises what its `launch` raises."""
        work = self._work(kernel, b, hw)
        return self.choice(work.launches, work.cost, hw).launch

    def _work(self, kernel: Kernel, b: Bindings, hw: Hardware) -> _Work:
        """`_work_of`, once for the equal layers of a model. Raises what that raises."""
        # A generated kernel goes with its last Program, and so nothing is kept of it here.
        if not getattr(kernel, "builtin", False):
            return _work_of(kernel, b, hw)
        # By its identity, which no other kernel has while the launches are kept with it.
        key = (id(kernel), key_of(dict(b)), hw.target, hw.cores)
        try:
            hash(key)
        except TypeError:  # a number that is a symbol
            return _work_of(kernel, b, hw)
        return self._planned.get_or_make(key, lambda: _work_of(kernel, b, hw))

    def _of_launch(self, launch: Launch, cost: Cost, hw: Hardware) -> tuple[float, Basis]:
        return self._known.get_or_make(
            _key(launch, hw.target), lambda: self._computed(launch, cost, hw)
        )

    def _computed(self, launch: Launch, cost: Cost, hw: Hardware) -> tuple[float, Basis]:
        is_long = _instructions(cost) > LONGEST
        compute = _scaled if is_long else self._scheduled
        basis: Basis = "estimate" if is_long else "schedule"
        try:
            return kept_seconds(launch, hw.target, lambda: compute(launch, cost, hw)), basis
        except Exception:  # the fallback boundary: no prediction is worth a failed compilation
            log.warning("kernel %s has no schedule; its time is estimated", launch.kernel,
                        exc_info=True)  # fmt: skip
            return estimated_seconds(launch, cost, replace(hw, cores=launch.cores)), "estimate"

    def _scheduled(self, launch: Launch, cost: Cost, hw: Hardware) -> float:
        del cost
        from trnx.simulator.timing.profile import predicted_seconds

        return predicted_seconds(self.program(launch, hw), hw, launch.unknown_trips)

    def clear(self) -> None:
        """Forget everything, for measurements."""
        self._known.clear()
        self._planned.clear()

    def program(self, launch: Launch, hw: Hardware) -> Program:
        """The Program of a launch, from shapes alone."""
        with without_fake_mode():
            return self._programs.get(launch, hw.target)


PREDICTIONS = Predictions()


def _key(launch: Launch, target: str) -> Hashable:
    """Equal for equal launches of a kernel that is still there: the key does not keep it, so that
    a generated kernel goes with its last Program."""
    try:
        kernel: Hashable = weakref.ref(launch.kernel)
    except TypeError:  # kernels that are no functions may not allow it
        kernel = launch.kernel
    return (kernel, key_of(launch.arguments), launch.grid, target)


def _as_launched(match: KernelMatch) -> tuple[Bindings, list[int]]:
    """The bindings with tensors as the kernel gets them, and the bytes of each that is copied."""
    values = dict(bindings_spec(match))
    copied = []
    for name, value in values.items():
        if not isinstance(value, TensorSpec):
            continue
        is_dense = value.is_contiguous
        if not is_dense and name not in match.kernel.strided:
            copied.append(value.nbytes)
            is_dense = True
        if is_dense:
            values[name] = TensorSpec.dense(value.shape, value.dtype)
    return Bindings(values), copied


def _instructions(cost: Cost) -> float:
    return (
        cost.matmul_flops / _INSTRUCTION.matmul_flops
        + cost.vector_flops / _INSTRUCTION.vector_flops
        + cost.hbm_bytes / _INSTRUCTION.hbm_bytes
    )


def _scaled(launch: Launch, cost: Cost, hw: Hardware) -> float:
    """The seconds of a kernel by the schedule of its first instructions, and by how much they do of
    the work that bounds it. Raises what tracing raises."""
    from trnx.simulator.timing.profile import predicted_work

    with without_fake_mode():
        part = traced_beginning(launch, hw.target, PART // launch.grid)
    seconds, flops, nbytes = predicted_work(part.rows, hw, launch.unknown_trips)
    if part.is_whole:
        return seconds
    by_products = flops_seconds(hw, cost.matmul_flops, _widest(launch))
    is_bound_by_products = by_products >= hbm_seconds(hw, cost.hbm_bytes)
    done, all_of_it = (
        (flops, cost.matmul_flops) if is_bound_by_products else (nbytes, cost.hbm_bytes)
    )
    if not done:
        return estimated_seconds(launch, cost, replace(hw, cores=launch.cores))
    return seconds * max(1.0, all_of_it / done)


def estimated_seconds(launch: Launch | None, cost: Cost, hw: Hardware) -> float:
    """The busiest engine of a kernel by its own count of work, in the widest type of its operands,
    plus the fixed cost of a region."""
    dtype = torch.float32 if launch is None else _widest(launch)
    work = max(
        flops_seconds(hw, cost.matmul_flops, dtype),
        vector_seconds(hw, cost.vector_flops, dtype),
        hbm_seconds(hw, cost.hbm_bytes),
    )
    return hw.region_seconds + work


def _widest(launch: Launch) -> torch.dtype:
    """The widest floating point type of the operands."""
    kinds = [a.dtype for a in launch.arguments if isinstance(a, TensorSpec)]
    floats = [kind for kind in kinds if kind.is_floating_point]
    return max(floats, key=lambda kind: kind.itemsize, default=torch.float32)
