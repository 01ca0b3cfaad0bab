"""Processes forked from one in which compiled graphs have run: no hang, and values of eager.

Each case is a script of its own with a time limit, because the tests' own process must not fork
once JAX runs in it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("jax")

LIMIT_SECONDS = 240
PRELUDE = """
import logging, multiprocessing, os, sys, threading, warnings
warnings.filterwarnings("ignore", message=".*fork.*")
import torch
import trnx
from trnx.fallback import forks
torch.set_num_threads(1)
torch.manual_seed(0)

warned = []
class Keep(logging.Handler):
    def emit(self, record):
        if "process" in record.getMessage():
            warned.append(record.getMessage())
logging.getLogger("trnx").addHandler(Keep())

def f(x):
    return torch.sin(x).cumsum(0) + x.sort(dim=0, stable=True)[0]

def g(x):
    return torch.cos(x).flip(0) * 2

def use_xla(function):
    return torch.compile(function, backend="trnx", options={"select": "none", "fallback": "xla"})

def agrees(compiled, function, *shape):
    x = torch.randn(*(shape or (9, 5)))
    torch.testing.assert_close(compiled(x), function(x))

def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"
"""


def run(script: str) -> None:
    """Run the script in a process of its own; it must end with status 0 within the limit."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_regions_run_in_eager_in_a_child_and_its_child() -> None:
    run("""
        before = use_xla(f)
        agrees(before, f)
        assert not warned

        def child():
            with trnx.collect_reports() as reports:
                for _ in range(3):
                    agrees(before, f)
                new = use_xla(g)
                agrees(new, g)
                agrees(new, g)
            assert len(warned) == 1, warned
            assert "'spawn'" in warned[0]
            old_graph, new_graph = reports
            assert [e.reason for e in old_graph.fallbacks].count(forks.REASON) == 1
            assert all(r.engine == "eager" for r in old_graph.regions + new_graph.regions)
            assert all(forks.REASON in e.reason for e in new_graph.fallbacks)
            assert new_graph.fallbacks

        def child_with_a_child():
            child()
            warned.clear()
            in_child(lambda: agrees(before, f) or agrees(use_xla(lambda x: x.exp()), torch.exp))

        in_child(child_with_a_child)
        agrees(before, f)
        agrees(use_xla(g), g)
        assert not warned
    """)


def test_sizes_that_are_new_in_a_child() -> None:
    run("""
        compiled = torch.compile(f, backend="trnx", dynamic=True, options={"select": "none"})
        agrees(compiled, f, 4, 5)
        agrees(compiled, f, 6, 5)
        in_child(lambda: [agrees(compiled, f, n, 5) for n in (6, 7, 8)])
    """)


def test_backward_in_a_child() -> None:
    run("""
        compiled = use_xla(f)

        def train():
            x = torch.randn(9, 5, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            compiled(x).square().sum().backward()
            f(y).square().sum().backward()
            torch.testing.assert_close(x.grad, y.grad)

        train()
        in_child(train)
    """)


def test_a_process_that_forks_before_jax_has_started_can_use_it() -> None:
    run("""
        def child():
            with trnx.collect_reports() as reports:
                agrees(use_xla(f), f)
            assert [r.engine for r in reports[0].regions] == ["xla"]
            assert not warned

        in_child(child)
        import jax  # imported, but not started
        in_child(child)
    """)


def test_jax_that_the_user_started_is_lost_too() -> None:
    run("""
        import jax.numpy
        jax.numpy.ones(3).sum().block_until_ready()

        def child():
            agrees(use_xla(f), f)
            assert len(warned) == 1

        in_child(child)
    """)


def test_workers_of_a_data_loader_and_of_a_pool() -> None:
    run("""
        compiled = use_xla(f)
        agrees(compiled, f)

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return compiled(torch.full((9, 5), float(i)))

        loader = torch.utils.data.DataLoader(
            Data(), batch_size=2, num_workers=2, multiprocessing_context="fork"
        )
        found = torch.cat(list(loader))
        torch.testing.assert_close(found, torch.stack([f(torch.full((9, 5), float(i)))
                                                       for i in range(8)]))

        def work(i):
            return compiled(torch.full((9, 5), float(i))).sum().item()

        with multiprocessing.get_context("fork").Pool(2) as pool:
            sums = pool.map(work, range(4))
        torch.testing.assert_close(sums, found.sum((1, 2))[:4].tolist())
    """)


SPAWNING = """
import multiprocessing
import torch
from torch import nn
import trnx

class Transform(nn.Module):
    "A product and a norm on NKI, and a function that stays off it."
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.LayerNorm(16))

    def forward(self, x):
        return torch.tan(torch.tanh(self.inner(x)) * 0.5)

class Data(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, i):
        with torch.no_grad():
            return self.transform(torch.full((9, 5), float(i)))

def eager_of(transform):
    plain = Transform()
    plain.load_state_dict(transform.state_dict())
    return torch.stack([Data(plain)[i] for i in range(6)])

if __name__ == "__main__":
    torch.manual_seed(0)
    transform = Transform()
    transform.compile(backend="trnx", options={"select": "legal", "fallback": "xla"})
    data = Data(transform)
    with trnx.collect_reports() as reports:
        torch.testing.assert_close(torch.stack(list(map(data.__getitem__, range(6)))),
                                   eager_of(transform))
    assert {r.engine for report in reports for r in report.regions} == {"nki", "xla"}
    for method in ("spawn", "fork"):
        loader = torch.utils.data.DataLoader(
            data, batch_size=3, num_workers=2, multiprocessing_context=method)
        torch.testing.assert_close(torch.cat(list(loader)), eager_of(transform))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(data.__getitem__, range(6))
    torch.testing.assert_close(torch.stack(found), eager_of(transform))
"""


def test_a_compiled_transform_in_workers_that_are_spawned_and_forked(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(SPAWNING)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_child_can_drop_regions_and_end() -> None:
    run("""
        import gc
        compiled = use_xla(f)
        agrees(compiled, f)
        pid = os.fork()
        if pid == 0:
            agrees(compiled, f)
            del compiled
            torch.compiler.reset()
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """)


def test_locks_that_other_threads_hold_at_the_fork() -> None:
    run("""
        import contextlib, gc
        from trnx.backend.executable import Executable
        from trnx.backend.prediction import PREDICTIONS
        from trnx.backend.programs import PROGRAMS
        from trnx.backend.report import _journal
        from trnx.simulator import precision, source
        from trnx.simulator.lru_cache import LruCache
        from trnx.simulator.program.program import Turn

        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
        compiled = torch.compile(model, backend="trnx", options={"select": "legal"})

        def nki(rows):
            x = torch.randn(rows, 64)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)

        nki(32)
        made = [o for o in gc.get_objects() if type(o) in (Executable, LruCache, Turn)]
        assert {type(o) for o in made} == {Executable, LruCache, Turn}
        assert PREDICTIONS._known in made
        owners = [PROGRAMS, _journal, precision._users, source, *made]
        held, done = threading.Event(), threading.Event()

        def hold():
            with contextlib.ExitStack() as stack:
                for owner in owners:
                    stack.enter_context(owner._lock)
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        try:
            in_child(lambda: [nki(32), nki(48), agrees(use_xla(g), g)])
        finally:
            done.set()
            thread.join()
        nki(80)
    """)


def test_a_kernel_that_another_thread_traces_at_the_fork() -> None:
    run("""
        from trnx.backend import programs
        from trnx.nki_kernels.spec import Launch

        class Traced:
            host_bytes = 1

        cache, tracing, done = programs.ProgramCache(), threading.Event(), threading.Event()
        parent = os.getpid()

        def trace(*args, **kwargs):
            if os.getpid() == parent:
                tracing.set()
                done.wait()
            return Traced()

        programs.trace = trace
        launch = Launch("kernel", (), ())
        thread = threading.Thread(target=cache.get, args=(launch, "trn2"))
        thread.start()
        tracing.wait()
        try:
            in_child(lambda: cache.get(launch, "trn2"))
        finally:
            done.set()
            thread.join()
    """)


def test_a_kernel_that_runs_at_the_fork_does_not_change_the_precision_of_the_child() -> None:
    run("""
        from trnx.simulator.precision import FullPrecision, users
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        running, done = threading.Event(), threading.Event()

        def work():
            with FullPrecision():
                running.set()
                done.wait()

        thread = threading.Thread(target=work)
        thread.start()
        running.wait()

        def child():
            assert users() == 0
            assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"

        try:
            in_child(child)
            assert users() == 1
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        finally:
            done.set()
            thread.join()
    """)
