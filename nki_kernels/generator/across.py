"""Reductions along the partitions: the cut, and the phases in which the space is run through.

Where a reduced dimension lies on the partitions, and is looped over, a reduction is complete after
the last tile. So the instructions fall into phases: each runs through all tiles up to what its
reductions add up, combines the partitions, and the next one begins. What does not vary along a
reduced dimension is computed once between two of them, in all partitions alike. What a later phase
reads of a tile stays in SBUF where it fits, else its tensors are loaded and its values computed
again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from trnx.nki_kernels.generator.chain_order import in_chain_order
from trnx.nki_kernels.generator.cuts import (
    EFFICIENT_RUN,
    cut_along,
    leads,
    seconds_of,
)
from trnx.nki_kernels.generator.engines import TENSOR
from trnx.nki_kernels.generator.geometry import (
    Axis,
    Geometry,
    RowTiles,
)
from trnx.nki_kernels.generator.instruction import EACH_TILE, Instruction, Tile
from trnx.nki_kernels.generator.ir import Dims, Value

BANK = 512  # float32 values of a partition in a bank of PSUM
MOST_SUMS = 2048  # four of the eight banks
# Products that add to one place of PSUM one after another, where VectorE could add up what a
# partition has: 500 equal terms are 20 ulp off.
_MOST_PRODUCTS = 64
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def cut_across(
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    *,
    whole: bool,
    along: Dims = (),
    efficient: int = EFFICIENT_RUN,
) -> Geometry | None:
    """The cut with a dimension of `reduced` along the partitions, one of `along` where some are
    given, that takes the least time; the loops over dimensions that stay are the outer ones. There
    are none of these where such dimensions are `whole` in a tile; None where they do not fit."""
    inner = tuple(d for d in order if d in reduced)
    kept = frozenset(order) - reduced if whole else frozenset()
    if math.prod(sizes[d] for d in kept) > budget:
        return None
    found = [
        cut_along(partition, lead, order, sizes, kept, budget)
        for partition in along or inner
        for lead in (None, *leads(partition, inner, sizes, across=False))
    ]
    return _best(found, order, sizes, reduced, efficient)


def cut_in_steps(
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    *,
    efficient: int = EFFICIENT_RUN,
) -> Geometry | None:
    """The cut with a dimension that stays along the partitions, and steps along a reduced one, that
    takes the least time; None where all reduced ones are whole."""
    outer = tuple(d for d in order if d not in reduced)
    found = [
        cut_along(partition, lead, order, sizes, frozenset(), budget)
        for partition in outer
        for lead in (None, *leads(partition, outer, sizes, across=False))
    ]
    if not found:
        return None
    best = _best(found, order, sizes, reduced, efficient)
    return best if best.in_phases else None


def cut_led_in_steps(
    partition: int,
    lead: Axis | None,
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    *,
    whole: bool = False,
) -> Geometry | None:
    """The cut along `partition` and `lead`, which stay, in steps along a reduced dimension; None
    where all reduced ones are whole. Others that stay are `whole` in a tile, or None where they do
    not fit."""
    within = frozenset(order) - reduced - {partition} if whole else frozenset()
    if math.prod(sizes[d] for d in within) > budget:
        return None
    cut = cut_along(partition, lead, order, sizes, within, budget)
    found = reducing(cut, reduced)
    return found if found.in_phases else None


def cut_interleaved(
    partition: int,
    lead: Axis | None,
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    *,
    whole: bool = False,
) -> Geometry | None:
    """The cut along `partition` with interleaved rows; reduced dimensions are `whole`, or it is one
    in steps along them: None where there are none."""
    within = reduced if whole else frozenset()
    cut = cut_along(partition, lead, order, sizes, within, budget)
    found = dataclasses.replace(reducing(cut, reduced), interleaved=True)
    return found if whole or found.in_phases else None


def _best(
    found: Sequence[Geometry],
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    efficient: int,
) -> Geometry:
    """The fastest one."""
    best = min(found, key=lambda g: seconds_of(g, order, sizes, efficient))
    return reducing(best, reduced)


def reducing(cut: Geometry, reduced: frozenset[int]) -> Geometry:
    """`cut` of a region that reduces these dimensions, with the loops over what stays outside."""
    loops = sorted(cut.loops, key=lambda axis: axis.label in reduced)
    return dataclasses.replace(cut, reduced=reduced, loops=tuple(loops))


@dataclass(frozen=True)
class Phase:
    """`once` is computed before the tiles, `each` in every tile, `combines` after them. `held` is
    what earlier phases left of a tile, `kept` what this one leaves."""

    once: Sequence[Instruction]
    each: Sequence[Instruction]
    combines: Sequence[Instruction]
    stores: Sequence[int]
    held: Sequence[Value]
    kept: Sequence[Value]


@dataclass(frozen=True)
class Across:
    """The instructions of one tile, the results that are stored, and the geometry."""

    instructions: Sequence[Instruction]
    results: Sequence[Value]
    geometry: Geometry

    def phases(self, keeps: str) -> list[Phase]:
        """The phases; `keeps` of a tile is `all` that is read later, what is `computed` or `loads`
        alone, what the `first` phase leaves alone, or `none`."""
        if keeps not in self._known:
            self._known[keeps] = self._cut_into_phases(keeps)
        return self._known[keeps]

    @functools.cached_property
    def _known(self) -> dict[str, list[Phase]]:
        return {}

    def _cut_into_phases(self, keeps: str) -> list[Phase]:
        at = self._phase_of_values
        count = 1 + max((at[i.dst] for i in self._combines), default=0)
        goals = [self._goals(phase, at) for phase in range(count)]
        bodies: list[list[Instruction]] = []
        held: list[list[Value]] = []
        for phase in range(count):
            left = bodies[:1] if keeps == "first" else bodies
            done = {v for body in left for i in body for v in i.writes()}
            if keeps in ("computed", "loads"):
                loaded = {i.dst for body in bodies for i in body if i.call == "load"}
                done = loaded if keeps == "loads" else done - loaded
            body, found = self._closure(goals[phase], done if keeps != "none" else set())
            bodies.append(body)
            held.append(found)
        last = {v: phase for phase, values in enumerate(held) for v in values}
        first = {i: self._first_phase(i, at) for i in self.instructions}
        result = []
        for phase, body in enumerate(bodies):
            kept = [v for v in last if last[v] > phase and any(v in i.writes() for i in body)]
            stores = [n for n, v in enumerate(self.results) if at[v] == phase]
            combines = [i for i in self._combines if at[i.dst] == phase + 1]
            once = [i for i in self.instructions if self._is_once(i) and first[i] == phase]
            result.append(Phase(in_chain_order(once), body, combines, stores, held[phase], kept))
        return result

    def varies(self, value: Value) -> bool:
        """Whether elements of one reduction differ in `value`."""
        return bool(value.axes & (self.geometry.reduced | {EACH_TILE}))

    def moves(self, value: Value) -> bool:
        """Whether tiles of one reduction differ in `value`. What they share is computed once, but a
        result, which each of them stores."""
        stored = value in self.results and self.varies(value)
        return stored or bool(value.axes & self._moving)

    @functools.cached_property
    def _moving(self) -> frozenset[int]:
        """The labels along which tiles of one reduction differ."""
        geometry = self.geometry
        if self.steps == 1:
            return geometry.reduced | {EACH_TILE}
        labels = {EACH_TILE, *(axis.label for axis in self.loops(reduced=True))}
        if geometry.crosses and sum(len(rows.starts) for rows in geometry.rows) > 1:
            labels.add(geometry.partition)
        if geometry.lead is not None and len({rows.count for rows in geometry.rows}) > 1:
            # Tiles of fewer rows have elements of the lead on other partitions.
            labels.add(geometry.lead.label)
        return frozenset(labels)

    def shared(self) -> list[Instruction]:
        """What tiles of one reduction share of what is no total: it is there for all phases."""
        return [i for i in self.instructions if self._is_once(i) and self.varies(i.dst)]

    def in_one_phase(self, combine: Instruction) -> tuple[Value, Value] | None:
        """Where `combine` adds up sums of exp(x - m), with an m for each tile: the value of -m, and
        the maximum of all tiles."""
        if len(combine.reads()) == 1:
            return None
        below = combine.reads()[1]
        most = below.args[0]
        return below, next(i.dst for i in self._combines if i.reads()[0] is most)

    def in_columns(self, combine: Instruction) -> bool:
        """Whether each tile leaves what it gives to `combine`, one value a partition, in a column
        of its own: the last tile's waits for no addition then."""
        (partial, *others) = combine.reads()
        reduction = next(i for i in self.instructions if partial in i.writes())
        alone = not others and not any(self.free(combine.dst))
        return alone and reduction.engine != TENSOR and self.steps <= BANK

    def free(self, value: Value) -> tuple[list[int], list[int]]:
        """The free axes of a tile that are reduced, and those that stay."""
        labels = [label for label in self.geometry.free_labels if label in value.axes]
        reduced = [d for d in labels if d in self.geometry.reduced]
        return reduced, [d for d in labels if d not in self.geometry.reduced]

    def size(self, labels: Sequence[int]) -> int:
        """The largest number of elements of `labels` in a partition."""
        return math.prod(self.geometry.count(d) for d in labels)

    def sums_on_tensor(self, instruction: Instruction) -> bool:
        """Whether TensorE adds up what an instruction reduces: floats, and the reduced axes lie
        together; a bank has all that stays, unless it lies behind them."""
        if not self.geometry.crosses or instruction.call != "tensor_reduce":
            return False
        if instruction.dst not in self._partials:
            return False
        data = dict(instruction.arguments)["data"]
        if not isinstance(data, Tile) or data.word is not None or data.seen_as is not None:
            return False
        source = data.value
        reduced, kept = self.free(source)
        labels = [label for label in self.geometry.free_labels if label in source.axes]
        most = MOST_SUMS if labels == reduced + kept else BANK
        if source.dtype is torch.float32:
            # Up to four groups of the partitions have sums of their own, three at the most of them
            # in a bank (`partition_groups.py`).
            most = most // 4 if most > BANK else BANK // 3
            products = self.steps * -(-self.size(reduced) // (BANK // 4))
            if self.size(kept) == 1 and products > _MOST_PRODUCTS:
                return False
        return (
            ("op", "nl.add") in instruction.arguments
            and source.dtype in _FLOATS
            and self.size(kept) <= most
            and (len(self.groups(source)) <= 2 or self.is_between(source))
        )

    def groups(self, value: Value) -> list[list[int]]:
        """The free axes of a tile in its order, with neighbours that are all reduced or all stay
        together."""
        labels = [label for label in self.geometry.free_labels if label in value.axes]
        found = itertools.groupby(labels, key=lambda label: label in self.geometry.reduced)
        return [list(group) for _, group in found]

    def is_between(self, value: Value) -> bool:
        """Whether the reduced axes of a tile lie together between those that stay."""
        groups = self.groups(value)
        return len(groups) == 3 and groups[1][0] in self.geometry.reduced

    def loops(self, *, reduced: bool) -> list[Axis]:
        """The loops over reduced dimensions, or those over the others."""
        return [a for a in self.geometry.loops if (a.label in self.geometry.reduced) == reduced]

    @property
    def rows(self) -> Sequence[RowTiles]:
        """The tiles of rows as phases run them: the rest, which is small, first, so that no more
        than the last load's work is left after it. TensorE begins with whole tiles: what it adds up
        in PSUM begins with the first product."""
        on_tensor = any(i.engine == TENSOR for i in self.instructions)
        return self.geometry.rows if on_tensor else self.geometry.rows[::-1]

    @property
    def steps(self) -> int:
        """Tiles of one phase."""
        rows = sum(len(rows.starts) for rows in self.geometry.rows) if self.geometry.crosses else 1
        return rows * math.prod(-(-a.size // a.block) for a in self.loops(reduced=True))

    @property
    def most_kept(self) -> int:
        """The most elements that a reduction leaves in a partition."""
        return max((self.size(self.free(i.dst)[1]) for i in self._combines), default=1)

    @functools.cached_property
    def _combines(self) -> list[Instruction]:
        return [i for i in self.instructions if i.call == "combine"]

    @functools.cached_property
    def _partials(self) -> set[Value]:
        return {v for i in self._combines for v in i.reads()}

    def once(self) -> frozenset[Value]:
        """What is computed between phases: a chain, in which changing engines takes time."""
        return frozenset(v for i in self.instructions if self._is_once(i) for v in i.writes())

    def _is_once(self, instruction: Instruction) -> bool:
        if instruction.call == "combine":
            return False
        partials = self._partials
        return not any(self.moves(v) or v in partials for v in instruction.writes())

    def _first_phase(self, instruction: Instruction, at: Mapping[Value, int]) -> int:
        """The phase that computes an instruction first; a load that tiles share, and is no part of
        the totals, waits until it is read."""
        loaded = instruction.dst
        if instruction.call != "load" or not self.varies(loaded):
            return at[loaded]
        return min((at[i.dst] for i in self.instructions if loaded in i.reads()), default=0)

    @functools.cached_property
    def _phase_of_values(self) -> dict[Value, int]:
        at: dict[Value, int] = {}
        for i in self.instructions:
            touched = [at[v] for v in (*i.reads(), *i.writes()) if v in at]
            phase = max(touched, default=0) + (i.call == "combine")
            at.update(dict.fromkeys(i.writes(), phase))
        return at

    def _goals(self, phase: int, at: Mapping[Value, int]) -> list[Value]:
        stored = [v for v in self.results if at[v] == phase and self.varies(v)]
        partials = [i.reads()[0] for i in self._combines if at[i.dst] == phase + 1]
        return [*stored, *partials]

    def _closure(
        self, goals: Sequence[Value], done: set[Value]
    ) -> tuple[list[Instruction], list[Value]]:
        """The instructions of a tile that lead to `goals`, and those of `done` that they read."""
        needed = dict.fromkeys(goals)
        held: dict[Value, None] = {}
        partials = self._partials
        body: list[Instruction] = []
        for i in reversed(self.instructions):
            written = [v for v in i.writes() if v in needed]
            if not written or i.call == "combine" or self._is_once(i):
                continue
            if all(v in done for v in written):
                held.update(dict.fromkeys(written))
                continue
            body.append(i)
            needed.update((v, None) for v in i.reads() if self.moves(v) or v in partials)
        return body[::-1], list(held)
