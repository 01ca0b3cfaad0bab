"""The table of instructions: how a legal call is drawn, and what it does to a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nki_reference.program import Call
from nki_reference.program_builder import ProgramBuilder

Apply = Callable[..., None]
Draw = Callable[[ProgramBuilder], None]
ALL = (2, 3, 4)


def always(call: Call) -> bool:
    """`is_exact` of an instruction whose results are known to the bit."""
    return call is not None


@dataclass(frozen=True)
class Entry:
    """One instruction of nki.isa.

    `draw` appends legal calls, and what they need, to a builder; `apply(machine, **arguments)`
    is the reference. `is_exact(call)` says whether results are known to the bit; otherwise the
    simulator's are read back, compared within bounds and adopted. `moves` names instructions that
    copy bits, whose results must be equal to the bit, NaN and the sign of zero included.
    """

    name: str
    draw: Draw
    apply: Apply
    generations: tuple[int, ...] = ALL
    is_exact: Callable[[Call], bool] = always
    moves: bool = False
    cores: int = 1
    # What a machine offers its peer before either of them goes on.
    send: Apply | None = None


ENTRIES: dict[str, Entry] = {}


def never(call: Call) -> bool:
    """`is_exact` of an instruction whose results always have an error."""
    return call is None


def entry(name: str, draw: Draw, **more: Any) -> Callable[[Apply], Apply]:
    """Decorate a reference function: it becomes the entry of this instruction."""

    def add(apply: Apply) -> Apply:
        ENTRIES[name] = Entry(name, draw, apply, **more)
        return apply

    return add
