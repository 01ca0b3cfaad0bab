"""Published throughput of whole models, as data: no constant is taken from any of it.

Sources are tables of the public documentation repository aws-neuron/aws-neuron-sdk, folder
about-neuron/benchmarks/trn1: throughput_data_encoder.csv (inferences/s), training_data_encoder.csv
and training_data_decoder.csv (sequences/s), latency_data_decoder.csv (tokens/s: 1 / P50 of the time
per output token, with the median context of the generation in the cache). All are of trn1: there
are no others of Trainium. Left out are rows that `trnx plan` cannot state: weights in int8, 40
heads over 32 cores, and models with other blocks (ALBERT, T5, vision), and XLM-RoBERTa, whose time
is that of its head of 250,002 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trnx.backend.plan.cluster import Cluster
from trnx.backend.plan.mesh import Mesh
from trnx.backend.plan.workload import Mode, Optimizer, Precision, Workload


def _llama(layers: int, hidden: int, heads: int, keys: int, ffn: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": keys, "intermediate_size": ffn,
        "vocab_size": vocab,
    }  # fmt: skip


def _bert(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "model_type": "bert", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": hidden // 64, "intermediate_size": 4 * hidden, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2,
    }  # fmt: skip


_LLAMA_2_70B = _llama(80, 8192, 64, 8, 28672, 32000)
_LLAMA_3_70B = _llama(80, 8192, 64, 8, 28672, 128256)


@dataclass(frozen=True)
class ThroughputPoint:
    """`published` is per second: sequences, or generated tokens. `has_head`: whether the output is
    over the vocabulary."""

    name: str
    config: dict[str, Any]
    cluster: Cluster
    mesh: Mesh
    work: Workload
    published: float
    source: str
    has_head: bool = True


def _encoder(name: str, layers: int, hidden: int, batch: int, rate: float) -> ThroughputPoint:
    """Both cores of a trn1.2xlarge, each with its own `batch`."""
    work = Workload(Mode.PREFILL, 2 * batch, 128)
    return ThroughputPoint(
        f"{name} batch {batch}", _bert(layers, hidden), Cluster("trn1.2xlarge", 1), Mesh(data=2),
        work, rate, "throughput_data_encoder.csv", has_head=False,
    )  # fmt: skip


def _decoder(name: str, config: dict[str, Any], prompt: int, made: int, ms: float) -> Any:
    """One sequence over the 32 cores of a trn1.32xlarge."""
    work = Workload(Mode.DECODE, 1, prompt + made // 2)
    return ThroughputPoint(
        f"{name} decode {prompt} + {made}", config, Cluster("trn1.32xlarge", 1), Mesh(tensor=32),
        work, 1000 / ms, "latency_data_decoder.csv",
    )  # fmt: skip


def _pretraining(
    name: str, config: dict[str, Any], nodes: int, mesh: Mesh, work: Workload, rate: float
) -> ThroughputPoint:
    table = "decoder" if config["model_type"] == "llama" else "encoder"
    source = f"training_data_{table}.csv"
    return ThroughputPoint(
        f"{name} training, {nodes} nodes", config, Cluster("trn1.32xlarge", nodes), mesh, work,
        rate, source,
    )  # fmt: skip


def points() -> Iterator[ThroughputPoint]:
    """All of them."""
    yield _encoder("bert-base", 12, 768, 16, 3421.57)
    yield _encoder("bert-large", 24, 1024, 4, 1104.44)
    yield _encoder("distilbert-base", 6, 768, 16, 6281.13)
    yield _encoder("electra-base", 12, 768, 16, 3425.28)
    yield _encoder("roberta-base", 12, 768, 16, 3377.82)
    yield _encoder("roberta-large", 24, 1024, 8, 1123.90)
    seen = ((128, 128, 25.18), (256, 256, 25.27), (128, 1024, 25.45), (1024, 1024, 26.04),
            (1024, 2048, 26.62), (2048, 2048, 26.85))  # fmt: skip
    for prompt, made, ms in seen:
        yield _decoder("Llama-2-70b", _LLAMA_2_70B, prompt, made, ms)
    for prompt, made, ms in ((128, 128, 26.48), (128, 1024, 24.48), (2048, 2048, 26.2)):
        yield _decoder("Llama-3-70B", _LLAMA_3_70B, prompt, made, ms)
    yield _decoder("Llama-2-7b", _llama(32, 4096, 32, 32, 11008, 32000), 128, 8064, 6.70)
    yield _decoder("Mistral-7B", _llama(32, 4096, 32, 8, 14336, 32000), 8192, 8192, 9.89)
    adamw = Workload(Mode.TRAIN, 16384, 128, 16, Optimizer.ADAMW)
    yield _pretraining("BERT-large", _bert(24, 1024), 1, Mesh(data=32), adamw, 3836.47)
    many = Workload(Mode.TRAIN, 1048576, 128, 16, Optimizer.ADAMW)
    yield _pretraining("BERT-large", _bert(24, 1024), 16, Mesh(data=512), many, 56923.65)
    whole = Workload(Mode.TRAIN, 1048576, 128, 8, Optimizer.ADAMW, Precision.FP32)
    yield _pretraining("BERT-large FP32", _bert(24, 1024), 16, Mesh(data=512), whole, 32752.79)
    long = Workload(Mode.TRAIN, 1024, 8192, 1, checkpointing=True)
    small, large = _llama(32, 4096, 32, 8, 14336, 128256), _LLAMA_3_70B
    split, staged = Mesh(32, 32, 1, True), Mesh(4, 32, 8, True)
    yield _pretraining("Llama-3.1-8B", small, 32, split, long, 47.95)
    yield _pretraining("Llama-3.1-70B", large, 32, staged, long, 7.94)
