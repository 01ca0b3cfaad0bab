"""Causal language models from a transformers configuration: presets of Llama and GPT-2, or a file.

Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trnx.jobs.errors import MissingJobsExtraError, ModelError

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Configuration keys by preset; the vocabulary and the positions follow from the data.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "llama-tiny": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "llama-small": {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "llama-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "gpt2-tiny": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4},
    "gpt2-small": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12},
}
_GPT2_DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")


@dataclass(frozen=True)
class Architecture:
    """Where a model keeps its parts: attribute paths of its blocks, last norm, and head."""

    blocks: str
    norm: str
    head: str


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("model.layers", "model.norm", "lm_head"),
    "gpt2": Architecture("transformer.h", "transformer.ln_f", "lm_head"),
}


def _require_transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingJobsExtraError(
            "this job needs the package transformers: pip install 'trnx[jobs]'"
        ) from None
    return transformers


def read_config(preset: str, file: Path | None) -> dict[str, Any]:
    """Configuration keys of a preset, or of a config.json (or its folder). Raises ModelError."""
    if file is None:
        if preset not in PRESETS:
            raise ModelError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
        return dict(PRESETS[preset])
    path = file / "config.json" if file.is_dir() else file
    try:
        keys = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"--model-config {file}: cannot be read ({error})") from None
    if not isinstance(keys, dict) or keys.get("model_type") not in ARCHITECTURES:
        found = keys.get("model_type") if isinstance(keys, dict) else type(keys).__name__
        raise ModelError(
            f"--model-config {file}: model_type is {found!r}; it must be one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    return keys


def build_config(keys: Mapping[str, Any], vocabulary: int, length: int, dropout: float) -> Any:
    """The transformers configuration. Raises ModelError."""
    transformers = _require_transformers()
    fixed: dict[str, Any] = {
        "vocab_size": vocabulary,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "max_position_embeddings": max(length, int(keys.get("max_position_embeddings", 0))),
    }
    if keys["model_type"] == "gpt2":
        positions = max(length, int(keys.get("n_positions", 0)))
        fixed |= {"n_positions": positions, **dict.fromkeys(_GPT2_DROPOUTS, dropout)}
        del fixed["max_position_embeddings"]
    elif dropout:
        fixed["attention_dropout"] = dropout
    try:
        return transformers.AutoConfig.for_model(**{**keys, **fixed})
    except (TypeError, ValueError) as error:
        raise ModelError(f"transformers refuses the configuration: {error}") from None


def make_model(config: Any) -> torch.nn.Module:
    """The model in float32 with any weights. Raises ModelError."""
    transformers = _require_transformers()
    try:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except (TypeError, ValueError) as error:
        raise ModelError(f"transformers refuses the configuration: {error}") from None
    assert isinstance(model, torch.nn.Module)
    return model


def positions(config: Any) -> int:
    """The longest sequence that a model of transformers has positions for."""
    return int(getattr(config, "max_position_embeddings", None) or config.n_positions)


def architecture(config: Any) -> Architecture:
    """Where the model of a configuration keeps its parts."""
    return ARCHITECTURES[config.model_type]


def parts(model: torch.nn.Module, config: Any) -> dict[str, torch.nn.Module]:
    """What is compiled one by one: blocks, last norm and head, by their paths in the model."""
    where = architecture(config)
    blocks = model.get_submodule(where.blocks)
    named = {f"{where.blocks}.{name}": block for name, block in blocks.named_children()}
    named[where.norm] = model.get_submodule(where.norm)
    named[where.head] = model.get_submodule(where.head)
    return named
