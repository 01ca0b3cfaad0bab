"""Parameters against transformers' models, memory against torch's own memory tracker."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

from trnx.backend.plan.cluster import Cluster
from trnx.backend.plan.description import ModelDescription, describe
from trnx.backend.plan.errors import PlanError, UnknownModelError
from trnx.backend.plan.memory import memory_of, stage_parameters
from trnx.backend.plan.mesh import Mesh, meshes
from trnx.backend.plan.workload import Mode, Optimizer, Workload

KNOWN = ["llama-3-8b", "llama-3-70b", "mixtral-8x7b", "bert-large"]
SIZES = {
    "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
    "vocab_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("llama", {"num_key_value_heads": 2}),
        ("llama", {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}),
        ("mistral", {"num_key_value_heads": 4}),
        ("qwen2", {"num_key_value_heads": 2}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}),
        ("bert", {"max_position_embeddings": 40, "type_vocab_size": 2}),
    ],
)
def test_parameters_are_those_of_transformers(kind: str, extra: dict[str, int]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **SIZES, **extra)
    auto = transformers.AutoModelForMaskedLM if kind == "bert" else None
    with torch.device("meta"):
        model = (auto or transformers.AutoModelForCausalLM).from_config(config)
    wanted = sum(parameter.numel() for parameter in model.parameters())
    found = describe(config.to_dict())
    assert found.parameters == wanted
    assert stage_parameters(found, Mesh(), 0).total == wanted


def test_public_models_have_their_parameters() -> None:
    wanted = [8_030_261_248, 70_553_706_496, 46_702_792_704, 335_174_458]
    assert [describe(name).parameters for name in KNOWN] == wanted


class _Block(nn.Module):
    """A Llama block, written without regard to sharding."""

    def __init__(self, sizes: ModelDescription) -> None:
        super().__init__()
        hidden, queries = sizes.hidden, sizes.heads * sizes.head_dim
        keys = sizes.kv_heads * sizes.head_dim
        made = {"q": (hidden, queries), "k": (hidden, keys), "v": (hidden, keys)}
        made |= {"o": (queries, hidden), "gate": (hidden, sizes.ffn), "up": (hidden, sizes.ffn)}
        made["down"] = (sizes.ffn, hidden)
        for name, (rows, columns) in made.items():
            setattr(self, name, nn.Linear(rows, columns, False, dtype=torch.bfloat16))
        self.norm1 = nn.RMSNorm(hidden, dtype=torch.bfloat16)
        self.norm2 = nn.RMSNorm(hidden, dtype=torch.bfloat16)
        self.dim = sizes.head_dim

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        def rotated(t: torch.Tensor) -> torch.Tensor:
            first, second = t.chunk(2, -1)
            return t * cos + torch.cat((-second, first), -1) * sin

        y = self.norm1(x)
        q, k, v = (
            part(y).view(*x.shape[:2], -1, self.dim).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(
            rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(*x.shape[:2], -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class _Model(nn.Module):
    def __init__(self, sizes: ModelDescription) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab, sizes.hidden, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, dtype=torch.bfloat16)
        self.out = nn.Linear(sizes.hidden, sizes.vocab, False, dtype=torch.bfloat16)

    def forward(self, t: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = self.tokens(t)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.out(self.norm(x))


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """Rank 0 of two, whose collectives move nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _tracked(sizes: ModelDescription, batch: int, sequence: int) -> int:
    """Peak bytes of a step of two micro-batches with tensor parallel 2, by torch's tracker."""
    mesh = init_device_mesh("cpu", (2,))
    model = _Model(sizes)
    columns = {name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
    rows = {name: RowwiseParallel() for name in ("o", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, {**columns, **rows})
    tokens = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model, mesh, {"tokens": tokens, "out": ColwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    given = torch.randint(0, sizes.vocab, (batch, sequence))
    cos, sin = (torch.ones(sequence, sizes.head_dim, dtype=torch.bfloat16) for _ in range(2))
    wanted = torch.randint(0, sizes.vocab // 2, (batch * sequence,))
    tracker = MemTracker()
    tracker.track_external(model, optimizer, given, cos, sin)
    with tracker:
        for _ in range(2):
            for _ in range(2):
                logits = model(given, cos, sin).view(batch * sequence, -1)
                F.cross_entropy(logits.float(), wanted).backward()
                tracker.reset_mod_stats()
            optimizer.step()
            optimizer.zero_grad()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


@pytest.mark.parametrize(
    ("layers", "batch", "sequence", "vocab"),
    [(6, 2, 256, 2048), (12, 1, 384, 512), (2, 1, 128, 4096)],
)
@pytest.mark.usefixtures("two_ranks")
def test_memory_is_what_torch_tracks_of_a_sharded_step(
    layers: int, batch: int, sequence: int, vocab: int
) -> None:
    sizes = ModelDescription("small", layers, 256, 8, 4, 32, 1024, vocab)
    work = Workload(
        batch=2 * batch, micro_batch=batch, sequence=sequence, optimizer=Optimizer.ADAMW
    )
    assert memory_of(sizes, Mesh(1, 2), work).total == pytest.approx(
        _tracked(sizes, batch, sequence), rel=0.05
    )


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("mode", list(Mode))
def test_more_nodes_never_need_more_memory(name: str, mode: Mode) -> None:
    model, work = describe(name), Workload(mode, batch=512, sequence=512)
    least = []
    for nodes in (1, 2, 4):
        found = meshes(model, Cluster("trn2.48xlarge", nodes), work)
        least.append(min(memory_of(model, mesh, work).total for mesh in found))
    assert least == sorted(least, reverse=True)


@pytest.mark.parametrize("name", KNOWN)
def test_the_same_mesh_with_more_data_ranks_needs_no_more(name: str) -> None:
    model, work = describe(name), Workload(batch=64, sequence=512)
    for tensor, pipeline in ((4, 1), (8, 2)):
        found = [
            memory_of(model, Mesh(data, tensor, pipeline), work).total for data in (1, 2, 4, 8)
        ]
        assert found == sorted(found, reverse=True)


def test_checkpointing_and_sequence_parallel_save_activations() -> None:
    model, work = describe("llama-3-8b"), Workload(batch=8)
    plain = memory_of(model, Mesh(1, 8), work).activations
    assert memory_of(model, Mesh(1, 8, sequence=True), work).activations < plain
    kept = Workload(batch=8, checkpointing=True)
    assert memory_of(model, Mesh(1, 8), kept).activations < plain / 2


def test_the_cache_of_a_core_is_its_heads() -> None:
    model, work = describe("llama-3-8b"), Workload(Mode.DECODE, batch=16, sequence=4096)
    # 32 layers, keys and values, 16 sequences, 4096 tokens, 1 head of 128, 2 bytes.
    assert memory_of(model, Mesh(1, 8), work).kv_cache == 32 * 2 * 16 * 4096 * 128 * 2
    # Eight key heads over sixteen ranks: two ranks hold the same one.
    assert memory_of(model, Mesh(1, 16), work).kv_cache == 32 * 2 * 16 * 4096 * 128 * 2


def test_meshes_use_all_cores_and_divide_the_model() -> None:
    model, cluster = describe("mixtral-8x7b"), Cluster("trn1.32xlarge", 2)
    found = list(meshes(model, cluster, Workload(batch=64)))
    assert len(set(found)) == len(found) > 20
    for mesh in found:
        assert mesh.cores == cluster.cores
        assert model.layers % mesh.pipeline == mesh.data % mesh.expert == 64 % mesh.data == 0


@pytest.mark.parametrize(
    "config",
    [{}, {"model_type": "t5"}, {"model_type": "llama"}, {"model_type": "bert", **SIZES}],
)
def test_what_cannot_be_read_is_named(config: dict[str, int]) -> None:
    with pytest.raises(UnknownModelError):
        describe(config)
    with pytest.raises(UnknownModelError, match="known are"):
        describe("no-such-model")


def test_impossible_questions_are_errors() -> None:
    with pytest.raises(PlanError, match="not known"):
        Cluster("p5.48xlarge", 1)
    with pytest.raises(PlanError, match="EFA"):
        Cluster("trn2.3xlarge", 2)
    with pytest.raises(PlanError, match="batch=0"):
        Workload(batch=0)
