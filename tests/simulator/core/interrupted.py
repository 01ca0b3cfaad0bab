"""Run by test_concurrency.py in a process of its own: Ctrl-C wherever it may come leaves no state.

    python interrupted.py points FIRST STRIDE    # an interrupt at every call in turn
    python interrupted.py signals                # real signals, while programs run in threads

Prints one line per run; anything that is left behind is an AssertionError.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from trnx import simulator
from trnx.simulator import precision
from trnx.simulator.language.recorder import current_or_none

HERE = str(Path(simulator.__file__).parent) + os.sep
KERNELS = simulator.load_module(Path(__file__).with_name("core_kernels.py"))
RANKS = simulator.load_module(Path(__file__).parents[1] / "ranks" / "rank_kernels.py")
A, B, X = torch.randn(200, 6), torch.randn(200, 7), torch.randn(2, 5)
ONE = torch.tensor([1], dtype=torch.int32)
PROGRAM = simulator.trace(KERNELS.matmul, [A, B])
WANT = PROGRAM.run([A, B])[0].clone()


def _at_prompt() -> None:
    with simulator.interactive("trn2") as session:
        nl: Any = KERNELS.nl
        session.values(nl.add(nl.load(session.tensor(A[:4])), 1.0))


RUNS: dict[str, Callable[[], Any]] = {
    "simulate": lambda: simulator.simulate(KERNELS.matmul)(A, B),
    "called": lambda: KERNELS.copy(A),
    "trace": lambda: simulator.trace(KERNELS.repeats, [X[:1], ONE]),
    "replay": lambda: PROGRAM.run([A.clone(), B]),
    "two programs": lambda: simulator.simulate(KERNELS.exchanges[2])(X),
    "two ranks": lambda: simulator.simulate_ranks(RANKS.exchanges_all, 2)([(X, [[0, 1]])] * 2),
    "prompt": _at_prompt,
}


def check_state(where: str) -> None:
    """Nothing of the interrupted run is left."""
    assert current_or_none() is None, where
    assert precision.users() == 0, where
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16", where
    assert torch.is_grad_enabled(), where
    assert not torch.is_inference_mode_enabled(), where
    # A thread that was just starting ends by itself.
    deadline = time.monotonic() + 10
    while _threads() > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _threads() == 1, where
    assert not any(name.startswith(("nki", "neuronxcc")) for name in sys.modules), where


def _threads() -> int:
    """Threads that exist: Python also lists one whose start was interrupted."""
    return sum(thread.ident is not None for thread in threading.enumerate())


def check_results() -> None:
    """The next runs are right, on the tensors that the Program was bound to before, too."""
    assert torch.equal(PROGRAM.run([A, B])[0], WANT)
    assert torch.equal(simulator.simulate(KERNELS.matmul)(A, B), WANT)
    assert torch.equal(simulator.simulate(KERNELS.exchanges[2])(X), X.flip(0))


def interrupt_at(run: Callable[[], Any], number: int) -> str:
    """Raise KeyboardInterrupt at one point where Python looks for signals; where, or "" if there
    are fewer points.
    """
    count = 0
    where = ""

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count, where
        if event not in ("call", "c_return") or not _is_ours(frame):
            return
        count += 1
        if count == number:
            sys.setprofile(None)
            where = f"{event} {frame.f_code.co_filename}:{frame.f_lineno}"
            raise KeyboardInterrupt(where)

    sys.setprofile(profile)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return where


def _is_ours(frame: FrameType) -> bool:
    caller = frame.f_back
    ours = frame.f_code.co_filename.startswith(HERE) or (
        caller is not None and caller.f_code.co_filename.startswith(HERE)
    )
    # Python drops what is raised in the first, and does not tell the second's start from going on.
    return (
        ours
        and frame.f_code.co_name != "__del__"
        and not frame.f_code.co_flags & inspect.CO_GENERATOR
    )


def points(first: int, stride: int) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    for name, run in RUNS.items():
        number = first
        while where := interrupt_at(run, number):
            check_state(f"{name} at {where}")
            if number % 5 == 0:
                check_results()
            number += stride
        check_results()
        print(f"{name}: {number}")


def _interrupt_and_go_on() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        time.sleep(0.001)


def _in_one_program(x: Any) -> None:
    nl: Any = KERNELS.nl
    nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    _interrupt_and_go_on()


def _before_the_barrier(x: Any) -> None:
    if KERNELS.nl.program_id() == 1:
        _interrupt_and_go_on()
    KERNELS.nisa.core_barrier(data=x, cores=(0, 1))


def _after_the_barrier(x: Any) -> None:
    KERNELS.nisa.core_barrier(data=x, cores=(0, 1))
    if KERNELS.nl.program_id() == 0:
        _interrupt_and_go_on()
    KERNELS.nisa.core_barrier(data=x, cores=(0, 1))


def _in_a_rank(x: Any) -> None:
    if int(x.shape[0]) == 3:
        _interrupt_and_go_on()
    out = KERNELS.nl.ndarray(x.shape, dtype=x.dtype, buffer=KERNELS.nl.shared_hbm)
    RANKS.ncc.all_reduce([x], [out], RANKS.ncc.ReplicaGroup([[0, 1]]), op=KERNELS.nl.add)


def signals() -> None:
    # A shell starts background jobs with SIGINT ignored, and Python leaves that as it is.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    rows = [(torch.randn(2, 4),), (torch.randn(3, 4),)]
    runs: dict[str, Callable[[], Any]] = {
        "one program": lambda: simulator.simulate(_in_one_program)(X),
        "before a barrier": lambda: simulator.simulate(_before_the_barrier, grid=2)(X),
        "after a barrier": lambda: simulator.simulate(_after_the_barrier, grid=2)(X),
        "the first rank": lambda: simulator.simulate_ranks(_in_a_rank, 2)(rows[::-1]),
        "the second rank": lambda: simulator.simulate_ranks(_in_a_rank, 2)(rows),
        "programs of ranks": lambda: simulator.simulate_ranks(_in_a_rank, 2, grid=2)(rows),
    }
    for name, run in runs.items():
        for _ in range(3):
            try:
                run()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError(f"{name}: the interrupt was lost")
            check_state(name)
        check_results()
        print(name)


if __name__ == "__main__":
    if sys.argv[1] == "points":
        points(int(sys.argv[2]), int(sys.argv[3]))
    else:
        signals()
