"""Accumulations: products that add up in one tile of PSUM as one product of all their depth.

A kernel cuts the contraction dimension by the 128 partitions, and adds each product to what the
bank holds. On this machine every one of them reads and writes the bank, and BLAS prepares the
factors of each anew. Where the factors of the products of a bank lay one behind the other before
copies brought them on chip, and still do when the last of them is added, one product reads all.

Terms are then added as BLAS adds those of a product of that depth, as eager mode does, and not
tile by tile. Checks and times are those of the instructions, which stay as they were recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.copy_analysis import CopyAnalysis, Read, is_factor
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader, Effects


@dataclass(frozen=True)
class _Product:
    """`rows` [m, k] times `columns` [k, n], where they were first, put or added to `target`."""

    target: Region
    rows: Region
    columns: Region
    is_added: bool

    def followed_by(self, other: _Product) -> _Product | None:
        """Both as one product; None where their factors do not lie one behind the other."""
        rows = _joined(self.rows, other.rows, 1)
        columns = _joined(self.columns, other.columns, 0)
        if rows is None or columns is None:
            return None
        return _Product(self.target, rows, columns, self.is_added)


@dataclass(eq=False, slots=True)
class _Group:
    """Steps that make one product together, the last of them in their place."""

    product: _Product
    steps: list[int]

    def bears(self, effects: Effects, inputs: int) -> bool:
        """True where the steps before this one may as well be executed after it."""
        one = self.product
        if any(region.overlaps(one.target) for region in effects.reads.values()):
            return False
        for written in effects.writes:
            is_input = -inputs <= written.memory < 0
            for factor in (one.rows, one.columns):
                # The caller may pass the same memory as two inputs.
                if is_input and -inputs <= factor.memory < 0:
                    return False
                if factor.overlaps(written):
                    return False
            if written.overlaps(one.target):
                return False
        return True


def merge_accumulations(
    steps: Sequence[Step], slots: Sequence[Slot], inputs: int, blank: Mapping[int, int]
) -> Sequence[Step]:
    """The steps with one product for those that can be one; themselves where there are none. The
    first `inputs` slots are those of the arguments; `blank` as in `Program`.
    """
    if not any(_function(step) is torch.addmm for step in steps):
        return steps
    reader = EffectReader(slots, blank)
    groups = [group for group in _groups(steps, reader, inputs) if len(group.steps) > 1]
    last = {group.steps[-1]: group for group in groups}
    dropped = {number for group in groups for number in group.steps[:-1]}
    return [
        _merged(step, last[number].product, reader) if number in last else step
        for number, step in enumerate(steps)
        if number not in dropped
    ]


def _groups(steps: Sequence[Step], reader: EffectReader, inputs: int) -> list[_Group]:
    copies = CopyAnalysis(inputs)
    found: list[_Group] = []
    still_open: list[_Group] = []
    for number, step in enumerate(steps):
        effects = reader.effects(step)
        copies.add(number, effects)
        if effects is None:
            still_open = []
            continue
        product = _product(step, effects, copies.reads[-1])
        group = None if product is None else _extended(still_open, number, product)
        still_open = [one for one in still_open if one is group or one.bears(effects, inputs)]
        if product is not None and group is None:
            found.append(_Group(product, [number]))
            still_open.append(found[-1])
    return found


def _extended(groups: Sequence[_Group], number: int, product: _Product) -> _Group | None:
    """The group that this product continues."""
    if not product.is_added:
        return None
    for group in groups:
        if group.product.target.is_same(product.target):
            together = group.product.followed_by(product)
            if together is None:
                return None
            group.product = together
            group.steps.append(number)
            return group
    return None


def _product(step: Step, effects: Effects, reads: Sequence[Read]) -> _Product | None:
    """What a step multiplies; None for other steps, and for a product that reads its target."""
    function = _function(step)
    if function is not torch.mm and function is not torch.addmm:
        return None
    (target,) = effects.writes
    origin = {read.argument: read.origin for read in reads}
    first, second = effects.factors
    rows, columns = (origin[at] or effects.reads[at] for at in (first, second))
    is_added = function is torch.addmm
    if is_added and not effects.reads[0].is_same(target):
        return None
    factors = (rows, columns, effects.reads[first], effects.reads[second])
    if any(one.overlaps(target) for one in factors):
        return None
    return _Product(target, rows, columns, is_added)


def _function(step: Step) -> object:
    return step.func if type(step) is functools.partial else step


def _joined(one: Region, other: Region, axis: int) -> Region | None:
    """Both as one region that BLAS can read, `other` behind `one` along the axis; None where they
    are none.
    """
    if other.memory != one.memory or other.dtype is not one.dtype:
        return None
    # The stride of a dimension of one element says nothing.
    sizes = list(zip(one.shape, other.shape, one.strides, other.strides, strict=True))
    if any(mine > 1 and theirs > 1 and step != far for mine, theirs, step, far in sizes):
        return None
    strides = tuple([far if mine == 1 < theirs else step for mine, theirs, step, far in sizes])
    behind = one.offset + one.shape[axis] * strides[axis]
    if other.offset != behind or other.shape[1 - axis] != one.shape[1 - axis]:
        return None
    shape = list(one.shape)
    shape[axis] += other.shape[axis]
    joined = Region(one.memory, one.dtype, tuple(shape), strides, one.offset)
    return joined if is_factor(joined) else None


def _merged(step: Step, product: _Product, reader: EffectReader) -> Step:
    """The last step of a group as that of the product of the group."""
    assert type(step) is functools.partial
    out = step.keywords["out"]
    factors = (reader.view(product.rows), reader.view(product.columns))
    if product.is_added:
        return functools.partial(torch.addmm, out, *factors, out=out)
    return functools.partial(torch.mm, *factors, out=out)
