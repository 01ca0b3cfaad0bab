"""`trnx device report`: the page that compares what a device measured with what trnx predicts."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trnx.backend.neuron.stack import TARGETS
from trnx.backend.plan.cluster import interconnect
from trnx.backend.plan.collectives import Group, all_gather, all_reduce
from trnx.device.collect import ABOUT, FORMAT, VERSION
from trnx.device.errors import ArchiveError
from trnx.device.fit import Change, changes, predicted_ns
from trnx.device.probes import PROBES
from trnx.device.tasks import part_of
from trnx.simulator.errors import TrnxError
from trnx.simulator.hardware import hardware

_MEMBER = re.compile(rf"{FORMAT}/({re.escape(ABOUT)}|tasks/[\w.]+\.json)")
_LARGEST = 16 << 20


@dataclass(frozen=True)
class Archive:
    """What an archive holds: versions and target, and task -> record."""

    about: dict[str, Any]
    records: dict[str, dict[str, Any]]


def read_archive(file: Path) -> Archive:
    """Raises ArchiveError for what `trnx device collect` has not written. Nothing is unpacked."""
    found: dict[str, Any] = {}
    try:
        with tarfile.open(file, mode="r:gz") as packed:
            for member in packed:
                name = _MEMBER.fullmatch(member.name)
                opened = packed.extractfile(member) if name and member.isfile() else None
                if name is None or opened is None or member.size > _LARGEST:
                    raise ValueError(f"it has {member.name!r} in it")
                found[name[1]] = json.loads(opened.read())
        about = found.pop(ABOUT)
        if (about["format"], about["version"]) != (FORMAT, VERSION):
            raise ValueError(f"its format is {about['format']!r} {about['version']!r}")
        if about["target"] not in TARGETS:
            raise ValueError(f"nothing can be collected on {about['target']!r}")
        records = {str(record["task"]): record for record in found.values()}
        return Archive(about, records)
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise ArchiveError(
            f"{file} is no archive of `trnx device collect` of this version "
            f"({type(error).__name__}: {error})"
        ) from error


@dataclass(frozen=True)
class DeviceReport:
    """The page: problems found, probes measured against predicted, models, and constants."""

    target: str
    versions: dict[str, str]
    statuses: dict[str, str]
    problems: tuple[str, ...]
    probes: tuple[dict[str, Any], ...]
    models: tuple[dict[str, Any], ...]
    collectives: tuple[dict[str, Any], ...]
    changes: tuple[Change, ...]

    @property
    def ok(self) -> bool:
        """Whether everything ended well and nothing contradicts the timing model."""
        return not self.problems and not self.changes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {v}" for name, v in self.versions.items() if v)
        done = sum(status == "ok" for status in self.statuses.values())
        lines = [f"# A {self.target} device against trnx", "", versions, ""]
        lines += [f"{done} of {len(self.statuses)} tasks ended with a result.", "", "## Problems"]
        lines += [f"* {problem}" for problem in self.problems] or ["None."]
        lines += ["", "## Constants to change"]
        lines += _change_lines(self.changes) or ["None: what was measured is what is predicted."]
        lines += ["", "## Probes", "| probe | measured | predicted | error | tells |"]
        lines += ["| --- | --- | --- | --- | --- |", *map(_probe_line, self.probes)]
        lines += ["", "## Models", "| model | measured | predicted | largest difference |"]
        lines += ["| --- | --- | --- | --- |", *map(_model_line, self.models)]
        lines += ["", "## Collectives", "| collective | ranks | bytes | measured | predicted |"]
        lines += ["| --- | --- | --- | --- | --- |", *map(_collective_line, self.collectives)]
        return "\n".join(lines)


def _change_lines(found: tuple[Change, ...]) -> list[str]:
    if not found:
        return []
    lines = [
        "| constant | now | fits | probes differ | and then |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{c.constant}` | {c.now:g} | {c.fitting:g} | {c.before:.1%} | {c.after:.1%} |"
        for c in found
    ]
    return [*lines, "", "They are in `simulator/costs/constants.py`."]


def _probe_line(row: dict[str, Any]) -> str:
    return (
        f"| {row['name']} | {row['measured_ns']:.0f} ns | {row['predicted_ns']:.0f} ns "
        f"| {row['error']:+.1%} | {row['tells']} |"
    )


def _model_line(row: dict[str, Any]) -> str:
    return (
        f"| {row['model']} | {row['seconds'] * 1e3:.3f} ms | {row['predicted_seconds'] * 1e3:.3f} "
        f"ms | {row['largest']:.2g} |"
    )


def _collective_line(row: dict[str, Any]) -> str:
    return (
        f"| {row['collective']} | {row['ranks']} | {row['bytes']} | {row['seconds'] * 1e6:.1f} us "
        f"| {row['predicted_seconds'] * 1e6:.1f} us |"
    )


def report(file: Path) -> DeviceReport:
    """The report of an archive. Raises ArchiveError."""
    archive = read_archive(file)
    try:
        return _report(archive)
    except (KeyError, TypeError, ValueError, AttributeError, TrnxError) as error:
        raise ArchiveError(
            f"{file} has a record that cannot be read ({type(error).__name__}: {error})"
        ) from error


def _report(archive: Archive) -> DeviceReport:
    target = str(archive.about["target"])
    results = {t: r["result"] for t, r in archive.records.items() if r["status"] == "ok"}
    # By name: another version of trnx may have them in another order.
    known = {probe.name: index for index, probe in enumerate(PROBES)}
    probes = {known[r["name"]]: r for t, r in results.items() if part_of(t) in ("probe", "cores")}
    measured = {index: float(found["ns"]) for index, found in probes.items()}
    clear = {i: ns for i, ns in measured.items() if ns > 2 * float(probes[i].get("spread_ns", 0))}
    return DeviceReport(
        target=target,
        versions=dict(archive.about["versions"]),
        statuses={task: str(record["status"]) for task, record in archive.records.items()},
        problems=tuple(_problems(archive, results)),
        probes=tuple(_probe_row(index, ns, target) for index, ns in sorted(measured.items())),
        models=tuple(_model_row(r) for task, r in results.items() if part_of(task) == "model"),
        collectives=tuple(
            _collective_row(row, int(found["ranks"]), target)
            for task, found in results.items()
            if part_of(task) == "ranks"
            for row in found["rows"]
        ),
        changes=tuple(changes(clear, target)),
    )


def _probe_row(index: int, measured: float, target: str) -> dict[str, Any]:
    predicted = predicted_ns(index, target)
    return {
        "name": PROBES[index].name,
        "measured_ns": measured,
        "predicted_ns": predicted,
        "error": predicted / measured - 1 if measured else float("inf"),
        "tells": PROBES[index].tells,
    }


def _model_row(found: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: float(found[key]) for key in ("seconds", "predicted_seconds", "largest")}
    return {**found, "model": str(found["model"]), **numbers}


_PREDICTIONS = {"all_reduce": all_reduce, "all_gather": all_gather}


def _collective_row(row: dict[str, Any], ranks: int, target: str) -> dict[str, Any]:
    """What was measured beside what `trnx plan` says of the generation's usual instance."""
    cluster = interconnect(hardware(target), ranks)
    predict = _PREDICTIONS[row["collective"]]
    predicted = predict(cluster, Group(size=ranks, stride=1), float(row["bytes"]))
    seconds = float(row["seconds"])
    return {**row, "ranks": ranks, "seconds": seconds, "predicted_seconds": predicted}


def _problems(archive: Archive, results: dict[str, Any]) -> list[str]:
    """What did not end, what the doctor found, and values that differ."""
    found = [
        f"{task}: {record['status']}: {record.get('error', '')}"
        for task, record in archive.records.items()
        if record["status"] != "ok"
    ]
    found += [
        f"doctor: {check['name']}: {check['found']}"
        for check in results.get("doctor", {}).get("checks", ())
        if check["status"] == "problem"
    ]
    for task, result in results.items():
        rows = result.get("samples", ()) if part_of(task) == "kernel" else ()
        found += [f"{r['kernel']}, {r['note']}: {r['problem']}" for r in rows if r.get("problem")]
        rows = result["rows"] if part_of(task) == "ranks" else ()
        found += [f"{task}: {row['problem']}" for row in rows if row["problem"]]
        if part_of(task) == "model" and result["problem"]:
            found.append(f"{task}: {result['problem']}")
    return found
