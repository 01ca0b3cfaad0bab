"""How the next token of a request is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


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


def draw(
    scores: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, number: torch.Tensor
) -> torch.Tensor:
    """Scores [rows, vocabulary] whose largest is the token that is drawn; the others [rows, 1].
    Rows of temperature 0 stay as they are."""
    scaled = scores / torch.where(temperature > 0, temperature, 1.0)
    ordered, tokens = torch.sort(scaled, dim=-1, descending=True)
    chances = torch.softmax(ordered, dim=-1)
    before = torch.cumsum(chances, dim=-1) - chances
    # The most likely one stays, however small top_p is.
    before[:, 0] = 0.0
    kept = before < top_p
    ends = torch.cumsum(torch.where(kept, chances, 0.0), dim=-1)
    place = (ends <= number * ends[:, -1:]).sum(dim=-1, keepdim=True)
    # Where all that is kept rounds to less than the number.
    place = torch.minimum(place, kept.sum(dim=-1, keepdim=True) - 1)
    drawn = scores.scatter(-1, tokens.gather(-1, place), torch.inf)
    return torch.where(temperature > 0, drawn, scores)
