"""The conformance script on a small suite laid out like nki-library's: statuses, tables, exit."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy._core._dtype as numpy_dtypes
import pytest

from trnx.simulator.memory.arrays import PACKED

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "conformance" / "nki_library"

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


@nki.jit
def double_in_psum(x):
    tiles = []
    for _ in range(9):
        tile = nl.ndarray((2, 512), dtype=x.dtype, buffer=nl.psum)
        nisa.tensor_scalar(dst=tile, data=nl.load(x), op0=nl.multiply, operand0=2.0)
        tiles.append(tile)
    out = nl.ndarray((2, 512 * 9), dtype=x.dtype, buffer=nl.shared_hbm)
    for i, tile in enumerate(tiles):
        nl.store(out[:, 512 * i : 512 * (i + 1)], value=nl.copy(tile))
    return out


def test_right(run):
    run(double, np.ones((2, 3), np.float32), np.full((2, 3), 2.0))


def test_wrong(run):
    run(double, np.ones((2, 3), np.float32), np.full((2, 3), 3.0))


def test_spills(run):
    run(double_in_psum, np.ones((2, 512), np.float32), np.full((2, 512 * 9), 2.0))


def test_spills_to_other_values(run):
    run(double_in_psum, np.ones((2, 512), np.float32), np.full((2, 512 * 9), 3.0))


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


def test_is_killed():
    os.kill(os.getpid(), 9)


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
    from ranks import has_ranks, simulate_on_ranks

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


ENDS = """

def test_z_ends_the_run():
    import time

    time.sleep(1)
    os.kill(os.getppid(), 9)
    os._exit(0)
"""


WAITS = """

def test_z_waits():
    import time
    from pathlib import Path

    Path(os.environ["STARTED"]).write_text(str(os.getpid()))
    time.sleep(600)
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


def run_script(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "run.py"), "--checkout", str(checkout), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_every_case_gets_its_status(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    limits = ["--seconds", "5", "--jobs", "2", "--gigabytes", "2"]
    done = run_script(checkout, *limits, "--log", str(log), "--json")
    assert done.returncode == 1, done.stderr
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert numbers == {
        "passed": 3,
        "passed, spills": 1,
        "failed": 3,
        "known failure": 0,
        "no verdict: memory": 2,
        "no verdict: time": 1,
        "skipped": 0,
        "no verdict: killed": 1,
        "not for the target": 1,
        "no verdict": 4,
        "rate": round(4 / 7, 4),
        "rate with no verdict as failure": round(4 / 11, 4),
        "passing cases with findings": 0,
        "not imported": 0,
        "patches that do not apply": 0,
        "ok": False,
    }
    records = [json.loads(line) for line in log.read_text().splitlines()]
    messages = {record["case"].split("::")[-1]: record["message"] for record in records}
    assert set(messages) == {
        "test_right",
        "test_wrong",
        "test_spills",
        "test_spills_to_other_values",
        "test_large",
        "test_fits_alone",
        "test_fits_nowhere",
        "test_slow",
        "test_ends_the_process",
        "test_is_killed",
        "test_ranks",
    }
    assert messages["test_ends_the_process"] == "the process ended with status 3"
    assert messages["test_is_killed"] == "the process ended with status -9"
    assert messages["test_slow"] == "more than 5 s"
    assert not list(checkout.rglob("__pycache__"))


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The script's modules can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    before = set(sys.modules)
    yield
    for name in {path.stem for path in SCRIPTS.glob("*.py")} - before:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("scripts")
def test_a_sample_takes_every_file_first() -> None:
    sampling = importlib.import_module("sampling")
    cases = {f"f{i}": [f"f{i}::{j}" for j in range(10 * (i + 1))] for i in range(4)}
    first = sampling.sample(cases, 30, 7)
    assert first == sampling.sample(cases, 30, 7)
    assert first != sampling.sample(cases, 30, 8)
    assert set(first) == set(cases)
    assert sum(map(len, first.values())) == 30
    assert sum(map(len, sampling.sample(cases, 2, 7).values())) == 2
    assert sum(map(len, sampling.sample(cases, 10**6, 7).values())) == 100
    assert sampling.select(cases, "f[12]::1$", 0, 7) == {"f1": ["f1::1"], "f2": ["f2::1"]}


@pytest.mark.usefixtures("scripts")
def test_a_run_goes_on_where_it_was_ended(checkout: Path, tmp_path: Path) -> None:
    """Also by the system, twice within one case; each shard runs its own cases, once."""
    folder = tmp_path / "results"
    options = ["--resume", str(folder), "--seconds", "60", "--cases"]
    with (checkout / "test" / "integration" / "nkilib" / "test_small.py").open("a") as file:
        file.write(ENDS)
    shard = ["_right|_wrong|_z_ends", "--shard", "1/2", "--json"]
    for chosen in (shard[:1], shard):
        assert run_script(checkout, *options, *chosen).returncode == 1
    files = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert len(files) == 3
    begun = [held for held in map(json.loads, map(Path.read_text, files)) if "result" not in held]
    assert [(held["case"].rpartition("::")[2], held["begun"]) for held in begun] == [
        ("test_z_ends_the_run", 2)
    ]
    assert {held["target"] for held in begun} == {"trn2"}
    part = run_script(checkout, *options, *shard).stdout
    assert "\n2 of 12 cases for trn2, 2 of them kept\n" in part
    numbers = json.loads(part.splitlines()[-1])
    assert [numbers[name] for name in ("passed", "failed", "no verdict: killed")] == [1, 0, 1]
    assert files == {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    page = importlib.import_module("report_folder").page
    newest = importlib.import_module("state").newest
    text = page(newest(folder))
    assert "## trn2, seed 0\n\n3 cases, commit unknown, trnx " in text
    assert "| trn2, seed 0 | 1 | 0 | 1 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "| test/integration/nkilib | 1 | 0 | 1 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "* failed: `test_small.py::test_wrong`: AssertionError" in text
    other = "## trn3, seed 1\n\n7 cases.\n\n| total | 7 |\n"
    both = page(newest(folder), f"# Cases\n\n## trn2, seed 0\n\n9 cases.\n\n{other}")
    assert both.endswith(other)
    assert both.removesuffix(other).replace("| trn3, seed 1 | 7 |\n", "").strip() == text.strip()


def test_a_case_ends_with_the_run(checkout: Path, tmp_path: Path) -> None:
    with (checkout / "test" / "integration" / "nkilib" / "test_small.py").open("a") as file:
        file.write(WAITS)
    started = tmp_path / "started"
    command = [sys.executable, str(SCRIPTS / "run.py"), "--checkout", str(checkout)]
    run = subprocess.Popen(
        [*command, "--cases", "_z_waits"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "STARTED": str(started)},
    )
    wait_until(lambda: started.exists() and bool(started.read_text()))
    run.kill()
    run.wait()
    case = Path("/proc") / started.read_text()
    wait_until(lambda: not case.exists())


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.usefixtures("scripts")
def test_conditions_are_of_the_worker_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs the cases decides their verdicts; what chooses and reports them does not."""
    state = importlib.import_module("state")
    suite = tmp_path / "suite"
    suite.mkdir()
    monkeypatch.setattr(state, "WORKER", shutil.copytree(state.WORKER, tmp_path / "worker"))
    held = [state.conditions(suite, suite, "trn2", 0)]
    for file in ("report.py", "worker.py", "stand_ins.py"):
        with (state.WORKER / file).open("a") as source:
            source.write("# changed\n")
        held.append(state.conditions(suite, suite, "trn2", 0))
    assert [before.key("f") == after.key("f") for before, after in itertools.pairwise(held)] == [
        True, False, False
    ]  # fmt: skip


@pytest.mark.usefixtures("scripts")
def test_packed_types_have_the_names_that_the_suite_looks_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_ins = importlib.import_module("stand_ins")
    monkeypatch.setitem(vars(numpy_dtypes), "__str__", vars(numpy_dtypes)["__str__"])
    stand_ins.name_packed_types()
    for name in PACKED:
        assert str(np.zeros((2, 3), dtype=name).dtype) == name
    kinds = ("int32", "bfloat16", [("a", "V4")])
    assert [str(np.dtype(kind)) for kind in kinds] == ["int32", "bfloat16", "[('a', 'V4')]"]


@pytest.mark.usefixtures("scripts")
def test_kept_results_are_those_of_the_same_conditions(tmp_path: Path) -> None:
    state = importlib.import_module("state")
    held = {"commit": "", "suite": "a", "target": "trn2", "seed": 0, "trnx": "1 a", "worker": "a"}
    kept = state.State(tmp_path, state.Conditions(**held))
    passed = {"case": "f.py::test", "status": "passed", "message": ""}
    kept.begin("f.py::test")
    assert kept.result("f.py::test") is None
    kept.keep(passed)
    assert kept.result("f.py::test") == passed
    assert kept.result("f.py::test2") is None
    changes = ({"suite": "b"}, {"target": "trn3"}, {"seed": 1}, {"worker": "b"}, {"trnx": "1 b"})
    for change in changes:
        other = state.State(tmp_path, state.Conditions(**held | change))
        assert other.result("f.py::test") is None
        other.keep({**passed, "status": "failed"})
    # The last one differs in trnx and the worker alone: it takes the place of the first.
    found = [(entry["suite"], entry["trnx"]) for entry in state.newest(tmp_path)]
    assert sorted(found) == [("a", "1 a"), ("a", "1 a"), ("a", "1 b"), ("b", "1 a")]
    newest = {(one["suite"], one["target"], one["seed"]): one for one in state.newest(tmp_path)}
    assert newest["a", "trn2", 0]["trnx"] == "1 b"
    # Of a commit, another suite is one with other patches of ours.
    folder = tmp_path / "commit"
    for suite in ("a", "b"):
        of_commit = state.Conditions(**held | {"commit": "c", "suite": suite})
        state.State(folder, of_commit).keep(passed)
    assert [entry["suite"] for entry in state.newest(folder)] == ["b"]


@pytest.mark.usefixtures("scripts")
def test_each_folder_has_its_share_and_shards_share_all() -> None:
    sampling = importlib.import_module("sampling")
    cases = {f"a/{i}": [f"a/{i}::{j}" for j in range(60)] for i in range(3)}
    cases["b/0"] = [f"b/0::{j}" for j in range(9)]
    cases["c/0"] = [f"c/0::{j}" for j in range(40)]

    def folders(chosen: dict[str, list[str]]) -> Counter[str]:
        listed = [case for own in chosen.values() for case in own]
        assert len(set(listed)) == len(listed)
        return Counter(map(sampling.folder_of, listed))

    few = sampling.sample(cases, 10, 7, each=15)
    assert set(few) == set(cases)
    assert folders(few) == {"a": 15, "b": 9, "c": 15}
    assert few == sampling.select(cases, "", 10, 7, each=15)
    more = folders(sampling.sample(cases, 100, 7, each=15))
    assert more.total() == 100
    assert min(more["a"], more["c"]) >= 15
    shards = [sampling.shard(cases, part, 4) for part in range(1, 5)]
    assert sorted(case for own in shards for listed in own.values() for case in listed) == sorted(
        case for listed in cases.values() for case in listed
    )
    assert all(folders(own)["a"] == 45 for own in shards)


PATCH = """\
A line is wrong.

Evidence: it says two.

diff --git a/a/numbers.txt b/a/numbers.txt
--- a/a/numbers.txt
+++ b/a/numbers.txt
@@ -1,3 +1,3 @@
 zero
-two
+one
 end
"""
MAKES = """\
A file is missing.

diff --git a/made.txt b/made.txt
new file mode 100644
--- /dev/null
+++ b/made.txt
@@ -0,0 +1 @@
+made
"""


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("held", "state"),
    [
        ("zero\ntwo\nend\n", "applied"),
        ("zero\none\nend\n", "already there"),
        ("another\n", "does not apply"),
        (None, "not needed"),
    ],
)
def test_patches_are_made_in_the_copy_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str | None, state: str
) -> None:
    """Also within a repository, where git would take the paths for its own."""
    scratch_copy = importlib.import_module("scratch_copy")
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "1.patch").write_text(PATCH)
    (patches / "2.patch").write_text(MAKES)
    monkeypatch.setattr(scratch_copy, "PATCHES", patches)
    checkout = tmp_path / "checkout"
    (checkout / "a").mkdir(parents=True)
    if held is None:
        (checkout / "made.txt").write_text("there")
    else:
        (checkout / "a" / "numbers.txt").write_text(held)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    copy, applied = scratch_copy.make_copy(checkout, tmp_path)
    made = "not needed" if held is None else "applied"
    assert [(one.name, one.defect, one.state) for one in applied] == [
        ("1.patch", "A line is wrong.", state),
        ("2.patch", "A file is missing.", made),
    ]
    assert (copy / "made.txt").read_text() == ("there" if held is None else "made\n")
    if held is not None:
        kept = "zero\none\nend\n" if state == "applied" else held
        assert (copy / "a" / "numbers.txt").read_text() == kept
        assert (checkout / "a" / "numbers.txt").read_text() == held
        assert not (checkout / "made.txt").exists()


@pytest.mark.parametrize("patch", sorted((SCRIPTS / "patches").glob("*")), ids=lambda p: p.name)
def test_a_patch_states_its_defect_and_the_evidence(patch: Path) -> None:
    header, diff, _ = patch.read_text().partition("\ndiff --git ")
    assert re.fullmatch(r"\d\d-[a-z-]+\.patch", patch.name)
    assert header.partition("\n")[0].endswith(".")
    assert "\nEvidence: " in header
    assert diff


@pytest.mark.usefixtures("scripts")
def test_a_known_failure_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    table = importlib.import_module("known_failures")
    report = importlib.import_module("report")
    row = table.KnownFailure(r"f\.py::test\[[12]\]", r"Error: in '\w+'", "theirs", "why", "where")
    monkeypatch.setattr(table, "KNOWN_FAILURES", (row,))

    def result(case: str, message: str, status: str = "failed") -> dict[str, Any]:
        return {"case": case, "status": status, "message": message, "simulating": False}

    known = result("f.py::test[1]", "Error: in 'out'")
    others = [
        result("f.py::test[1]", "Error: in 'out' and in 'more'"),
        result("f.py::test[12]", "Error: in 'out'"),
        result("f.py::test[3]", "Error: in 'out'"),
        result("f.py::test[2]", "Error: in 'out'", "timeout") | {"began": True},
    ]
    assert report.status_of(known) == "known failure"
    assert [report.status_of(other) for other in others[:3]] == ["failed"] * 3
    passing = result("f.py::test[2]", "", "passed")
    assert report.status_of(passing) == "passed"
    counts = Counter({"passed": 99, "known failure": 1})
    fine = report.summary([known], counts, not_imported=0, misfits=[])
    assert fine["ok"]
    assert fine["rate"] == 0.99
    two_known = Counter({"passed": 98, "known failure": 2})
    assert not report.summary([known], two_known, not_imported=0, misfits=[])["ok"]
    found = passing | {"findings": ["[race] two programs"]}
    assert not report.summary([known, found], counts, not_imported=0, misfits=[])["ok"]
    one_failed = counts | Counter({"failed": 1})
    assert not report.summary([known], one_failed, not_imported=0, misfits=[])["ok"]
    assert not report.summary([known], counts, not_imported=1, misfits=[])["ok"]
    assert not report.summary([known], counts, not_imported=0, misfits=["1.patch"])["ok"]
    assert not report.summary([], Counter(), not_imported=0, misfits=[])["ok"]


@pytest.mark.usefixtures("scripts")
def test_rows_of_known_failures_are_complete() -> None:
    table = importlib.import_module("known_failures")
    for row in table.KNOWN_FAILURES:
        assert row.whose in ("theirs", "ours")
        assert row.reason
        assert row.evidence
        assert row.case.startswith("test/")
        for other in ("AssertionError: ", "InferenceException: [race]", "MemoryError: ", ""):
            assert not re.fullmatch(row.message, other, re.DOTALL)


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({"status": "failed", "message": "MemoryError: ", "simulating": False}, "memory"),
        ({"status": "failed", "message": "MemoryError: ", "simulating": True}, "failed"),
        ({"status": "skipped", "message": "Skipped: inputs too large: 9 bytes"}, "memory"),
        ({"status": "skipped", "message": "Skipped: no mask"}, "skipped"),
        ({"status": "killed", "message": "the process ended with status -9"}, "killed"),
        ({"status": "timeout", "message": "more than 5 s", "simulating": False}, "time"),
        ({"status": "timeout", "message": "more than 5 s", "simulating": True}, "failed"),
    ],
)
def test_no_verdict_is_what_no_simulation_decides(result: dict[str, Any], status: str) -> None:
    report = importlib.import_module("report")
    found = report.status_of({"case": "f.py::test", **result})
    assert found.removeprefix("no verdict: ") == status
