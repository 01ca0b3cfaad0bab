"""Predicted time of whole models on both cores of a logical core of trn2 (`models.py --predict`).

The limit of a model is its busiest resource if nothing waits: TensorE for the products that it
needs (half of the scores where attention is causal), and HBM for every weight, input, cached key
and value, and result once. Models are captured from shapes alone, in bfloat16. The training step is
forward and backward, three times the products of a forward; its optimizer is a graph of its own
(`kernels.py` has it).

Planning is timed too: CPU seconds between the captured graphs and the predicted time, without the
compile cache.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import trnx
from trnx.backend.compiler import GraphCompiler
from trnx.backend.explain import Explanation
from trnx.backend.options import on_cores
from trnx.backend.plan.block import Block, shard_of
from trnx.backend.plan.description import describe
from trnx.backend.plan.mesh import Mesh
from trnx.backend.plan.workload import Mode, Workload
from trnx.simulator.hardware import Hardware

PLANNING_SECONDS = {"BERT-base 8x128": 3.0, "Llama-3-8B, 32 layers 1x2048": 20.0}
MEMORY_BYTES = 2 * 10**9


@dataclass(frozen=True)
class Work:
    """A model's explanation, and the least that it has to do."""

    found: Explanation
    flops: float
    nbytes: float


@dataclass(frozen=True)
class Row:
    """One model: predicted microseconds of its regions, of its limit, and the share asked for;
    `planning_seconds` from captured graphs to the time."""

    name: str
    us: float
    limit_us: float
    bound: str
    bar: float | None
    regions: int
    off_nki_us: float
    planning_seconds: float

    @property
    def share(self) -> float:
        """Of the limit, 0 to 1."""
        return self.limit_us / self.us

    @property
    def holds(self) -> bool:
        """Share of the limit, and the time of planning where there is a bar."""
        is_fast = self.planning_seconds <= PLANNING_SECONDS.get(self.name, float("inf"))
        return is_fast and (self.bar is None or self.share >= self.bar)

    def text(self) -> str:
        """A line of the table."""
        bar = "" if self.bar is None else f"{self.bar:.0%}"
        off = f"  off NKI {self.off_nki_us:.0f} us" if self.off_nki_us else ""
        return (
            f"{self.name:<32}{self.us:11.1f}{self.limit_us:11.1f}{self.bound:>9}{self.share:8.1%}"
            f"{bar:>6}{self.regions:9d}{self.planning_seconds:10.1f}  "
            f"{'ok' if self.holds else 'MISSED'}{off}"
        )


@contextmanager
def _shapes_alone() -> Iterator[None]:
    """Models made inside are bfloat16 and have no data."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        # Constants that planning evaluates have data.
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        torch.set_default_dtype(before)


def _sizes(model: torch.nn.Module, *inputs: torch.Tensor) -> float:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *inputs))


def _matrices(model: torch.nn.Module) -> int:
    """Elements of the matrices that every token is multiplied with."""
    kinds = ("Linear", "Conv1D")
    return sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if type(module).__name__ in kinds and "pooler" not in name
    )


def _explained(model: torch.nn.Module, *args: Any, lnc: int, **kwargs: Any) -> Explanation:
    return trnx.explain(model, *args, options={"target": "trn2", "lnc": lnc}, **kwargs)


def _bert(lnc: int, train: bool = False) -> Work:
    from transformers import BertConfig, BertModel

    batch, length = 8, 128
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with _shapes_alone(), torch.set_grad_enabled(train):
        model = BertModel(config, add_pooling_layer=not train).train(train)
        ids = torch.zeros((batch, length), dtype=torch.int64)
        found = _explained(model, ids, lnc=lnc)
        tokens = batch * length
        flops = 2 * tokens * _matrices(model)
        flops += 4 * tokens * length * config.hidden_size * config.num_hidden_layers
        return Work(found, (3 if train else 1) * flops, (2 if train else 1) * _sizes(model, ids))


def _gpt2(lnc: int) -> Work:
    from transformers import GPT2Config, GPT2LMHeadModel

    config, length = GPT2Config(use_cache=False), 1024
    with _shapes_alone(), torch.no_grad():
        model = GPT2LMHeadModel(config).eval()
        ids = torch.zeros((1, length), dtype=torch.int64)
        found = _explained(model, ids, lnc=lnc)
        flops = 2 * length * _matrices(model)
        flops += 2 * length * length * config.n_embd * config.n_layer
        return Work(found, flops, _sizes(model, ids))


def _llama_layer(lnc: int, work: Workload) -> Work:
    """One layer as serving lays it out: query, key and value in one product."""
    description = describe("llama-3-8b")
    with _shapes_alone(), torch.no_grad():
        block = Block(shard_of(description, Mesh(1, 1, 1), work))
        inputs = block.inputs()
        found = _explained(block, inputs, lnc=lnc)
        flops = description.block_flops(work.tokens, work.context(causal=True))
        return Work(found, flops, _sizes(block, *inputs.values()))


def _prefill(lnc: int) -> Work:
    return _llama_layer(lnc, Workload(Mode.PREFILL, batch=1, sequence=2048))


def _decode(lnc: int, requests: int) -> Work:
    return _llama_layer(lnc, Workload(Mode.DECODE, batch=requests, sequence=2048))


def _whole_llama(lnc: int) -> Work:
    from transformers import LlamaConfig, LlamaForCausalLM

    length = 2048
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with _shapes_alone(), torch.no_grad():
        model = LlamaForCausalLM(config).eval()
        ids = torch.zeros((1, length), dtype=torch.int64)
        found = _explained(model, ids, lnc=lnc, logits_to_keep=1)
        flops = 2 * length * (_matrices(model) - config.vocab_size * config.hidden_size)
        flops += 2 * length * length * config.hidden_size * config.num_hidden_layers
        return Work(found, flops, _sizes(model, ids))


# A model and the share of its limit that is asked for.
MODELS: dict[str, tuple[Callable[[int], Work], float | None]] = {
    "BERT-base 8x128": (_bert, 0.65),
    "GPT-2 1x1024": (_gpt2, 0.60),
    "Llama-3-8B layer 1x2048": (_prefill, 0.85),
    "Llama-3-8B layer, decode 1": (lambda lnc: _decode(lnc, 1), 0.80),
    "Llama-3-8B layer, decode 64": (lambda lnc: _decode(lnc, 64), 0.80),
    "BERT-base 8x128, training": (lambda lnc: _bert(lnc, train=True), 0.55),
    "Llama-3-8B, 32 layers 1x2048": (_whole_llama, None),
}


def predicted(name: str, lnc: int = 2) -> Row:
    """One row."""
    make, bar = MODELS[name]
    torch._dynamo.reset()
    planning = 0.0
    compile_graph = GraphCompiler.compile

    def timed(*given: Any) -> Callable[..., Any]:
        nonlocal planning
        start = time.process_time()
        run = compile_graph(*given)
        planning += time.process_time() - start
        return run

    with mock.patch.object(GraphCompiler, "compile", timed):
        work = make(lnc)
    start = time.process_time()
    regions = [region for report in work.found.reports for region in report.regions]
    seconds = sum(region.predicted_seconds for region in regions)
    planning += time.process_time() - start
    off = sum(region.predicted_seconds for region in regions if region.engine != "nki")
    limits = _limits(work, on_cores("trn2", lnc))
    bound = max(limits, key=limits.__getitem__)
    return Row(
        name, seconds * 1e6, limits[bound] * 1e6, bound, bar, len(regions), off * 1e6, planning
    )  # fmt: skip


def _limits(work: Work, chip: Hardware) -> dict[str, float]:
    """Seconds of each resource."""
    return {
        "TensorE": work.flops / chip.peak_bf16_flops / chip.cores,
        "HBM": work.nbytes / chip.stream_bytes_per_second,
    }


def table(only: str = "") -> tuple[dict[str, Any], bool]:
    """The rows whose name contains `only`, printed, and whether their bars hold."""
    print(f"{'model':<32}{'us':>11}{'limit us':>11}{'bound':>9}{'share':>8}{'bar':>6}"
          f"{'regions':>9}{'planning':>10}")  # fmt: skip
    rows = []
    for name in (name for name in MODELS if only in name):
        rows.append(predicted(name))
        print(rows[-1].text(), flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"memory of this process: {memory / 1e9:.2f} GB, at most {MEMORY_BYTES / 1e9:.0f}")
    found = [{**asdict(row), "share": row.share, "holds": row.holds} for row in rows]
    holds = all(row.holds for row in rows) and memory <= MEMORY_BYTES
    return {"rows": found, "memory_bytes": memory}, holds
