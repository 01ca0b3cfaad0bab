"""The training run: the model as the flags arrange it, its steps, its checkpoints."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import trnx
from trnx.backend.torch_internals import graph_breaks
from trnx.jobs import models, parallel
from trnx.jobs.checkpoints import Checkpoints
from trnx.jobs.compiling import Compiled, NkiMeter, compile_parts, linear_flops, recompute
from trnx.jobs.corpus import Corpus, load_corpus
from trnx.jobs.devices import Platform, Ranks, resolve_backend, trnx_options
from trnx.jobs.errors import FlagError, SkippedSaveWarning
from trnx.jobs.metrics import Metrics, Outcome
from trnx.jobs.parallel import ParallelDims
from trnx.jobs.together import gathered
from trnx.jobs.train_flags import Settings

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# The learning rate falls to this part of its peak, along a cosine.
_FLOOR = 0.1


def learning_rate(settings: Settings, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth: a function of the step, so nothing is saved."""
    peak = settings.learning_rate
    if step < settings.warmup:
        return peak * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    return peak * (_FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


@dataclass
class Stop:
    """Whether the job was asked to end: set by a signal handler, agreed on by all ranks."""

    asked: bool = False


@dataclass(frozen=True)
class Built:
    """A model as it trains; `linear_flops` are those of a step on this rank."""

    model: torch.nn.Module
    compiled: Compiled | None
    linear_flops: int


def build(
    settings: Settings, config: Any, layout: ParallelDims, platform: Platform, backend: str
) -> Built:
    """The model: split, compiled in parts, then sharded or replicated. Raises FlagError."""
    model = models.build_model(config, settings.seed).to(platform.device)
    mesh = parallel.make_mesh(layout, platform)
    if layout.tensor > 1:
        assert mesh is not None
        parallel.split_tensors(model, config, layout, mesh["tensor"])
    parts = models.parts(model, config)
    blocks = [n for n in parts if n.startswith(f"{models.architecture(config).blocks}.")]
    recomputed = blocks if settings.activation_checkpointing else []
    tokens = settings.batch // layout.data * settings.sequence_length
    flops = linear_flops(parallel.linear_sizes(model), tokens, recomputed)
    compiled = None
    if backend != "eager":
        chosen = parts if settings.compile == "blocks" else {"the model": model}
        options = None
        if backend == "trnx":
            options = trnx_options(platform, settings.target, settings.runner)
        compiled = compile_parts(chosen, backend, options)
    for name in recomputed:
        recompute(parts[name])
    if layout.mode == "fsdp":
        assert mesh is not None
        model = parallel.shard(model, config, mesh, _DTYPES[settings.dtype])
    elif layout.mode == "ddp":
        model = parallel.replicate(model)
    return Built(model, compiled, flops)


class Training:
    """One run. `run` trains from the resumed step to the last one, or until it is stopped."""

    def __init__(self, settings: Settings, platform: Platform, ranks: Ranks) -> None:
        self._settings = settings
        self._platform = platform
        self._layout = parallel.make_layout(settings.parallel, settings.tensor_parallel, ranks)
        if settings.batch % self._layout.data:
            raise FlagError(
                f"--batch {settings.batch} is not a multiple of the {self._layout.data} groups of "
                "processes that share it"
            )
        self._backend = resolve_backend(settings.backend, platform)
        length = settings.sequence_length
        self._corpus = load_corpus(settings.data, settings.tokenizer, length, settings.seed)
        keys = models.read_config(settings.preset, settings.model_config)
        config = models.build_config(keys, self._corpus.vocabulary, length, settings.dropout)
        self._checkpoints = _checkpoints(settings, keys, self._corpus, ranks)
        self._built = build(settings, config, self._layout, platform, self._backend)
        self._optimizer = torch.optim.AdamW(
            self._built.model.parameters(),
            weight_decay=settings.weight_decay,
            # Tensor parallelism splits some parameters: operations over lists take no mixture.
            foreach=False if self._layout.tensor > 1 else None,
        )
        # Ranks that share a layer drop the same activations, others their own.
        torch.manual_seed(settings.seed + 1 + self._layout.data_rank)

    def run(self, metrics: Metrics, stop: Stop) -> Outcome:
        """Train; see the class."""
        metrics.write(event="start", process=os.getpid(), **self._facts())
        outcome = Outcome(self._resume(metrics))
        last = 1 if self._settings.warm_only else self._settings.steps
        with self._meter() as meter, graph_breaks() as broken:
            since, began = outcome.first_step, time.perf_counter()
            for step in range(outcome.first_step, last):
                loss, norm = self._step(step)
                done = step + 1
                if done % self._settings.log_every == 0 or done == last:
                    value, stopped = self._agree(loss, stop)
                    seconds = (time.perf_counter() - began) / (done - since)
                    share = meter.read(done - since) if meter is not None else None
                    self._log(metrics, outcome, done, value, float(norm), seconds, share)
                    outcome.stopped = stopped and done < last
                    since, began = done, time.perf_counter()
                self._save(outcome, done, last, loss)
                if outcome.stopped:
                    break
        outcome.graph_breaks = broken.total()
        if self._built.compiled is not None:
            outcome.skipped.extend(self._built.compiled.skipped)
        return outcome

    def _facts(self) -> dict[str, Any]:
        return {
            "backend": self._backend,
            "device": self._platform.device.type,
            "layout": self._layout.to_dict(),
            "linear_flops": self._built.linear_flops,
            "samples_per_epoch": self._corpus.windows,
        }

    @contextmanager
    def _meter(self) -> Iterator[NkiMeter | None]:
        if self._backend != "trnx":
            yield None
            return
        with trnx.collect_reports() as reports:
            yield NkiMeter(reports, self._built.linear_flops)

    def _resume(self, metrics: Metrics) -> int:
        if self._checkpoints is None:
            return 0
        folder = self._checkpoints.find(self._settings.resume)
        if folder is None:
            return 0
        step = self._checkpoints.load(folder, self._built.model, self._optimizer)
        metrics.write(event="resume", step=step, checkpoint=str(folder))
        return step

    def _autocast(self) -> AbstractContextManager[Any]:
        """Lower precision where FSDP2 does not bring it."""
        if self._settings.dtype == "fp32" or self._layout.mode == "fsdp":
            return nullcontext()
        return torch.autocast(self._platform.device.type, _DTYPES[self._settings.dtype])

    def _step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of the optimizer; (this rank's loss, norm of the gradient)."""
        local = self._settings.batch // self._layout.data
        first = step * self._settings.batch + self._layout.data_rank * local
        tokens = self._corpus.batch(first, local).to(self._platform.device)
        with self._autocast():
            logits = self._built.model(input_ids=tokens[:, :-1].contiguous()).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        norm = parallel.clip_gradients(self._built.model, self._settings.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._settings, step)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach(), norm

    def _agree(self, loss: torch.Tensor, stop: Stop) -> tuple[float, bool]:
        """The loss of the whole batch, and whether any rank was asked to stop."""
        pair = torch.stack([loss.float(), torch.full_like(loss, float(stop.asked)).float()])
        if dist.is_initialized():
            dist.all_reduce(pair)
            pair /= dist.get_world_size()
        value, asked = pair.tolist()
        return value, asked > 0

    def _log(
        self,
        metrics: Metrics,
        outcome: Outcome,
        step: int,
        loss: float,
        norm: float,
        seconds: float,
        share: float | None,
    ) -> None:
        speed = self._settings.batch * self._settings.sequence_length / seconds
        outcome.losses.append(loss)
        outcome.speeds.append(speed)
        if share is not None:
            outcome.shares.append(share)
        metrics.write(
            step=step,
            loss=loss,
            learning_rate=learning_rate(self._settings, step - 1),
            gradient_norm=norm,
            tokens_per_second=speed,
            seconds=seconds,
            nki_share=share,
        )

    def _save(self, outcome: Outcome, done: int, last: int, loss: torch.Tensor) -> None:
        every = self._settings.checkpoint_every
        due = done == last or outcome.stopped or (every > 0 and done % every == 0)
        if self._checkpoints is None or not due:
            return
        if not all(gathered(bool(torch.isfinite(loss).all()))):
            warnings.warn(
                f"step {done}: the loss is not finite: no checkpoint is written, and none removed",
                SkippedSaveWarning,
                stacklevel=2,
            )
        else:
            folder = self._checkpoints.save(done, self._built.model, self._optimizer)
            outcome.checkpoint = str(folder)


def _checkpoints(
    settings: Settings, keys: dict[str, Any], corpus: Corpus, ranks: Ranks
) -> Checkpoints | None:
    if settings.checkpoint_dir is None or settings.warm_only:
        return None
    run = {
        "model": keys,
        "vocabulary": corpus.vocabulary,
        "sequence_length": settings.sequence_length,
        "batch": settings.batch,
        "seed": settings.seed,
        "data": corpus.digest,
    }
    facts = {"tokenizer": settings.tokenizer}
    return Checkpoints(settings.checkpoint_dir, settings.keep_checkpoints, run, facts, ranks)
