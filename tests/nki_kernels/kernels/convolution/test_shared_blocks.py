"""Convolutions whose blocks of outputs, or output channels, the cores of a logical one share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from trnx.backend.kernel_samples import difference, operands
from trnx.backend.programs import traced
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, Launch, Sample
from trnx.simulator import simulate
from trnx.simulator.hardware import TRN2
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import predicted_seconds

TWO = replace(TRN2, cores=2)
SPEC: Any = next(spec for spec in kernels() if spec.name == "convolution")
NONE = dict.fromkeys(("bias", "residual", "norm_weight", "norm_bias", "mean", "variance", "sizes"))


def _values(
    x: tuple[int, ...], outs: int, kernel: int = 1, stride: int = 1, transposed: bool = False
) -> dict[str, Any]:
    dims = len(x) - 2
    shape = (x[1], outs) if transposed else (outs, x[1])
    how = {"stride": [stride] * dims, "padding": [0] * dims, "dilation": [1] * dims}
    return {
        "x": TensorSpec.dense(x, torch.bfloat16),
        "weight": TensorSpec.dense((*shape, *[kernel] * dims), torch.bfloat16),
        "eps": 0.0, "activation": "none", "transposed": transposed,
        "output_padding": [0] * dims, "groups": 1, **how, **NONE,
    }  # fmt: skip


def _launch(values: dict[str, Any]) -> Launch:
    b = Bindings(values)
    assert SPEC.supports(b, TWO) is None
    found: Launch = SPEC.launch(b, TWO)
    return found


def _plan(launch: Launch) -> tuple[Any, ...]:
    found: tuple[Any, ...] = next(
        a for a in launch.arguments if isinstance(a, tuple) and len(a) > 10
    )
    return found


def _shares_blocks(launch: Launch) -> bool:
    """As `_plan.plan_of` reads it."""
    return bool(_plan(launch)[20])


# More input than weights in one block, and the other way round; several blocks; volumes.
FORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "few weights": ({"x": (8, 960, 7, 7), "outs": 160}, True),
    "ragged": ({"x": (7, 901, 7, 6), "outs": 131}, True),
    "one image": ({"x": (1, 2000, 19, 19), "outs": 130}, True),
    "many weights": ({"x": (4, 160, 10, 10), "outs": 1600}, False),
    "transposed": ({"x": (8, 960, 7, 7), "outs": 160, "transposed": True}, True),
    "several blocks": ({"x": (8, 256, 14, 14), "outs": 256, "kernel": 3}, False),
    "pairs": ({"x": (8, 192, 28, 28), "outs": 384, "kernel": 2, "stride": 2}, True),
    "volumes": ({"x": (3, 256, 2, 14, 14), "outs": 256}, False),
    "one channel": ({"x": (2, 1, 3, 3), "outs": 1}, False),
}


@pytest.mark.parametrize("form", FORMS)
def test_values(form: str) -> None:
    """Infinities and NaN reach what they reach on one core."""
    how, by_blocks = FORMS[form]
    values = _values(**how)
    launch = _launch(values)
    assert launch.cores == 2
    assert _shares_blocks(launch) is by_blocks
    generator = torch.Generator().manual_seed(0)
    for name in ("x", "weight"):
        values[name] = torch.randn(values[name].shape, generator=generator).to(torch.bfloat16)
    values["x"][0, -1, ..., -1] = torch.inf
    values["x"][-1, 0, ..., 0] = torch.nan
    sample = Sample(values)
    found = simulate(launch.kernel, grid=2)(*operands(launch, sample))
    assert difference(found, SPEC.reference(**values), sample).problem == ""


@pytest.mark.parametrize(
    ("form", "most"),
    [
        ({"x": (8, 2048, 7, 7), "outs": 512}, 15.5),
        ({"x": (8, 960, 7, 7), "outs": 160}, 8.0),
        ({"x": (8, 192, 28, 28), "outs": 384, "kernel": 2, "stride": 2}, 13.9),
    ],
)
def test_predicted_time(form: dict[str, Any], most: float) -> None:
    """Sharing channels, or in blocks of one bank, they took 16.9, 10.2 and 15.3 us."""
    launch = _launch(_values(**form))
    assert 1e6 * predicted_seconds(traced(launch, "trn2"), TRN2, launch.unknown_trips) < most
