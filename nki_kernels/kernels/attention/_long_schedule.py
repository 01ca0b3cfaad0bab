"""NKI helpers of attention of long sequences: in which order the work of `_long` is done.

A turn weighs four blocks of keys of a group, and then the weights of the turn before meet their
values. In between VectorE gets the scores of the next groups, for their maxima, as evenly as the
growing groups of causal attention allow: it needs three times as long for them as TensorE.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels.attention._fit import loads_windows
from trnx.nki_kernels.kernels.attention._long import (
    GROUP,
    LEAST,
    QUAD,
    LongOutputs,
    LongProblem,
    Quad,
    QueryGroup,
    Result,
    Search,
    begin_quad,
    combine_block,
    invert_sums,
    normalise_block,
    search,
    searches_of,
    store_long_logs,
    weigh_block,
)
from trnx.nki_kernels.kernels.attention._long_diagonal import keeps_diagonal, weigh_diagonal
from trnx.nki_kernels.kernels.attention._long_keys import (
    KeyHead,
    KeyMask,
    key_span,
    load_key_head,
    load_key_mask,
    load_rows,
)
from trnx.nki_kernels.kernels.attention._masks import shares

# Steps from the last one of a group to its first weights: the maxima have a way to go. Those of
# narrow heads take as long, but TensorE has less to do in between (by schedule).
_MARGIN = 12
_NARROW_MARGIN = 8
# The same for the first group of all, for which everything waits.
_FIRST_MARGIN = 10
# How many groups ahead steps are planned.
_AHEAD = 5
# TensorE's time in a turn but for the search: of the scores of a quad, and of the values that its
# weights meet, and those of a quad on the diagonal; in no unit.
_SCORES = 4
_VALUES = 3
_DIAGONAL_VALUES = 2
# Pieces of a turn before a result is normalised: ScalarE would wait for VectorE's inverse.
_NORMALISED = 3
# A group is loaded when no more steps than these are left: DMA takes as long as they do.
_LOADED = 12
# The same before the first weights, for which everything waits: DMA lays out their maxima.
_FIRST_LOADED = 8


# q, k, v and a mask of keys, `[B or 1, .., .., S]`.
Tensors = tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor | None]


class Work(NamedTuple):
    """Groups whose queries are loaded, in order, and the steps that are left of them."""

    groups: list[QueryGroup]
    steps: list[Search]


class Place(NamedTuple):
    """Where a group is: its batch entry, head, first block and number of blocks; it sees the blocks
    `start .. seen` of keys, in `quads`, of which the search takes `steps`. `keeps`: the last quad
    is weighed by `weigh_diagonal`."""

    batch: int
    head: int
    first: int
    blocks: int
    start: int
    seen: int
    quads: int
    steps: int
    keeps: bool


def _scored(place: Place) -> int:
    """The quads whose scores are computed for the weights."""
    return place.quads - 1 if place.keeps else place.quads


def _turns(place: Place) -> int:
    """The turns that a group takes: of each scored quad, and one where there is none."""
    return max(1, _scored(place))


def places_of(
    causal: bool, window: int, scale: float, q: nl.NkiTensor, k: nl.NkiTensor
) -> list[Place]:
    """The groups of all heads in order."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    places: list[Place] = []
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            for first in range(0, q.shape[2] // pmax, GROUP):
                last = min(first + GROUP, q.shape[2] // pmax)
                steps = 0
                for block in range(first, last):
                    span = key_span(block, k.shape[2], causal, window)
                    steps += (span[1] - span[0] + bank - 1) // bank
                start = key_span(first, k.shape[2], causal, window)[0] // pmax
                seen = key_span(last - 1, k.shape[2], causal, window)[1] // pmax
                quads = (seen - start + QUAD - 1) // QUAD
                keeps = keeps_diagonal(causal, window, scale, first, last - first, k.shape[2])
                places.append(
                    Place(batch, head, first, last - first, start, seen, quads, steps, keeps)
                )
    return places


def _work_of(places: list[Place]) -> list[int]:
    """TensorE's time in each turn of all groups but for the search."""
    work: list[int] = []
    waiting = 0
    for place in places:
        scored = _scored(place)
        for turn in range(_turns(place)):
            scores = _SCORES if turn < scored else 0
            work.append(1 + scores + waiting)
            waiting = _VALUES if turn < scored else 0
        if place.keeps:
            waiting += _DIAGONAL_VALUES
    return work


def _counts(p: LongProblem, places: list[Place]) -> list[int]:
    """How many steps of the search go before the first turn, and with each. A turn gets what is the
    most for its time, up to the start of any of the groups that follow."""
    work = _work_of(places)
    margin = _NARROW_MARGIN if p.narrow > 0 else _MARGIN
    total = 0
    for place in places:
        total += place.steps
    done = min(total, places[0].steps + _FIRST_MARGIN)
    counts = [done]
    up_to_group = places[0].steps
    for number in range(len(places)):
        for turn in range(_turns(places[number])):
            slot = len(counts) - 1
            count = 0
            wanted = up_to_group
            time = 0
            until = slot
            first = turn
            for later in range(number, min(number + _AHEAD, len(places))):
                for _ in range(first, _turns(places[later])):
                    time += work[until]
                    until += 1
                first = 0
                if later + 1 < len(places):
                    wanted += places[later + 1].steps
                need = min(total, wanted + margin) - done
                count = max(count, (need * work[slot] + time - 1) // time)
            done += count
            counts.append(count)
        if number + 1 < len(places):
            up_to_group += places[number + 1].steps
    return counts


def _load(
    p: LongProblem,
    tensors: Tensors,
    work: Work,
    place: Place,
) -> None:
    """Load the queries of a group, and the keys and values of its head where they are new."""
    pmax = nl.tile_size.pmax
    q = tensors[0]
    number = len(work.groups)
    last = work.groups[number - 1] if number > 0 else None
    source = _source(p, tensors, place, last)
    blocks = place.blocks
    rows = q[place.batch, place.head, place.first * pmax : (place.first + blocks) * pmax]
    maxima = nl.ndarray((pmax, blocks, place.quads), dtype=nl.float32, buffer=nl.sbuf)
    if p.window > 0:  # the blocks of a group may take different numbers of steps
        nisa.memset(dst=maxima, value=LEAST, engine=nisa.engine.gpsimd)
    shift = nl.ndarray((pmax, blocks * pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    bias = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    loaded = QueryGroup(
        place.batch,
        place.head,
        place.first,
        blocks,
        place.start,
        place.seen,
        number,
        (place.batch * q.shape[1] + place.head) * (q.shape[2] // pmax) + place.first,
        source,
        load_rows(rows, p.cuts),
        maxima,
        shift,
        _scored(place),
        place.keeps,
        [],
        bias,
    )
    work.groups.append(loaded)
    for step in searches_of(p, loaded):
        work.steps.append(step)


def _source(p: LongProblem, tensors: Tensors, place: Place, last: QueryGroup | None) -> KeyHead:
    """The keys and values of a group: those of a head, which the `last` group may have, or those
    that it sees."""
    pmax = nl.tile_size.pmax
    q, k, v, mask = tensors
    shared = q.shape[1] // k.shape[1]
    head = place.head // shared
    if loads_windows(p.window, k.shape[2]):
        rows = slice(place.start * pmax, place.seen * pmax)
        some = None
        if mask is not None:
            entry = 0 if shares(mask, 0) else place.batch
            some = load_key_mask(mask[entry, 0, 0:1, rows])
        keys, values = k[place.batch, head, rows], v[place.batch, head, rows]
        return load_key_head(keys, values, p.cuts, place.batch, place.start, some)
    if last is not None and (last.batch, last.head // shared) == (place.batch, head):
        return last.source
    found = _key_mask(mask, place.batch, None if last is None else last.source)
    return load_key_head(k[place.batch, head], v[place.batch, head], p.cuts, place.batch, 0, found)


def _key_mask(mask: nl.NkiTensor | None, batch: int, before: KeyHead | None) -> KeyMask | None:
    """The mask of the keys of a batch entry, that of the head before where it is the same."""
    if mask is None:
        return None
    entry = 0 if shares(mask, 0) else batch
    if before is not None and (before.batch == batch or shares(mask, 0)):
        return before.mask
    return load_key_mask(mask[entry, 0, 0:1])


def _take(
    p: LongProblem,
    tensors: Tensors,
    places: list[Place],
    work: Work,
    count: int,
    ahead: int = _LOADED,
) -> list[Search]:
    """The next `count` steps; loads what comes after them, `ahead` steps."""
    while len(work.groups) < len(places) and len(work.steps) < count + ahead:
        _load(p, tensors, work, places[len(work.groups)])
    taken: list[Search] = []
    for _ in range(min(count, len(work.steps))):
        taken.append(work.steps.pop(0))
    return taken


def _turn(
    p: LongProblem,
    outputs: LongOutputs,
    quad: Quad | None,
    weighed: list[Quad],
    ended: list[Result],
    steps: list[Search],
) -> list[Result]:
    """The blocks of `quad` are weighed, then those of `weighed` meet their values, with the steps
    of a search in between; results of groups that `ended` are normalised. Gives those that end."""
    work: list[tuple[Quad, int, bool]] = []  # a quad, one of its blocks, whether it is weighed now
    if quad is not None:
        for block in range(len(quad.scores)):
            work.append((quad, block, True))
    for one in weighed:
        for block in range(len(one.weights)):
            work.append((one, block, False))
    pieces = max(GROUP + _NORMALISED, len(work))
    done = 0
    for piece in range(pieces):
        if piece < len(work):
            if work[piece][2]:
                weigh_block(p, work[piece][0], work[piece][1])
            else:
                combine_block(work[piece][0], work[piece][1])
        for result in ended:
            query = piece - _NORMALISED
            if 0 <= query < result.group.blocks:
                normalise_block(outputs, result, query)
        until = len(steps) * (piece + 1) // pieces
        for step in steps[done:until]:
            search(p, outputs, step)
        done = until
    results: list[Result] = []
    for one in weighed:
        if one.last:
            results.append(invert_sums(p, outputs, one))
    return results


def own_places(places: list[Place], cores: int) -> list[Place]:
    """Those of this program: neighbours, with an even share of the steps."""
    total = 0
    for place in places:
        total += place.steps
    own: list[Place] = []
    done = 0
    for place in places:
        # By the middle of its steps.
        if (2 * done + place.steps) * cores // (2 * total) == nl.program_id(0):
            own.append(place)
        done += place.steps
    return own


def _with_least_at_the_end(p: LongProblem, places: list[Place]) -> list[Place]:
    """The group of the last head that sees the fewest keys comes last where that is causal, so that
    the least is left to do behind the last maxima; but for the first group of all, whose maxima
    everything waits for."""
    number = len(places) - 1
    while number > 1 and places[number].first > 0:
        number -= 1
    if not p.causal or number < 0 or 2 * places[number].first >= places[len(places) - 1].first:
        return places
    return places[:number] + places[number + 1 :] + [places[number]]


def attend(
    p: LongProblem, tensors: Tensors, outputs: LongOutputs, lse: nl.NkiTensor | None, cores: int
) -> None:
    """All groups of all heads that are this program's; `lse[blocks of queries of all, 128]`,
    or None."""
    own = own_places(places_of(p.causal, p.window, p.scale, tensors[0], tensors[1]), cores)
    places = _with_least_at_the_end(p, own)
    if len(places) == 0:
        return
    counts = _counts(p, places)
    work = Work([], [])
    load_table(nl.exp, p.ones[0:1, 0:1])
    for _ in range(counts[0]):
        for step in _take(p, tensors, places, work, 1, _FIRST_LOADED):
            search(p, outputs, step)
    slot = 0  # of `counts`
    weighed: list[Quad] = []
    ended: list[Result] = []
    for number in range(len(places)):
        group = work.groups[number]
        scored = _scored(places[number])
        products: list[nl.NkiTensor] = []
        diagonal: list[Quad] = []
        if group.keeps:
            diagonal.append(weigh_diagonal(p, group, products))
        for turn in range(_turns(places[number])):
            slot += 1
            steps = _take(p, tensors, places, work, counts[slot])
            quad = None
            if turn < scored:
                quad = begin_quad(p, group, group.start + turn * QUAD, products)
            ended = _turn(p, outputs, quad, weighed, ended, steps)
            weighed = []
            if quad is not None:
                weighed.append(quad)
        weighed = weighed + diagonal
    if lse is not None:
        # After the last exponentials, while others work.
        load_table(nl.log, p.ones[0:1, 0:1])
    ended = _turn(p, outputs, None, weighed, ended, [])
    if lse is not None:
        first, end = rows_of(own, tensors[0])
        store_long_logs(p, outputs, lse, first, end)
    _turn(p, outputs, None, [], ended, [])


def rows_of(places: list[Place], q: nl.NkiTensor) -> tuple[int, int]:
    """The blocks of queries of neighbouring groups, among those of all heads: `first .. end`."""
    blocks = q.shape[2] // nl.tile_size.pmax
    rows: list[int] = []
    for place in (places[0], places[len(places) - 1]):
        rows.append((place.batch * q.shape[1] + place.head) * blocks + place.first)
    return rows[0], rows[1] + places[len(places) - 1].blocks
