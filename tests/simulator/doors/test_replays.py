"""The second call with the same signature runs no Python of the kernel."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import FindingWarning, KernelSubsetError, OutOfBoundsError
from trnx.simulator.frontend.arguments import ArgumentError
from trnx.simulator.frontend.replays import Replay, Replays, Signature
from trnx.simulator.frontend.results import Results
from trnx.simulator.program.observer import Observer, Recorded, observing
from trnx.simulator.program.run_observers import observing_runs

Runs = Callable[[], int]


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A twin of its own: nothing was called before."""
    return load_module(Path(__file__).with_name("replay_kernels.py"))


@pytest.fixture
def runs(capsys: pytest.CaptureFixture[str]) -> Runs:
    """How often the Python of kernels ran since it was last asked."""
    return lambda: capsys.readouterr().out.count("runs")


def test_python_runs_in_the_first_call(module: ModuleType, runs: Runs) -> None:
    x = torch.randn(3, 4)
    first = module.scaled(x)
    assert runs() == 1
    second = module.scaled(-x)
    assert torch.equal(first, 2 * x)
    assert torch.equal(second, -2 * x)
    array = simulate(module.scaled)(x.numpy())
    assert isinstance(array, np.ndarray)
    assert runs() == 1
    again = simulate(module.scaled)(np.asfortranarray(x.numpy()))
    assert isinstance(again, np.ndarray)
    np.testing.assert_array_equal(again, array)
    assert runs() == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((torch.ones(2, 3),), (torch.ones(3, 3),)),
        ((torch.ones(2, 3),), (torch.ones(2, 3).bfloat16(),)),
        ((torch.ones(2, 3),), (np.ones((2, 3), np.float32),)),
        ((torch.ones(2, 3), 1), (torch.ones(2, 3), 1.0)),
        ((torch.ones(2, 3), 1), (torch.ones(2, 3), True)),
        ((torch.ones(2, 3), 0.0), (torch.ones(2, 3), -0.0)),
        ((torch.ones(2, 3), 1.0), (torch.ones(2, 3), np.float32(1))),
        ((torch.ones(2, 3), 1.0), (torch.ones(2, 3),)),
    ],
)
def test_another_signature(
    module: ModuleType, runs: Runs, first: tuple[Any, ...], second: tuple[Any, ...]
) -> None:
    run = simulate(module.scaled)
    expected = [run(*first), run(*second)]
    assert runs() == 2
    got = [run(*first), run(*second)]
    assert runs() == 0
    for one, other in zip(got, expected, strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        bits = (torch.as_tensor(value).view(torch.uint8) for value in (one, other))
        assert torch.equal(*bits)


def test_options_are_part_of_the_signature(module: ModuleType, runs: Runs) -> None:
    x = torch.ones(2, 3)
    for target in ("trn1", "trn2"):
        for strict in (True, False):
            simulate(module.scaled, target, strict=strict)(x)
            assert runs() == 1
            simulate(module.scaled, target, strict=strict)(x)
            assert runs() == 0


def test_lists_and_tuples(module: ModuleType, runs: Runs) -> None:
    x = torch.ones(2, 3)
    run = simulate(module.scaled_by_all)
    for factors in ([2.0, 3.0], (2.0, 3.0), [3.0, 2.0]):
        assert torch.equal(run(x, factors), 24 * x)
        assert runs() == 2
        assert torch.equal(run(-x, factors), -24 * x)
        assert runs() == 0


def test_objects_are_looked_at_each_time(module: ModuleType, runs: Runs) -> None:
    x, config = torch.ones(2, 3), module.Config(3.0)
    run = simulate(module.scaled_by)
    assert torch.equal(run(x, config), 6 * x)
    config.factor = 4.0
    assert torch.equal(run(x, config), 8 * x)
    assert runs() == 2


def test_what_the_kernel_reaches_is_part_of_the_signature(
    module: ModuleType, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, 3)
    run = simulate(module.scaled)
    assert torch.equal(run(x, 3.0), 6 * x)
    monkeypatch.setattr(module, "factor_of", lambda _: 1.0)
    assert torch.equal(run(x, 3.0), 2 * x)
    monkeypatch.undo()
    assert runs() == 2
    assert torch.equal(run(x, 3.0), 6 * x)
    assert runs() == 0


def test_a_constant_that_changes_between_calls_is_named(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device would run what was compiled for the first call."""
    x = torch.ones(2, 3)
    assert torch.equal(simulate(module.scaled)(x, 3.0), 6 * x)
    monkeypatch.setattr(module, "FACTOR", 5.0)
    with pytest.raises(KernelSubsetError, match=r"kernel-purity.*scaled reads 'FACTOR'") as caught:
        simulate(module.scaled)(x, 3.0)
    line = (Path(__file__).with_name("replay_kernels.py")).read_text().splitlines()
    assert caught.value.location is not None
    assert "* FACTOR" in line[caught.value.location.line - 1]
    with pytest.warns(FindingWarning, match="kernel-purity"):
        assert torch.equal(simulate(module.scaled, warn=["kernel-purity"])(x, 3.0), 15 * x)
    # Other arguments and other kernels are compiled now; so is this one for its first constant.
    assert torch.equal(simulate(module.scaled)(x, 4.0), 20 * x)
    assert torch.equal(simulate(module.scaled)(x[:1], 3.0), 15 * x[:1])
    monkeypatch.undo()
    assert torch.equal(simulate(module.scaled)(x, 3.0), 6 * x)


def test_changes_within_what_a_helper_reads_are_named(module: ModuleType) -> None:
    x = torch.ones(2, 3)
    assert torch.equal(module.scaled_by_settings(x), 8 * x)
    for change, name in (
        (lambda: module.SETTINGS["factors"].append(2.0), "SETTINGS"),
        (lambda: module.product_of.__defaults__[0].append(2.0), "initial"),
        (lambda: setattr(module.OPTIONS, "factor", 7.0), "OPTIONS"),
    ):
        before = copy.deepcopy(module.SETTINGS)
        change()
        with pytest.raises(KernelSubsetError, match=f"'{name}', which has changed"):
            module.scaled_by_settings(x)
        module.SETTINGS.update(before)
        module.product_of.__defaults__[0][:] = [1.0]
        module.OPTIONS.factor = 2.0
        assert torch.equal(module.scaled_by_settings(x), 8 * x)


def test_a_call_that_failed_left_nothing_to_compare_with(module: ModuleType) -> None:
    x = torch.ones(2, 3)
    module.SETTINGS["factors"] = ["no number"]
    with pytest.raises(TypeError):
        module.scaled_by_settings(x)
    module.SETTINGS["factors"] = [4.0]
    assert torch.equal(module.scaled_by_settings(x), 8 * x)


def test_arguments_that_are_written(module: ModuleType, runs: Runs) -> None:
    run = simulate(module.doubled_in_place)
    for _ in range(2):
        x = torch.arange(6.0).view(3, 2)
        whole, part = run(x)
        assert whole is x
        assert torch.equal(x, 2 * torch.arange(6.0).view(3, 2))
        assert torch.equal(part, x[:1])
        assert part.data_ptr() != x.data_ptr()
    base = torch.arange(6.0).view(2, 3)
    run(base.t())
    assert torch.equal(base, 2 * torch.arange(6.0).view(2, 3))
    assert runs() == 1
    array = np.ones((3, 2), np.float32)
    run(array)
    fixed = array.copy()
    fixed.setflags(write=False)
    with pytest.raises(ArgumentError, match="argument x is a read-only array"):
        run(fixed)
    with pytest.raises(ArgumentError, match="argument x has elements that share memory"):
        run(torch.ones(3, 1).expand(3, 2))
    assert runs() == 1


def test_results_have_memory_of_their_own(module: ModuleType) -> None:
    run = simulate(module.scaled)
    results = [run(torch.full((2, 3), float(i))) for i in range(4)]
    assert [result[0, 0].item() for result in results] == [0.0, 2.0, 4.0, 6.0]


def test_what_values_decide_is_checked_in_each_call(module: ModuleType, runs: Runs) -> None:
    x = torch.arange(12.0).view(4, 3)
    run = simulate(module.picked)

    def pick(index: int) -> torch.Tensor:
        picked: torch.Tensor = run(x, torch.tensor([[index]], dtype=torch.int32))
        return picked

    assert torch.equal(pick(1), x[1:2])
    with pytest.raises(OutOfBoundsError, match="index 4"):
        pick(4)
    assert torch.equal(pick(3), x[3:4])
    assert runs() == 1


def test_findings_that_pass_come_in_each_call(module: ModuleType, runs: Runs) -> None:
    run = simulate(module.half_written, warn=("uninitialised-result",))
    for _ in range(2):
        with pytest.warns(FindingWarning, match="nothing has written"):
            run(torch.ones(2, 3))
    assert runs() == 2


def test_gradients_and_modes(module: ModuleType) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with torch.inference_mode():
        first = module.scaled(x)
    second = module.scaled(x)
    assert torch.equal(first, second)
    assert not second.requires_grad


def test_who_observes_sees_each_call(module: ModuleType, runs: Runs) -> None:
    x, programs = torch.ones(2, 3), []
    seen: list[Recorded] = []

    class Seen(Observer):
        def on_instruction(self, instruction: Recorded) -> None:
            seen.append(instruction)

    module.scaled(x)
    with observing(Seen()):
        module.scaled(x)
    assert len(seen) == 3
    assert runs() == 2
    with observing_runs(lambda program, target: programs.append((program.name, target))):
        module.scaled(x)
    assert programs == [("scaled", "trn2")]
    assert runs() == 0


def test_threads_that_call_one_kernel(module: ModuleType) -> None:
    run, wrong = simulate(module.scaled), []

    def work(number: int) -> None:
        x = torch.full((8, 16), float(number))
        wrong.extend(i for i in range(20) if not torch.equal(run(x), 2 * x))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_was_not_called_for_long_leaves(module: ModuleType) -> None:
    program = trace(module.scaled, [TensorSpec.dense((128, 2048), torch.float32)])
    replay = Replay(program, Results((), False, False), ("x",))
    kept = Replays(most_bytes=int(2.5 * program.host_bytes))
    signatures = [Signature(key, ()) for key in "abc"]
    for signature in signatures[:2]:
        kept.keep(signature, replay)
    assert kept.find(signatures[0]) is replay
    kept.keep(signatures[2], replay)
    assert [kept.find(signature) is not None for signature in signatures] == [True, False, True]
    kept.keep(signatures[0], replay)
    assert [kept.find(signature) is not None for signature in signatures] == [True, False, True]


def test_few_programs_are_kept(module: ModuleType) -> None:
    program = trace(module.scaled, [TensorSpec.dense((1, 1), torch.float32)])
    replay, kept = Replay(program, Results((), False, False), ("x",)), Replays()
    signatures = [Signature(number, ()) for number in range(65)]
    for signature in signatures:
        kept.keep(signature, replay)
    assert kept.find(signatures[0]) is None
    assert all(kept.find(signature) is replay for signature in signatures[1:])
