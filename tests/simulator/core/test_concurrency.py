"""Threads that simulate at once do not meet; a failure or an interrupt leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import TensorSpec, interactive, load_module, simulate, simulate_ranks, trace
from trnx.simulator.errors import DeadlockError, FindingError, FindingWarning
from trnx.simulator.language.recorder import current_or_none
from trnx.simulator.precision import users
from trnx.simulator.program.listing import listing

Work = Callable[[], Any]
ROUNDS = 6


def _same(run: Work, expected: torch.Tensor) -> Work:
    def work() -> None:
        result = run()
        assert torch.equal(result, expected)

    return work


def _raises(run: Work, error: type[BaseException]) -> Work:
    def work() -> None:
        with pytest.raises(error):
            run()

    return work


def _at_prompt(nl: Any) -> None:
    with interactive("trn2") as session:
        tile = nl.load(session.tensor(torch.ones(4, 3)))
        assert torch.equal(session.values(nl.add(tile, 1.0)), torch.full((4, 3), 2.0))


@pytest.fixture(scope="module")
def works(kernels: ModuleType) -> dict[str, Work]:
    """Ten different things that threads do; some raise."""
    ranks = load_module(Path(__file__).parents[1] / "ranks" / "rank_kernels.py")
    loops = load_module(Path(__file__).with_name("loop_kernels.py"))
    a, b, x = torch.randn(200, 6), torch.randn(200, 7), torch.randn(2, 5)
    rows = [(torch.full((2, 3), float(i)), [[0, 1, 2]], "add", False) for i in range(3)]
    ids, one = torch.zeros(8, 4, dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    steps = torch.arange(64.0).reshape(8, 8)
    spec = [TensorSpec.of(a), TensorSpec.of(b)]
    program = trace(kernels.matmul, spec)
    want, text = program.run([a, b])[0].clone(), listing(program)

    def traces() -> None:
        assert listing(trace(kernels.matmul, spec)) == text

    def reduces() -> None:
        for result in simulate_ranks(ranks.reduces, 3)(rows):
            assert torch.equal(result, torch.full((2, 3), 3.0))

    return {
        "simulates": _same(lambda: simulate(kernels.matmul)(a, b), want),
        "replays": _same(lambda: program.run([a, b])[0], want),
        "traces": traces,
        "two programs": _same(lambda: simulate(kernels.exchanges[2])(x), x.flip(0)),
        "ranks": reduces,
        "loops": _same(
            lambda: simulate(loops.nested_fori)(steps, ids, one + 1, one), 2 * steps[:1]
        ),
        "prompt": lambda: _at_prompt(kernels.nl),
        "finds": _raises(
            lambda: simulate(kernels.reads_unwritten)(torch.randn(3, 4)), FindingError
        ),
        "deadlocks": _raises(
            lambda: simulate(kernels.reads_the_other_half[2], warn=("shared-hbm-order",))(x, False),
            DeadlockError,
        ),
        "fails": _raises(lambda: simulate(kernels.prints_and_stops)(x, "fails"), AssertionError),
    }


@pytest.mark.filterwarnings("ignore::trnx.simulator.errors.FindingWarning")
def test_eight_threads_simulate_at_once(works: dict[str, Work]) -> None:
    before = threading.active_count()
    names = list(works)
    barrier = threading.Barrier(8)

    def work(thread: int) -> None:
        barrier.wait(30)
        for turn in range(ROUNDS):
            works[names[(thread + turn) % len(names)]]()
        assert current_or_none() is None

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, thread) for thread in range(8)]:
            done.result()
    assert threading.active_count() == before
    assert users() == 0
    assert current_or_none() is None
    # Nothing needs a reset: the same works again, here.
    for name in names:
        works[name]()


def test_a_finding_in_one_thread_warns_nobody_else(kernels: ModuleType) -> None:
    """strict=False in one thread does not make findings of another thread warnings."""
    x = torch.randn(3, 4)

    def lenient() -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            simulate(kernels.reads_unwritten, strict=False)(x)
        return sum(issubclass(entry.category, FindingWarning) for entry in caught)

    def strict() -> bool:
        with pytest.raises(FindingError):
            simulate(kernels.reads_unwritten)(x)
        return True

    assert lenient() == 1
    with ThreadPoolExecutor(2) as threads:
        assert threads.submit(strict).result()
    assert strict()


def test_a_kernel_that_fails_in_the_middle_runs_again(kernels: ModuleType) -> None:
    x = torch.randn(2, 3)
    for _ in range(3):
        with pytest.raises(AssertionError, match="two"):
            simulate(kernels.prints_and_stops)(x, "fails")
        assert torch.equal(simulate(kernels.prints_and_stops)(x, "prints"), x)


def _interrupted(*arguments: str) -> str:
    script = Path(__file__).with_name("interrupted.py")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_interrupt_anywhere_leaves_no_state() -> None:
    lines = _interrupted("points", "5", "17").splitlines()
    assert len(lines) == 7
    assert all(int(line.partition(": ")[2]) > 20 for line in lines)


def test_ctrl_c_ends_programs_and_ranks() -> None:
    lines = _interrupted("signals").splitlines()
    assert lines[0] == "one program"
    assert lines[-1] == "programs of ranks"
    assert len(lines) == 6
