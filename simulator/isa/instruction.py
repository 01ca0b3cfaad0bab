"""How an instruction is declared: all that is known of it at one place.

    @instruction(
        engines=(Engine.vector, Engine.gpsimd),
        undefined=by_partition("data1", "data2"),
        indirect=("dst", "data1"),
        cost=(on_vector(two_tiles),),
    )
    def tensor_tensor(emit, dst, data1, data2, op, engine=Engine.unknown, name=None):
        emit.on(engine)
        emit.require(data1.free_size == dst.free_size, "data1 and dst differ in elements/partition")
        a = emit.read_f32(data1, "data1", shape=dst.shape)
        b = emit.read_f32(data2, "data2", shape=dst.shape)
        emit.step(TORCH_OP[op], a, b, out=emit.write_f32(dst, "dst"))

A kernel calls it without `emit`. The function validates, and builds steps: zero-argument calls on
preallocated strided torch views, which are executed once while tracing with values and again in
every replay. So it must not look at values, must not keep Python state between calls, and a step
must write only through `out=` or in place. Order: all reads first, then writes; finishing steps
(rounding into the destination, copying out of scratch) run after the function's own.

The shape given to `read*`/`write*` re-expresses the operand in that shape, row-major over its
elements (the ISA matches operands by partitions and elements per partition, not by shape). Views of
SBUF and PSUM may be sliced, viewed and transposed freely; views of HBM must be passed to steps as
they are, because binding retargets these very objects. Nothing is recorded when the function
raises.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import torch

from trnx.simulator.costs.cost import EngineCost
from trnx.simulator.errors import IllegalInstructionError, TrnxError
from trnx.simulator.isa.access import Access
from trnx.simulator.isa.arguments import explain_arguments
from trnx.simulator.isa.recorder import current
from trnx.simulator.isa.skips import unplaced
from trnx.simulator.isa.template_lookup import remember, repeat
from trnx.simulator.kernel_lines import kernel_line, kernel_location
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.interleaved_loops import WaitPoint, complete_rendezvous
from trnx.simulator.program.propagation import Propagation
from trnx.simulator.program.specification import InstructionSpec

# Every instruction by its name in nki.isa: what kernels call, and what is declared.
INSTRUCTIONS: dict[str, NkiCall] = {}
SPECS: dict[str, InstructionSpec] = {}


class NkiInstruction:
    """Handle of a recorded instruction; `depends_on` adds a scheduling edge (program order holds
    anyway): a semaphore that is waited for in every turn of a register loop, so that the loops of
    a producer are loops of its consumer, too.
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Make this instruction run after `producers`; returns self. Raises
        IllegalInstructionError for one that comes later, or is in a register loop that this
        instruction is not in.
        """
        loops = current("depends_on").loops
        for producer in producers:
            if producer.index > self.index:
                raise IllegalInstructionError(
                    "depends_on",
                    "depends_on: a producer must come before its consumer",
                    kernel_location(),
                )
            if not loops.around(producer.index) <= loops.around(self.index):
                raise IllegalInstructionError(
                    "depends_on",
                    "depends_on: the producer is in a register loop that its consumer is not in, "
                    "so that the consumer would wait for a turn that may never come; wait within "
                    "the loop (SDK/nki/api/nki/isa/__init__.py, NkiInstruction)",
                    kernel_location(),
                )
        return self


NkiCall = Callable[..., NkiInstruction]


class Facts(TypedDict, total=False):
    """The fields of `InstructionSpec` that a declaration gives."""

    engines: Required[tuple[Engine, ...]]
    generation: int
    undefined: Propagation
    indirect: tuple[str, ...]
    discards: bool
    meets: bool
    cost: tuple[EngineCost, ...]


class _Arrived(NamedTuple):
    """A program at a rendezvous: its payload, and its place in a register loop."""

    payload: Any
    wait_point: WaitPoint | None


class Emit(Access):
    """Records one instruction: operands, steps, engine. Lives as long as the instruction's call."""

    __slots__ = ()

    @property
    def programs(self) -> int:
        """Programs of the launch."""
        return math.prod(self._recorder.grid)

    def meet(
        self, key: Hashable, payload: Any, about: NkiTensor | None = None
    ) -> dict[int, Any] | None:
        """Wait for the other programs; the last gets everyone's payload, the others None. `about`
        is the tensor in shared HBM that the rendezvous puts in order, if it is one alone.
        """
        arrived = self._gather(key, self._arrive(payload, meets_ranks=False), about)
        if arrived is None:
            return None
        self._meet_in_loops(key, {self.rank: arrived})
        return {program: one.payload for program, one in arrived.items()}

    def _gather(
        self, key: Hashable, mine: _Arrived, about: NkiTensor | None = None
    ) -> dict[int, _Arrived] | None:
        """Wait for the other programs."""
        recorder = self._recorder
        arrived: dict[int, _Arrived] | None = recorder.cores.meet((key, *self._depth()), mine)
        if arrived is not None:
            storage = None if about is None else about.storage
            order = functools.partial(recorder.rendezvous, storage)
            if mine.wait_point is not None and recorder.compares_turns:
                mine.wait_point.met = order
            else:
                order()
        return arrived

    def _depth(self) -> tuple[str, ...]:
        """What tells rendezvous in register loops from those outside."""
        depth = self._recorder.core.loops.depth
        return (f"within {depth} register loops",) if depth else ()

    def _arrive(self, payload: Any, meets_ranks: bool) -> _Arrived:
        """What was recorded so far belongs before the rendezvous; who comes last may write all that
        this instruction writes.
        """
        self.is_repeatable = False
        for tensor in self.writes:
            if tensor.storage.slot is not None:
                tensor.storage.slot.begin_writing()
        if self.steps:
            self._recorder.append_steps(self.steps)
            self.steps = []
        return _Arrived(payload, self._recorder.core.loops.arrive(meets_ranks))

    def _meet_in_loops(self, key: Hashable, arrived: dict[int, dict[int, _Arrived]]) -> None:
        """All are here: in loops, their places are one rendezvous, turn after turn."""
        wait_points = {
            (rank, program): one.wait_point
            for rank, by_program in arrived.items()
            for program, one in by_program.items()
            if one.wait_point is not None
        }
        if wait_points:
            complete_rendezvous(str(key), wait_points, (self.rank, self._recorder.core.index))

    @property
    def rank(self) -> int:
        """The rank of this launch."""
        return self._recorder.rank.index

    @property
    def ranks(self) -> int:
        """Ranks of the launch."""
        return self._recorder.rank.count

    def meet_ranks(self, key: Hashable, parties: Sequence[int], payload: Any) -> list[Any]:
        """Wait for other ranks, and for the other programs of this one. The last of all gets the
        rounds that are to be done, each the payloads of all ranks; the others get none.

        Each program brings its own, so there is a round for each, but one where all bring the same
        tensors: those in HBM that programs share.
        """
        mine = self._arrive(payload, meets_ranks=True)
        together = self._gather(("ranks", key), mine) if self.programs > 1 else {0: mine}
        if together is None:
            return []
        recorded = len(self._recorder.steps)
        arrived = self._recorder.rank.meet((key, *self._depth()), parties, together, recorded)
        if arrived is None:
            return []
        self._meet_in_loops(key, arrived)
        rounds = [
            {rank: by_program[program].payload for rank, by_program in arrived.items()}
            for program in range(self.programs)
        ]
        return [one for i, one in enumerate(rounds) if i == 0 or not _is_same(one, rounds[0])]

    def commit(self) -> NkiInstruction:
        """Record the instruction; executes its steps when the trace has values."""
        self.steps.extend(self._finish)
        for change in self.lane_changes:
            self._recorder.core.lanes.change(*change)
        if self.skipped:
            self.steps += unplaced(self)
        self.steps = self._recorder.shared(self.steps)
        index = self._recorder.record(self, self.steps)
        for buffer in self.scratch_buffers:
            self._recorder.pool.give_back(buffer)
        return NkiInstruction(index)


def _is_same(one: Any, other: Any) -> bool:
    """True where two programs bring the same tensors; HBM has one view object of a region."""
    if isinstance(one, dict):
        return all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, torch.Tensor) or one is None:
        return one is other
    if dataclasses.is_dataclass(one):
        return _is_same(vars(one), vars(other))
    return bool(one == other)


def instruction(**facts: Unpack[Facts]) -> Callable[[Callable[..., None]], NkiCall]:
    """Declare an instruction of nki.isa under the function's name; see the module's docstring, and
    `InstructionSpec` for the facts.
    """

    def declare(function: Callable[..., None]) -> NkiCall:
        spec = InstructionSpec(function.__name__, function, **facts)
        if spec.name in SPECS:
            raise TrnxError(f"two instructions are named {spec.name!r}")
        SPECS[spec.name] = spec
        call = INSTRUCTIONS[spec.name] = _call_of(spec)
        return call

    return declare


def recorded(**facts: Unpack[Facts]) -> Callable[[Callable[..., None]], NkiCall]:
    """The same for what is recorded like an instruction, and is none of nki.isa."""
    return lambda function: _call_of(InstructionSpec(function.__name__, function, **facts))


def _call_of(spec: InstructionSpec) -> NkiCall:
    """The function that a kernel calls for an instruction, wherever it finds it."""
    name, function, generation = spec.name, spec.function, spec.generation
    has_templates = function.__module__.rpartition(".")[0] == __package__ and not spec.meets

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> NkiInstruction:
        recorder = current(name)
        line = kernel_line(sys._getframe(1))
        assert line is not None, "the kernel that calls"
        repeated = None
        if has_templates:
            repeated = recorder.templates.call(spec, line, recorder.core.index, args, kwargs)
        if repeated is not None:
            index = repeat(repeated, recorder, spec, line)
            if index is not None:
                return NkiInstruction(index)
        emit = Emit(spec, recorder, line)
        if emit.generation < generation:
            emit.needs_generation(generation)
        try:
            function(emit, *args, **kwargs)
        except (TypeError, AttributeError, ValueError) as error:
            explain_arguments(emit, function, args, kwargs, error)
        done = emit.commit()
        if repeated is not None:
            remember(repeated, emit)
        return done

    parameters = list(inspect.signature(function).parameters.values())[1:]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
