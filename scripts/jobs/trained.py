"""Models that train.py saved, and those of presets with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trnx.jobs import models
from trnx.jobs.adapters import add_lora, digest_of, merge_lora
from trnx.jobs.checkpoints import is_complete, load_weights, newest_readable, read_run
from trnx.jobs.corpus import BYTE_VOCABULARY, BYTES, load_tokenizer
from trnx.jobs.drawn_weights import build_model
from trnx.jobs.errors import ModelError
from trnx.jobs.weights import load_safetensors


def find(source: str, named: str) -> tuple[dict[str, Any], Path | None]:
    """(what a run says of its model, folder of the checkpoint or None for a preset); `named` is how
    the user wrote it. Raises ModelError."""
    if source in models.PRESETS:
        keys = models.read_config(source, None)
        vocabulary = {"vocabulary": BYTE_VOCABULARY, "tokenizer": BYTES}
        return {"model": keys, "sequence_length": 2048, **vocabulary}, None
    path = Path(source)
    folder = path if is_complete(path) else newest_readable(path)
    if folder is None:
        raise ModelError(
            f"{named}: no preset ({', '.join(models.PRESETS)}), no complete "
            "checkpoint of train.py, and no folder with config.json"
        )
    return read_run(folder), folder


def _add_base(model: torch.nn.Module, run: Mapping[str, Any]) -> None:
    """What a checkpoint of adapters was trained beside. Raises ModelError where it has changed."""
    add_lora(model, run["lora"], run["seed"])
    if run["init_from"] is not None:
        folder = Path(run["init_from"])
        load_safetensors(folder, model)
        if digest_of(folder) != run["base"]:
            raise ModelError(f"{folder}: not the weights that the adapters were trained beside")


def load(run: Mapping[str, Any], folder: Path | None) -> tuple[torch.nn.Module, Any]:
    """(model with its adapters beside the weights, tokenizer or None for bytes) of a run of
    train.py. Raises ModelError."""
    tokenizer = None
    if run["tokenizer"] != BYTES:
        tokenizer = load_tokenizer(run["tokenizer"], "the checkpoint's tokenizer")
    length = int(run["sequence_length"])
    config = models.build_config(run["model"], run["vocabulary"], length, dropout=0.0)
    model = build_model(config, run.get("seed", 0))
    if run.get("lora") is not None:
        _add_base(model, run)
    if folder is not None:
        load_weights(folder, model)
    return model, tokenizer


def merged(run: Mapping[str, Any], folder: Path | None) -> tuple[torch.nn.Module, Any]:
    """As `load`, with the adapters added to the weights."""
    model, tokenizer = load(run, folder)
    if run.get("lora") is not None:
        merge_lora(model)
    return model, tokenizer
