"""Sharded blocks and collectives in compiled graphs, over two processes and gloo."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launching import HERE, environment, results, run_job

WAYS = ("tensor", "sequence", "gathered", "fsdp_block", "fsdp_whole")
IN_GRAPH = ("tensor", "sequence", "gathered")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a job of two ranks left what it found."""
    folder = tmp_path_factory.mktemp("ranks")
    cache = str(tmp_path_factory.mktemp("cache"))
    tasks = [*WAYS, "buckets", "pipeline", "functions", "other_plans"]
    run_job(folder, tasks, TRNX_CACHE_DIR=cache)
    # Again, with the plans that the first job left in the cache.
    again = folder / "again"
    again.mkdir()
    run_job(again, ["tensor", "other_plans"], TRNX_CACHE_DIR=cache)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_equals_one_process(job: Path, way: str) -> None:
    for found in results(job, way):
        assert found["output"] <= 1
        assert found["input_gradient"] <= 1
        assert found["gradients"] <= 1


@pytest.mark.parametrize("way", WAYS)
def test_regions_of_a_block(job: Path, way: str) -> None:
    for found in results(job, way):
        kinds = [graph["kind"] for graph in found["graphs"]]
        assert kinds == ["forward", "backward"]
        for graph in found["graphs"]:
            assert graph["stretches"] <= len(graph["collectives"]) + 1
            on_nki, total = graph["flops"]
            assert on_nki >= 0.95 * total > 0
            assert set(graph["engines"]) <= {"nki", "collective"}, graph["text"]
            assert graph["fallbacks"] == []


@pytest.mark.parametrize("way", IN_GRAPH)
def test_a_block_has_the_regions_of_one_process(job: Path, way: str) -> None:
    """A collective cuts what it stands in, and nothing else: FSDP2 of a block compiles what one
    process does."""
    rows = {"sequence": 4}.get(way, 0)  # `cat`s that turn the gathered dim around, and their views
    for found, alone in zip(results(job, way), results(job, "fsdp_block"), strict=True):
        for graph, whole in zip(found["graphs"], alone["graphs"], strict=True):
            regions = graph["engines"].count("nki")
            assert regions <= len(whole["engines"]) + len(graph["collectives"]) + rows


@pytest.mark.parametrize("task", ["buckets", "pipeline"])
def test_models_over_ranks_equal_one_process(job: Path, task: str) -> None:
    """DDP, whose buckets cut the graph, and two stages of a pipeline under 1F1B."""
    for found in results(job, task):
        assert found["output"] <= 1
        assert found["gradients"] <= 1
        kinds = {graph["kind"] for graph in found["graphs"]}
        assert kinds == {"forward", "backward"}
        for graph in found["graphs"]:
            on_nki, total = graph["flops"]
            assert on_nki >= 0.95 * total
            assert graph["stretches"] <= len(graph["collectives"]) + 1
            assert graph["fallbacks"] == []
        assert sum(graph["flops"][1] for graph in found["graphs"]) > 0


def test_buckets_cut_graphs(job: Path) -> None:
    for found in results(job, "buckets"):
        assert found["input_gradient"] <= 1
        assert sum(graph["kind"] == "forward" for graph in found["graphs"]) > 1


def test_ledger_of_collectives(job: Path) -> None:
    forward, backward = results(job, "tensor")[0]["graphs"]
    for entry in forward["collectives"]:
        # Two sequences of 16 rows of 64 floats, between two cores.
        assert (entry["op"], entry["group"], entry["bytes"]) == (
            "_c10d_functional.all_reduce.default",
            2,
            2 * 16 * 64 * 4,
        )
        assert entry["exposed"] == pytest.approx(entry["seconds"]) != 0
    # Gradients of weights are computed while the gradients of activations are summed.
    assert sum(entry["exposed"] == 0 for entry in backward["collectives"]) == 4
    assert "between ranks:" in forward["text"]
    found = {e["op"].split(".")[1] for e in results(job, "sequence")[0]["graphs"][0]["collectives"]}
    assert found == {"all_gather_into_tensor", "reduce_scatter_tensor"}


def test_functions_of_collectives_equal_eager(job: Path) -> None:
    for found in results(job, "functions"):
        assert len(found) == 21
        for name, one in found.items():
            assert one["equal"], name
            assert one["aliasing"], name
            assert "collective" in one["engines"], name
            assert one["on_others"] == [], name


def test_ranks_may_have_other_plans(job: Path) -> None:
    first, second = results(job, "other_plans")
    assert first["worst"] <= 1
    assert second["worst"] <= 1
    assert "nki" in first["engines"]
    assert "nki" not in second["engines"]
    assert first["engines"].count("collective") == second["engines"].count("collective") == 3


def test_plans_of_the_cache_are_those_that_were_made(job: Path) -> None:
    for task in ("tensor", "other_plans"):
        for made, read in zip(results(job, task), results(job / "again", task), strict=True):
            graphs = [one.get("graphs", [{"engines": one.get("engines")}]) for one in (made, read)]
            engines = [[graph["engines"] for graph in one] for one in graphs]
            assert engines[0] == engines[1]


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    """Without a launcher that would kill them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = []
    for rank in range(2):
        environ = environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        command = [sys.executable, str(HERE / "ranks.py"), str(tmp_path), "failure"]
        ranks.append(subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL))
    try:
        assert [rank.wait(timeout=200) for rank in ranks] == [1, 1]
    finally:
        for rank in ranks:
            rank.kill()
    first, second = results(tmp_path, "failure")
    assert "index out of range" in second["error"]
    assert "peer" in first["error"]
