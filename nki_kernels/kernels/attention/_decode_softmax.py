"""NKI helpers of attention of few queries: the softmax of a run of keys, and its values.

The maximum of a row lies across partitions, so it is transposed twice on TensorE: to be reduced,
and to be spread over the partitions again. Runs of one head are merged with a running maximum.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._transfers import store_late
from trnx.nki_kernels.kernels.attention._decode import (
    PIECE,
    DecodeProblem,
    Run,
    RunScores,
    load_run,
    queries_of,
    score_piece,
    turn_piece,
)
from trnx.nki_kernels.kernels.attention._heads import column
from trnx.nki_kernels.kernels.attention._masks import CLAMP_FALSE, CLAMP_FLOAT

# The sum of a row that attends to anything is at least 1; this keeps the others finite.
_TINY = 1.0e-10


class RunPeak(NamedTuple):
    """`data * scale` are the scores; `negmax[R, 1]` is that of the data of this run and those
    before it, `spread[R, 128]` that of the scores."""

    scored: RunScores
    data: nl.NkiTensor
    scale: float
    negmax: nl.NkiTensor
    spread: nl.NkiTensor


class RunWeights(NamedTuple):
    """Weights `[height, R, blocks]` in float32; `negmax[128, R]`: that of the peak, on all
    partitions."""

    peak: RunPeak
    negmax: nl.NkiTensor
    weights: nl.NkiTensor


class RoundedWeights(NamedTuple):
    """Weights in the dtype of the values; `parts[height, R]`: their sums before rounding."""

    exact: RunWeights
    weights: nl.NkiTensor
    parts: nl.NkiTensor


class DecodeState(NamedTuple):
    """Softmax of the runs so far. Negated maxima and sums `[partitions, R]`, equal on all
    partitions, because the product is transposed: `[Dv / cuts, cuts, R]`."""

    negmax: nl.NkiTensor
    total: nl.NkiTensor
    product: nl.NkiTensor


class DecodeOutputs(NamedTuple):
    """`out[B, Hkv, R / L, L, Dv]`, and the sums and negated maxima `[1, B * Hkv, R]` of all
    rows. Where cores share the keys of a head, `shared` has one element: `[cores, B * Hkv, 128,
    cuts of Dv + 2, R]` in HBM, where they put what `DecodeState` has."""

    out: nl.NkiTensor
    totals: nl.NkiTensor
    negmaxes: nl.NkiTensor
    shared: list[nl.NkiTensor]


class Combined(NamedTuple):
    """The state of one run by itself."""

    own: DecodeState
    run: Run


class Normalised(NamedTuple):
    """The transposed result of the head whose last run is `run`: `[Dv / cuts, cuts, R]`."""

    result: nl.NkiTensor
    run: Run


class DecodePipeline(NamedTuple):
    """Runs in flight: the keys of one are loaded and transposed while `turned` is scored and
    weighed, `weighted` meets its values, `part` is merged with `state`, and `done` is stored.
    `state` is that of the rows of `part` before its run, None where that is their first."""

    turned: RunScores | None
    weighted: RunWeights | None
    part: Combined | None
    state: DecodeState | None
    done: Normalised | None


def _biased(p: DecodeProblem, s: RunScores) -> nl.NkiTensor:
    """Scaled scores and the bias, in float32."""
    if s.bias is None:
        return s.scores
    heads = (p.group, p.rows // p.group)
    bias = s.bias
    if bias.shape[1] < heads[0]:
        bias = bias.broadcast(1, heads[0])
    if bias.shape[2] < heads[1]:
        bias = bias.broadcast(2, heads[1])
    data = nl.ndarray(s.scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=data.reshape_dim(1, heads),
        data=s.scores.reshape_dim(1, heads),
        op0=nl.multiply,
        operand0=p.scale,
        op1=nl.add,
        operand1=bias,
    )
    return data


def _lane_maxima(p: DecodeProblem, data: nl.NkiTensor) -> nl.NkiTensor:
    """The maxima of the rows, those of each partition: `[height, R]`."""
    most = nl.ndarray((data.shape[0], p.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=most, op=nl.maximum, data=data, axis=2)
    return most


def _peak(
    p: DecodeProblem,
    s: RunScores,
    data: nl.NkiTensor,
    most: nl.NkiTensor,
    before: nl.NkiTensor | None,
) -> RunPeak:
    """The maxima of the rows; `before` are the negated ones of the runs before."""
    scale = p.scale if s.bias is None else 1.0
    height = s.run.height
    turned = nl.ndarray((p.rows, height), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=most, engine=nisa.engine.tensor)
    negmax = nl.ndarray((p.rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=negmax, op=nl.maximum, data=turned, axis=1, negate=True)
    if s.bias is not None:
        clamp = CLAMP_FALSE if p.boolean else CLAMP_FLOAT
        nisa.tensor_scalar(dst=negmax, data=negmax, op0=nl.minimum, operand0=-clamp)
    if before is not None:
        nisa.tensor_tensor(dst=negmax, data1=negmax, data2=before, op=nl.minimum)
    pmax = nl.tile_size.pmax
    spread = nl.ndarray((p.rows, pmax), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=spread, data=negmax.broadcast(1, pmax), op0=nl.multiply, operand0=scale)
    return RunPeak(s, data, scale, negmax, spread)


def _weigh(p: DecodeProblem, peak: RunPeak) -> RunWeights:
    """The exponentials of a run."""
    run = peak.scored.run
    shape = (run.height, p.rows, run.blocks)
    turned = nl.ndarray((nl.tile_size.pmax, p.rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=peak.spread, engine=nisa.engine.tensor)
    negmax = nl.ndarray(turned.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=negmax, src=turned)
    wide = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=wide,
        data=peak.data,
        op0=nl.multiply,
        operand0=peak.scale,
        op1=nl.add,
        operand1=column(negmax[0 : run.height], run.blocks),
    )
    nisa.activation(dst=wide, op=nl.exp, data=wide)
    return RunWeights(peak, negmax, wide)


def _round(p: DecodeProblem, w: RunWeights) -> RoundedWeights:
    """The weights as TensorE takes them."""
    wide = w.weights
    parts = nl.ndarray((wide.shape[0], p.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=parts, op=nl.add, data=wide, axis=2)
    dtype = w.peak.scored.queries.dtype
    if dtype == nl.float32:
        return RoundedWeights(w, wide, parts)
    weights = nl.ndarray(wide.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.activation(dst=weights, op=nl.copy, data=wide)
    return RoundedWeights(w, weights, parts)


def _combine(p: DecodeProblem, w: RoundedWeights) -> Combined:
    """The sums of a run and its product with its values, in PSUM."""
    scored = w.exact.peak.scored
    run = scored.run
    total = nl.ndarray((nl.tile_size.pmax, p.rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=p.ones[0 : run.height], moving=w.parts)
    width = scored.values[0].shape[2] // p.value_cuts
    product = nl.ndarray((width, p.value_cuts, p.rows), dtype=nl.float32, buffer=nl.psum)
    for cut in range(p.value_cuts):
        for block in range(run.blocks):
            values = scored.values[block // PIECE][:, block % PIECE, :]
            nisa.nc_matmul(
                dst=product[:, cut, :],
                stationary=values[:, cut * width : (cut + 1) * width],
                moving=w.weights[:, :, block],
            )
    return Combined(DecodeState(w.exact.negmax, total, product), run)


def _merged(p: DecodeProblem, old: DecodeState | None, part: Combined) -> DecodeState:
    """`old`, rescaled to the maximum of `part`, plus `part`. Out of PSUM where more follows."""
    new = part.own
    if old is None and part.run.last:
        return new
    total = nl.ndarray(new.total.shape, dtype=nl.float32, buffer=nl.sbuf)
    product = nl.ndarray(new.product.shape, dtype=nl.float32, buffer=nl.sbuf)
    if old is None:
        nisa.tensor_copy(dst=total, src=new.total)
        nisa.tensor_copy(dst=product, src=new.product)
        return DecodeState(new.negmax, total, product)
    factor = nl.ndarray(new.negmax.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=factor, data1=new.negmax, data2=old.negmax, op=nl.subtract)
    nisa.activation(dst=factor, op=nl.exp, data=factor)
    spread = factor[0 : product.shape[0]].expand_dim(1).broadcast(1, p.value_cuts)
    nisa.tensor_tensor(dst=total, data1=old.total, data2=factor, op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=new.total, op=nl.add)
    nisa.tensor_tensor(dst=product, data1=old.product, data2=spread, op=nl.multiply)
    nisa.tensor_tensor(dst=product, data1=product, data2=new.product, op=nl.add)
    return DecodeState(new.negmax, total, product)


def _normalised(
    p: DecodeProblem, outputs: DecodeOutputs, state: DecodeState, run: Run
) -> Normalised:
    """The result of a head; its sums and maxima go to `outputs`."""
    head = run.batch * outputs.out.shape[1] + run.source
    inverse = nl.ndarray(state.total.shape, dtype=nl.float32, buffer=nl.sbuf)
    if p.mask is not None:
        nisa.tensor_scalar(dst=inverse, data=state.total, op0=nl.maximum, operand0=_TINY)
        nisa.reciprocal(dst=inverse, data=inverse)
    else:
        nisa.reciprocal(dst=inverse, data=state.total)
    nisa.activation(dst=outputs.totals[:, head, :], op=nl.copy, data=state.total[0:1])
    width = state.product.shape[0]
    result = nl.ndarray(state.product.shape, dtype=nl.float32, buffer=nl.sbuf)
    spread = inverse[0:width].expand_dim(1).broadcast(1, p.value_cuts)
    nisa.tensor_tensor(dst=result, data1=state.product, data2=spread, op=nl.multiply)
    nisa.tensor_copy(dst=outputs.negmaxes[:, head, :], src=state.negmax[0:1])
    return Normalised(result, run)


def _share(p: DecodeProblem, outputs: DecodeOutputs, state: DecodeState, run: Run) -> None:
    """What this core has of a head, to HBM."""
    width = state.product.shape[0]
    cuts = p.value_cuts
    tile = nl.ndarray((width, cuts + 2, p.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile[:, 0:cuts], src=state.product)
    nisa.tensor_copy(dst=tile[:, cuts], src=state.total[0:width])
    nisa.tensor_copy(dst=tile[:, cuts + 1], src=state.negmax[0:width])
    head = run.batch * outputs.out.shape[1] + run.source
    nisa.dma_copy(dst=outputs.shared[0][nl.program_id(0), head, 0:width], src=tile)


def _store(p: DecodeProblem, outputs: DecodeOutputs, done: Normalised) -> None:
    """Turn and store the rows of a head."""
    width = done.result.shape[0]
    turned = nl.ndarray((p.rows, p.value_cuts, width), dtype=nl.float32, buffer=nl.psum)
    for cut in range(p.value_cuts):
        nisa.nc_transpose(
            dst=turned[:, cut, :], data=done.result[:, cut, :], engine=nisa.engine.tensor
        )
    rounded = nl.ndarray(turned.shape, dtype=outputs.out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=turned)
    store_late(outputs.out[done.run.batch, done.run.source], rounded, done.run.final)


def decode_step(
    p: DecodeProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor],
    queries: list[nl.NkiTensor],
    outputs: DecodeOutputs,
    pipeline: DecodePipeline,
    run: Run | None,
) -> DecodePipeline:
    """Advance each stage by one run; four steps with `run` None drain the pipeline.

    Engines work in order, so the stages take turns: what TensorE does for one run stands where
    another waits for a copy out of PSUM, for the softmax, or for its keys. Keys in several pieces
    fill these waits; where there is one, its transposes stand between the scores and the maxima of
    the run before, and the values of a third between maxima and weights: TensorE slows down where
    it waits.
    """
    before = pipeline.turned
    in_pieces = run is None or run.blocks > PIECE
    turned = None
    rounded = None
    peak = None
    weighted = None
    part = None
    state = None
    done = None
    if run is not None:
        turned = load_run(p, tensors, queries_of(p, queries, run, outputs.out.shape[1]), run)
        if in_pieces:
            turn_piece(p, turned, 0)
    if pipeline.weighted is not None:
        rounded = _round(p, pipeline.weighted)
    if before is not None:
        score_piece(p, before, len(before.turned) - 1)
        data = _biased(p, before)
        most = _lane_maxima(p, data)
    if turned is not None:
        for piece in range(len(turned.turned), len(turned.keys)):
            turn_piece(p, turned, piece)
    if before is not None:
        negmax = None
        if pipeline.weighted is not None and not before.run.first:
            negmax = pipeline.weighted.peak.negmax
        peak = _peak(p, before, data, most, negmax)
    if pipeline.part is not None:
        state = _merged(p, pipeline.state, pipeline.part)
        if pipeline.part.run.last:
            if len(outputs.shared) > 0:
                _share(p, outputs, state, pipeline.part.run)
            else:
                done = _normalised(p, outputs, state, pipeline.part.run)
            state = None
    if turned is not None:
        for piece in range(len(turned.keys) - 1):
            score_piece(p, turned, piece)
    if pipeline.done is not None:
        _store(p, outputs, pipeline.done)
    if peak is not None and in_pieces:
        weighted = _weigh(p, peak)
    if rounded is not None:
        part = _combine(p, rounded)
    if peak is not None and not in_pieces:
        weighted = _weigh(p, peak)
    return DecodePipeline(turned, weighted, part, state, done)


def store_decode_logs(p: DecodeProblem, outputs: DecodeOutputs, lse: nl.NkiTensor) -> None:
    """Store the logarithms of all sums: `lse[B, H, L]`."""
    _store_logs(p, outputs, slice(0, outputs.totals.shape[1]), lse)


def _store_logs(p: DecodeProblem, outputs: DecodeOutputs, heads: slice, lse: nl.NkiTensor) -> None:
    """Those of some heads."""
    totals = outputs.totals[:, heads]
    logs = nl.ndarray(totals.shape, dtype=nl.float32, buffer=nl.sbuf)
    if p.mask is not None:
        nisa.tensor_scalar(dst=logs, data=totals, op0=nl.maximum, operand0=_TINY)
        nisa.activation(dst=logs, op=nl.log, data=logs)
    else:
        nisa.activation(dst=logs, op=nl.log, data=totals)
    nisa.tensor_tensor(dst=logs, data1=logs, data2=outputs.negmaxes[:, heads], op=nl.subtract)
    if p.mask is not None:
        # A row that attends to nothing has lse 0, as torch's CPU kernel gives it.
        nisa.scalar_tensor_tensor(
            dst=logs, data=totals, op0=nl.greater, operand0=0.0, op1=nl.multiply,
            operand1=logs,
        )  # fmt: skip
    nisa.dma_copy(dst=lse, src=logs)


def join_decoded(
    p: DecodeProblem, outputs: DecodeOutputs, runs: list[Run], lse: nl.NkiTensor | None
) -> None:
    """Merge what two cores have of all heads: each core every other head, whose last runs are among
    `runs`; `lse[B, H, L]`."""
    nisa.core_barrier(outputs.shared[0], (0, 1), engine=nisa.engine.tensor)
    sources = outputs.out.shape[1]
    for run in runs:
        head = run.batch * sources + run.source
        if run.last and head % 2 == nl.program_id(0):
            _store(p, outputs, _normalised(p, outputs, _merged_cores(p, outputs, head), run))
            if lse is not None:
                group = lse.shape[1] // sources
                rows = lse[run.batch, run.source * group : (run.source + 1) * group]
                _store_logs(p, outputs, slice(head, head + 1), rows)


def _merged_cores(p: DecodeProblem, outputs: DecodeOutputs, head: int) -> DecodeState:
    """The softmax of the keys of both cores."""
    cuts = p.value_cuts
    width = outputs.out.shape[4] // cuts
    both = nl.ndarray((width, 2, cuts + 2, p.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=both, src=outputs.shared[0][:, head, 0:width].permute((1, 0, 2, 3)))
    negmaxes = both[:, :, cuts + 1]
    negmax = nl.ndarray((width, p.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=negmax, data1=negmaxes[:, 0], data2=negmaxes[:, 1], op=nl.minimum)
    factors = nl.ndarray((width, 2, p.rows), dtype=nl.float32, buffer=nl.sbuf)
    least = negmax.expand_dim(1).broadcast(1, 2)
    nisa.tensor_tensor(dst=factors, data1=least, data2=negmaxes, op=nl.subtract)
    nisa.activation(dst=factors, op=nl.exp, data=factors)
    parts = both[:, :, 0 : cuts + 1]
    spread = factors.expand_dim(2).broadcast(2, cuts + 1)
    nisa.tensor_tensor(dst=parts, data1=parts, data2=spread, op=nl.multiply)
    merged = nl.ndarray((width, cuts + 1, p.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=merged, data1=parts[:, 0], data2=parts[:, 1], op=nl.add)
    return DecodeState(negmax, merged[:, cuts], merged[:, 0:cuts])
