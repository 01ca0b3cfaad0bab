"""NKI helpers of convolutions: what the output channels need in SBUF, as products come to them."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._epilogue import Norm, Rows, columns_of
from trnx.nki_kernels.kernels.convolution._plan import Plan
from trnx.nki_kernels.kernels.convolution._product import Weights
from trnx.nki_kernels.kernels.convolution._weights import load_pointwise, load_rows, load_weights

# Elements of a row of weights whose transposes wait for a load that takes longer than products; and
# of one that takes so also behind the first inputs.
_LONG_ROW, _VERY_LONG_ROW = 512, 4096
# The same of rows that take little of the time until the first inputs come.
_STAGED_ROW = 64
# Elements of a row of weights that are worth a transfer, where the weights are a matrix.
_POINTWISE_ROW = 1024
# Chunks of output channels whose weights come first, where the first product waits for them alone.
FIRST_CHUNKS = 2


class Operands(NamedTuple):
    """The tensors in HBM. `weight` is `[out channels, channels of a group, ...]`, or
    `[channels, out channels of a group, ...]` where it `is_turned`; `out` and `residual` have one
    shape. `apart`: rows of the result that each row of `x` makes by itself, as further channels.
    """

    out: nl.NkiTensor
    x: nl.NkiTensor
    weight: nl.NkiTensor
    bias: nl.NkiTensor | None
    norm: Norm | None
    residual: nl.NkiTensor | None
    activation: str
    is_turned: bool
    apart: int


class Channels(NamedTuple):
    """Up to 128 output channels of a group: where they start in the group and in the result."""

    first: int
    place: int
    number: int


class Ready(NamedTuple):
    """What some output channels need in SBUF."""

    weights: Weights
    scale: nl.NkiTensor | None
    shift: nl.NkiTensor | None


class Filters(NamedTuple):
    """Output channels of a group, in chunks, and its `weight`. `ready` has what the first of the
    chunks need, and grows as products come to the others; `rest` has the last chunk's, where blocks
    have columns of their own for it; `staged`: for the first chunks their rows of weights in SBUF,
    if they are there before TensorE transposes them, or none.
    """

    given: Operands
    weight: nl.NkiTensor
    chunks: list[Channels]
    ready: list[Ready]
    rest: list[Ready]
    staged: list[list[nl.NkiTensor]]


def load_next(filters: Filters, plan: Plan) -> None:
    """What the next chunks need; several have their weights loaded at once for 1x1 kernels."""
    given, weight, chunks = filters.given, filters.weight, filters.chunks
    index = len(filters.ready)
    some = chunks[index : index + 1]
    is_pointwise = weight.shape[2] * weight.shape[3] * weight.shape[4] == 1
    if plan.layout != "" or (given.is_turned and is_pointwise):
        # Several chunks of short rows at once, but products wait for all of them.
        depth = weight.shape[0] if given.is_turned else weight.shape[1]
        some = chunks[index : index + max(1, _POINTWISE_ROW // depth)]
        if index == 0 and plan.layout != "" and plan.is_static and plan.is_small:
            some = some[0:FIRST_CHUNKS]
    count = some[-1].first + some[-1].number - some[0].first
    if plan.layout != "":
        weights = load_pointwise(weight, some[0].first, count, plan)
    else:
        staged: list[nl.NkiTensor] = []
        if index < len(filters.staged):
            staged = filters.staged[index]
        weights = load_weights(weight, some[0].first, count, plan, given.is_turned, staged)
    for chunk in some:
        tile = weights.tile
        if plan.sides == 1:
            tile = tile[:, :, :, nl.ds(chunk.first - some[0].first, chunk.number)]
        rows = Rows(chunk.place, chunk.number, given.out.shape[1], 1, 0, given.apart)
        scale, shift = columns_of(given.bias, given.norm, rows)
        if plan.sides > 1:
            scale, shift = on_all_sides(scale, plan), on_all_sides(shift, plan)
        its = Weights(tile, weights.channels, weights.masked)
        filters.ready.append(Ready(its, scale, shift))


def start_weights(filters: Filters, plan: Plan, is_spread: bool) -> bool:
    """The first weights before the first inputs, as they take longer to be of use; returns whether
    they are yet to be made ready: triggers that take no time do not wait for that of a DMA
    transpose, and inputs that are `is_spread` not for VectorE, which writes zeros between them.
    """
    is_turned = plan.is_static and plan.layout != ""
    is_behind = is_turned or (plan.is_static and is_spread)
    if not is_behind:
        load_next(filters, plan)
        _stage_others(filters, plan)
    elif not is_turned:
        _stage(filters, filters.chunks[0:1], plan)
    return is_behind


def _stage(filters: Filters, chunks: list[Channels], plan: Plan) -> None:
    """The rows of weights of the next `chunks` on their way, if TensorE transposes them."""
    if are_transposed(filters, plan):
        for chunk in chunks:
            filters.staged.append(load_rows(filters.weight, chunk.first, chunk.number, plan))


def _stage_others(filters: Filters, plan: Plan) -> None:
    """Loads of short rows of weights before all inputs, for TensorE to transpose them later: behind
    the inputs of a small convolution they would come when the first products are done.
    """
    shape = filters.weight.shape
    is_short = shape[1] * shape[2] * shape[3] * shape[4] <= _STAGED_ROW
    if are_transposed(filters, plan) and plan.is_small and is_short:
        filters.staged.append([])
        _stage(filters, filters.chunks[1:], plan)


def are_transposed(filters: Filters, plan: Plan) -> bool:
    """Whether TensorE transposes the weights."""
    return plan.layout == "" and not filters.given.is_turned


def come_late(filters: Filters, plan: Plan, chunk: int) -> bool:
    """Whether TensorE would wait for the weights behind those of `chunk`, one of the first two, to
    transpose them, while its products could start: their rows are long, or the first inputs come
    before them.
    """
    shape = filters.weight.shape
    row = shape[1] * shape[2] * shape[3] * shape[4]
    if chunk > 0:
        return are_transposed(filters, plan) and row > _VERY_LONG_ROW
    is_behind = plan.is_small and len(filters.staged) == 0
    return are_transposed(filters, plan) and (row > _LONG_ROW or is_behind)


def on_all_sides(column: nl.NkiTensor | None, plan: Plan) -> nl.NkiTensor | None:
    """A scale or shift of the output channels, on the partitions of each side."""
    if column is None:
        return None
    shape = (plan.sides * plan.array_columns, 1)
    wide = nl.ndarray(shape, dtype=column.dtype, buffer=nl.sbuf)
    nisa.memset(dst=wide, value=0.0)
    for side in range(plan.sides):
        nisa.tensor_copy(dst=wide[nl.ds(side * plan.array_columns, column.shape[0])], src=column)
    return wide
