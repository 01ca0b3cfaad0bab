"""Published throughput of whole models, as data: no constant is taken from any of it.

Sources are tables of the public documentation repository aws-neuron/aws-neuron-sdk, folder
about-neuron/benchmarks/trn1: throughput_data_encoder.csv and latency_data_encoder.csv
(inferences/s), training_data_encoder.csv and training_data_decoder.csv (sequences/s),
latency_data_decoder.csv and throughput_data_decoder.csv (tokens/s: sequences / P50 of the time per
output token, with the median context of the generation in the cache). All are of trn1: there are no
others of Trainium. Every row of these tables is here but those that `trnx plan` cannot state:
weights in int8, 40 heads over 32 cores, models with other blocks (ALBERT, T5, vision), and
XLM-RoBERTa, whose time is that of its head of 250,002 tokens. Times to the first token are left
out, because the lengths that prompts are padded to are not published.
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

    @property
    def kind(self) -> str:
        """What is compared among itself: training, encoders, decoding of one sequence or more."""
        if self.work.mode is not Mode.DECODE:
            return "training" if self.work.training else "encoder"
        return "decode" if self.work.batch == 1 else "decode of batches"


def _encoder(name: str, layers: int, hidden: int, batch: int, rate: float) -> ThroughputPoint:
    """Both cores of a trn1.2xlarge, each with its own `batch`."""
    work = Workload(Mode.PREFILL, 2 * batch, 128)
    return ThroughputPoint(
        f"{name} batch {batch}", _bert(layers, hidden), Cluster("trn1.2xlarge", 1), Mesh(data=2),
        work, rate, f"{'latency' if batch == 1 else 'throughput'}_data_encoder.csv", has_head=False,
    )  # fmt: skip


def _decoder(
    name: str, config: dict[str, Any], prompt: int, made: int, ms: float, batch: int = 1
) -> ThroughputPoint:
    """`batch` sequences over the 32 cores of a trn1.32xlarge."""
    work = Workload(Mode.DECODE, batch, prompt + made // 2)
    table, many = ("latency", "") if batch == 1 else ("throughput", f" of {batch}")
    return ThroughputPoint(
        f"{name} decode{many} {prompt} + {made}", config, Cluster("trn1.32xlarge", 1),
        Mesh(tensor=32), work, 1000 * batch / ms, f"{table}_data_decoder.csv",
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
    yield from _encoders()
    yield from _decoders()
    yield from _trained()


def _encoders() -> Iterator[ThroughputPoint]:
    yield _encoder("bert-base", 12, 768, 16, 3421.57)
    yield _encoder("bert-large", 24, 1024, 4, 1104.44)
    yield _encoder("distilbert-base", 6, 768, 16, 6281.13)
    yield _encoder("electra-base", 12, 768, 16, 3425.28)
    yield _encoder("roberta-base", 12, 768, 16, 3377.82)
    yield _encoder("roberta-large", 24, 1024, 8, 1123.90)
    yield _encoder("bert-base", 12, 768, 1, 2085.45)
    yield _encoder("bert-large", 24, 1024, 1, 747.48)
    yield _encoder("distilbert-base", 6, 768, 1, 3672.38)
    yield _encoder("electra-base", 12, 768, 1, 2127.07)
    yield _encoder("roberta-base", 12, 768, 1, 2094.37)
    yield _encoder("roberta-large", 24, 1024, 1, 747.58)


def _decoders() -> Iterator[ThroughputPoint]:
    # (prompt, generated, ms of a token of one sequence, ms of one of four)
    seen = ((128, 128, 25.18, 26.72), (256, 256, 25.27, 26.91), (128, 1024, 25.45, 27.21),
            (1024, 1024, 26.04, 28.55), (1024, 2048, 26.62, 31.67),
            (2048, 2048, 26.85, 31.79))  # fmt: skip
    for prompt, made, ms, _ in seen:
        yield _decoder("Llama-2-70b", _LLAMA_2_70B, prompt, made, ms)
    for prompt, made, _, ms in seen:
        yield _decoder("Llama-2-70b", _LLAMA_2_70B, prompt, made, ms, 4)
    newer = ((128, 128, 26.48, 28.08), (128, 1024, 24.48, 28.38), (2048, 2048, 26.2, 32.33))
    for prompt, made, ms, _ in newer:
        yield _decoder("Llama-3-70B", _LLAMA_3_70B, prompt, made, ms)
    for prompt, made, _, ms in newer:
        yield _decoder("Llama-3-70B", _LLAMA_3_70B, prompt, made, ms, 4)
    small, mistral = _llama(32, 4096, 32, 32, 11008, 32000), _llama(32, 4096, 32, 8, 14336, 32000)
    yield _decoder("Llama-2-7b", small, 128, 8064, 6.70)
    yield _decoder("Llama-2-7b", small, 128, 8064, 10.10, 8)
    yield _decoder("Mistral-7B", mistral, 8192, 8192, 9.89)
    yield _decoder("Mistral-7B", mistral, 8192, 8192, 15.44, 8)


def _trained() -> Iterator[ThroughputPoint]:
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
