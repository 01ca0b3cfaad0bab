"""What a profile is shown as: data, Perfetto trace, plots."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import TensorSpec, load_module
from trnx.simulator.frontend.profiling import profile
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.timing.errors import ProfileDependencyError
from trnx.simulator.timing.perfetto_trace import write_trace
from trnx.simulator.timing.profile import Profile

HERE = Path(__file__).parent
PARTS = 100


def _spec(*shape: int) -> TensorSpec:
    return TensorSpec.dense(shape, torch.float32)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(HERE / "timing_kernels.py")


@pytest.fixture(scope="module")
def matmul(kernels: ModuleType) -> Profile:
    return profile(kernels.matmul, _spec(512, 128), _spec(512, 1024))


@pytest.fixture(scope="module")
def trace(matmul: Profile, tmp_path_factory: pytest.TempPathFactory, open_trace: Any) -> Any:
    path = matmul.write_trace(tmp_path_factory.mktemp("trace") / "matmul.pftrace")
    processor = open_trace(path)
    yield processor
    processor.close()


def test_a_trace_opens_without_errors(trace: Any) -> None:
    problems = trace.query("select name from stats where value > 0 and severity != 'info'")
    assert [row.name for row in problems] == []


def test_sql_gives_the_utilisation_of_the_table(trace: Any, matmul: Profile) -> None:
    rows = trace.query(
        "select track.name as name, sum(dur) as busy, count(*) as slices,"
        " sum(extract_arg(arg_set_id, 'debug.picoseconds')) as exact"
        " from slice join track on slice.track_id = track.id group by track.name"
    )
    found = {row.name: row for row in rows}
    (end,) = [row.ns for row in trace.query("select max(ts + dur) as ns from slice")]
    assert end == pytest.approx(matmul.total_seconds * 1e9, abs=1)
    text = str(matmul)
    for queue in matmul.queues:
        row = found[queue.name]
        assert row.exact == round(queue.busy_seconds * 1e12)
        # Ends of slices are rounded to nanoseconds, half up or half down.
        assert abs(row.busy - queue.busy_seconds * 1e9) <= row.slices
        share = f"{row.exact / 1e12 / matmul.total_seconds:.1%}"
        assert share == f"{matmul.utilisation(queue.name):.1%}"
        assert any(queue.name in line and share in line for line in text.splitlines())
        stalled = found.get(f"{queue.name} waits")
        assert (stalled.exact if stalled else 0) == round(queue.stalled_seconds * 1e12)


def test_the_critical_path_of_the_trace_is_that_of_the_table(trace: Any, matmul: Profile) -> None:
    rows = trace.query(
        "select slice.name as name, extract_arg(arg_set_id, 'source.line_number') as line,"
        " sum(extract_arg(arg_set_id, 'debug.picoseconds')) as exact"
        " from slice join track on slice.track_id = track.id"
        " where track.name = 'critical path' group by slice.name"
    )
    found = {row.line: (row.name, row.exact) for row in rows}
    assert sum(exact for _, exact in found.values()) == round(matmul.total_seconds * 1e12)
    for entry in matmul.critical_path:
        name, exact = found[entry.location.line]
        assert name == f"timing_kernels.py:{entry.location.line}"
        assert exact == round(entry.seconds * 1e12)


def test_counters_show_memory_and_arrows_join_waits(trace: Any, matmul: Profile) -> None:
    rows = trace.query(
        "select counter_track.name as name, max(value) as peak from counter"
        " join counter_track on counter.track_id = counter_track.id group by 1"
    )
    peaks = {row.name: row.peak for row in rows}
    assert peaks == {"sbuf": matmul.peak_sbuf_bytes, "psum": matmul.peak_psum_bytes}
    pairs = trace.query(
        "select a.ts as before, b.ts as after from flow"
        " join slice a on flow.slice_out = a.id join slice b on flow.slice_in = b.id"
    )
    found = [(row.before, row.after) for row in pairs]
    waits = sum(wait.cause >= 0 for wait in matmul.timeline.waits())
    assert len(found) > waits > 0
    assert all(before <= after for before, after in found)


def test_transfers_carry_the_bytes(trace: Any, matmul: Profile) -> None:
    rows = trace.query(
        "select sum(extract_arg(arg_set_id, 'debug.hbm_bytes')) as bytes from slice"
        " join track on slice.track_id = track.id where track.name glob 'dma_* transfers'"
    )
    assert [row.bytes for row in rows] == [matmul.hbm_bytes]


def test_several_timelines_follow_each_other(
    matmul: Profile, tmp_path: Path, open_trace: Any
) -> None:
    total = round(matmul.total_seconds * 1e12)
    parts = [(matmul.timeline, 0), (matmul.timeline, total)]
    processor = open_trace(write_trace(tmp_path / "two.pftrace", "two", "trn2", parts))
    (row,) = processor.query("select max(ts + dur) as ns, count(*) as slices from slice")
    assert row.ns == pytest.approx(2 * total / 1000, abs=1)
    processor.close()


def test_what_is_not_shown_is_said(
    matmul: Profile, tmp_path: Path, open_trace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnx.simulator.timing.perfetto_trace.SHOWN", 10)
    processor = open_trace(matmul.write_trace(tmp_path / "short.pftrace"))
    rest = matmul.instructions - 10
    rows = processor.query(f"select name from slice where name glob '{rest} more*'")
    assert len(list(rows)) == 1
    processor.close()


def test_data_is_plain_and_adds_up(matmul: Profile) -> None:
    data = json.loads(json.dumps(matmul.to_dict()))
    path = sum(entry["seconds"] for entry in data["critical_path"])
    assert path == pytest.approx(matmul.total_seconds)
    (core,) = data["memory"]["peak_bytes"]
    assert len(core["sbuf"]) == len(core["psum"]) == PARTS
    assert max(core["sbuf"]) == data["peak_sbuf_bytes"] > 0
    assert max(core["psum"]) == data["peak_psum_bytes"] > 0
    for queue in data["queues"].values():
        waiting = sum(queue["stalled_seconds"].values())
        assert queue["busy_seconds"] + waiting <= matmul.total_seconds * (1 + 1e-9)
        assert queue["utilisation"] == queue["busy_seconds"] / matmul.total_seconds
    assert data["dma_bytes"] == data["hbm_bytes"] == matmul.hbm_bytes


def test_memory_over_time_never_exceeds_the_chip(kernels: ModuleType) -> None:
    found = profile(kernels.scale, _spec(16 * 128, 8192), True)
    chip = found.timeline.chip
    assert 0 < found.peak_sbuf_bytes <= chip.sbuf_partition_bytes
    assert found.peak_psum_bytes == 0
    times, values = found.timeline.memory_of(0, MemoryRegion.sbuf)
    assert times == sorted(times)
    assert values[0] == values[-1] == 0


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots_are_drawn_without_a_warning(
    matmul: Profile, kernels: ModuleType, tmp_path: Path, suffix: str
) -> None:
    # A kernel without matrix products has no point on the roofline.
    plain = profile(kernels.scale, _spec(128, 512), False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = [*matmul.plot(tmp_path / "a", suffix), *plain.plot(tmp_path / "b", suffix)]
    start = b"\x89PNG" if suffix == "png" else b"<?xml"
    assert [path.name for path in paths[:2]] == [f"roofline.{suffix}", f"memory.{suffix}"]
    for path in paths:
        assert path.read_bytes().startswith(start)
        assert path.stat().st_size > 5000


@pytest.mark.parametrize("package", ["perfetto", "matplotlib"])
def test_a_missing_extra_is_named(
    matmul: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    write = matmul.write_trace if package == "perfetto" else matmul.plot
    with pytest.raises(ProfileDependencyError, match=r"trnx\[profile\]"):
        write(tmp_path / "result")
    assert not list(tmp_path.rglob("*.p*"))


TWO_CORES = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def two(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ds(nl.program_id(0) * 128, 128)
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x[rows])
    nisa.activation(tile, nl.exp, tile)
    nisa.dma_copy(out[rows], tile)
    return out
"""


def test_each_core_has_its_own_tracks(tmp_path: Path, open_trace: Any) -> None:
    file = tmp_path / "two.py"
    file.write_text(TWO_CORES)
    found = profile(load_module(file).two, _spec(256, 512), grid=2)
    assert found.cores == 2
    names = [f"core {core} {queue}" for core in (0, 1) for queue in
             ("scalar", "dma_load", "dma_store")]  # fmt: skip
    assert [queue.name for queue in found.queues] == names
    assert len(found.to_dict()["memory"]["peak_bytes"]) == 2
    processor = open_trace(found.write_trace(tmp_path / "two.pftrace"))
    tracks = {row.name for row in processor.query("select name from track")}
    assert tracks >= {*names, "core 0 sbuf", "core 1 psum", "core 1 dma_store transfers"}
    processor.close()
    assert all(path.exists() for path in found.plot(tmp_path))
