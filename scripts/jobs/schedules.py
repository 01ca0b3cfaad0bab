"""Learning rates by step: a linear warm-up, then one of the usual shapes down to a floor.

A rate is a function of the step, so that nothing of it is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

# What is left of the peak at the last step.
_FLOOR = 0.1

# The part of the way from the floor to the peak that is left when the part `done` is over.
SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "constant": lambda _: 1.0,
}


def learning_rate(schedule: str, peak: float, warmup: int, steps: int, step: int) -> float:
    """The rate of `step`, counted from 0, of a run of `steps`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return peak * (_FLOOR + (1 - _FLOOR) * SCHEDULES[schedule](done))
