"""AWS's own simulator, `nki.simulate`, where its package is installed: what it gives for a launch.

Differences in values are shown, and are no failure: only the device says who is right.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trnx.backend.kernel_samples import Difference
from trnx.backend.neuron.native import native_kernel
from trnx.backend.neuron.region_op import lnc_of
from trnx.backend.neuron.stack import find_stack
from trnx.nki_kernels.spec import Launch
from trnx.simulator.hardware import Hardware

Simulate = Callable[[Any], Callable[..., Any]]

# What nki takes its target from (SDK/nki/api/nki/__init__.py).
_TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"


def native_simulator() -> Simulate | None:
    """AWS's simulator, where `nki` is the real package."""
    if find_stack().nki != "native":
        return None
    import nki

    simulate: Simulate = nki.simulate
    return simulate


def native_difference(
    simulate: Simulate, launch: Launch, given: list[Any], ours: Any, hw: Hardware
) -> Difference:
    """How AWS's simulator differs from trnx's results `ours`; what it refuses is the problem."""
    try:
        kernel, lnc = native_kernel(launch.kernel), lnc_of(launch)
        with _target(hw.target):
            found = simulate(kernel[lnc] if lnc > 1 else kernel)(*given)
    except Exception as error:  # noqa: BLE001  whatever AWS's package raises is the finding
        return Difference(problem=f"nki.simulate: {type(error).__name__}: {error}")
    theirs, own = _tuple(found), _tuple(ours)
    if len(theirs) != len(own):
        return Difference(problem=f"nki.simulate: {len(theirs)} results, and trnx has {len(own)}")
    pairs = zip(theirs, own, strict=True)
    return Difference(max((_gap(torch.as_tensor(a), b) for a, b in pairs), default=0.0))


@contextmanager
def _target(name: str) -> Iterator[None]:
    before = os.environ.get(_TARGET)
    os.environ[_TARGET] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TARGET]
        else:
            os.environ[_TARGET] = before


def _gap(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """The largest absolute difference; infinite where one is NaN and the other is not."""
    if theirs.shape != ours.shape:
        return math.inf
    one, other = theirs.double(), ours.double()
    is_same = (one == other) | (one.isnan() & other.isnan())
    gaps = (one - other).abs()[~is_same].nan_to_num(math.inf, posinf=math.inf)
    return float(gaps.max()) if gaps.numel() else 0.0


def _tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
