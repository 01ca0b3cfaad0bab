"""The conformance script on a small suite laid out like nki-library's: statuses, tables, exit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "conformance"

CONFTEST = """\
import pytest


def pytest_addoption(parser):
    for name in ("--test-mode", "--platform-target", "--output-directory"):
        parser.addoption(name)
    parser.addoption("--force-local-cleanup", action="store_true")


def pytest_configure(config):
    import sys

    import nki_cpu_simulator.nki as nki

    sys.modules["nki"] = nki
    config.option.markexpr = "not trn3_alone"


@pytest.fixture
def run():
    import nki
    import numpy as np

    def simulate(kernel, x, want):
        assert np.array_equal(nki.cpu_simulate(kernel)[1](x=x), want)

    return simulate
"""
DATACLASSES = """\
def normalize_golden_output(golden, rank):
    return golden(rank)
"""
CASES = """\
import os
from types import SimpleNamespace

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest


@nki.jit
def double(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nl.store(out, value=tile)
    return out


def test_right(run):
    run(double, np.ones((2, 3), np.float32), np.full((2, 3), 2.0))


def test_wrong(run):
    run(double, np.ones((2, 3), np.float32), np.full((2, 3), 3.0))


def test_large(run):
    run(double, np.broadcast_to(np.float32(1), (1 << 20, 1 << 10)), None)


def test_fits_alone():
    assert np.empty(3 << 30, np.uint8).nbytes == 3 << 30


def test_fits_nowhere():
    assert np.empty(5 << 30, np.uint8).nbytes == 0


def test_slow():
    while True:
        pass


def test_ends_the_process():
    os._exit(3)


@nki.jit
def add_ranks(x, ranks):
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    group = ncc.ReplicaGroup([list(range(ranks))])
    ncc.all_reduce([x], [total], group, op=nl.add)
    return total


class RankInputs:
    def for_rank(self, rank):
        return {"x.must_alias_input": np.full((2, 3), rank + 1.0, np.float32), "ranks": 3}


def test_ranks(tmp_path):
    from nki_library_ranks import has_ranks, simulate_on_ranks

    def dump(folder, tensors, name_of):
        os.makedirs(folder)
        for name, value in tensors.items():
            value.tofile(os.path.join(folder, name_of(name)))

    orchestrator = SimpleNamespace(
        fs_config=SimpleNamespace(artifacts_output_directory_path=str(tmp_path)),
        __dump_tensors__=dump,
    )
    case = SimpleNamespace(
        kernel_func=add_ranks,
        kernel_input=RankInputs(),
        inference_args=SimpleNamespace(collective_ranks=3),
        compiler_input=SimpleNamespace(
            platform_target=SimpleNamespace(get_nc_gen=lambda: "gen3"), logical_nc_config=1
        ),
        validation_args=SimpleNamespace(
            golden_output=lambda rank: {"total": np.zeros((2, 3), np.float16)}
        ),
    )
    assert has_ranks(case)
    path = simulate_on_ranks(orchestrator, case, "out")
    for rank in range(3):
        held = np.fromfile(f"{path}/output_worker_{rank}/total", np.float16)
        assert held.tolist() == [6.0] * 6


@pytest.mark.trn3_alone
def test_other_target():
    pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "library" / "test" / "integration" / "nkilib"
    folder.mkdir(parents=True)
    (tmp_path / "library" / "test" / "pytest.ini").write_text("[pytest]\nmarkers = trn3_alone\n")
    (tmp_path / "library" / "test" / "conftest.py").write_text(CONFTEST)
    (folder / "test_small.py").write_text(CASES)
    utils = tmp_path / "library" / "test" / "utils"
    utils.mkdir()
    for package in (utils.parent, utils):
        (package / "__init__.py").write_text("")
    (utils / "common_dataclasses.py").write_text(DATACLASSES)
    return tmp_path / "library"


def test_every_case_gets_its_status(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "nki_library.py"), "--checkout", str(checkout)]
        + ["--seconds", "5", "--jobs", "2", "--gigabytes", "2", "--log", str(log), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert numbers == {
        "passed": 3,
        "failed": 2,
        "explained": 0,
        "too large": 1,
        "no verdict": 2,
        "skipped": 0,
        "not for trn2": 1,
        "rate": 0.6,
        "rate if no verdict is a failure": round(3 / 7, 4),
        "passing cases with findings": 0,
        "ok": False,
        "not imported": 0,
    }
    records = [json.loads(line) for line in log.read_text().splitlines()]
    messages = {record["case"].split("::")[-1]: record["message"] for record in records}
    assert set(messages) == {
        "test_right",
        "test_wrong",
        "test_large",
        "test_fits_alone",
        "test_fits_nowhere",
        "test_slow",
        "test_ends_the_process",
        "test_ranks",
    }
    assert messages["test_ends_the_process"] == "the process ended with status 3"
    assert messages["test_slow"] == "more than 5 s"
    assert not list(checkout.rglob("__pycache__"))


def test_a_sample_takes_every_file_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import nki_library

    cases = {f"f{i}": [f"f{i}::{j}" for j in range(10 * (i + 1))] for i in range(4)}
    first = nki_library.sample(cases, 30, 7)
    assert first == nki_library.sample(cases, 30, 7)
    assert first != nki_library.sample(cases, 30, 8)
    assert set(first) == set(cases)
    assert sum(map(len, first.values())) == 30
    assert sum(map(len, nki_library.sample(cases, 2, 7).values())) == 2
    assert sum(map(len, nki_library.sample(cases, 10**6, 7).values())) == 100


def test_patches_are_made_once_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import nki_library_copy

    drop = nki_library_copy.drop_second("b", "d")
    assert drop("a b c b x d e") == "a b c  e"
    assert drop("a b c") == "a b c"
    (tmp_path / "checkout").mkdir()
    copy, lines = nki_library_copy.make_copy(tmp_path / "checkout", tmp_path)
    assert (copy / "test/utils/perf_analysis_private.py").is_file()
    assert len(lines) == len(nki_library_copy.PATCHES)
    assert not (tmp_path / "checkout" / "test").exists()
