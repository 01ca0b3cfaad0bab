"""Which constants of the timing model a device contradicts, and which values fit what it measured.

Predictions are recomputed with other values, so that a constant that is hidden behind a longer time
is not blamed. Constants are taken one after the other, the one first that explains most; each is
judged by the probes that tell about it, and changed only where that helps all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from trnx.device.probes import FACTORS, PROBES, Probe
from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.costs.constants import Timing, timing
from trnx.simulator.hardware import hardware
from trnx.simulator.program.program import Program
from trnx.simulator.timing.scheduler import schedule

# Differences that are no reason to change a constant, as a share of the time.
NOISE = 0.05
_MOST = 6  # constants changed in one report
_SCALES = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
_KERNELS = Path(__file__).with_name("kernels.py")
_KNOWN = frozenset(field.name for field in fields(Timing))


@dataclass(frozen=True)
class Change:
    """A constant, its value now, the value that fits, and by how much the probes differ before and
    after: root mean squares of the logarithms of measured over predicted."""

    constant: str
    now: float
    fitting: float
    before: float
    after: float


def told_by(probe: Probe) -> tuple[str, ...]:
    """The constants that a probe tells about."""
    return tuple(name for name in probe.tells.split(", ") if name in _KNOWN)


@cache
def _program(index: int, factor: int, target: str) -> Program:
    probe = PROBES[index]
    kernel = getattr(load_module(_KERNELS), probe.kernel)
    if probe.cores > 1:
        kernel = kernel[probe.cores]
    specs = [TensorSpec.dense(shape, getattr(torch, dtype)) for dtype, shape in probe.tensors]
    return trace(kernel, [*specs, *probe.arguments(factor)], target=target, values=False)


class _Noting:
    """Constants, and the values of those that were read."""

    def __init__(self, constants: Timing) -> None:
        self.constants = constants
        self.read: dict[str, float] = {}

    def __getattr__(self, name: str) -> float:
        self.read[name] = found = float(getattr(self.constants, name))
        return found


# Probe and target -> what was read of the constants, and the prediction that follows from it.
_predictions: dict[tuple[int, str], list[tuple[dict[str, float], float]]] = {}


def predicted_ns(index: int, target: str, constants: Timing | None = None) -> float:
    """Nanoseconds of one instruction of probe `index`, as the difference of two counts.

    It is computed anew only where a constant that it depends on has a value that is new.
    """
    hw = hardware(target)
    noting: Any = _Noting(constants or timing(hw))
    known = _predictions.setdefault((index, target), [])
    for read, ns in known:
        if all(getattr(noting.constants, name) == value for name, value in read.items()):
            return ns
    whole = [
        schedule(_program(index, factor, target).rows, hw, constants=noting).total_ps / 1000
        for factor in FACTORS
    ]
    known.append((noting.read, (whole[1] - whole[0]) / PROBES[index].between))
    return known[-1][1]


def changes(measured: Mapping[int, float], target: str) -> list[Change]:
    """The constants to change, in the order of what they explain. `measured` is probe -> ns."""
    now = timing(hardware(target))
    given = {index: ns for index, ns in measured.items() if ns > 0}
    names = dict.fromkeys(name for index in given for name in told_by(PROBES[index]))
    chosen, found = now, list[Change]()
    while len(found) < _MOST:
        best = _best(names, chosen, given, target)
        if best is None:
            return found
        found.append(replace(best, now=getattr(now, best.constant)))
        chosen = replace(chosen, **{best.constant: best.fitting})
        del names[best.constant]
    return found


def _best(
    names: Iterable[str], chosen: Timing, measured: Mapping[int, float], target: str
) -> Change | None:
    """The change of one constant that leaves least, None where none helps."""
    before = _distance(measured, target, chosen, measured)
    best: Change | None = None
    for name in names:
        own = [index for index in measured if name in told_by(PROBES[index])]
        off = _distance(own, target, chosen, measured)
        value = _fitting(name, own, chosen, measured, target) if off > NOISE else None
        if value is None:
            continue
        after = _distance(measured, target, replace(chosen, **{name: value}), measured)
        is_better = after < 0.9 * before and (best is None or after < best.after)
        if is_better:
            best = Change(name, getattr(chosen, name), value, before, after)
    return best


def _fitting(
    name: str, own: Sequence[int], chosen: Timing, measured: Mapping[int, float], target: str
) -> float | None:
    """The value with which the probes that tell about the constant differ least: a coarse search,
    then a fine one. None for a constant that is 0, which says that something is not modelled."""
    now = getattr(chosen, name)

    def off(scale: float) -> float:
        return _distance(own, target, replace(chosen, **{name: now * scale}), measured)

    if not now:
        return None
    center = min((1.0, *_SCALES), key=off)
    for step in (0.15, 0.04, 0.01):
        center = min((center * (1 + step * i) for i in range(-3, 4)), key=off)
    return float(f"{now * center:.4g}")


def _distance(
    probes: Iterable[int], target: str, constants: Timing, measured: Mapping[int, float]
) -> float:
    """Root mean square of the logarithms of measured over predicted."""
    logs = [
        math.log(measured[index] / max(predicted_ns(index, target, constants), 1e-3))
        for index in probes
    ]
    return math.sqrt(sum(x * x for x in logs) / len(logs)) if logs else 0.0
