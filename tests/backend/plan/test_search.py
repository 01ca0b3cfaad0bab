"""Times against limits of cores and links, the search, the report and the job file."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from trnx.backend.explain import explain
from trnx.backend.plan.block import Block, Shard, shard_of, without_data
from trnx.backend.plan.cluster import Cluster
from trnx.backend.plan.collectives import Group, all_gather, all_reduce, all_to_all, send
from trnx.backend.plan.description import ModelDescription, describe
from trnx.backend.plan.errors import NoMeshError, PlanError
from trnx.backend.plan.job import job_text, write_job
from trnx.backend.plan.kernels import Seconds, block_seconds, head_seconds
from trnx.backend.plan.mesh import Mesh, meshes
from trnx.backend.plan.report import plan_dict, plan_text, why
from trnx.backend.plan.search import Plan, make_plan, most_blocks
from trnx.backend.plan.step import least_step, step_of
from trnx.backend.plan.workload import Mode, Workload
from trnx.eks.instances import INSTANCES
from trnx.eks.loading import load_job

MODELS = ["llama-3-8b", "llama-3-70b", "mixtral-8x7b", "bert-large"]
CLUSTERS = [("trn1.32xlarge", 1), ("trn2.48xlarge", 1), ("trn2u.48xlarge", 4)]
TRN2 = Cluster("trn2.48xlarge", 2)


def _block(shard: Shard, target: str, training: bool) -> Seconds:
    """Kernels at 1e13 FLOP/s, below every peak, and at 1e11 bytes/s."""
    del target
    model, tokens = shard.model, shard.sequences * shard.rows
    flops = model.block_flops(tokens, shard.cached or shard.rows) * shard.ffn / model.ffn
    nbytes = 2 * model.block_parameters * shard.ffn / model.ffn
    seconds = max(flops / 1e13, nbytes / 1e11)
    return Seconds(seconds, 2 * seconds * training, seconds, 2 * seconds * training)


def _head(shard: Shard, target: str, training: bool) -> Seconds:
    del target
    tokens = shard.sequences * (shard.rows if training else 1)
    seconds = shard.model.head_flops(tokens) * shard.vocab / shard.model.vocab / 1e13
    seconds = max(seconds, 2 * shard.vocab * shard.model.hidden / 1e11)
    return Seconds(seconds, 2 * seconds * training, 0.0, 0.0)


quick = partial(make_plan, block=_block, head=_head)


def _work(name: str, mode: Mode) -> Workload:
    return Workload(mode, 512, 512 if name == "bert-large" else 4096)


@pytest.mark.parametrize(("mode", "products"), [(Mode.TRAIN, 3), (Mode.DECODE, 1)])
def test_inference_has_one_product_of_query_key_and_value(mode: Mode, products: int) -> None:
    shard = shard_of(describe("llama-3-8b"), Mesh(tensor=4), Workload(mode, 1, 256))
    with without_data():
        block = Block(shard)
        assert len(block.attention.qkv) == products
        inner = sum(parameter.numel() for parameter in block.attention.qkv.parameters())
        assert inner == 4096 * (32 + 2 * 8) * 128 // 4
        _, keys, values = block.attention(*_attention_inputs(block))
        kept = (1, 2, shard.rows, 128)
        assert tuple(keys.shape) == tuple(values.shape) == kept


def _attention_inputs(block: Block) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    inputs = block.inputs()
    cache = (inputs["keys"], inputs["values"]) if "keys" in inputs else ()
    return torch.empty(1, block.shard.rows, 4096, dtype=torch.bfloat16), cache


@pytest.mark.parametrize("instance", sorted(INSTANCES))
def test_each_known_instance_is_a_cluster(instance: str) -> None:
    cluster = Cluster(instance, 1)
    facts = INSTANCES[instance]
    assert cluster.cores == facts.devices * facts.physical_cores_per_device
    rates = [rate for _, _, rate in cluster.levels()]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(("instance", "nodes"), CLUSTERS)
def test_collectives_never_beat_the_links(instance: str, nodes: int) -> None:
    cluster, nbytes = Cluster(instance, nodes), 1e9
    for size in (2, 8, 32, cluster.cores):
        for stride in (1, 4, cluster.cores // size):
            if size * stride > cluster.cores:
                continue
            group = Group(size, stride)
            seconds = all_reduce(cluster, group, nbytes)
            below = 1
            for _, cores, rate in cluster.levels():
                # Each unit of the level below sends its part of the sum over its cores' links.
                inner = min(size, max(1, below // stride))
                members = -(-min(size, max(1, cores // stride)) // inner)
                assert seconds >= 2 * (members - 1) / members * nbytes / inner / rate
                below = cores
            own = cluster.levels()[0][2]
            assert all_to_all(cluster, group, nbytes) >= (size - 1) / size * nbytes / own


def test_collectives_inside_a_chip_take_one_hop() -> None:
    rate = TRN2.levels()[0][2]
    expected = 1.5e-6 + 7 / 8 * 1e9 / rate
    assert all_gather(TRN2, Group(8, 1), 1e9) == pytest.approx(expected)
    assert all_gather(TRN2, Group(1, 1), 1e9) == all_to_all(TRN2, Group(1, 1), 1e9) == 0


def test_small_collectives_are_meshes_and_large_ones_rings() -> None:
    cluster = Cluster("trn1.32xlarge", 1)
    (_, _, own), (_, _, link) = cluster.levels()[:2]
    # A hop inside the chip and one between chips, where two of a 4 x 4 torus are 32/15 links apart.
    small = 2 * 1.5e-6 + 1 / 2 * 1e4 / own + 32 / 15 * 15 / 16 * 1e4 / 2 / link
    assert all_gather(cluster, Group(32, 1), 1e4) == pytest.approx(small)
    large = 16 * 1.5e-6 + 1 / 2 * 1e9 / own + 15 / 16 * 1e9 / 2 / link
    assert all_gather(cluster, Group(32, 1), 1e9) == pytest.approx(large)


def test_farther_links_are_slower() -> None:
    near, chips, nodes = (send(TRN2, stride, 1e8) for stride in (1, 8, 128))
    assert near < chips < nodes
    alone, together = Cluster("trn2.48xlarge", 4), Cluster("trn2u.48xlarge", 4)
    group = Group(4, 128)
    assert all_reduce(together, group, 1e8) < all_reduce(alone, group, 1e8)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(("instance", "nodes"), CLUSTERS)
def test_no_step_is_below_its_bound(name: str, mode: Mode, instance: str, nodes: int) -> None:
    model, cluster, work = describe(name), Cluster(instance, nodes), _work(name, mode)
    for mesh in meshes(model, cluster, work):
        least = least_step(model, cluster, mesh, work)
        assert 0 < least.total <= step_of(model, cluster, mesh, work, _block, _head).total


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(("instance", "nodes"), CLUSTERS)
def test_plans_of_public_models(name: str, mode: Mode, instance: str, nodes: int) -> None:
    plan = quick(describe(name), Cluster(instance, nodes), _work(name, mode), 10.0)
    data = json.loads(json.dumps(plan_dict(plan)))
    assert len(data["meshes"]) == len(plan.choices)
    assert plan_text(plan).count("\n") > 5
    shards = {shard_of(plan.model, c.mesh, plan.work) for c in plan.choices if c.step}
    assert len(shards) <= most_blocks(plan.work)
    if plan.best is None:
        assert not any(choice.fits for choice in plan.choices)
        assert "no mesh fits" in data["why"]
        return
    best = data["best"]
    assert best["fits"]
    assert best["memory"]["total"] <= data["core_bytes"]
    assert 0 < best["mfu"] < 1
    seconds = best["step_seconds"]
    assert sum(best["seconds"].values()) == pytest.approx(seconds)
    assert best["tokens_per_second"] == pytest.approx(plan.work.tokens / seconds)
    # 10 for an hour of each node, over the millions of tokens of an hour.
    hourly = best["tokens_per_second"] * 3600 / 1e6
    assert best["cost_per_million_tokens"] == pytest.approx(10.0 * nodes / hourly)
    least = [c.least.total for c in plan.choices if c.fits and c.step is None]
    assert all(bound >= seconds for bound in least) or plan.open


def test_a_mesh_that_does_not_fit_says_by_how_much() -> None:
    plan = quick(describe("llama-3-70b"), Cluster("trn1.2xlarge", 1), Workload(batch=2))
    assert plan.best is None
    assert "no mesh fits" in why(plan)
    assert all(c["missing_bytes"] > 0 for c in plan_dict(plan)["meshes"])
    with pytest.raises(PlanError, match="no mesh fits"):
        job_text(plan, "image:1")


def test_no_mesh_is_an_error() -> None:
    with pytest.raises(NoMeshError, match="batch of 1"):
        quick(describe("llama-3-8b"), TRN2, Workload(Mode.DECODE, batch=1))


def _trained() -> Plan:
    work = Workload(batch=256, checkpointing=True)
    return quick(describe("llama-3-8b"), TRN2, work)


def test_the_job_file_is_one_of_trnx_eks(tmp_path: Path) -> None:
    plan = _trained()
    write_job(plan, tmp_path / "job.yaml", "111122223333.dkr.ecr.us-west-2.amazonaws.com/trnx:1")
    job = load_job(tmp_path / "job.yaml")
    assert (job.instance, job.nodes, job.the_lnc, job.the_nproc) == ("trn2.48xlarge", 2, 1, 128)
    assert "--batch=256" in job.command
    assert "--activation-checkpointing" in job.command
    tensor = next(a for a in job.command if a.startswith("--tensor-parallel="))
    chosen = [c for c in plan.choices if c.step and c.mesh.tensor == int(tensor.split("=")[1])]
    assert any(c.mesh.pipeline == 1 and not c.mesh.sequence for c in chosen)
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["kind"] == "train"


def test_no_job_is_written_of_inference() -> None:
    plan = quick(describe("llama-3-8b"), TRN2, Workload(Mode.DECODE, 64))
    with pytest.raises(PlanError, match="training alone"):
        job_text(plan, "image:1")


@pytest.mark.parametrize("experts", [1, 4])
@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.DECODE])
def test_kernels_are_predicted_from_shapes(experts: int, mode: Mode) -> None:
    model = ModelDescription("small", 2, 256, 4, 2, 64, 512, 1024, experts, min(2, experts))
    work, mesh = Workload(mode, batch=4, sequence=256), Mesh(2, 2)
    shard, training = shard_of(model, mesh, work), mode is Mode.TRAIN
    for found in (block_seconds(shard, "trn2", training), head_seconds(shard, "trn2", training)):
        assert found.forward > 0
        assert (found.backward > 0) is training
        assert found.forward_scheduled <= found.forward
    cluster = Cluster("trn2.48xlarge", 1)
    least = least_step(model, cluster, mesh, work)
    assert least.total <= step_of(model, cluster, mesh, work).total


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("kind", ["llama", "bert", "mixtral"])
def test_block_is_predicted_whole(kind: str, mode: Mode) -> None:
    config = {
        "model_type": kind, "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 512,
        "num_local_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 128,
    }  # fmt: skip
    work = Workload(mode, 1, 32)
    shard = shard_of(describe(config), Mesh(tensor=2), work)
    with without_data(), torch.set_grad_enabled(work.training):
        inputs = {
            name: value.requires_grad_(work.training)
            for name, value in Block(shard).inputs().items()
        }
        found = explain(Block(shard), inputs, options={"target": "trn1"})
    assert not found.graph_breaks


def test_a_longer_cache_takes_longer_to_decode() -> None:
    model = describe("llama-3-8b")
    seconds = [
        block_seconds(shard_of(model, Mesh(tensor=32), work), "trn1", False).forward
        for work in (Workload(Mode.DECODE, 1, 256), Workload(Mode.DECODE, 1, 4096))
    ]
    assert seconds[0] < seconds[1]
