"""What each task measures. Runs in a worker, on the device of the runner `neuron`.

Times are of the host's clock, from a call to the copy of its result to host memory, the least of
several: launch and copy are in every time, and a probe's difference is without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trnx.backend.kernel_samples import difference, operands, samples_of
from trnx.backend.neuron.native import executed
from trnx.backend.neuron.region_op import region_op
from trnx.backend.neuron.stack import find_stack
from trnx.backend.programs import PROGRAMS
from trnx.backend.report import collect_reports
from trnx.device.probes import FACTORS, PROBES
from trnx.device.tasks import LIMITS, kernel_files
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import KernelSpec, Launch, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware, hardware

_REPEATS = 30
_LONGEST = 2.0  # seconds for the repeats of one measurement
# Of a kernel's time, after which no further sample starts: what is known is worth more than all.
_SHARE = 0.7
_KERNELS = Path(__file__).with_name("kernels.py")


def measure(task: str, target: str) -> dict[str, Any]:
    """The result of a task. Raises what the task raises."""
    part, _, name = task.partition(".")
    if problem := find_stack().problem():
        raise problem
    functions: dict[str, Callable[[str, str], dict[str, Any]]] = {
        "kernel": _conformance,
        "probe": _probe,
        "cores": _probe,
        "model": _model,
    }
    return functions[part](name, target)


@dataclass(frozen=True)
class _Seconds:
    """The least time of a call, and by how much the lower quartile is above it."""

    least: float
    spread: float


def _seconds(call: Callable[[], Any]) -> _Seconds:
    """The time of a call, which waits for its result; the first call compiles."""
    call()
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _LONGEST:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    times.sort()
    return _Seconds(times[0], times[len(times) // 4] - times[0])


# -- kernels -------------------------------------------------------------------------------------


def _conformance(name: str, target: str) -> dict[str, Any]:
    """Every sample of a file's kernels on the device, each as the operator of a region, against its
    reference."""
    hw, start = hardware(target), time.monotonic()
    rows = []
    for spec in kernels().of_file(kernel_files()[name]):
        for sample, launch in samples_of(spec, hw):
            if isinstance(launch, Reject):
                found: dict[str, Any] = {"refused": launch.reason}
            elif time.monotonic() - start > _SHARE * LIMITS["kernel"]:
                found = {"problem": "not run: the time of this part was over"}
            else:
                found = _compared(spec, sample, launch, hw)
            rows.append({"kernel": spec.name, "note": sample.note, **found})
    return {"samples": rows}


def _compared(spec: KernelSpec, sample: Sample, launch: Launch, hw: Hardware) -> dict[str, Any]:
    tensors = [t.to("neuron") for t in operands(launch, sample) if isinstance(t, torch.Tensor)]
    expected = spec.reference(**sample.values)
    try:
        made = region_op(spec.name, launch, PROGRAMS.get(launch, hw.target), "trnx device collect")
        found = made.overload(*tensors)
        several = found if isinstance(found, (tuple, list)) else (found,)
        on_host = tuple(t.cpu() for t in several)
    except Exception as error:  # noqa: BLE001  one sample that fails must not hide the others
        return {"problem": f"{type(error).__name__}: {error}"[:2000]}
    told = difference(on_host, expected, sample)
    return {"largest": told.largest, "problem": told.problem}


# -- probes --------------------------------------------------------------------------------------


def _probe(name: str, target: str) -> dict[str, Any]:  # noqa: ARG001  the device has one target
    """Nanoseconds of one instruction."""
    probe = PROBES[int(name)]
    kernel = getattr(executed(_KERNELS), probe.kernel)
    if probe.cores > 1:
        kernel = kernel[probe.cores]
    tensors = [torch.ones(s, dtype=getattr(torch, d)).to("neuron") for d, s in probe.tensors]

    def run(*counts: Any) -> None:
        kernel(*tensors, *counts).cpu()

    few, many = (_seconds(partial(run, *probe.arguments(factor))) for factor in FACTORS)
    return {
        "name": probe.name,
        "ns": (many.least - few.least) / probe.between * 1e9,
        "spread_ns": (few.spread + many.spread) / probe.between * 1e9,
        "whole_seconds": [few.least, many.least],
    }


# -- models --------------------------------------------------------------------------------------


class _Encoder(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = self.norm(x + self.out(mixed.reshape(batch, length, width)))
        out: torch.Tensor = self.last(x + self.down(nn.functional.gelu(self.up(x))))
        return out


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))
    return nn.Sequential(*layers), torch.randn(128, 256)


def _encoder() -> tuple[nn.Module, torch.Tensor]:
    return _Encoder(), torch.randn(2, 64, 128)


def _model(name: str, target: str) -> dict[str, Any]:
    """A model on the device against eager in host memory: values, time, and what was predicted."""
    torch.manual_seed(0)
    is_training = name == "training_step"
    model, x = _mlp() if name == "mlp" else _encoder()

    def run(function: Any, given: torch.Tensor) -> list[torch.Tensor]:
        if not is_training:
            with torch.no_grad():
                return [function(given).cpu()]
        model.zero_grad()
        loss = function(given).square().mean()
        loss.backward()
        found = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        return [loss.detach().cpu(), *found]

    expected = run(model, x)
    model.to("neuron")
    compiled = torch.compile(model, backend="trnx", options={"runner": "neuron", "target": target})
    on_device = x.to("neuron")
    with collect_reports() as reports:
        found = run(compiled, on_device)
    gaps = [_gap(a, b) for a, b in zip(found, expected, strict=True)]
    return {
        "model": name,
        "largest": max(gaps),
        "problem": "" if max(gaps) < 1e-3 else f"results differ from eager by {max(gaps):.3g}",
        "seconds": _seconds(lambda: run(compiled, on_device)).least,
        "predicted_seconds": reports.predicted_seconds,
        "regions": [r.label for report in reports for r in report.regions if r.engine == "nki"],
    }


def _gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in units of the largest value; infinite for NaN."""
    gap = (found.double() - expected.double()).abs().max()
    return float((gap / expected.double().abs().max().clamp_min(1e-6)).nan_to_num(float("inf")))
