"""How the next token of a request is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Temperature 0 takes the most likely one; else the most likely ones
    whose chances add up to `top_p` are drawn from."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def arguments(self) -> dict[str, Any]:
        """What continuous batching gets with the request; none where nothing is drawn."""
        if self.temperature == 0:
            return {}
        return {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}


GREEDY = Sampling()


def number_of(seed: int, position: int) -> float:
    """The number in [0, 1) that chooses the token behind `position` tokens."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=position))
    return float(generator.random(dtype=np.float32))
