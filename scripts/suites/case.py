"""One model of a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Built:
    """A model in float32 with what it is called with."""

    model: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """`build(train)` makes a model with random weights, in the mode that `train` says, from a seed
    of its own."""

    name: str
    build: Callable[[bool], Built]
