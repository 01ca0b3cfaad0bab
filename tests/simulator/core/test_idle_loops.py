"""What only a register loop writes: a read behind it is found where the loop made no turn."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import UninitialisedReadError

X = torch.randn(4, 8)
# Kernel -> turns (count, inner) with which its tile is written, and with which it is not.
CASES = {
    "one_loop": ([(1, 0), (3, 0)], [(0, 0), (0, 5)]),
    "while_loop": ([(1, 0), (3, 0)], [(0, 0), (0, 5)]),
    "nested": ([(1, 1), (2, 3)], [(0, 0), (0, 2), (2, 0)]),
    "either": ([(1, 0), (0, 1), (2, 2)], [(0, 0)]),
    "either_within": ([(1, 0), (0, 1), (2, 2)], [(0, 0)]),
    "straight_to_the_result": ([(1, 0), (3, 0)], [(0, 0)]),
}


@pytest.fixture(scope="module")
def idle() -> ModuleType:
    return load_module(Path(__file__).with_name("idle_loop_kernels.py"))


def _count(turns: int) -> torch.Tensor:
    return torch.tensor([turns], dtype=torch.int32)


@pytest.mark.parametrize("name", CASES)
def test_a_loop_without_a_turn_writes_nothing(idle: ModuleType, name: str) -> None:
    kernel, (written, unwritten) = getattr(idle, name), CASES[name]
    for count, inner in written:
        assert torch.equal(simulate(kernel)(X, _count(count), _count(inner), False), X)
    for count, inner in unwritten:
        got = simulate(kernel)(X, _count(count), _count(inner), True)
        assert bool(torch.isin(got, torch.cat((X.flatten(), torch.tensor([7.0])))).all())
        with pytest.raises(UninitialisedReadError, match="the loop made no turn") as finding:
            simulate(kernel)(X, _count(count), _count(inner), False)
        where = finding.value.location
        assert where is not None
        line = Path(where.file).read_text().splitlines()[where.line - 1]
        assert line.strip() in ("nisa.dma_copy(dst=out, src=tile)", "return out")


@pytest.mark.parametrize("name", CASES)
def test_a_replay_finds_it_by_its_own_turns(idle: ModuleType, name: str) -> None:
    written, unwritten = CASES[name]
    specs = [TensorSpec.of(X), TensorSpec.of(_count(0)), TensorSpec.of(_count(0))]
    program = trace(getattr(idle, name), [*specs, False])
    for count, inner in [*unwritten, *written, *unwritten]:
        arguments = [X, _count(count), _count(inner)]
        if (count, inner) in written:
            assert torch.equal(program.run(arguments)[0], X)
        else:
            with pytest.raises(UninitialisedReadError, match="the loop made no turn"):
                program.run(arguments)


def test_a_body_may_use_what_it_wrote(idle: ModuleType) -> None:
    for turns in (0, 1, 3):
        got = simulate(idle.used_in_the_body)(X, _count(turns), _count(0), False)
        assert torch.allclose(got, turns * X)


def test_constant_bounds_without_a_turn(idle: ModuleType) -> None:
    got = simulate(idle.no_turn_at_all)(X, _count(0), _count(0), True)
    assert torch.equal(got, torch.full_like(X, 7.0))
    with pytest.raises(UninitialisedReadError, match="the loop made no turn"):
        simulate(idle.no_turn_at_all)(X, _count(0), _count(0), False)


@pytest.mark.parametrize("name", ["register_of_the_body", "bound_of_the_body"])
def test_a_register_that_no_turn_has_set(idle: ModuleType, name: str) -> None:
    kernel = getattr(idle, name)
    is_row = name == "register_of_the_body"
    for turns in (1, 3):
        got = simulate(kernel)(X, _count(turns), _count(0), False)
        torch.testing.assert_close(got, X[2:3] if is_row else 2 * X)
    got = simulate(kernel)(X, _count(0), _count(0), True)
    torch.testing.assert_close(got, X[0:1] if is_row else 0 * X)
    specs = [TensorSpec.of(X), TensorSpec.of(_count(0)), TensorSpec.of(_count(0))]
    program = trace(kernel, [*specs, False])
    for run in (simulate(kernel), lambda *args: program.run(list(args[:3]))):
        with pytest.raises(UninitialisedReadError, match="is a register that only the body"):
            run(X, _count(0), _count(0), False)
