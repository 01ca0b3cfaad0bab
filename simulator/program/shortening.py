"""Shortening: fewer steps for a replay than were recorded, with the same values.

Checks and times are those of the instructions, which stay as they were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.copy_elision import elide_copies
from trnx.simulator.program.dead_steps import drop_dead_steps, write_in_place
from trnx.simulator.program.negations import subtract_negated
from trnx.simulator.program.product_merging import merge_products
from trnx.simulator.program.step_effects import EffectReader
from trnx.simulator.program.tile_merging import merge_tiles


@dataclass(frozen=True)
class Shortened:
    """Steps that are left, and what they `used`, where that is known: the ids of views, and the
    addresses of own memory. `made` is own memory that is new: address -> bytes.
    """

    steps: list[Step]
    used: tuple[frozenset[int], frozenset[int]] | None
    made: Mapping[int, int]


def shorten(
    steps: Sequence[Step], slots: Sequence[Slot], inputs: int, blank: Mapping[int, int]
) -> Shortened:
    """The steps that a replay needs. The first `inputs` slots are those of the arguments; `blank`
    as in `Program`.
    """
    reader = EffectReader(slots, blank)
    merged = merge_products(steps, reader, inputs)
    if merged is not steps:
        # What brought the parts of the products on chip: most of the steps.
        merged = drop_dead_steps(merged, reader)
    elided = elide_copies(merged, reader, inputs)
    placed = write_in_place(elided, reader, inputs)
    needed = drop_dead_steps(placed, reader)
    left = list(merge_tiles(subtract_negated(needed, reader), reader, inputs))
    return Shortened(left, reader.used(left), reader.made)


def shorten_exactly(
    steps: Sequence[Step], slots: Sequence[Slot], inputs: int, blank: Mapping[int, int]
) -> list[Step]:
    """Fewer steps that give the bits of the recorded ones, on the memory that there is: for results
    that lie apart from the arguments. Parameters as in `shorten`.
    """
    reader = EffectReader(slots, blank)
    for _ in range(2):
        # The first pass leaves out what hides from the second where elements came from.
        elided = elide_copies(steps, reader, inputs, keeps_bits=True)
        steps = drop_dead_steps(write_in_place(elided, reader, inputs), reader)
    return list(steps)
