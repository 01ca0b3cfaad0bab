"""Run a program in the simulator and on the reference, and say whether they agree."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nki_reference.machine import IllegalError, Machine, UnwrittenError
from nki_reference.numbers import STORED, Array, between, raw, same_values
from nki_reference.program import Call, Program, Storage, View
from nki_reference.table import ENTRIES, Entry
from trnx.simulator import simulate, trace
from trnx.simulator.errors import TrnxError
from trnx.simulator.frontend.nki_modules import nki_modules

# Instructions with a second result, for the sake of which dst may be a broadcast view.
DISCARDING = ("activation", "activation_reduce", "tensor_scalar_reduce")


@dataclass(frozen=True)
class Verdict:
    """`status`: agreed, refused (by a named error), or one of the failures below it."""

    status: str
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        """Anything but agreed and refused."""
        return self.status not in ("agreed", "refused")


def views_of(value: Any) -> list[View]:
    """The views of an argument, inside of lists too."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, list | tuple):
        return [view for item in value for view in views_of(item)]
    return []


def touched(call: Call) -> list[Storage]:
    """Storages of a call's operands."""
    found = [view.storage for value in call.arguments.values() for view in views_of(value)]
    return list(dict.fromkeys(found))


def plan_snapshots(program: Program, everywhere: bool = False) -> None:
    """Read back after calls whose results have an error, and everything at the end."""
    program.snapshots.clear()
    for number, call in enumerate(program.calls):
        known = ENTRIES.get(call.name)
        if everywhere or (known is not None and not known.is_exact(call)):
            program.snapshots[number] = touched(call)
    program.snapshots[-1] = list(program.storages)


class Reference:
    """The cores' machines, stepped together."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.machines = [Machine(program, core) for core in range(program.cores)]
        if program.cores > 1:
            self.machines[0].peer, self.machines[1].peer = reversed(self.machines)
            for storage in program.storages:
                if storage.buffer == "shared_hbm":
                    self.machines[1].memory[storage] = self.machines[0].memory[storage]
                    self.machines[1].written[storage] = self.machines[0].written[storage]

    def step(self, call: Call) -> None:
        """Run one call; raises IllegalError."""
        if call.name not in ENTRIES:
            raise IllegalError(f"there is no {call.name}")
        for view in (v for value in call.arguments.values() for v in views_of(value)):
            if view.is_broken:
                raise IllegalError(f"{view.expression} is no view")
        known = ENTRIES[call.name]
        more = {"result": call.result} if call.result else {}
        try:
            inspect.signature(known.apply).bind(None, **call.arguments, **more)
        except TypeError as mismatch:
            raise IllegalError(str(mismatch)) from None
        with np.errstate(all="ignore"):
            try:
                self._apply(known, call, more)
            except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
                if not self.program.is_wild:
                    raise
                raise IllegalError(f"it makes no sense: {error!r}") from None

    def _apply(self, known: Entry, call: Call, more: dict[str, Any]) -> None:
        for machine in self.machines if known.send is not None else ():
            assert known.send is not None
            known.send(machine, **call.arguments)
        for machine in self.machines:
            machine.discards = call.name in DISCARDING
            known.apply(machine, **call.arguments, **more)

    def walk(self) -> Iterator[tuple[int, Call]]:
        """The calls with their numbers as a run makes them; whoever asks for one more has stepped
        through the one before.
        """
        loop, calls = self.program.loop, list(enumerate(self.program.calls))
        if loop is None:
            yield from calls
            return
        yield from calls[: loop.first]
        bounds = [int(machine.memory[loop.count][0]) for machine in self.machines]
        assert len(set(bounds)) == 1, "cores of one loop turn equally often"
        for turn in range(loop.lower, bounds[0], loop.step):
            for machine in self.machines:
                machine.registers[loop.counter] = turn
            yield from calls[loop.first : loop.last]
        for machine in self.machines:
            if loop.kind == "while":
                machine.memory[loop.count][:] = 0
        yield from calls[loop.last :]

    def is_written(self, storage: Storage) -> bool:
        """All of it."""
        return all(bool(machine.written[storage].all()) for machine in self.machines)


def prune_snapshots(program: Program) -> IllegalError | None:
    """Leave out read-backs of what is not written completely; what the reference refuses, if so.

    What is read without having been written may be handed on, but not returned: the result of the
    call that reads it is then the one read-back.
    """
    number = -1
    try:
        reference = Reference(program)
        for number, call in reference.walk():
            reference.step(call)
            kept = [s for s in program.snapshots.get(number, []) if reference.is_written(s)]
            program.snapshots[number] = kept
    except UnwrittenError as refusal:
        result = program.calls[number].arguments.get("dst")
        program.snapshots = {number: [view.storage for view in views_of(result)]}
        return refusal
    except IllegalError as refusal:
        program.snapshots = {}
        return refusal
    last = [storage for storage in program.snapshots[-1] if reference.is_written(storage)]
    program.snapshots[-1] = last
    return None


def compile_kernel(source: str) -> Callable[..., Any]:
    """The function of a kernel's text."""
    names = {"nisa": nki_modules()["nki.isa"], "nl": nki_modules()["nki.language"]}
    exec(compile(source, "<fuzzed kernel>", "exec"), names)
    kernel: Callable[..., Any] = names["kernel"]
    return kernel


def execute(program: Program, replay: bool = True) -> list[Array] | TrnxError | str:
    """The read-backs' bits, the named error that refused it, or what a replay did otherwise."""
    inputs = program.inputs()
    grid = program.cores if program.cores > 1 else None
    kernel = compile_kernel(program.source())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What the sources dispute is neither refused nor wrong; nor are inputs for which only the
        # device gives invalid results.
        warnings.filterwarnings("ignore", r"\[(legality-disputed|activation-range)\]")
        run = simulate(kernel, target=program.target, grid=grid)
        try:
            results = run(*_copies(inputs))
        except TrnxError as refusal:
            return refusal
        if replay:
            recorded = trace(kernel, _tensors(inputs), target=program.target, grid=grid)
            again = [tensor.numpy() for tensor in recorded.run(_tensors(inputs))]
            for name, others in (("a replay", again), ("the second call", run(*_copies(inputs)))):
                for first, second in zip(results, others, strict=True):
                    if not np.array_equal(first, second):
                        return f"{name} gives other bits than the first run"
    return list(results)


def _copies(inputs: list[Array]) -> list[Array]:
    return [array.copy() for array in inputs]


def _tensors(inputs: list[Array]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in _copies(inputs)]


def check(program: Program, *, must_run: bool, strict_bits: bool = False) -> Verdict:
    """Run both and compare. `must_run`: a refusal is a failure too.

    `strict_bits`: NaN and signs of zeros count as well.
    """
    plan_snapshots(program)
    refusal = prune_snapshots(program)
    if refusal is not None and must_run:
        return Verdict("reference refused", str(refusal))
    results = execute(program, replay=refusal is None)
    if isinstance(results, TrnxError):
        if must_run:
            return Verdict("wrongly refused", f"{type(results).__name__}: {results}")
        return Verdict("refused", f"{type(results).__name__}: {results}")
    if refusal is not None:
        return Verdict("wrongly accepted", str(refusal))
    if isinstance(results, str):
        return Verdict("replay differs", results)
    return compare(program, results, strict_bits)


def compare(program: Program, results: list[Array], strict_bits: bool = False) -> Verdict:
    """Step the reference through the program and compare every read-back."""
    reference = Reference(program)
    remaining = iter(results)
    for number, call in reference.walk():
        reference.step(call)
        if any(machine.has_guessed for machine in reference.machines):
            # A tile that is written in part cannot be read back: what follows is not known.
            return Verdict("agreed", f"up to call {number}")
        for storage in program.snapshots.get(number, []):
            wrong = _compare(reference, storage, next(remaining), strict_bits)
            if wrong:
                return Verdict("disagrees", f"after call {number}, {call.name}: {wrong}")
    for storage in program.snapshots[-1]:
        wrong = _compare(reference, storage, next(remaining), strict_bits)
        if wrong:
            return Verdict("disagrees", f"at the end: {wrong}")
    return Verdict("agreed")


def _compare(reference: Reference, storage: Storage, bits: Array, strict_bits: bool) -> str:
    for machine in reference.machines:
        own = bits[machine.core] if len(reference.machines) > 1 else bits
        actual = np.ascontiguousarray(own).view(STORED[storage.dtype]).reshape(-1)
        expected = machine.memory[storage]
        good = same_values(actual, expected)
        if strict_bits:
            good = raw(actual) == raw(expected)
        if storage in machine.bounds:
            low, high, is_open = machine.bounds[storage]
            good = good | is_open | between(actual, low, high)
        if not good.all():
            return _difference(storage, actual, expected, good)
        machine.adopt(storage, actual)
    return ""


def _difference(storage: Storage, actual: Array, expected: Array, good: Array) -> str:
    first = int(np.flatnonzero(~good)[0])
    partition, column = divmod(first, max(storage.pitch, 1))
    return (
        f"{storage.name} {storage.shape} {storage.dtype}: {int((~good).sum())} of {good.size} "
        f"elements; at [{partition}, {column}] {actual[first]!r}, expected {expected[first]!r}"
    )
