"""`TraceOptions`: how a kernel is recorded, in one frozen object."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from trnx.simulator.errors import TrnxError
from trnx.simulator.findings import ALWAYS_WARNINGS, CHECKS, ON_REQUEST
from trnx.simulator.hardware import DEFAULT_TARGET
from trnx.simulator.isa.namespace import is_instruction
from trnx.simulator.multicore.ranks import SINGLE, Rank

Grid = int | Sequence[int] | None


class GridError(TrnxError, ValueError):
    """A launch grid that is no number of programs."""


class UnknownCheckError(TrnxError, ValueError):
    """A name in `warn` that is no check."""


class Passing(Enum):
    """How tensors reach the kernel."""

    as_given = "with the strides that they have"
    dense = "contiguous"
    borrowed = "contiguous, and the caller's stay as they are"


def is_check(name: str) -> bool:
    """True for the name of a check."""
    return name in (CHECKS | ALWAYS_WARNINGS | ON_REQUEST) or is_instruction(name)


@dataclass(frozen=True)
class TraceOptions:
    """The parameters of `trace` and `simulate`, checked. Raises UnknownCheckError.

    `grid` is None where the kernel has its own (`kernel[2]`). With `stores_float32`, tensors of
    floating point types below 32 bits are stored as float32; with `makes_numpy`, a kernel without
    tensors among its arguments returns numpy arrays. Equal options record alike, but for the rank.
    """

    target: str = DEFAULT_TARGET
    grid: Grid = None
    values: bool = False
    strict: bool = True
    warn: Collection[str] = ()
    rank: Rank = field(default=SINGLE, compare=False)
    passing: Passing = Passing.as_given
    stores_float32: bool = False
    makes_numpy: bool = False

    def __post_init__(self) -> None:
        if self.grid is not None:
            sizes = (self.grid,) if isinstance(self.grid, int | float | str) else tuple(self.grid)
            object.__setattr__(self, "grid", sizes)
        warn = frozenset([self.warn] if isinstance(self.warn, str) else self.warn)
        object.__setattr__(self, "warn", warn)
        unknown = sorted(name for name in warn if not is_check(name))
        if unknown:
            raise UnknownCheckError(
                f"{', '.join(unknown)}: no such check; there are "
                f"{', '.join(sorted(CHECKS | ON_REQUEST))}, and "
                "the names of instructions"
            )

    def launch_grid(self, own: tuple[int, ...] | None) -> tuple[int, ...]:
        """The programs of a launch along each axis; `own` is the kernel's. Raises GridError."""
        sizes = own if self.grid is None else self.grid
        assert not isinstance(sizes, int), "normalised"
        for size in sizes or ():
            if not isinstance(size, int) or size < 1:
                raise GridError(f"the grid {sizes} must be a positive number of programs")
        return tuple(sizes or ())
