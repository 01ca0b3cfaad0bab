"""Observers of a user: what they see, when, and how often they are asked."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import Observer, Recorded, TensorSpec, load_module, observing, simulate, trace
from trnx.simulator.errors import FindingError, UninitialisedReadError
from trnx.simulator.memory.storage import MemoryRegion, Storage
from trnx.simulator.program.specification import InstructionSpec

CORE = Path(__file__).parents[1] / "core" / "core_kernels.py"
BUGS = Path(__file__).parents[1] / "bugs" / "memory.py"


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(CORE)


class Log(Observer):
    """Writes down everything."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.names = names
        self.asked: list[str] = []
        self.seen: list[Recorded] = []
        self.events: list[str] = []

    def watches(self, spec: InstructionSpec) -> bool:
        self.asked.append(spec.name)
        return not self.names or spec.name in self.names

    def on_instruction(self, instruction: Recorded) -> None:
        self.seen.append(instruction)
        self.events.append(f"{instruction.core} {instruction.name}")

    def on_rendezvous(self, about: Storage | None) -> None:
        del about
        self.events.append("rendezvous")

    def finish(self, core: int) -> None:
        self.events.append(f"{core} ends")


def test_it_sees_the_instructions_that_it_watches(kernels: ModuleType) -> None:
    specs = [TensorSpec.dense((200, 6), torch.float32), TensorSpec.dense((200, 7), torch.float32)]
    with observing(Log()) as everything, observing(Log(("nc_matmul",))) as products:
        program = trace(kernels.matmul, specs)
    assert [one.index for one in everything.seen] == list(range(len(program.rows)))
    rows = list(program.rows)
    for one in everything.seen:
        row = rows[one.index]
        assert (row.opcode, row.engine, row.attributes) == (
            one.name,
            one.engine.name,
            one.attributes,
        )
        assert row.location == one.location
    assert {one.name for one in products.seen} == {"nc_matmul"}
    # Each kind of instruction was asked for once.
    assert collections.Counter(everything.asked) == dict.fromkeys(set(everything.asked), 1)


def test_it_sees_where_programs_meet_and_end(kernels: ModuleType) -> None:
    with observing(Log(("sendrecv", "core_barrier"))) as log:
        trace(kernels.exchanges, [TensorSpec.dense((2, 3), torch.float32)], grid=2)
    assert log.events.count("rendezvous") == 1
    for core in (0, 1):
        own = [event for event in log.events if event.startswith(str(core))]
        assert own == [f"{core} sendrecv", f"{core} ends"]


def test_it_is_told_after_the_checks() -> None:
    module = load_module(BUGS)
    spec = TensorSpec.dense((128, 64), torch.float32)
    with observing(Log()) as log, pytest.raises(UninitialisedReadError) as caught:
        trace(module.reads_an_unwritten_tile, [spec])
    assert caught.value.location is not None
    assert all(one.location.line != caught.value.location.line for one in log.seen)


class NoHbmToHbm(Observer):
    """A check of a user: DMA that stays in HBM is a finding."""

    def on_instruction(self, instruction: Recorded) -> None:
        regions = {tensor.buffer for tensor, _ in instruction.operands}
        if regions <= {MemoryRegion.shared_hbm, MemoryRegion.private_hbm}:
            raise FindingError("hbm-to-hbm", instruction.name, instruction.location)


def test_it_may_be_a_check() -> None:
    file = Path(__file__).with_name("outside_kernels.py")
    kernel, x = load_module(file).copies_in_hbm, torch.arange(12.0).reshape(4, 3)
    assert torch.equal(simulate(kernel)(x), x)
    with observing(NoHbmToHbm()), pytest.raises(FindingError, match="hbm-to-hbm") as caught:
        simulate(kernel)(x)
    assert caught.value.location is not None
    assert caught.value.location.file == str(file)


class Freed(Observer):
    """Storages that are gone, by index."""

    def __init__(self) -> None:
        self.gone: list[int] = []

    def on_freed(self, indices: Sequence[int]) -> None:
        self.gone += indices


def test_it_is_told_of_tensors_that_are_gone(kernels: ModuleType) -> None:
    with observing(Freed()) as freed:
        program = trace(kernels.streams_tiles, [400, 16])
    tiles = {
        operand.storage
        for row in program.rows
        for operand in row.operands
        if operand.buffer is MemoryRegion.sbuf
    }
    assert len(tiles) == 400
    assert set(freed.gone) < tiles
    assert len(freed.gone) == len(set(freed.gone)) >= 256
