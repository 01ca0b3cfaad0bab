"""`Program`: what a kernel does for given sizes, recorded once and replayed on new tensors.

Replay calls the recorded steps in order. Arguments and outputs are not copied: the views that steps
hold are pointed at the caller's memory, and only when its address changed since the last run. They
do not keep that memory: between runs they point at what may be gone, and nobody reads there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch

from trnx.simulator.errors import TrnxError
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.memory.host_memory import are_apart, is_plain, plain, unreadable
from trnx.simulator.memory.storage import Slot, Step, poison
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.precision import FullPrecision, is_full
from trnx.simulator.program.dead_steps import drop_dead_steps
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.proof import Claim, is_proven
from trnx.simulator.program.repetition import Repetition
from trnx.simulator.program.replicas import on_other_slots
from trnx.simulator.program.shortening import shorten
from trnx.simulator.program.step_effects import EffectReader


class BindingError(TrnxError):
    """A tensor given to a Program does not fit what it was traced for."""


@dataclass(frozen=True)
class Output:
    """One result: a region of a slot. `argument` is the input it lies in, or -1 for new memory."""

    slot: Slot
    spec: TensorSpec
    offset: int
    argument: int
    whole: TensorSpec


@dataclass(frozen=True)
class Totals:
    """What was counted while tracing; bytes on chip are per partition.

    `host_bytes` is the memory of this machine that replaying holds on to: on-chip tensors, and
    temporaries of instructions.
    """

    matmul_flops: int
    hbm_bytes: int
    peak_sbuf_bytes: int
    peak_psum_bytes: int
    host_bytes: int = 0


class Bound(NamedTuple):
    """The tensors of one run: what the steps read, and where they leave the results."""

    inputs: list[torch.Tensor]
    results: list[torch.Tensor]

    def deliver(self, outputs: Sequence[torch.Tensor] | None) -> tuple[torch.Tensor, ...]:
        """The results of the run, in `outputs` where given."""
        return _delivered(self.results, outputs)


class Turn:
    """Held by the run that uses a Program's own memory, which its replicas share."""

    def __init__(self) -> None:
        self._lock = fork_lock(self, threading.Lock)


class Program:
    """A traced kernel. `inputs` and `outputs` are specs; `rows` are the instructions as columns, or
    what gives them when they are asked for. `blank` has the own memory that a run writes before it
    reads: address -> bytes.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[TensorSpec, ...],
        slots: tuple[Slot, ...],
        results: tuple[Output, ...],
        steps: list[Step],
        rows: InstructionTable | Callable[[], InstructionTable],
        totals: Totals,
        is_part: bool = False,
        blank: Mapping[int, int] = MappingProxyType({}),
        turn: Turn | None = None,
        proven: str = "",
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = tuple(result.spec for result in results)
        self.totals = totals
        self.blank = blank
        self._rows = rows
        # A loop that makes no turn writes nothing. Only those that were recorded here have loops.
        self._has_loops = isinstance(rows, InstructionTable) and bool(rows.loops)
        self._slots = slots
        self._results = results
        self._steps = steps
        # One rank's part of a RankProgram.
        self.is_part = is_part
        self._turn = turn or Turn()
        # The key of the claim that was proven of it.
        self.proven = proven
        # Who ran it last, for those who share it: see `replica`.
        self.last_user: object = None
        self._has_products = totals.matmul_flops > 0
        self._is_shortened = False
        self._repetition = Repetition()
        # By the results that nobody reads: what leaves out their steps.
        self._fewer: WeakValueDictionary[frozenset[int], Program] = WeakValueDictionary()
        self._fresh = _fresh_results(results)
        # The usual kernel: each result is all of its own memory.
        self._are_whole = [at for _, (_, at) in self._fresh] == list(range(len(results)))

    @property
    def rows(self) -> InstructionTable:
        """The instructions as columns."""
        if not isinstance(self._rows, InstructionTable):
            self._rows = self._rows()
        return self._rows

    @property
    def instruction_count(self) -> int:
        """Instructions recorded."""
        return len(self.rows)

    @property
    def matmul_flops(self) -> int:
        """FLOPs of matrix products without padding; transposes do not count."""
        return self.totals.matmul_flops

    @property
    def hbm_bytes(self) -> int:
        """Bytes that DMA moves from and to HBM."""
        return self.totals.hbm_bytes

    @property
    def peak_sbuf_bytes(self) -> int:
        """Most bytes of SBUF per partition that are live at once."""
        return self.totals.peak_sbuf_bytes

    @property
    def peak_psum_bytes(self) -> int:
        """Most bytes of PSUM per partition that are live at once."""
        return self.totals.peak_psum_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of this machine's memory that the Program holds, without inputs and outputs."""
        return self.totals.host_bytes

    def run(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Replay on `inputs`; results are written to `outputs` where given, else to new tensors.

        Inputs need the shapes, dtypes and strides of `self.inputs`. Raises BindingError.
        """
        readable = [self._readable(i, one) for i, one in enumerate(inputs)]
        for output in outputs or ():
            if reason := unreadable(output):
                raise BindingError(f"the output cannot be written: {reason}")
        return self.replay(readable, outputs, self._steps_for(readable, outputs or ()))

    def replay(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None = None,
        steps: Sequence[Step] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """`run` for who knows that the memory of every tensor holds its values (`host_memory`).
        `steps` are others than those of the Program that do the same.
        """
        if self.is_part:
            raise BindingError(f"{self.name} is one rank's part; run the RankProgram")
        steps = self._steps if steps is None else steps
        with self._turn._lock:
            # Not `bind`: under Dynamo every Python call of a small kernel counts. `_held` keeps
            # the memory of copies until the steps have ended.
            _held = self._bind_inputs(inputs)
            results = self._bind_results(inputs, outputs)
            # Products alone depend on the process's setting.
            if self._has_products and not is_full():
                with FullPrecision():
                    for step in steps:
                        step()
            else:
                for step in steps:
                    step()
        return _delivered(results, outputs)

    def _steps_for(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Sequence[Step]:
        """What a run executes: once it repeats, fewer steps that give the same bits."""
        with self._turn._lock:
            if self.is_part or self._has_loops or self._is_shortened:
                return self._steps
            fewer = self._repetition.steps(self._steps, self.slots, len(self._slots), self.blank)
        return fewer if are_apart(inputs, outputs) else self._steps

    def bind(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None) -> Bound:
        """Point the steps at the tensors of a run. For who runs the steps, and keeps what is
        returned until they have ended.
        """
        return Bound(self._bind_inputs(inputs), self._bind_results(inputs, outputs))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Memory that is bound for a run: of the inputs, then of the results that are new."""
        return (*self._slots, *(slot for slot, _ in self._fresh))

    @property
    def results(self) -> tuple[Output, ...]:
        """Where the outputs lie."""
        return self._results

    @property
    def steps(self) -> tuple[Step, ...]:
        """What a run executes, in order; they touch the memory of the last run."""
        return tuple(self._steps)

    def release(self) -> None:
        """Drop every reference to tensors that the kernel was recorded with. Runs leave none."""
        with self._turn._lock:
            for slot in self.slots:
                slot.release()

    def shorten(self, claim: Claim | None = None) -> None:
        """Leave out steps that a replay does not need: see `shortening`. For whoever only replays:
        products may round otherwise than in the recorded run. Where the claim can be proven, its
        key is in `proven`, and the steps stay as they are: see `proof`.
        """
        with self._turn._lock:
            if self.is_part or self._has_loops or self._is_shortened:
                return
            self._is_shortened = True
            self._repetition = Repetition()
            if claim is not None and self._is_proven(claim):
                self.proven = claim.key
                return
            found = shorten(self._steps, self.slots, len(self._slots), self.blank)
            self._steps = found.steps
            if found.used is not None:
                self._keep(*found.used)
            self.blank = {**self.blank, **found.made}
            held = self.totals.host_bytes + sum(found.made.values())
            self.totals = replace(self.totals, host_bytes=held)
            # New views have no memory yet.
            for slot in self.slots:
                slot.release()

    def _is_proven(self, claim: Claim) -> bool:
        reader = EffectReader(self.slots, self.blank)
        with torch.no_grad(), FullPrecision():
            found = is_proven(
                claim,
                self._steps,
                reader,
                self.inputs,
                lambda point: self.bind(point, None).results,
            )
        for slot in self.slots:
            slot.release()
        return found

    def replica(self) -> Program:
        """The same on slots of its own: a caller whose tensors stay where they are binds them once,
        whatever others bind. Own memory is shared. The Program itself where that cannot be.
        """
        with self._turn._lock:
            found = None if self.is_part else on_other_slots(self._steps, self.slots)
            if found is None:
                return self
            return self._with(*found)

    def without(self, unread: frozenset[int]) -> Program:
        """The same for who does not read the results with these numbers, whose memory a run leaves
        as it is, or writes in part. Slots and own memory are shared. The Program itself where that
        saves no step.
        """
        with self._turn._lock:
            if self.is_part or self._has_loops or not self._is_shortened:
                return self
            found = self._fewer.get(unread)
            if found is None:
                found = self._fewer[unread] = self._without(unread) if unread else self
            return found

    def _without(self, unread: frozenset[int]) -> Program:
        read = {id(one.slot) for at, one in enumerate(self._results) if at not in unread}
        slots = self.slots
        numbers = {
            -1 - at
            for at, slot in enumerate(slots)
            if at >= len(self._slots) and id(slot) not in read
        }
        steps = list(drop_dead_steps(self._steps, EffectReader(slots, self.blank), numbers))
        return self if len(steps) == len(self._steps) else self._with(steps, slots)

    def _with(self, steps: list[Step], slots: Sequence[Slot]) -> Program:
        """Other steps on as many slots."""
        of = {id(slot): other for slot, other in zip(self.slots, slots, strict=True)}
        results = [replace(one, slot=of[id(one.slot)]) for one in self._results]
        return Program(
            self.name, self.inputs, tuple(slots[: len(self._slots)]), tuple(results), steps,
            lambda: self.rows, self.totals, blank=self.blank, turn=self._turn, proven=self.proven,
        )  # fmt: skip

    def _keep(self, views: Collection[int], memories: Collection[int]) -> None:
        for slot in self.slots:
            slot.keep_views(views)
        freed = sum(nbytes for at, nbytes in self.blank.items() if at not in memories)
        self.blank = {at: nbytes for at, nbytes in self.blank.items() if at in memories}
        self.totals = replace(self.totals, host_bytes=self.totals.host_bytes - freed)

    def _bind_inputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the steps read: the inputs, or dense copies of them."""
        if len(inputs) != len(self._slots):
            raise BindingError(f"{self.name} takes {len(self._slots)} tensors, got {len(inputs)}")
        held = list(inputs)
        for i, (tensor, spec, slot) in enumerate(zip(inputs, self.inputs, self._slots)):  # noqa: B905  equally many
            if (
                tensor.stride() != spec.strides
                or tensor.shape != spec.shape
                or tensor.dtype is not spec.dtype
            ):
                held[i] = self._checked(i, tensor)
            slot.bind(held[i])
        return held

    def _readable(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` with its values in its memory, as a copy where nothing writes there."""
        if reason := unreadable(tensor):
            raise BindingError(f"{self.name}: input {i} cannot be read: {reason}")
        if is_plain(tensor):
            return tensor
        if i < len(self._slots) and self._slots[i].is_written:
            raise BindingError(
                f"{self.name} writes into input {i}, whose memory does not hold its values "
                "(negative bit, conjugate bit or zero without storage); pass `.clone()`"
            )
        return plain(tensor)

    def _checked(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        spec = self.inputs[i]
        if tensor.dtype is not spec.dtype or tensor.shape != spec.shape:
            raise BindingError(
                f"{self.name}: input {i} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"it was traced for {spec.dtype} {spec.shape}"
            )
        if tensor.stride() == spec.strides or same_layout(tensor, spec):
            return tensor
        if not spec.is_contiguous or self._slots[i].is_written:
            raise BindingError(
                f"{self.name}: input {i} has strides {tensor.stride()}; "
                f"it was traced for {spec.strides}; make it contiguous or trace again"
            )
        return tensor.contiguous()

    def _bind_results(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        wholes = []
        for slot, (spec, at) in self._fresh:
            whole = None if outputs is None or at < 0 else _usable(outputs[at], spec)
            if whole is None:
                whole = torch.empty(spec.shape, dtype=spec.dtype, device="cpu")
                if self._has_loops:
                    poison(whole, spec.dtype.is_floating_point)
            slot.bind(whole)
            wholes.append(whole)
        if self._are_whole:
            return wholes
        lies_in = {id(slot): whole for (slot, _), whole in zip(self._fresh, wholes, strict=True)}
        return [
            _part(
                result,
                inputs[result.argument] if result.argument >= 0 else lies_in[id(result.slot)],
            )
            for result in self._results
        ]


def _delivered(
    results: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None
) -> tuple[torch.Tensor, ...]:
    if outputs is None:
        return tuple(results)
    for result, given in zip(results, outputs, strict=True):
        if result is not given:
            given.copy_(result)
    return tuple(outputs)


def _part(result: Output, whole: torch.Tensor) -> torch.Tensor:
    spec = result.spec
    if spec.shape == tuple(whole.shape) and whole.dtype is spec.dtype and not result.offset:
        return whole
    if whole.dtype is not spec.dtype:
        whole = torch.empty(0, dtype=spec.dtype, device="cpu").set_(
            whole.untyped_storage(),
            whole.storage_offset() * whole.element_size() // spec.dtype.itemsize,
            spec.shape,
            spec.strides,
        )
    return whole.as_strided(spec.shape, spec.strides, whole.storage_offset() + result.offset)


def same_layout(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    """True where strides are equal but for sizes of 1, whose stride does not matter."""
    return tensor.numel() == 0 or all(
        size == 1 or have == want
        for size, have, want in zip(spec.shape, tensor.stride(), spec.strides, strict=True)
    )


def _usable(given: torch.Tensor, spec: TensorSpec) -> torch.Tensor | None:
    """`given` where it can take the slot's content directly."""
    if given.dtype is not spec.dtype or given.shape != spec.shape:
        raise BindingError(
            f"output is {given.dtype} {tuple(given.shape)}; the kernel returns "
            f"{spec.dtype} {spec.shape}"
        )
    return given if given.is_contiguous() and is_plain(given) else None


def _fresh_results(results: tuple[Output, ...]) -> list[tuple[Slot, tuple[TensorSpec, int]]]:
    """Slots that need new memory per run, with the output that is all of it (or -1)."""
    found: dict[int, tuple[Slot, tuple[TensorSpec, int]]] = {}
    for i, result in enumerate(results):
        if result.argument >= 0:
            continue
        is_whole = result.offset == 0 and result.spec == result.whole
        known = found.get(id(result.slot))
        if known is None or (is_whole and known[1][1] < 0):
            found[id(result.slot)] = (result.slot, (result.whole, i if is_whole else -1))
    return list(found.values())
