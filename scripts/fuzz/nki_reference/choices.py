"""Where a program's random decisions come from: a seeded generator here, hypothesis in tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choices(Protocol):
    """Decisions about a program."""

    def integer(self, low: int, high: int) -> int:
        """A number in [low, high]."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; earlier ones are simpler."""

    def flag(self, percent: int = 50) -> bool:
        """True with this probability."""


class SeededChoices:
    """Choices of one seed; equal seeds make equal programs."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """See `Choices`."""
        return self._random.randint(low, high)

    def pick(self, options: Sequence[T]) -> T:
        """See `Choices`."""
        return self._random.choice(options)

    def flag(self, percent: int = 50) -> bool:
        """See `Choices`."""
        return self._random.randrange(100) < percent
