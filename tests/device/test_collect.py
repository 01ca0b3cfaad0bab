"""`trnx device collect` on the fakes: to its end, killed and resumed, and what must not stop it."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from trnx.device import collect as collect_module
from trnx.device.collect import collect
from trnx.device.errors import CollectError
from trnx.device.probes import PROBES
from trnx.device.ranks import COLLECTIVES, GROUPS, SIZES, group_size
from trnx.device.report import report
from trnx.device.tasks import LIMITS, all_tasks
from trnx.nki_kernels.registry import kernels

BOTH = [f"cores.{i:02}" for i, probe in enumerate(PROBES) if probe.cores == 2]
PRODUCT = next(i for i, probe in enumerate(PROBES) if probe.kernel == "products")
TASKS = (
    *("doctor", "kernel.column_sum", "kernel.softmax"),
    *("probe.00", f"probe.{PRODUCT}", "model.mlp"),
)
# A collection of a few tasks, as `trnx device collect` makes one of all.
SOME = f"""
import sys
from functools import partial
from pathlib import Path
from trnx.device.collect import collect
found = collect(Path(sys.argv[1]), "trn2", tasks={TASKS!r}, say=partial(print, flush=True))
print(found, flush=True)
"""


def _records(folder: Path) -> dict[str, bytes]:
    return {file.stem: file.read_bytes() for file in (folder / "tasks").glob("[!.]*.json")}


def _members(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        texts = [opened.extractfile(member).read() for member in members]  # type: ignore[union-attr]
    return {member.name: json.loads(text) for member, text in zip(members, texts, strict=True)}


def _start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SOME, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _kill_at(moment: random.Random, folder: Path) -> None:
    """End a collection after some lines and a while, and only it: its worker sees to itself."""
    running = _start(folder)
    assert running.stdout is not None
    for _ in range(moment.randrange(1, 4)):
        if not running.stdout.readline():
            break
    time.sleep(moment.uniform(0, 2))
    running.send_signal(signal.SIGKILL)
    running.communicate()


@pytest.mark.usefixtures("device_machine")
def test_killed_ten_times_and_resumed_without_loss(tmp_path: Path) -> None:
    folder, moment = tmp_path / "found", random.Random(14)
    known: dict[str, bytes] = {}
    for _ in range(10):
        _kill_at(moment, folder)
        found = _records(folder)
        # What was there is there, and is whole.
        assert {task: found[task] for task in known} == known
        assert {json.loads(text)["status"] for text in found.values()} <= {"ok"}
        known = found
    assert 0 < len(known) < len(TASKS), "kills that lost nothing had nothing to lose"
    last = _start(folder)
    shown, _ = last.communicate(timeout=600)
    assert last.returncode == 0
    assert shown.splitlines()[0] == f"{len(known)} of {len(TASKS)} tasks are done already"
    assert f"{len(TASKS)} of {len(TASKS)} tasks ended well" in shown
    found = _records(folder)
    assert {task: found[task] for task in known} == known
    members = _members(tmp_path / "found.tar.gz")
    assert sorted(members) == sorted(
        ["trnx-device/about.json", *(f"trnx-device/tasks/{task}.json" for task in TASKS)]
    )
    results = {r["task"]: r["result"] for n, r in members.items() if "tasks/" in n}
    assert {row["kernel"] for row in results["kernel.softmax"]["samples"]} == {"softmax"}
    assert not any(row.get("problem") for row in results["kernel.softmax"]["samples"])
    probe = results[f"probe.{PRODUCT}"]
    assert probe["name"] == PROBES[PRODUCT].name
    assert probe["whole_seconds"][1] > probe["whole_seconds"][0] > 0
    assert results["model.mlp"]["problem"] == ""
    assert any("linear" in region for region in results["model.mlp"]["regions"])


@pytest.mark.usefixtures("device_machine")
def test_probes_of_two_cores_have_logical_cores_of_two(tmp_path: Path) -> None:
    """The machine has NEURON_LOGICAL_NC_CONFIG=1, with which the kernel would be refused."""
    found = collect(tmp_path / "found", "trn2", tasks=("probe.00", *BOTH))
    assert found.ok
    page = report(found.archive)
    assert len(page.probes) == len(BOTH) + 1
    told = {row["tells"]: row for row in page.probes}
    assert told["HBM under two cores"]["predicted_ns"] > 1000
    assert all(row["measured_ns"] != 0 for row in page.probes)


@pytest.mark.slow
@pytest.mark.usefixtures("device_machine")
def test_all_tasks_run_to_their_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trnx.cli", "device", "collect", "--json", "found"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert set(found["tasks"]) == set(all_tasks())
    members = _members(tmp_path / found["archive"])
    rows = [row for m in members.values() for row in m.get("result", {}).get("samples", ())]
    assert {row["kernel"] for row in rows} == {spec.name for spec in kernels()}
    assert [row for row in rows if row.get("problem")] == []
    models = [m["result"] for name, m in members.items() if "/model." in name]
    assert [model["problem"] for model in models] == ["", "", ""]


def test_a_task_belongs_to_a_part_that_has_a_limit() -> None:
    assert {task.partition(".")[0] for task in all_tasks()} == set(LIMITS)


def test_who_waits_loads_no_device() -> None:
    code = "import sys, trnx.device.collect as c; c.all_tasks(); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def _worker_that(tmp_path: Path, does: str, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python, but for a worker that has `task` to do first."""
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\nif [ "$5" = {task} ]; then {does}; fi\nexec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.mark.usefixtures("device_machine")
def test_a_worker_that_dies_costs_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = ("probe.98", "probe.99", "doctor")
    _worker_that(tmp_path, "echo here; echo out of memory >&2; kill -9 $$", "probe.98", monkeypatch)
    found = collect(tmp_path / "found", "trn2", tasks=tasks)
    assert found.statuses == {"probe.98": "failed", "probe.99": "failed", "doctor": "ok"}
    records = {task: json.loads(text) for task, text in _records(tmp_path / "found").items()}
    assert "ended with -9: out of memory" in records["probe.98"]["error"]
    assert records["probe.99"]["error"] == "IndexError: tuple index out of range"
    assert "1 of 3 tasks ended well" in str(found)


@pytest.mark.usefixtures("device_machine")
def test_a_task_that_takes_too_long_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**LIMITS, "probe": 2.0}
    with monkeypatch.context() as slow:
        _worker_that(tmp_path, "sleep 600", "probe.06", slow)
        found = collect(tmp_path / "found", "trn2", tasks=("doctor", "probe.06"), limits=limits)
    assert found.statuses == {"doctor": "ok", "probe.06": "timeout"}
    said: list[str] = []
    again = collect(tmp_path / "found", "trn2", tasks=("doctor", "probe.06"), say=said.append)
    assert again.ok
    assert said == ["1 of 2 tasks are done already", "probe.06"]


def test_without_a_device_the_doctor_says_why(tmp_path: Path) -> None:
    found = collect(tmp_path / "found", "trn2", tasks=("doctor", "model.mlp"))
    assert found.statuses == {"doctor": "ok", "model.mlp": "failed"}
    error = json.loads(_records(tmp_path / "found")["model.mlp"])["error"]
    assert "NeuronStackError: TorchNeuron (torch-neuronx) is not installed" in error


def test_one_collection_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_module, "_PATIENCE", 0.2)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CollectError, match="another process collects into"):
            collect(tmp_path, "trn2", tasks=())


def test_results_of_another_target_are_not_mixed(tmp_path: Path) -> None:
    collect(tmp_path / "found", "trn2", tasks=())
    with pytest.raises(CollectError, match="results of another target or of other versions"):
        collect(tmp_path / "found", "trn3", tasks=())


def test_trn1_has_no_device_to_collect_on(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="runs on Trn2 and Trn3, and the target is trn1"):
        collect(tmp_path / "found", "trn1", tasks=())
    assert not (tmp_path / "found").exists()


@pytest.mark.usefixtures("device_machine")
def test_half_a_secret_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the end of a long message begins within a secret."""
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    script = "echo hunter2-hunter2 >&2; head -c 1990 /dev/zero | tr '\\0' x >&2; kill -9 $$"
    _worker_that(tmp_path, script, "model.mlp", monkeypatch)
    found = collect(tmp_path / "found", "trn2", tasks=("model.mlp",))
    text = json.dumps(_members(found.archive))
    assert "xxxx" in text
    assert "hunter2" not in text
    assert "TOKEN>" in text


@pytest.mark.usefixtures("device_machine")
def test_an_archive_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User, host, home, secrets and addresses, in what the doctor finds and in errors."""
    home = tmp_path / "home" / "jane.doe"
    home.mkdir(parents=True)
    secrets = {"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "MY_TOKEN": "hunter2-hunter2"}
    names = {"HOME": str(home), "USER": "jane-doe", "LOGNAME": "jane-doe", "TRNX_DATA": "/srv/x"}
    for name, value in {**secrets, **names}.items():
        monkeypatch.setenv(name, value)
    # It says all of them where a worker ends.
    told = f"{home}/model.py jane-doe wJalrXUtnFEMI hunter2-hunter2 10.1.2.3 i-0123456789abcdef0"
    _worker_that(tmp_path, f"env >&2; echo {told} >&2; kill -9 $$", "model.mlp", monkeypatch)
    found = collect(tmp_path / "found", "trn2", tasks=("doctor", "model.mlp"))
    members = _members(found.archive)
    text = json.dumps(members)
    assert "<MY_TOKEN> <address> <aws id>" in text
    assert "~/model.py <user> <AWS_SECRET_ACCESS_KEY>" in text
    for value in (*secrets.values(), str(home), "jane", os.uname().nodename, "10.1.2.3"):
        assert value not in text
    assert {name.count("/") for name in members} == {1, 2}
    # What explains a difference is there.
    assert members["trnx-device/about.json"]["versions"]["torch"].startswith("2.")


@pytest.mark.usefixtures("device_machine")
def test_collectives_of_ranks_are_timed_and_compared(tmp_path: Path) -> None:
    found = collect(tmp_path / "found", "trn2", tasks=("ranks.pair",))
    assert found.ok, _records(tmp_path / "found")
    page = report(found.archive)
    assert page.problems == ()
    assert {(row["collective"], row["bytes"]) for row in page.collectives} == {
        (collective, nbytes) for collective in COLLECTIVES for nbytes in SIZES
    }
    assert all(row["ranks"] == 2 and row["predicted_seconds"] > 0 for row in page.collectives)


@pytest.mark.usefixtures("device_machine")
def test_ranks_end_with_the_time_of_their_task(tmp_path: Path) -> None:
    limits = {**LIMITS, "ranks": 0.5}
    found = collect(tmp_path / "found", "trn2", tasks=("ranks.pair",), limits=limits)
    assert found.statuses == {"ranks.pair": "timeout"}


def test_a_group_has_the_ranks_that_the_machine_has(tmp_path: Path) -> None:
    for name in ("neuron0", "neuron1", "neuron15", "neuron_sysfs"):
        (tmp_path / name).touch()
    assert [group_size(group, "trn2", tmp_path) for group in GROUPS] == [2, 8, 24]
    assert group_size("instance", "trn1", tmp_path / "none") == 2
