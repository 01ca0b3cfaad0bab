"""NKI helpers of the backward pass of attention: short sequences, many heads of which are loaded
and stored together, so that neither queue of DMAs is what everything waits for.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._backward import (
    BackwardProblem,
    Gradients,
    KeyGradients,
    KeySide,
    Prepared,
    Started,
    accumulate_keys,
    load_row_values,
    negated_delta,
    new_key_gradients,
    score_gradients,
    weight_gradients,
    weights_of,
)
from trnx.nki_kernels.kernels.attention._heads import (
    combine_turned,
    load_blocks,
    load_heads,
    turn_weights,
    turned_heads,
)
from trnx.nki_kernels.kernels.attention._layout import Chunk, HeadLayout, head_rows, span_of
from trnx.nki_kernels.kernels.attention._mask_gradient import add_mask_gradient


class Span(NamedTuple):
    """All rows of the heads of `whole`, as `load_heads` gives them, and `[rows, heads]`: `shift`
    the negated lse, `delta` the negated sums of grad * out. The gradients get their values chunk by
    chunk, `[rows or keys, heads, width]`."""

    whole: Chunk
    q: nl.NkiTensor
    k: nl.NkiTensor
    v: nl.NkiTensor
    grad: nl.NkiTensor
    shift: nl.NkiTensor
    delta: nl.NkiTensor
    dq: nl.NkiTensor
    dk: nl.NkiTensor
    dv: nl.NkiTensor


class Place(NamedTuple):
    """A chunk of a span; `last`: the gradients of the span are complete with it."""

    span: Span
    chunk: Chunk
    last: bool


class Turned(NamedTuple):
    """A chunk whose gradients of scores are transposed, and its sums so far in PSUM."""

    started: Started
    place: Place
    tiles: list[nl.NkiTensor]
    sums: KeyGradients


class SpanPipeline(NamedTuple):
    """A chunk a stage: its operands are transposed, the gradients of its scores computed, these
    transposed, and its last products computed, each while other engines have the chunks around it.
    `preparing` and `starting` are the places of the first two."""

    prepared: Prepared | None
    preparing: Place | None
    started: Started | None
    starting: Place | None
    turned: Turned | None


def _load(p: BackwardProblem, g: Gradients, whole: Chunk) -> Span:
    rows, cols = p.q.shape[2], p.k.shape[2]
    q = load_heads(p.q, whole, 0, rows, p.features)
    k = load_heads(p.k, whole, 0, cols, p.features)
    v = load_heads(p.v, whole, 0, cols, p.values)
    grad = load_heads(p.grad, whole, 0, rows, p.values)
    shift = load_row_values(p.lse, whole, 0, rows)
    nisa.tensor_scalar(dst=shift, data=shift, op0=nl.multiply, operand0=-1.0)
    out = load_blocks(p.out, whole, 0, rows)[0]
    delta = negated_delta(grad[:, 0 : whole.pairs, 0 : p.values.size], out)
    heads = whole.pairs
    dq = nl.ndarray((rows, heads, p.q.shape[3]), dtype=g.dq.dtype, buffer=nl.sbuf)
    dk = nl.ndarray((cols, heads, p.k.shape[3]), dtype=g.dk.dtype, buffer=nl.sbuf)
    dv = nl.ndarray((cols, heads, p.v.shape[3]), dtype=g.dv.dtype, buffer=nl.sbuf)
    return Span(whole, q, k, v, grad, shift, delta, dq, dk, dv)


def _on_scalar(layout: HeadLayout) -> HeadLayout:
    """The same with transposes that leave PSUM by ScalarE: VectorE has the gradients, and in its
    fast modes would take turns with GpSimd."""
    return HeadLayout(layout.size, layout.slots, layout.cuts, layout.pitch, layout.partitions, True)


def _prepare(p: BackwardProblem, place: Place) -> Prepared:
    """The operands of a chunk, transposed."""
    span, chunk = place.span, place.chunk
    first = chunk.head - span.whole.head
    end = first + chunk.heads
    queries = turned_heads(span.q, first, chunk.heads, p.features)
    keys = turned_heads(span.k, first, chunk.heads, p.features)
    grad = turned_heads(span.grad, first, chunk.heads, p.values)
    values = turned_heads(span.v, first, chunk.heads, p.values)
    side = KeySide(0, p.k.shape[2], keys.transposed, values.transposed, keys.tiles)
    shift, delta = span.shift[:, first:end], span.delta[:, first:end]
    return Prepared(side, chunk, chunk, 0, queries, grad, shift, delta, True)


def _gather(
    p: BackwardProblem, g: Gradients, place: Place, product: nl.NkiTensor, sums: KeyGradients
) -> None:
    """The gradients of a chunk out of PSUM; those of a span are stored when they are complete."""
    span, chunk = place.span, place.chunk
    first = chunk.head - span.whole.head
    end = first + chunk.heads
    nisa.tensor_copy(dst=span.dv[:, first:end, :], src=sums.dv)
    for dst, src in ((span.dq, product), (span.dk, sums.dk)):
        nisa.tensor_scalar(dst=dst[:, first:end, :], data=src, op0=nl.multiply, operand0=p.scale)
    if place.last:
        for pair in ((span.dq, g.dq), (span.dk, g.dk), (span.dv, g.dv)):
            target = head_rows(pair[1], span.whole, 0, pair[0].shape[0])
            nisa.dma_copy(dst=target, src=pair[0].expand_dim(1))


def _turn(p: BackwardProblem, g: Gradients, s: Started, place: Place) -> Turned:
    """The gradients of the values, and those of the scores transposed."""
    chunk, size = s.prepared.chunk, s.prepared.side.size
    sums = new_key_gradients(p, chunk, size)
    accumulate_keys(sums.dv, s.weights.dropped, s.prepared.grad.tiles[0], chunk.pairs, 1)
    if g.dmask is not None:
        add_mask_gradient(g.dmask, s.wide, chunk, 0, 0)
    tiles = turn_weights(s.padded, chunk.pairs, size, _on_scalar(p.keys))
    return Turned(s, place, tiles, sums)


def _finish(p: BackwardProblem, g: Gradients, t: Turned) -> None:
    """The gradients of queries and keys, and what leaves PSUM."""
    s = t.started
    chunk, side = s.prepared.chunk, s.prepared.side
    product = combine_turned(t.tiles, side.vectors, chunk.pairs, 1, side.size, p.keys)
    dscores = s.padded[:, 0 : chunk.pairs, 0 : side.size]
    accumulate_keys(t.sums.dk, dscores, s.prepared.queries.tiles[0], chunk.pairs, 1)
    _gather(p, g, t.place, product, t.sums)


def step_span(
    p: BackwardProblem, g: Gradients, pipeline: SpanPipeline, coming: Place | None
) -> SpanPipeline:
    """Advance each stage. TensorE begins with what the other engines wait for."""
    current, place = pipeline.prepared, pipeline.preparing
    weights, dweights, started, turned = None, None, None, None
    if current is not None:
        weights = weights_of(p, current)
        dweights = weight_gradients(p, current)
    prepared = None if coming is None else _prepare(p, coming)
    if current is not None and weights is not None and dweights is not None:
        started = score_gradients(p, g, current, weights, dweights)
    if pipeline.started is not None and pipeline.starting is not None:
        turned = _turn(p, g, pipeline.started, pipeline.starting)
    if pipeline.turned is not None:
        _finish(p, g, pipeline.turned)
    return SpanPipeline(prepared, coming, started, place, turned)


def backward_spans(p: BackwardProblem, g: Gradients, spans: list[list[Chunk]]) -> None:
    """All gradients of the heads of `spans`; the chunks of each follow each other in one batch
    entry."""
    pipeline = SpanPipeline(None, None, None, None, None)
    for chunks in spans:
        span = _load(p, g, span_of(chunks))
        for number in range(len(chunks)):
            place = Place(span, chunks[number], number == len(chunks) - 1)
            pipeline = step_span(p, g, pipeline, place)
    for _ in range(3):
        pipeline = step_span(p, g, pipeline, None)
