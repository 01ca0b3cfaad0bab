"""What runs in the process that has the fakes on its path: models under the runner `neuron`.

Every function here is called by name from a test (`conftest.py`) and returns plain data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handed_over
import neuron_device
import nki
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import trnx
from trnx.backend.demo import load
from trnx.backend.kernel_checks import engine
from trnx.backend.kernel_checks.files import specs_in
from trnx.backend.kernel_checks.samples import check_kernels
from trnx.backend.report import GraphReport, collect_reports

NEURON = {"runner": "neuron"}


def _gap(found: Any, expected: Any) -> float:
    """The largest difference of tensors, in units of the largest value there is."""
    found, expected = found.detach().cpu().double(), expected.detach().double()
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1.0))


def _facts(reports: list[GraphReport], gaps: list[float]) -> dict[str, Any]:
    """What the tests compare. Regions and ops are counted graph by graph."""
    graphs = handed_over.graphs
    outside = [op for op, is_in_graph in neuron_device.calls if not is_in_graph]
    return {
        "gaps": gaps,
        "kinds": [r.kind for r in reports],
        "runners": sorted({r.runner for r in reports}),
        "regions": sorted(sum(x.engine == "nki" for x in r.regions) for r in reports),
        "kernels": sorted(x.kernel for r in reports for x in r.regions if x.engine == "nki"),
        "handed": len(graphs),
        "compiled": [h.compiled for h in graphs],
        "ops": sorted(len(h.nki_ops) for h in graphs),
        "named": sorted(name.rpartition("_")[0] for h in graphs for name in h.nki_ops),
        "runs": [h.runs for h in graphs],
        "host_tensors": [
            node.name
            for h in graphs
            for node in h.graph_module.graph.nodes
            if node.op == "call_function" and "cpu" in str(node.kwargs.get("device", ""))
        ],
        "composites": [
            str(node.target)
            for h in graphs
            for node in h.graph_module.graph.nodes
            if getattr(node.target, "namespace", "") == "trnx"
        ],
        "fallbacks": sorted({f"{f.op}: {f.reason}" for r in reports for f in r.fallbacks}),
        "outside": outside,
    }


def _compared(
    model: nn.Module, call: Callable[..., Any], *, calls: int = 2, **options: Any
) -> dict[str, Any]:
    """`call(model, device)` returns tensors: in eager in host memory, and on the device."""
    expected = call(model, "cpu")
    model.to("neuron")
    compiled = torch.compile(model, backend="trnx", options={**NEURON, **options})
    with collect_reports() as reports:
        for _ in range(calls):
            neuron_device.calls.clear()
            found = call(compiled, "neuron")
    return _facts(reports, [_gap(a, b) for a, b in zip(found, expected, strict=True)])


def demo() -> dict[str, Any]:
    """The pretrained embedding model of `trnx demo`, two of its layers."""
    model, tokens = load(torch.float32)
    model.encoder.layer = model.encoder.layer[:2]
    tokens = {name: value[:2] for name, value in tokens.items()}

    def call(function: Any, device: str) -> list[torch.Tensor]:
        with torch.no_grad():
            given = {name: value.to(device) for name, value in tokens.items()}
            return [function(**given).last_hidden_state]

    return _compared(model, call)


def gpt2() -> dict[str, Any]:
    """GPT-2 with a language model's head."""
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=64, vocab_size=256, n_positions=64, use_cache=False
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = torch.randint(0, 256, (2, 16))

    def call(function: Any, device: str) -> list[torch.Tensor]:
        with torch.no_grad():
            return [function(tokens.to(device)).logits]

    return _compared(model, call)


def checked_kernels(file: str, change: str) -> dict[str, Any]:
    """`trnx check-kernels` of a file, with `nki.simulate` as it is or changed."""
    simulate = nki.simulate

    def refuse(kernel: Any) -> Any:
        raise RuntimeError(f"[NKI-1] {kernel.__name__} is refused")

    def differ(kernel: Any) -> Any:
        return lambda *args: simulate(kernel)(*args) + 0.25

    nki.simulate = {"nothing": simulate, "refuse": refuse, "differ": differ}[change]
    try:
        found = check_kernels("trn2", [Path(file)])
        specs = [spec for spec in specs_in(Path(file)) if spec.name == "softmax"]
        tried = engine.check_kernels(specs, ["trn2"], select=False)
        return {**found.to_dict(), "text": str(found), "tried": tried.to_dict()["kernels"][0]}
    finally:
        nki.simulate = simulate


def loaded() -> dict[str, Any]:
    """A model that was exported in host memory, loaded for the device."""
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=64, vocab_size=256, n_positions=64, use_cache=False
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = torch.randint(0, 256, (2, 16))
    with torch.no_grad():
        expected = model(tokens).logits
    with tempfile.TemporaryDirectory() as folder:
        trnx.export(model, (tokens,), f"{folder}/model")
        with collect_reports() as reports:
            function = trnx.load(f"{folder}/model")
            found = []
            for _ in range(2):
                neuron_device.calls.clear()
                found = [function(tokens.to("neuron"))["logits"]]
    return _facts(reports, [_gap(found[0], expected)])


def llama() -> dict[str, Any]:
    """A prompt and two decoding steps: the sizes of a prompt and of a step have a graph each."""
    config = transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128, vocab_size=128, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(0, 128, (1, 10))

    def call(function: Any, device: str) -> list[torch.Tensor]:
        cache = transformers.StaticCache(config=config, max_cache_len=32)
        cache.early_initialization(1, 2, 16, torch.float32, torch.device(device))
        found = []
        with torch.no_grad():
            for part in (slice(0, 8), slice(8, 9), slice(9, 10)):
                place = torch.arange(10, device=device)[None, part]
                given = {"position_ids": place, "past_key_values": cache}
                found.append(function(tokens.to(device)[:, part], **given).logits)
        kept = [layer.keys for layer in cache.layers] + [layer.values for layer in cache.layers]
        return [*found, *(tensor.cpu() for tensor in kept)]

    return _compared(model, call, calls=1)


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(3))
        self.skip = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return F.relu(y + self.norms[2](self.skip(x)))


def resnet() -> dict[str, Any]:
    """A small ResNet."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), Block(16, 16, 1), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    images = torch.randn(2, 3, 32, 32)

    def call(function: Any, device: str) -> list[torch.Tensor]:
        with torch.no_grad():
            return [function(images.to(device))]

    return _compared(model, call)


def bert_step() -> dict[str, Any]:
    """A training step of BERT: forward and backward are a graph each."""
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=64, num_attention_heads=2, intermediate_size=128,
        vocab_size=128, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    tokens, labels = torch.randint(0, 128, (2, 16)), torch.tensor([0, 1])
    mask = torch.arange(16)[None] < torch.tensor([16, 11])[:, None]

    def call(function: Any, device: str) -> list[torch.Tensor]:
        model.zero_grad()
        given = {"attention_mask": mask.long().to(device), "labels": labels.to(device)}
        loss = function(tokens.to(device), **given).loss
        loss.backward()
        return [loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    return _compared(model, call)
