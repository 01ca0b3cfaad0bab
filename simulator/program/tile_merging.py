"""Tile merging: steps of one form over neighbouring tiles become one step over all of them.

A kernel goes through its tiles one by one, at most 128 partitions and one bank wide. On this
machine a step of so few elements takes as long as the call. Products of few rows become one
(`wide_products`), and so do element-wise steps on tiles at equal distances, with a dimension more;
products on tiles at equal distances, as those of the heads of an attention, become a batch.

The one step runs in the place of the first; a step joins it where nothing since then touched what
it writes, or wrote what it reads. Elements are computed by the same operators: torch computes dense
ones in vectors, as eager mode does with whole tensors.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from trnx.simulator.language.operators import functions
from trnx.simulator.memory.storage import Step
from trnx.simulator.program.copy_analysis import is_factor
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects
from trnx.simulator.program.wide_products import widen_products

# Elements of a tile, and of all tiles of one step: larger ones would leave the caches.
_MOST_OF_TILE = 8192
_MOST_OF_STEP = 1 << 15
# Multiplications of a product of a batch: larger ones take longer than their calls.
_MOST_OF_PRODUCT = 1 << 17
# Reads and writes of a memory that are looked at for one step.
_MOST_TOUCHES = 512

_Touches = defaultdict[int, list[tuple[int, Region]]]

_ELEMENTWISE = frozenset({
    torch.abs, torch.add, torch.div, torch.eq, torch.exp, torch.ge, torch.gt, torch.le, torch.log,
    torch.lt, torch.maximum, torch.minimum, torch.mul, torch.ne, torch.neg, torch.reciprocal,
    torch.rsqrt, torch.sigmoid, torch.sqrt, torch.square, torch.sub, torch.tanh,
})  # fmt: skip


def merge_tiles(steps: Sequence[Step], reader: EffectReader, inputs: int) -> Sequence[Step]:
    """The steps with such steps as one. The first `inputs` slots are those of the arguments."""
    return _merge_elementwise(widen_products(steps, reader, inputs), reader, inputs)


@dataclass(eq=False, slots=True)
class _Group:
    """Steps of one form: their first one, its tensors (reads, then the one that is written), how
    far each is from that of the next step, and how many steps there are."""

    step: functools.partial[Any]
    regions: tuple[Region, ...]
    number: int
    distances: tuple[int, ...] | None = None
    count: int = 1

    def distances_to(self, regions: Sequence[Region]) -> tuple[int, ...] | None:
        """Those of the next step, None where it does not lie as the next one does."""
        far = []
        for own, other in zip(self.regions, regions, strict=True):
            distance, rest = divmod(other.offset - own.offset, self.count)
            if own.memory != other.memory or rest or distance < 0:
                return None
            # A tensor with fewer dimensions is repeated over the tiles, where all read it.
            if distance and len(own.shape) != len(self.regions[-1].shape):
                return None
            far.append(distance)
        # Of operands that all tiles share, a function makes a result of one tile.
        is_shared = "out" in self.step.keywords and not any(far[:-1])
        is_uneven = self.distances is not None and tuple(far) != self.distances
        if self.step.func is torch.mm and not _is_batch(self.regions, far):
            return None
        return None if not far[-1] or is_shared or is_uneven else tuple(far)


def _is_batch(regions: Sequence[Region], far: Sequence[int]) -> bool:
    """Whether BLAS takes products so far apart as a batch: with dense results, side by side."""
    out = regions[-1]
    is_dense = out.strides[1] == 1 and (out.shape[0] == 1 or out.strides[0] == out.shape[1])
    return is_dense and far[-1] == out.numel and all(far)


def _merge_elementwise(steps: Sequence[Step], reader: EffectReader, inputs: int) -> Sequence[Step]:
    merger = _Merger(reader, inputs)
    for step in steps:
        merger.add(step)
    return merger.steps()


def _form(step: Step, effects: Effects, regions: Sequence[Region], inputs: int) -> Any:
    """Steps with equal forms differ in the offsets of their tensors alone; None for steps that are
    not element-wise, or too large to gain."""
    if type(step) is not functools.partial or not effects.is_pure or len(effects.writes) != 1:
        return None
    out = regions[-1]
    if not 0 < out.numel <= _MOST_OF_TILE or -inputs <= out.memory < 0:
        return None
    name = _name(step, effects)
    if name is None or any(len(one.shape) > len(out.shape) for one in regions):
        return None
    constants = tuple(
        # 0.0 equals -0.0, and 1 equals True.
        (type(value), value or repr(value)) if not isinstance(value, torch.Tensor) else None
        for value in (*step.args, *step.keywords.values())
    )
    places = tuple((one.memory, one.dtype, one.shape, one.strides) for one in regions)
    return name, constants, tuple(step.keywords), places


def _name(step: functools.partial[Any], effects: Effects) -> Any:
    """What an element-wise step, or a small product, computes."""
    function = step.func
    if function is torch.mm:
        return function if _is_small_product(effects) else None
    if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, torch.Tensor):
        name = function.__name__
        return name if name in ("copy_", "fill_", "zero_") and not step.keywords else None
    if tuple(step.keywords) != ("out",):
        return None
    is_ours = type(function) is FunctionType and function.__module__ == functions.__name__
    if function in _ELEMENTWISE or (is_ours and not function.__closure__):
        return function
    return None


def _is_small_product(effects: Effects) -> bool:
    """Whether a product gains from being one of a batch, and may be: narrower types would round
    their sums otherwise."""
    first, second = (effects.reads[at] for at in effects.factors)
    (out,) = effects.writes
    is_exact = all(one.dtype in (torch.float32, torch.float64) for one in (first, second, out))
    is_small = out.numel * first.shape[1] <= _MOST_OF_PRODUCT
    return is_exact and is_small and is_factor(first) and is_factor(second)


class _Merger:
    """The steps so far, and who touches which memory."""

    def __init__(self, reader: EffectReader, inputs: int) -> None:
        self._reader = reader
        self._inputs = inputs
        self._steps: list[Step | _Group] = []
        self._groups: dict[Any, _Group] = {}
        # By memory: the number of the step, and what it reads or writes there.
        self._reads: _Touches = defaultdict(list)
        self._writes: _Touches = defaultdict(list)
        # The last step that wrote an input.
        self._input_written = -1

    def add(self, step: Step) -> None:
        """The next step."""
        effects = self._reader.effects(step)
        if effects is None:
            self._groups.clear()
            self._steps.append(step)
            return
        regions = (*effects.reads.values(), *effects.writes)
        form = _form(step, effects, regions, self._inputs)
        if form is None:
            self._append(step, effects)
            return
        group = self._groups.get(form)
        if group is not None and self._joins(group, effects, regions):
            self._note(group.number, effects)
            return
        assert isinstance(step, functools.partial)
        made = self._groups[form] = _Group(step, regions, len(self._steps))
        self._append(made, effects)

    def _append(self, step: Step | _Group, effects: Effects) -> None:
        self._note(len(self._steps), effects)
        self._steps.append(step)

    def _note(self, number: int, effects: Effects) -> None:
        for region in effects.reads.values():
            self._reads[region.memory].append((number, region))
        for region in effects.writes:
            self._writes[region.memory].append((number, region))
            if self._is_input(region):
                self._input_written = max(self._input_written, number)

    def _is_input(self, region: Region) -> bool:
        return -self._inputs <= region.memory < 0

    def _joins(self, group: _Group, effects: Effects, regions: Sequence[Region]) -> bool:
        distances = group.distances_to(regions)
        if distances is None or (group.count + 1) * regions[-1].numel > _MOST_OF_STEP:
            return False
        if any(self._meets(region, group.number, False) for region in effects.reads.values()):
            return False
        if self._meets(regions[-1], group.number, True):
            return False
        group.distances, group.count = distances, group.count + 1
        return True

    def _meets(self, region: Region, number: int, is_written: bool) -> bool:
        """Whether a step from this number on touches what is written, or writes what is read."""
        if self._is_input(region) and self._input_written >= number:
            return True
        touched = self._writes[region.memory]
        if is_written:
            touched = [*touched, *self._reads[region.memory]]
        # The search is bounded.
        if len(touched) > _MOST_TOUCHES:
            return True
        return any(at >= number and region.overlaps(other) for at, other in touched)

    def steps(self) -> list[Step]:
        """The steps that are left."""
        return [self._step(one) if isinstance(one, _Group) else one for one in self._steps]

    def _step(self, group: _Group) -> Step:
        if group.count == 1:
            return group.step
        step, (*read, out) = group.step, self._views(group)
        given = iter(read)
        args = [next(given) if isinstance(a, torch.Tensor) else a for a in step.args]
        if step.keywords:
            function = torch.bmm if step.func is torch.mm else step.func
            return functools.partial(function, *args, out=out)
        return functools.partial(getattr(out, step.func.__name__), *args)

    def _views(self, group: _Group) -> Iterator[torch.Tensor]:
        """The tensors of the first step, with a dimension of tiles in front."""
        assert group.distances is not None
        for region, distance in zip(group.regions, group.distances, strict=True):
            if distance:
                shape, strides = (group.count, *region.shape), (distance, *region.strides)
                place = (shape, strides, region.offset)
                region = Region(region.memory, region.dtype, *place)
            yield self._reader.view(region)
