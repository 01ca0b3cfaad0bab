"""The first use of everything from several threads at once, each time in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

THREADS = """
import sys, threading, traceback
import torch

COUNT = 8
gate, failures = threading.Barrier(COUNT), []

def guarded(index):
    gate.wait()
    try:
        use(index)
    except BaseException:
        failures.append(traceback.format_exc())

def run():
    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"{len(failures)} of {COUNT} threads failed:\\n" + failures[0])

def equals_eager(index, backend):
    def function(x, y):
        return torch.softmax(torch.nn.functional.gelu(x @ y + index), -1).sum(0) * 2
    x, y = torch.randn(index + 1, 16), torch.randn(16, 16)
    torch.testing.assert_close(
        torch.compile(function, backend=backend)(x, y), function(x, y), rtol=1e-5, atol=1e-5
    )
"""
BY_NAME = """
def use(index):
    equals_eager(index, "trnx")
"""
# Public names, kernels and the options of a call are first met here by all threads too.
BY_IMPORT = """
def use(index):
    import trnx
    assert trnx.TrnxError is trnx.errors.TrnxError
    with trnx.collect_reports():
        equals_eager(index, "trnx")
    report = trnx.explain(lambda x: (x + index).relu(), torch.ones(4))
    assert report.to_dict()
"""
MIXED = """
def use(index):
    from trnx.backend.entry import trnx
    equals_eager(index, ("trnx", "eager", trnx)[index % 3])
"""


def run(tmp_path: Path, program: str) -> None:
    script = tmp_path / "threads.py"
    script.write_text(THREADS + program + "\nrun()\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", [BY_NAME, BY_IMPORT, MIXED], ids=["name", "import", "mixed"])
def test_eight_threads_compile_first(use: str, tmp_path: Path) -> None:
    run(tmp_path, use)


@pytest.mark.slow
def test_eight_threads_compile_first_again_and_again(tmp_path: Path) -> None:
    for _ in range(10):
        run(tmp_path, BY_NAME)


def test_threads_load_one_kernel_file(tmp_path: Path) -> None:
    """Each thread returns once the kernels of the file are there; the file is executed once."""
    (tmp_path / "slow.py").write_text(
        "import threading, time\n"
        "import nki\n"
        "import trnx_threads_log as log\n"
        "log.LOADED.append(threading.get_ident())\n"
        "time.sleep(0.2)\n"
        "log.READY.append(True)\n"
    )
    (tmp_path / "trnx_threads_log.py").write_text("LOADED, READY = [], []\n")
    program = (
        "import trnx_threads_log as log\n"
        "import trnx.nki_kernels.registry as registry\n"
        "def use(index):\n"
        "    registry.load_kernels('slow.py')\n"
        "    assert len(log.LOADED) == len(log.READY) == 1, log.LOADED\n"
        "    assert len(registry.kernels()) > 5\n"
    )
    run(tmp_path, program)


def test_threads_share_the_modules_and_twins_of_nki(tmp_path: Path) -> None:
    """What is made on first use is one object for all: `nki`, and a kernel's twin."""
    (tmp_path / "threads_kernel.py").write_text(
        "import nki\nimport nki.language as nl\n\n\n@nki.jit\ndef kernel(x):\n    return x\n"
    )
    program = (
        "from types import ModuleType\n"
        "sys.setswitchinterval(1e-5)\n"
        "fakes = {name: ModuleType(name) for name in ('nki', 'nki.language')}\n"
        "fakes['nki'].jit = lambda function: function\n"
        "fakes['nki'].language = fakes['nki.language']\n"
        "fakes['nki'].__path__ = []\n"
        "sys.modules.update(fakes)\n"
        "import threads_kernel\n"
        "from trnx.simulator import load\n"
        "found = []\n"
        "def use(index):\n"
        "    from trnx.simulator.frontend.nki_modules import nki_modules\n"
        "    found.append((id(nki_modules()['nki']), id(load(threads_kernel.kernel))))\n"
    )
    run(tmp_path, program + "\nrun()\nassert len(set(found)) == 1, found\nfailures.clear()\n")


WITHOUT_JAX = """
def use(index):
    import trnx
    def function(x, y):
        return torch.softmax(torch.tanh(x @ y) * 2, -1)
    x, y = torch.randn(index + 1, 16), torch.randn(16, 16)
    with trnx.collect_reports() as reports:
        got = torch.compile(function, backend="trnx")(x, y)
    torch.testing.assert_close(got, function(x, y), rtol=1e-4, atol=1e-4)
    assert reports.nodes_on_nki == 1.0
    assert "jax" not in sys.modules
"""


def test_models_that_run_on_nki_import_no_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    run(tmp_path, WITHOUT_JAX)
