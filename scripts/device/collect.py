"""Measure the constants of the timing model on a Trainium device, through AWS's packages.

    collect.py compile --out NEFFS              # where `nki` is AWS's package
    collect.py measure NEFFS --out times.json   # where `nrtpy` is installed, on the device
    collect.py table times.json --target trn2   # where trnx is installed: with predictions

Three steps because `nki` and `nrtpy` do not share an environment. Each compilation is a process of
its own: AWS's package reads NKI_ARTIFACTS_DIR when it is imported. Documented in
SDK/nki/get-started/setup-env.rst (nrtpy), SDK/neuron-runtime/nrtpy/model.rst (`benchmark`, mode
"device") and tutorial-debug-neff-nrtpy.rst (artifacts).

Without AWS's packages `compile` and `measure` end with NeuronPackagesError. `table` has the columns
of `scripts/calibrate/run.py`; `--json` prints one object as the last line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probes import PROBES, Probe

_ITERATIONS = 100
_FACTORS = (1, 2)


class NeuronPackagesError(RuntimeError):
    """AWS's package for this step is not installed."""


def _package(name: str, step: str) -> Any:
    """An AWS package, imported when it is needed; PyPI's empty placeholders count as absent."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        module = None
    expected = {"nki": "jit", "nrtpy": "NrtpyModel"}[name]
    if module is None or not hasattr(module, expected):
        raise NeuronPackagesError(
            f"`collect.py {step}` needs AWS's package `{name}`, which is not installed here; "
            "install it from https://pip.repos.neuron.amazonaws.com as "
            "nki/get-started/setup-env.rst of the AWS Neuron documentation says"
        )
    return module


# ---- compile ----


def compile_probes(out: Path) -> None:
    """A NEFF of every probe and count, each in a folder of its own."""
    _package("nki", "compile")
    for index in range(len(PROBES)):
        for factor in _FACTORS:
            folder = out / f"{index}x{factor}"
            command = [sys.executable, __file__, "compile-one", str(index), str(factor)]
            environment = os.environ | {"NKI_ARTIFACTS_DIR": str(folder)}
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            # A kernel that was compiled but could not run leaves its NEFF, too.
            if not _neff(folder):
                raise RuntimeError(f"{PROBES[index].name}: no NEFF; {done.stderr[-2000:]}")
            print(f"{folder}: {PROBES[index].name}")


def compile_one(index: int, factor: int) -> None:
    """Compile a probe in this process by calling it, as AWS's package does."""
    _package("nki", "compile")
    probe = PROBES[index]
    kernels = importlib.import_module("kernels")
    arrays = [_array(dtype, shape) for dtype, shape in probe.tensors]
    getattr(kernels, probe.kernel)(*arrays, *probe.arguments(factor))


def _array(dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy as np

    if dtype == "bfloat16":
        import ml_dtypes

        return np.ones(shape, ml_dtypes.bfloat16)
    return np.ones(shape, dtype)


def _neff(folder: Path) -> Path | None:
    return next(iter(sorted(folder.rglob("*.neff"))), None)


# ---- measure ----


def measure(neffs: Path) -> list[dict[str, Any]]:
    """Device time of every probe: mean of the difference between the counts, per instruction."""
    nrtpy = _package("nrtpy", "measure")
    rows = []
    for index, probe in enumerate(PROBES):
        times = [_device_ns(nrtpy, neffs / f"{index}x{factor}", probe) for factor in _FACTORS]
        rows.append(
            {
                "name": probe.name,
                "ns": (times[1] - times[0]) / probe.count,
                "whole_ns": times,
                "count": probe.count,
            }
        )
    return rows


def _device_ns(nrtpy: Any, folder: Path, probe: Probe) -> float:
    neff = _neff(folder)
    if neff is None:
        raise FileNotFoundError(f"{folder} has no NEFF of '{probe.name}'; run collect.py compile")
    model = nrtpy.NrtpyModel.load_from_neff(neff)
    names = list(model.input_tensors_info)
    inputs = {
        name: nrtpy.NrtpyTensor.from_numpy(_array(dtype, shape), name=name)
        for name, (dtype, shape) in zip(names, probe.tensors, strict=True)
    }
    result = model.benchmark(inputs=inputs, benchmark_iter=_ITERATIONS, mode="device")
    return float(result.min_ms) * 1e6


# ---- table ----


def predict(probe: Probe, target: str) -> float:
    """The same difference, as the timing model has it (ns)."""
    import torch

    from trnx.simulator import TensorSpec, load_module, trace
    from trnx.simulator.hardware import hardware
    from trnx.simulator.timing.scheduler import schedule

    kernel = getattr(load_module(Path(__file__).with_name("kernels.py")), probe.kernel)
    totals = []
    for factor in _FACTORS:
        specs = [TensorSpec.dense(shape, getattr(torch, dtype)) for dtype, shape in probe.tensors]
        program = trace(kernel, [*specs, *probe.arguments(factor)], target=target)
        totals.append(schedule(program.rows, hardware(target)).total_ps / 1000)
    return (totals[1] - totals[0]) / probe.count


def table(rows: Sequence[dict[str, Any]], target: str) -> list[dict[str, Any]]:
    """Measured and predicted ns per instruction."""
    probes = {probe.name: probe for probe in PROBES}
    found = []
    for row in rows:
        probe = probes[row["name"]]
        predicted = predict(probe, target)
        found.append(
            {
                "name": f"D-{len(found) + 1}",
                "target": target,
                "what": probe.name,
                "measured_ns": row["ns"],
                "predicted_ns": predicted,
                "error": predicted / row["ns"] - 1,
                "tells": probe.tells,
            }
        )
    return found


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| point | chip | what | measured | predicted | error | tells |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        lines.append(
            f"| {row['name']} | {row['target']} | {row['what']} | {row['measured_ns']:.0f} ns "
            f"| {row['predicted_ns']:.0f} ns | {row['error']:+.1%} | {row['tells']} |"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("compile", help="NEFFs of all probes")
    step.add_argument("--out", type=Path, required=True)
    step = steps.add_parser("compile-one")
    step.add_argument("index", type=int)
    step.add_argument("factor", type=int)
    step = steps.add_parser("measure", help="device times of the NEFFs")
    step.add_argument("neffs", type=Path)
    step.add_argument("--out", type=Path, required=True)
    step = steps.add_parser("table", help="measured against predicted")
    step.add_argument("times", type=Path)
    step.add_argument("--target", required=True)
    step.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    try:
        if options.step == "compile":
            compile_probes(options.out)
        elif options.step == "compile-one":
            compile_one(options.index, options.factor)
        elif options.step == "measure":
            options.out.write_text(json.dumps(measure(options.neffs), indent=1))
        else:
            rows = table(json.loads(options.times.read_text()), options.target)
            print(_markdown(rows))
            if options.json:
                print(json.dumps({"points": rows}))
    except NeuronPackagesError as error:
        print(f"NeuronPackagesError: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
