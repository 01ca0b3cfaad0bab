"""Flags of the training job, read once into a frozen record."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnx.jobs.corpus import BYTES
from trnx.jobs.devices import BACKENDS, RUNNERS
from trnx.jobs.errors import FlagError
from trnx.jobs.models import PRESETS
from trnx.jobs.parallel import MODES
from trnx.jobs.schedules import SCHEDULES


@dataclass(frozen=True)
class Settings:
    """What the flags say; see `--help`."""

    data: Path
    data_split: str
    data_column: str | None
    eval_data: Path | None
    eval_split: str
    eval_every: int
    eval_batches: int
    tokenizer: str
    preset: str
    model_config: Path | None
    init_from: Path | None
    sequence_length: int
    dropout: float
    lora_rank: int
    lora_alpha: float
    lora_dropout: float
    lora_targets: str | None
    batch: int
    steps: int
    learning_rate: float
    schedule: str
    warmup: int
    weight_decay: float
    clip: float
    seed: int
    parallel: str
    tensor_parallel: int
    backend: str
    compile: str
    target: str | None
    runner: str | None
    dtype: str
    activation_checkpointing: bool
    checkpoint_dir: Path | None
    checkpoint_every: int
    keep_checkpoints: int
    resume: str
    metrics_dir: Path | None
    tensorboard: Path | None
    wandb: str | None
    log_every: int
    min_nki_share: float
    warm_only: bool
    json: bool

    def __post_init__(self) -> None:
        """Raises FlagError."""
        positive = ("sequence_length", "batch", "steps", "keep_checkpoints", "log_every")
        for name in (*positive, "tensor_parallel", "eval_batches"):
            if getattr(self, name) < 1:
                raise FlagError(f"--{name.replace('_', '-')} must be at least 1")
        counts = ("checkpoint_every", "eval_every", "warmup", "clip", "weight_decay", "seed")
        for name in (*counts, "lora_rank"):
            if getattr(self, name) < 0:
                raise FlagError(f"--{name.replace('_', '-')} must not be negative")
        if self.init_from is not None and self.model_config is not None:
            raise FlagError("--init-from brings its own config.json: leave --model-config out")
        for name in ("dropout", "lora_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise FlagError(f"--{name.replace('_', '-')} must be at least 0 and below 1")
        if self.lora_alpha <= 0:
            raise FlagError("--lora-alpha must be positive")
        if self.checkpoint_dir is None and self.resume not in ("auto", "never"):
            raise FlagError("--resume FOLDER needs --checkpoint-dir for what is saved next")

    @property
    def lora(self) -> dict[str, Any] | None:
        """What `adapters.add_lora` takes; None without adapters."""
        if not self.lora_rank:
            return None
        targets = self.lora_targets.split(",") if self.lora_targets is not None else None
        size = {"rank": self.lora_rank, "alpha": self.lora_alpha}
        return {**size, "dropout": self.lora_dropout, "targets": targets}

    def to_dict(self) -> dict[str, Any]:
        """JSON form: paths as text."""
        return {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(self).items()
        }


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--data",
        type=Path,
        required=True,
        help="a text file, a folder with *.txt files, a dataset's folder or file.arrow, tokens.npy",
    )
    group.add_argument("--data-split", default="train", help="of a dataset that has several")
    group.add_argument("--data-column", help="of a dataset; input_ids or text where it is left out")
    group.add_argument("--eval-data", type=Path, help="as --data, for evaluation")
    group.add_argument("--eval-split", default="validation", help="as --data-split")
    group.add_argument("--eval-every", type=int, default=0, help="steps; 0 for the end alone")
    group.add_argument("--eval-batches", type=int, default=8, help="batches of an evaluation")
    group.add_argument(
        "--tokenizer", default=BYTES, help="bytes (the default), or a local tokenizer's folder"
    )
    group.add_argument("--preset", default="llama-tiny", choices=tuple(PRESETS))
    group.add_argument(
        "--model-config", type=Path, help="a transformers config.json (llama or gpt2), for --preset"
    )
    group.add_argument(
        "--init-from", type=Path, help="a folder with config.json and *.safetensors to start from"
    )
    group.add_argument("--sequence-length", type=int, default=128)
    group.add_argument("--dropout", type=float, default=0.0)


def _add_lora_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("LoRA: adapters are trained, the model is frozen")
    group.add_argument("--lora-rank", type=int, default=0, help="0 to train the model itself")
    group.add_argument("--lora-alpha", type=float, default=16.0)
    group.add_argument("--lora-dropout", type=float, default=0.0)
    group.add_argument(
        "--lora-targets", help="names of linear layers with commas; left out, peft chooses"
    )


def _add_optimizer_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("optimization")
    group.add_argument("--batch", type=int, default=8, help="sequences of a step, over all ranks")
    group.add_argument("--steps", type=int, default=100)
    group.add_argument("--learning-rate", type=float, default=1e-3)
    group.add_argument("--warmup", type=int, default=0, help="steps of linear warm-up")
    group.add_argument(
        "--schedule", default="cosine", choices=tuple(SCHEDULES), help="after the warm-up"
    )
    group.add_argument("--weight-decay", type=float, default=0.01)
    group.add_argument("--clip", type=float, default=1.0, help="gradient norm; 0 for no limit")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"), help="of computation")
    group.add_argument("--activation-checkpointing", action="store_true")


def _add_machine_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("parallelism and compilation")
    group.add_argument("--parallel", default="auto", choices=MODES)
    group.add_argument("--tensor-parallel", type=int, default=1, help="ranks that share a layer")
    group.add_argument("--backend", default="auto", choices=BACKENDS)
    group.add_argument(
        "--compile",
        default="blocks",
        choices=("blocks", "model"),
        help="blocks one by one, or the whole model's forward",
    )
    group.add_argument("--target", choices=("trn1", "trn2", "trn3"), help="of backend trnx")
    group.add_argument("--runner", choices=RUNNERS, help="of backend trnx")
    group.add_argument(
        "--warm-only", action="store_true", help="one step, for the compile cache; saves nothing"
    )


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checkpoints and metrics")
    group.add_argument("--checkpoint-dir", type=Path, help="a folder that all ranks see")
    group.add_argument(
        "--checkpoint-every", type=int, default=100, help="steps; 0 for the end alone"
    )
    group.add_argument("--keep-checkpoints", type=int, default=2)
    group.add_argument(
        "--resume", default="auto", help="auto (the newest complete one), never, or a step's folder"
    )
    group.add_argument("--metrics-dir", type=Path, help="rank-N.jsonl of every rank goes there")
    group.add_argument(
        "--tensorboard", type=Path, help="a folder for event files, by the first rank"
    )
    group.add_argument("--wandb", help="a project of Weights & Biases, by the first rank")
    group.add_argument("--log-every", type=int, default=1, help="steps")
    group.add_argument(
        "--min-nki-share",
        type=float,
        default=0.0,
        help="status 1 where a smaller share of linear FLOPs ran on NKI on some rank",
    )
    group.add_argument("--json", action="store_true", help="print one object as the last line")


def parse(description: str, arguments: Sequence[str] | None = None) -> Settings:
    """Settings of a command line. Raises FlagError; argparse ends the process with status 2."""
    parser = argparse.ArgumentParser(description=description)
    groups = (_add_model_flags, _add_lora_flags, _add_optimizer_flags)
    for add in (*groups, _add_machine_flags, _add_output_flags):
        add(parser)
    return Settings(**vars(parser.parse_args(arguments)))
