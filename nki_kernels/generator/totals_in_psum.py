"""Totals that TensorE leaves in PSUM as they are, nothing to be added up any more: one instruction
takes them out, on VectorE or ScalarE, and computes a step with numbers on the way, as the division
by a count is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from trnx.nki_kernels.generator.across import BANK, Across
from trnx.nki_kernels.generator.engines import AFFINE, TENSOR
from trnx.nki_kernels.generator.instruction import Argument, Instruction, Tile
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.tiled_region import TiledRegion


def step_of(combine: Instruction) -> list[tuple[str, Argument]]:
    """The arguments of the step with which a total leaves PSUM, none where it is copied."""
    return [(key, a) for key, a in combine.arguments if key not in ("op", "data")]


def totals_for_scalar(across: Across) -> frozenset[Value]:
    """The totals that ScalarE may take out of PSUM (from trn2 on)."""
    found = []
    for combine in _alone(across):
        step = step_of(combine)
        ops = tuple(pair for pair in step if pair[0] in ("op0", "op1"))
        is_plain = not {"reverse0", "reverse1"} & dict(step).keys()
        if not step or (is_plain and ops in AFFINE):
            found.append(combine.dst)
    return frozenset(found)


def with_steps(region: TiledRegion) -> TiledRegion:
    """`region` with the steps on totals in the instructions that take these out of PSUM."""
    across = region.across
    assert across is not None
    steps = {
        combine: step
        for combine in _alone(across)
        if (step := _only_step(region, combine.dst)) is not None
    }
    if not steps:
        return region
    dropped = list(steps.values())
    left = [_with_step(i, steps.get(i)) for i in region.instructions if i not in dropped]
    return dataclasses.replace(region, instructions=left, stages=[0] * len(left))


def _alone(across: Across) -> list[Instruction]:
    """What takes totals out of PSUM that are the sums of all that was reduced."""
    found = []
    for combine in across.instructions:
        if combine.call != "combine" or len(combine.reads()) > 1:
            continue
        (partial,) = combine.reads()
        reduction = next(i for i in across.instructions if partial in i.writes())
        source = reduction.reads()[0]
        # Of fewer, and of float32 numbers, several sums lie side by side.
        is_wide = 2 * across.size(across.free(source)[1]) > BANK
        if reduction.engine == TENSOR and source.dtype is not torch.float32 and is_wide:
            found.append(combine)
    return found


def _only_step(region: TiledRegion, total: Value) -> Instruction | None:
    """The `tensor_scalar` with numbers alone that is all that reads a total."""
    readers = [i for i in region.instructions if total in i.reads()]
    if len(readers) != 1 or total in region.held.values():
        return None
    (step,) = readers
    given = dict(step.arguments)
    plain = step.call == "tensor_scalar" and not step.on_bits and step.engine is None
    if not plain or step.word is not None or step.dst.axes != total.axes:
        return None
    data = given.pop("data")
    is_as_it_is = isinstance(data, Tile) and data.word is None and data.seen_as is None
    return step if is_as_it_is and not _tiles(list(given.values())) else None


def _tiles(arguments: Sequence[Argument]) -> list[Tile]:
    return [a for a in arguments if isinstance(a, Tile)]


def _with_step(instruction: Instruction, step: Instruction | None) -> Instruction:
    if step is None:
        return instruction
    more = tuple((key, a) for key, a in step.arguments if key != "data")
    return dataclasses.replace(instruction, dst=step.dst, arguments=(*instruction.arguments, *more))
