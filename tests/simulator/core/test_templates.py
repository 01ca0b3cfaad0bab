"""Instructions that repeat: a template changes nothing but the time that recording takes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import FindingError, IllegalInstructionError
from trnx.simulator.findings import FindingWarning
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.isa import template_lookup, templates
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.isa.instruction import recorded as recorded_instruction
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.listing import listing

TURNS = 9
FAULTS = ("unwritten", "constant", "partition", "bank", "modified", "value", "shape")


@pytest.fixture(scope="module")
def repeats() -> ModuleType:
    """The kernels of `repeat_kernels.py`."""
    return load_module(Path(__file__).with_name("repeat_kernels.py"))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many instructions were recorded by a template, by name."""
    counts: Counter[str] = Counter()
    record = templates.Template.record

    def counted(self: Any, recorder: Any, spec: Any, line: Any, tensors: Any) -> int:
        counts[spec.name] += 1
        return record(self, recorder, spec, line, tensors)

    monkeypatch.setattr(templates.Template, "record", counted)
    return counts


def _without(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> Any:
    """What `work` gives where no instruction has a template."""
    with monkeypatch.context() as patch:
        patch.setattr(template_lookup.Templates, "call", lambda *_: None)
        return work()


def _found(work: Callable[[], Any]) -> str:
    with pytest.raises(FindingError) as caught:
        work()
    return f"{caught.value.check} {caught.value}"


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_programs_are_the_same(
    repeats: ModuleType, target: str, monkeypatch: pytest.MonkeyPatch, recorded: Counter[str]
) -> None:
    x = torch.randn(TURNS * 128, 16)
    arguments = [TensorSpec.of(x), TURNS]
    program = trace(repeats.mixed, arguments, target=target)
    assert min(recorded[name] for name in ("nc_matmul", "dma_copy", "activation")) >= TURNS - 3
    assert sum(recorded.values()) > program.instruction_count / 2
    plain = _without(monkeypatch, lambda: trace(repeats.mixed, arguments, target=target))
    assert listing(program) == listing(plain)
    result, expected = (one.run([x])[0].view(torch.int32) for one in (program, plain))
    assert torch.equal(result, expected)
    with_values = trace(repeats.mixed, [x.clone(), TURNS], target=target, values=True)
    assert listing(with_values) == listing(plain)


@pytest.mark.parametrize("name", ["reshaped", "shares_bytes"])
def test_operands_that_are_the_same_bytes_at_first(
    repeats: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x = getattr(repeats, name), torch.randn(128, 32)
    arguments = [TensorSpec.of(x), TURNS]
    program = trace(kernel, arguments)
    plain = _without(monkeypatch, lambda: trace(kernel, arguments))
    assert listing(program) == listing(plain)
    assert torch.equal(program.run([x])[0], plain.run([x])[0])


def test_tensors_of_one_address(
    repeats: ModuleType, monkeypatch: pytest.MonkeyPatch, recorded: Counter[str]
) -> None:
    x = torch.randn(128, 8)
    arguments = [TensorSpec.of(x), TURNS]
    program = trace(repeats.placed, arguments)
    assert recorded["tensor_scalar"]
    plain = _without(monkeypatch, lambda: trace(repeats.placed, arguments))
    assert listing(program) == listing(plain)
    assert torch.equal(simulate(repeats.placed)(x, TURNS), program.run([x])[0])


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_late_turn_is_found(
    repeats: ModuleType, fault: str, values: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(128, 16)

    def work() -> None:
        trace(repeats.goes_wrong, [x.clone(), TURNS, fault], values=values)

    assert _found(work) == _without(monkeypatch, lambda: _found(work))


def test_a_fault_of_every_turn_is_told_every_time(repeats: ModuleType) -> None:
    arguments = [TensorSpec.dense((128, 16), torch.float32), TURNS]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace(repeats.starts_wrong, arguments, strict=False)
    assert [warning.category for warning in caught] == [FindingWarning] * TURNS


def test_races_of_a_late_turn_are_found(
    repeats: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [TensorSpec.dense((TURNS * 32, 8), torch.float32), TURNS]

    def work() -> None:
        trace(repeats.overlapping_stores, [torch.randn(TURNS * 32, 8), TURNS], grid=2, values=True)

    assert "shared-hbm-order" in _found(work)
    assert _found(work) == _without(monkeypatch, lambda: _found(work))
    program = trace(repeats.overlapping_stores, arguments, grid=2)
    plain = _without(monkeypatch, lambda: trace(repeats.overlapping_stores, arguments, grid=2))
    assert listing(program) == listing(plain)


@recorded_instruction(engines=(Engine.vector,))
def aligned(emit: Emit, dst: NkiTensor) -> None:
    """dst = 1, unless it begins at byte 20 of its partitions."""
    emit.require(dst.offset != 5, "dst begins at byte 20")
    emit.step(emit.write(dst, "dst").fill_, 1.0)


def test_an_instruction_from_outside_may_look_at_addresses(
    simulator: Simulator, recorded: Counter[str]
) -> None:
    """Its function is called every time: it may check what templates know nothing of."""
    tile = simulator.allocate((128, 16), "float32", MemoryRegion.sbuf)
    for column in range(5):
        aligned(tile[:, column : column + 1])
    with pytest.raises(IllegalInstructionError, match="byte 20"):
        aligned(tile[:, 5:6])
    assert simulator.rows.count == 5
    assert not recorded


@pytest.mark.parametrize("seed", range(12))
def test_random_instructions_are_the_same(
    repeats: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch, recorded: Counter[str]
) -> None:
    """Lines never run out of patience here, so that every instruction that may has a template."""
    monkeypatch.setattr(template_lookup, "_PATIENCE", 10**6)
    kernel, x = repeats.random_instructions, torch.randn(128, 16)
    target = ("trn1", "trn2", "trn3")[seed % 3]

    def work() -> tuple[Any, ...]:
        program = trace(kernel, [x.clone(), seed], target=target, values=True)
        return listing(program), program.run([x])[0].view(torch.int32).tolist()

    found = work()
    assert {"tensor_tensor", "activation", "nc_matmul", "tensor_copy"} <= recorded.keys()
    assert sum(recorded.values()) > 100
    assert found == _without(monkeypatch, work)
