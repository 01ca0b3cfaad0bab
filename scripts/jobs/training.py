"""The training run: the model as the flags arrange it, its steps, its checkpoints."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import trnx
from trnx.backend.torch_internals import graph_breaks
from trnx.jobs import models, parallel
from trnx.jobs.adapters import add_lora, digest_of, passes
from trnx.jobs.checkpoints import Checkpoints
from trnx.jobs.compiling import (
    Compiled,
    NkiMeter,
    Reading,
    compile_parts,
    linear_flops,
    recompute,
)
from trnx.jobs.corpus import Corpus, load_corpus
from trnx.jobs.devices import Platform, Ranks, resolve_backend, trnx_options
from trnx.jobs.drawn_weights import draw_weights, undrawn
from trnx.jobs.errors import FlagError, SaveError, SkippedSaveWarning
from trnx.jobs.metrics import Metrics, Outcome
from trnx.jobs.parallel import ParallelDims
from trnx.jobs.schedules import learning_rate
from trnx.jobs.throughput import collective_seconds, optimizer_seconds
from trnx.jobs.together import from_first, gathered
from trnx.jobs.train_flags import Settings
from trnx.jobs.weights import load_safetensors, make_weights, parameters_of_base

# A resumed run may have others, and is another run then.
_SHAPES_THE_CURVE = (
    *("learning_rate", "schedule", "warmup", "weight_decay", "clip"),
    *("dropout", "dtype"),
)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


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
    """The model: split, compiled in parts, then sharded or replicated; weights are read or drawn
    once each rank knows its part. Raises FlagError and ModelError."""
    model, units = undrawn(config)
    made = model
    counts = None
    if settings.lora is not None:
        add_lora(model, settings.lora, settings.seed)
        counts = passes(model)
    mesh = parallel.make_mesh(layout, platform)
    if layout.tensor > 1:
        assert mesh is not None
        parallel.split_tensors(model, config, layout, mesh["tensor"])
    parts = models.parts(model, config)
    blocks = [n for n in parts if n.startswith(f"{models.architecture(config).blocks}.")]
    recomputed = blocks if settings.activation_checkpointing else []
    tokens = settings.batch // layout.data * settings.sequence_length
    flops = linear_flops(parallel.linear_sizes(model), tokens, recomputed, counts)
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
    make_weights(model, platform.device)
    if settings.init_from is not None:
        load_safetensors(settings.init_from, model)
    else:
        draw_weights(parameters_of_base(model), made, units, settings.seed)
    model.to(platform.device)
    if layout.mode == "ddp":
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
        load = partial(load_corpus, tokenizer=settings.tokenizer, length=length)
        column = settings.data_column
        self._corpus = load(
            settings.data, seed=settings.seed, split=settings.data_split, column=column
        )
        self._held_out: Corpus | None = None
        if settings.eval_data is not None:
            self._held_out = load(
                settings.eval_data, seed=0, split=settings.eval_split, column=column
            )
        keys = models.read_config(settings.preset, settings.init_from or settings.model_config)
        config = models.build_config(keys, self._corpus.vocabulary, length, settings.dropout)
        self._checkpoints = _checkpoints(settings, keys, self._corpus, ranks)
        self._built = build(settings, config, self._layout, platform, self._backend)
        self._optimizer = torch.optim.AdamW(
            [value for value in self._built.model.parameters() if value.requires_grad],
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
        with self._saves_finished(outcome), self._meter() as meter, graph_breaks() as broken:
            since, began = outcome.first_step, time.perf_counter()
            for step in range(outcome.first_step, last):
                loss, norm = self._step(step)
                done = step + 1
                if done % self._settings.log_every == 0 or done == last:
                    value, stopped = self._agree(loss, stop)
                    seconds = (time.perf_counter() - began) / (done - since)
                    reading = meter.read(done - since) if meter is not None else None
                    self._log(metrics, outcome, done, value, float(norm), seconds, reading)
                    outcome.stopped = stopped and done < last
                    since, began = done, time.perf_counter()
                self._evaluate(metrics, done, last)
                self._save(outcome, done, last, loss)
                if outcome.stopped:
                    break
            if meter is not None and meter.target is not None and outcome.predicted:
                self._compare(metrics, outcome, meter.target)
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

    def _compare(self, metrics: Metrics, outcome: Outcome, target: str) -> None:
        """Log what was measured here beside what is predicted for the target."""
        parts = {
            "graphs": statistics.median(outcome.predicted),
            "collectives": collective_seconds(self._built.model, self._layout, target),
            "optimizer": optimizer_seconds(self._built.model, target),
        }
        tokens = self._settings.batch * self._settings.sequence_length
        predicted = tokens / sum(parts.values())
        measured = outcome.speed
        assert measured is not None
        metrics.write(
            event="throughput",
            target=target,
            measured_on=self._platform.device.type,
            predicted_seconds=parts,
            predicted_tokens_per_second=predicted,
            measured_tokens_per_second=measured,
            measured_to_predicted=measured / predicted,
        )

    def _resume(self, metrics: Metrics) -> int:
        if self._checkpoints is None:
            return 0
        self._checkpoints.prepare()
        folder = self._checkpoints.find(self._settings.resume)
        if folder is None:
            return 0
        step = self._checkpoints.load(folder, self._built.model, self._optimizer)
        for group in self._optimizer.param_groups:  # the flag's, not that of the checkpoint
            group["weight_decay"] = self._settings.weight_decay
        metrics.write(event="resume", step=step, checkpoint=str(folder))
        return step

    def _autocast(self) -> AbstractContextManager[Any]:
        """Lower precision where FSDP2 does not bring it."""
        if self._settings.dtype == "fp32" or self._layout.mode == "fsdp":
            return nullcontext()
        return torch.autocast(self._platform.device.type, _DTYPES[self._settings.dtype])

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean loss of int64 [sequences, length + 1]."""
        with self._autocast():
            logits = self._built.model(input_ids=tokens[:, :-1].contiguous()).logits
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    def _local_batch(self, corpus: Corpus, number: int) -> torch.Tensor:
        """This rank's part of a batch."""
        local = self._settings.batch // self._layout.data
        first = number * self._settings.batch + self._layout.data_rank * local
        return corpus.batch(first, local).to(self._platform.device)

    def _evaluate(self, metrics: Metrics, done: int, last: int) -> None:
        """Log the mean loss on the same held-out batches each time; no random number is drawn."""
        every = self._settings.eval_every
        due = done == last or (every > 0 and done % every == 0)
        if self._held_out is None or not due:
            return
        # Parameters stay what they are, and with them their gradients, which are none here.
        self._built.model.eval()
        with torch.no_grad():
            losses = [
                self._loss(self._local_batch(self._held_out, number))
                for number in range(self._settings.eval_batches)
            ]
        self._built.model.train()
        mean = torch.stack(losses).mean()
        if dist.is_initialized():
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        value = mean.item()
        metrics.write(event="evaluation", step=done, eval_loss=value)

    def _step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of the optimizer; (this rank's loss, norm of the gradient)."""
        loss = self._loss(self._local_batch(self._corpus, step))
        torch.autograd.backward(loss)
        norm = parallel.clip_gradients(self._built.model, self._settings.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(step)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach(), norm

    def _learning_rate(self, step: int) -> float:
        given = self._settings
        return learning_rate(given.schedule, given.learning_rate, given.warmup, given.steps, step)

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
        reading: Reading | None,
    ) -> None:
        speed = self._settings.batch * self._settings.sequence_length / seconds
        outcome.losses.append(loss)
        outcome.speeds.append(speed)
        if reading is not None:
            outcome.shares.append(reading.share)
            outcome.predicted.append(reading.predicted)
        metrics.write(
            step=step,
            loss=loss,
            learning_rate=self._learning_rate(step - 1),
            gradient_norm=norm,
            tokens_per_second=speed,
            seconds=seconds,
            nki_share=reading.share if reading is not None else None,
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
            self._finish_save(outcome)
            self._checkpoints.begin(done, self._built.model, self._optimizer)

    @contextmanager
    def _saves_finished(self, outcome: Outcome) -> Iterator[None]:
        """Ends when the last checkpoint is complete, also where training fails. What it failed of
        is the error to tell then: ranks that are gone make the checkpoint fail, too."""
        try:
            yield
        except BaseException:
            with suppress(SaveError, RuntimeError):
                self._finish_save(outcome)
            raise
        self._finish_save(outcome)

    def _finish_save(self, outcome: Outcome) -> None:
        """Wait for the checkpoint that is being written. Raises SaveError."""
        folder = self._checkpoints.finish() if self._checkpoints is not None else None
        if folder is not None:
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
        "lora": settings.lora,
    }
    facts: dict[str, Any] = {"tokenizer": settings.tokenizer, "init_from": None}
    facts["flags"] = {name: getattr(settings, name) for name in _SHAPES_THE_CURVE}
    if settings.lora is not None and settings.init_from is not None:
        run["base"] = from_first(digest_of(settings.init_from) if ranks.is_first else None)
        facts["init_from"] = str(settings.init_from.resolve())
    return Checkpoints(settings.checkpoint_dir, settings.keep_checkpoints, run, facts, ranks)
