"""Benchmark the registered kernels: predicted in the simulator, measured where there is a device.

    python scripts/jobs/kernel_bench.py --kernel linear --kernel softmax --target trn2

One row for each kernel: the most expensive of its samples that the target takes, or all of them.
Predicted seconds are the simulator's for one launch; measured seconds are the median of calls from
Python on a Neuron device, launch included, and their results must equal the reference. Exit status:

    0   every row has a prediction, and results on a device equal the reference
    1   a named error, or a row that failed
    2   flags that cannot be parsed
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from trnx.backend.report import counted
from trnx.jobs.device_kernels import has_device, measure
from trnx.jobs.errors import FlagError
from trnx.jobs.kernel_bench_flags import BenchSettings, parse
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings, KernelSpec, Sample
from trnx.simulator.errors import TrnxError
from trnx.simulator.frontend.profiling import profile
from trnx.simulator.hardware import Hardware, hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import Profile

SEED = 0


@dataclass(frozen=True)
class Row:
    """One benchmark. `bound` is the busiest queue; `status` is "ok", or what went wrong."""

    kernel: str
    sample: str
    shapes: str
    predicted_seconds: float | None
    bound: str
    mfu: float | None
    mbu: float | None
    measured_seconds: float | None
    status: str


def bindings_of(sample: Sample) -> Bindings:
    """A sample's values with the specs of its tensors."""
    return Bindings(
        {
            name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
            for name, value in sample.values.items()
        }
    )


def _shapes(sample: Sample) -> str:
    tensors = [value for value in sample.values.values() if isinstance(value, torch.Tensor)]
    return ", ".join(
        counted(
            f"{'x'.join(map(str, t.shape)) or 'scalar'} {str(t.dtype).removeprefix('torch.')}"
            for t in tensors
        )
    )


def _roofline(spec: KernelSpec, sample: Sample, hw: Hardware) -> float:
    cost = spec.cost(bindings_of(sample))
    return hw.roofline_seconds(cost.matmul_flops, cost.vector_flops, cost.hbm_bytes)


def samples(spec: KernelSpec, hw: Hardware, every: bool) -> Iterator[Sample]:
    """The samples that a kernel takes on a target: all, or the one with most work."""
    generator = torch.Generator().manual_seed(SEED)
    taken = [s for s in spec.samples(generator) if spec.supports(bindings_of(s), hw) is None]
    if every:
        yield from taken
    elif taken:
        yield max(taken, key=lambda sample: _roofline(spec, sample, hw))


def _busiest(prediction: Profile) -> str:
    queue = max(prediction.queues, key=lambda entry: entry.busy_seconds, default=None)
    return "" if queue is None else queue.name


def bench(spec: KernelSpec, sample: Sample, hw: Hardware, runs: int, device: bool) -> Row:
    """Predict, and measure where there is a device."""
    facts = {"kernel": spec.name, "sample": sample.note, "shapes": _shapes(sample)}
    launch = spec.launch(bindings_of(sample), hw)
    try:
        prediction = profile(launch.kernel, *launch.arguments, target=hw.target)
    except TrnxError as error:
        status = f"{type(error).__name__}: {error}".splitlines()[0]
        return Row(
            **facts,
            predicted_seconds=None,
            bound="",
            mfu=None,
            mbu=None,
            measured_seconds=None,
            status=status,
        )
    measured, status = None, "ok"
    if device:
        result = measure(spec, launch, sample, runs)
        measured, status = result.seconds, result.status
    return Row(
        **facts,
        predicted_seconds=prediction.total_seconds,
        bound=_busiest(prediction),
        mfu=prediction.mfu,
        mbu=prediction.mbu,
        measured_seconds=measured,
        status=status,
    )


def chosen(names: Sequence[str]) -> list[KernelSpec]:
    """Registered kernels by name, all where none is named. Raises FlagError."""
    known = {spec.name: spec for spec in registry.kernels()}
    if unknown := [name for name in names if name not in known]:
        raise FlagError(
            f"--kernel {', '.join(unknown)}: no such kernel; there are {', '.join(known)}"
        )
    return [known[name] for name in names] if names else list(known.values())


def _micro(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


def show(rows: Sequence[Row], target: str) -> None:
    """The table: a line for each row, for a terminal and for a pod's log."""
    print(f"kernels on {target}; times in microseconds")
    heads = ("predicted", "measured", "MFU", "MBU")
    print(f"{'kernel':<20}" + "".join(f"{head:>11}" for head in heads) + "  busiest  sample")
    for row in rows:
        times = (_micro(row.predicted_seconds), _micro(row.measured_seconds))
        cells = (*times, _percent(row.mfu), _percent(row.mbu))
        numbers = "".join(f"{cell:>11}" for cell in cells)
        print(f"{row.kernel:<20}{numbers}  {row.bound:<7}  {row.sample} ({row.shapes})")
        if row.status != "ok":
            print(f"{'':<20}{row.status}")


def run(options: BenchSettings) -> int:
    """Bench what the flags name; the exit status. Raises TrnxError."""
    for file in options.load:
        registry.load_kernels(file)
    device = options.use_device and has_device()
    hw = hardware(options.target)
    rows = []
    for spec in chosen(options.kernels):
        found = list(samples(spec, hw, options.all_samples))
        rows += [bench(spec, sample, hw, options.runs, device) for sample in found]
    held = bool(rows) and all(row.status == "ok" for row in rows)
    show(rows, options.target)
    if options.json:
        facts: dict[str, Any] = {"target": options.target, "device": device, "bars_hold": held}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows]}))
    return 0 if held else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; named errors end with their message and status 1."""
    try:
        return run(parse((__doc__ or "").partition("\n\n")[0], arguments))
    except TrnxError as error:
        print(f"kernel_bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
