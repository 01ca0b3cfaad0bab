"""Negations that subtractions make unnecessary.

A softmax kernel asks for the negated maximum of each row, as the bias of an exponential. `a + -b`
and `a - b` are the same bits, but for the sign of a NaN.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from trnx.simulator.memory.storage import Step
from trnx.simulator.program.dead_steps import effects_of, fresh_memory
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects, parts_of


def subtract_negated(steps: Sequence[Step], reader: EffectReader) -> Sequence[Step]:
    """The steps, without negations of what is only added to something afterwards: that subtracts.
    Of memory that holds nothing from one run to the next.
    """
    negations = [number for number, step in enumerate(steps) if _is_negation(step)]
    effects = effects_of(steps, reader) if negations else None
    if effects is None:
        return steps
    fresh = fresh_memory(effects, reader.blank)
    candidates = [number for number in negations if effects[number].writes[0].memory in fresh]
    touching = _touching(effects, {effects[number].writes[0].memory for number in candidates})
    made: dict[int, Step | None] = {}
    for number in candidates:
        found = _subtractions(number, steps, effects, touching)
        if found and not any(at in made for at in found):
            made |= {number: None, **found}
    left = (made.get(number, step) for number, step in enumerate(steps))
    return [step for step in left if step is not None]


def _is_negation(step: Step) -> bool:
    function, args, named = parts_of(step)
    owner = getattr(function, "__self__", None)
    is_method = isinstance(owner, torch.Tensor) and not args and not named
    return is_method and function.__name__ == "neg_"


def _touching(effects: Sequence[Effects], memories: set[int]) -> Mapping[int, list[int]]:
    """The numbers of the steps that touch each of these memories, in order."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(effects):
        for memory in {part.memory for part in (*one.reads.values(), *one.writes)} & memories:
            found[memory].append(number)
    return found


def _subtractions(
    number: int,
    steps: Sequence[Step],
    effects: Sequence[Effects],
    touching: Mapping[int, list[int]],
) -> dict[int, Step] | None:
    """By their numbers, the steps that read what step `number` negates, as subtractions; None where
    one is another step than an addition to something else.
    """
    negated = effects[number].writes[0]
    found: dict[int, Step] = {}
    known = touching[negated.memory]
    for at in known[bisect_right(known, number) :]:
        one = effects[at]
        is_overwritten = any(part.overlaps(negated) for part in one.writes)
        if any(part.overlaps(negated) for part in one.reads.values()):
            step = None if is_overwritten else _subtraction(steps[at], one, negated)
            if step is None:
                return None
            found[at] = step
        elif is_overwritten:
            is_all = one.is_pure and any(part.covers(negated) for part in one.writes)
            return found if is_all else None
    return found


def _subtraction(step: Step, effects: Effects, negated: Region) -> Step | None:
    """An addition of what is negated as the subtraction of it; None for other steps."""
    function, args, named = parts_of(step)
    if function is not torch.add or list(named) != ["out"] or list(effects.reads) != [0, 1]:
        return None
    if {part.dtype for part in (*effects.reads.values(), *effects.writes)} != {negated.dtype}:
        return None
    is_negated = [part.overlaps(negated) for part in effects.reads.values()]
    if all(is_negated) or not negated.covers(effects.reads[is_negated.index(True)]):
        return None
    first, second = args if is_negated[1] else reversed(args)
    return functools.partial(torch.sub, first, second, **named)
