"""Modules compiled one by one, in place, and what of their work ran on NKI.

A module's `forward` is compiled, not its call: hooks, as FSDP2 and tensor parallelism put them on
modules, run around the compiled function and break no graph. A module that runs without a graph
(Dynamo skipped it) is named by a `NoGraphWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import trnx
from trnx.backend.report import Reports
from trnx.jobs.errors import NoGraphWarning


def _in_own_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in a frame of this file: Dynamo starts in no frame of torch.nn."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return forward


@dataclass
class Compiled:
    """The compiled modules of a model; `skipped` are those whose first call ran no graph."""

    backend: str
    options: Mapping[str, Any] | None
    skipped: list[str] = field(default_factory=list)

    def add(self, name: str, module: torch.nn.Module) -> None:
        """Compile `module.forward`."""
        forward: Callable[..., Any] = module.forward
        if type(module).__module__.startswith("torch.nn."):
            forward = _in_own_frame(forward)
        options = dict(self.options) if self.options is not None else None
        compiled = torch.compile(forward, backend=self.backend, options=options)
        checked = self._checked(name, compiled) if self.backend == "trnx" else compiled
        module.forward = checked

    def _checked(self, name: str, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """`compiled`, whose first call must run a graph of trnx."""
        seen = False

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            if seen:
                return compiled(*args, **kwargs)
            with trnx.collect_reports() as reports, warnings.catch_warnings():
                # Dynamo looks at `.grad` of activations, which torch warns of.
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is")
                result = compiled(*args, **kwargs)
            seen = True
            if not reports:
                self.skipped.append(name)
                warnings.warn(
                    f"{name} was compiled for trnx, and ran without a graph: TorchDynamo captured "
                    "nothing of it, so all of it ran in eager. TORCH_LOGS=graph_breaks says why",
                    NoGraphWarning,
                    stacklevel=2,
                )
            return result

        return forward


def compile_parts(
    parts: Mapping[str, torch.nn.Module], backend: str, options: Mapping[str, Any] | None
) -> Compiled:
    """Compile each of `parts` in place."""
    compiled = Compiled(backend, options)
    for name, module in parts.items():
        compiled.add(name, module)
    return compiled


def recompute(module: torch.nn.Module) -> None:
    """Make backward compute the module's activations anew, instead of keeping them.

    Around the compiled function: what is recomputed runs in the same graph. Hooks that gather
    sharded weights run around both.
    """
    forward: Callable[..., Any] = module.forward

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = recomputed


@dataclass(frozen=True)
class Reading:
    """Of one step on this rank: the share of linear FLOPs on NKI, and the seconds that the graphs
    are predicted to take on the target."""

    share: float
    predicted: float


class NkiMeter:
    """Share of a model's linear FLOPs that ran on NKI since the last reading, and predicted time.

    The denominator counts what the model's linear layers need: it does not know what was captured,
    so that a layer that Dynamo skipped lowers the share.
    """

    def __init__(self, reports: Reports, flops_per_step: int) -> None:
        self._reports = reports
        self._flops = flops_per_step
        self._runs: dict[int, int] = {}

    @property
    def target(self) -> str | None:
        """The generation that predictions are for; None before a graph ran."""
        return self._reports[0].target if self._reports else None

    def read(self, steps: int = 1) -> Reading:
        """Over the last `steps` steps."""
        done, predicted = 0, 0.0
        for report in self._reports:
            runs = report.runs - self._runs.get(id(report), 0)
            self._runs[id(report)] = report.runs
            done += runs * _linear_flops(report.regions)
            predicted += runs * report.predicted_seconds
        return Reading(done / (self._flops * steps), predicted / steps)


def _linear_flops(regions: Iterable[Any]) -> int:
    return sum(
        region.flops
        for region in regions
        if region.engine == "nki" and "aten.linear.default" in region.ops
    )


def linear_flops(
    sizes: Iterable[tuple[str, int]],
    tokens: int,
    recomputed: Iterable[str] = (),
    passes: Mapping[str, int] | None = None,
) -> int:
    """FLOPs of linear layers in a training step: forward, and backward for input and weight, or
    `passes` by path; one more forward below the paths `recomputed`."""
    again = tuple(f"{path}." for path in recomputed)
    counts = passes or {}
    return sum(
        2 * tokens * size * (counts.get(name, 3) + bool(again and name.startswith(again)))
        for name, size in sizes
    )
