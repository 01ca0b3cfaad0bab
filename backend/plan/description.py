"""What `trnx plan` knows of a transformer: its sizes, read from a Hugging Face configuration.

Exact parameter counts follow from the sizes (the tests compare them with transformers' models).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnx.backend.example import load_example
from trnx.backend.plan.errors import UnknownModelError

# Sizes of public models, as their configurations on Hugging Face give them.
_KNOWN: dict[str, dict[str, Any]] = {
    "llama-3-8b": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 128256,
    },
    "llama-3-70b": {
        "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
        "vocab_size": 128256,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "bert-large": {
        "model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024,
        "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2,
    },
}  # fmt: skip

_TYPES = ("bert", "llama", "mistral", "mixtral", "qwen2")


@dataclass(frozen=True)
class ModelDescription:
    """Sizes of a transformer of equal blocks.

    `experts` is 1 for a dense model. `encoder` is BERT's form: LayerNorm after the residual,
    biases, learned positions, no causal mask, a head of masked language modelling; else RMSNorm
    before, rotary positions, a gated MLP and a causal mask.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    experts: int = 1
    experts_per_token: int = 1
    tied: bool = False
    encoder: bool = False
    qkv_bias: bool = False
    positions: int = 0  # learned positions and token types

    @property
    def causal(self) -> bool:
        """Whether a token sees only those before it."""
        return not self.encoder

    @property
    def attention_parameters(self) -> int:
        """Of one block: q, k, v and output, with their biases."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        weights = self.hidden * (2 * queries + 2 * keys)
        bias = queries + 2 * keys if self.qkv_bias or self.encoder else 0
        return weights + bias + (self.hidden if self.encoder else 0)

    @property
    def expert_parameters(self) -> int:
        """Of one expert, or of a dense block's MLP."""
        matrices = 2 if self.encoder else 3
        return matrices * self.hidden * self.ffn + (self.ffn + self.hidden if self.encoder else 0)

    @property
    def small_parameters(self) -> int:
        """Of one block, what tensor parallelism does not divide: norms and the router."""
        norms = 2 * self.hidden * (2 if self.encoder else 1)
        return norms + (self.experts * self.hidden if self.experts > 1 else 0)

    @property
    def block_parameters(self) -> int:
        """Of one block."""
        experts = self.experts * self.expert_parameters
        return self.attention_parameters + experts + self.small_parameters

    @property
    def embedding_parameters(self) -> int:
        """Token, position and type embeddings, and BERT's LayerNorm behind them."""
        return (self.vocab + self.positions) * self.hidden + (2 * self.hidden * self.encoder)

    @property
    def head_parameters(self) -> int:
        """Final norm and output matrix (nothing for a tied one); BERT's transform and bias."""
        own = 0 if self.tied else self.vocab * self.hidden
        if self.encoder:
            return own + self.hidden * (self.hidden + 3) + self.vocab
        return own + self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return (
            self.layers * self.block_parameters + self.embedding_parameters + self.head_parameters
        )

    def block_flops(self, tokens: float, context: float) -> float:
        """FLOPs of the matrix products of one block's forward pass of `tokens`, each of which sees
        `context` others on average."""
        projections = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = (2 if self.encoder else 3) * self.hidden * self.ffn * self.experts_per_token
        router = self.experts * self.hidden if self.experts > 1 else 0
        attention = 2 * context * self.heads * self.head_dim
        return 2.0 * tokens * (projections + mlp + router + attention)

    def head_flops(self, tokens: float) -> float:
        """FLOPs of the matrix products of the head's forward pass."""
        return 2.0 * tokens * (self.vocab * self.hidden + self.hidden**2 * self.encoder)


def describe(model: str | Path | Mapping[str, Any]) -> ModelDescription:
    """The description of a configuration: a mapping, a config.json or its folder, or the name of a
    known model.

    Raises UnknownModelError for what it cannot read, and names the key that is missing.
    """
    if isinstance(model, Mapping):
        return _from_config(str(model.get("_name_or_path") or model.get("model_type")), model)
    name = str(model)
    if name in _KNOWN:
        return _from_config(name, _KNOWN[name])
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise UnknownModelError(
            f"{name!r} is no file, no folder with a config.json and no known model; known are "
            + ", ".join(_KNOWN)
        )
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise UnknownModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UnknownModelError(f"{path} holds no configuration: a JSON object is needed")
    return _from_config(path.parent.name or name, config)


def describe_example(model: str) -> ModelDescription:
    """As `describe`, and of MODULE:FUNCTION or FILE.py:FUNCTION, which returns (model, args): the
    model's `config`, as transformers' models have one. Raises UnknownModelError, ExampleError."""
    if ":" not in model:
        return describe(model)
    found, _, _ = load_example(model)
    config = getattr(found, "config", None)
    if not hasattr(config, "to_dict"):
        raise UnknownModelError(
            f"the model of {model} is a {type(found).__name__} without a Hugging Face `config`, "
            "whose sizes `trnx plan` reads; return a transformers model, made on the meta device"
        )
    return describe(config.to_dict())  # type: ignore[union-attr]


def _from_config(name: str, config: Mapping[str, Any]) -> ModelDescription:
    kind = config.get("model_type")
    if kind not in _TYPES:
        raise UnknownModelError(
            f"model_type {kind!r} of {name} is not known to `trnx plan`; known are "
            + ", ".join(_TYPES)
        )
    heads, hidden = _size(name, config, "num_attention_heads"), _size(name, config, "hidden_size")
    encoder = kind == "bert"
    positions = (
        _size(name, config, "max_position_embeddings") + int(config.get("type_vocab_size") or 2)
        if encoder
        else 0
    )
    return ModelDescription(
        name=name,
        layers=_size(name, config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        ffn=_size(name, config, "intermediate_size"),
        vocab=_size(name, config, "vocab_size"),
        experts=_size(name, config, "num_local_experts") if kind == "mixtral" else 1,
        experts_per_token=_size(name, config, "num_experts_per_tok") if kind == "mixtral" else 1,
        tied=bool(config.get("tie_word_embeddings", encoder)),
        encoder=encoder,
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
        positions=positions,
    )


def _size(name: str, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnknownModelError(f"{key} of {name} is {value!r}; a positive integer is needed")
    return value
