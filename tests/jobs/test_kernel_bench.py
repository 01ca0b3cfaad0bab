"""The kernel benchmark: its table, its flags, and the way to a device."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from trnx.jobs import kernel_bench
from trnx.jobs.device_kernels import has_device
from trnx.nki_kernels import registry

KERNELS = [spec.name for spec in registry.kernels()]


def bench(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any], str]:
    status = kernel_bench.main([*flags, "--json"])
    lines = capsys.readouterr().out.splitlines()
    return status, json.loads(lines[-1]), "\n".join(lines[:-1])


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_kernels_are_predicted_on_every_generation(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("softmax", "rms_norm")
    flags = [flag for name in names for flag in ("--kernel", name)]
    status, seen, table = bench(capsys, *flags, "--target", target)
    assert status == 0
    assert seen["target"] == target
    assert not seen["device"]
    assert [row["kernel"] for row in seen["rows"]] == list(names)
    for row in seen["rows"]:
        assert row["predicted_seconds"] > 0
        assert row["measured_seconds"] is None
        assert row["status"] == "ok"
        assert f"{row['predicted_seconds'] * 1e6:.1f}" in table


@pytest.mark.slow
def test_every_sample_of_every_kernel_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    status, seen, _ = bench(capsys, "--all-samples")
    assert status == 0
    assert {row["kernel"] for row in seen["rows"]} == set(KERNELS)


def test_all_samples_are_more_rows(capsys: pytest.CaptureFixture[str]) -> None:
    status, seen, _ = bench(capsys, "--kernel", "softmax", "--all-samples")
    assert status == 0
    assert len(seen["rows"]) > 3
    assert {row["kernel"] for row in seen["rows"]} == {"softmax"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--kernel", "nothing"),
            "FlagError: --kernel nothing: no such kernel; there are avg_pool",
        ),
        (("--runs", "0"), "FlagError: --runs must be at least 1"),
        (("--load", "/no/such.py"), "FlagError: --load /no/such.py: no such file"),
    ],
)
def test_bad_flags_are_named_errors(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kernel_bench.main(flags) == 1
    assert message in capsys.readouterr().err


# The simulator in the place of the real `nki`, the CPU in the place of the device.
ON_DEVICE = """
import torch
from trnx.simulator import install
install()
from trnx.jobs import device_kernels, kernel_bench
from trnx.nki_kernels import registry
from trnx.simulator.hardware import hardware

hw = hardware("trn2")
for name in ("softmax", "embedding", "linear"):
    spec = registry.kernels()[name]
    (sample,) = kernel_bench.samples(spec, hw, False)
    row = kernel_bench.bench(spec, sample, hw, 2, True)
    assert row.status == "ok", row
    assert row.measured_seconds > 0, row
    launch = spec.launch(kernel_bench.bindings_of(sample), hw)
    native = device_kernels.native_kernel(launch.kernel)
    assert native is not launch.kernel
print("measured")
"""


def test_measured_calls_run_the_kernel_file_with_the_installed_nki() -> None:
    assert not has_device()
    done = subprocess.run(
        [sys.executable, "-c", ON_DEVICE], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "measured"
