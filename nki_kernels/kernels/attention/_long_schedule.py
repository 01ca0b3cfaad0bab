"""NKI helpers of attention of long sequences: in which order the work of `_long` is done.

A step of the search takes VectorE as long as the weights of a block of keys take TensorE, so each
quad of blocks goes with about four steps. The steps run ahead of the quads, by as much as the
growing groups of causal attention need.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._long import (
    GROUP,
    LEAST,
    QUAD,
    TERM_TILES,
    LongOutputs,
    LongProblem,
    Quad,
    QueryGroup,
    Search,
    combine_block,
    score_quad,
    search,
    searches_of,
    store_group,
    turn_terms,
)
from trnx.nki_kernels.kernels.attention._long_keys import (
    KeyHead,
    KeyMask,
    key_span,
    load_key_head,
    load_key_mask,
    load_rows,
)
from trnx.nki_kernels.kernels.attention._masks import shares

# Steps from the last one of a group to its first weights: the maxima have a way to go.
_MARGIN = 7
# Most steps of a quad, where the search has to catch up; else QUAD of them.
_MOST = 6
# The block of a quad after whose products the terms of the next group are turned.
_TURNED = 1
# A group is loaded when no more steps than these are left: DMA takes as long as they do.
_LOADED = 12


# q, k, v and a mask of keys, `[B or 1, .., .., S]`.
Tensors = tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor | None]


class Work(NamedTuple):
    """Groups whose queries are loaded, in order, and the steps that are left of them."""

    groups: list[QueryGroup]
    steps: list[Search]


class Place(NamedTuple):
    """Where a group is: its batch entry, head and first block; it sees the blocks `start .. seen`
    of keys, in `quads`, of which the search takes `steps`."""

    batch: int
    head: int
    first: int
    start: int
    seen: int
    quads: int
    steps: int


def _places(p: LongProblem, q: nl.NkiTensor, k: nl.NkiTensor) -> list[Place]:
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    places: list[Place] = []
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            for first in range(0, q.shape[2] // pmax, GROUP):
                last = min(first + GROUP, q.shape[2] // pmax)
                steps = 0
                for block in range(first, last):
                    span = key_span(block, k.shape[2], p.causal, p.window)
                    steps += (span[1] - span[0] + bank - 1) // bank
                start = key_span(first, k.shape[2], p.causal, p.window)[0] // pmax
                seen = key_span(last - 1, k.shape[2], p.causal, p.window)[1] // pmax
                quads = (seen - start + QUAD - 1) // QUAD
                places.append(Place(batch, head, first, start, seen, quads, steps))
    return places


class Plan(NamedTuple):
    """How many steps are at least done before each quad of all groups, and at the end; and how many
    there are up to the end of each group."""

    due: list[int]
    ends: list[int]


def _plan(places: list[Place]) -> Plan:
    total = 0
    ends: list[int] = []
    for place in places:
        total += place.steps
        ends.append(total)
    backwards = [total]
    for number in range(len(places) - 1, -1, -1):
        for quad in range(places[number].quads - 1, -1, -1):
            due = max(0, backwards[-1] - _MOST)
            if quad == 0:
                due = max(due, min(total, ends[number] + _MARGIN))
            backwards.append(due)
    return Plan(backwards[::-1], ends)


def _load(
    p: LongProblem,
    tensors: Tensors,
    work: Work,
    place: Place,
) -> None:
    """Load the queries of a group, and the keys and values of its head where they are new."""
    pmax = nl.tile_size.pmax
    q = tensors[0]
    group = q.shape[1] // tensors[1].shape[1]
    total = q.shape[2] // pmax
    number = len(work.groups)
    if number == 0 or (place.first == 0 and place.head % group == 0):
        head = place.head // group
        before = work.groups[number - 1].source if number > 0 else None
        mask = _key_mask(tensors[3], place.batch, before)
        keys, values = tensors[1][place.batch, head], tensors[2][place.batch, head]
        source = load_key_head(keys, values, p.cuts, place.batch, mask)
    else:
        source = work.groups[number - 1].source
    blocks = min(GROUP, total - place.first)
    rows = q[place.batch, place.head, place.first * pmax : (place.first + blocks) * pmax]
    maxima = nl.ndarray((pmax, blocks, place.quads), dtype=nl.float32, buffer=nl.sbuf)
    if p.window > 0:  # the blocks of a group may take different numbers of steps
        nisa.memset(dst=maxima, value=LEAST, engine=nisa.engine.gpsimd)
    shift = nl.ndarray((pmax, blocks * pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    loaded = QueryGroup(
        place.batch,
        place.head,
        place.first,
        blocks,
        place.start,
        place.seen,
        number,
        (place.batch * q.shape[1] + place.head) * total + place.first,
        source,
        load_rows(rows, p.cuts),
        maxima,
        shift,
    )
    work.groups.append(loaded)
    for step in searches_of(p, loaded):
        work.steps.append(step)


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
) -> list[Search]:
    """The next `count` steps; loads what comes after them."""
    while len(work.groups) < len(places) and len(work.steps) < count + _LOADED:
        _load(p, tensors, work, places[len(work.groups)])
    taken: list[Search] = []
    for _ in range(min(count, len(work.steps))):
        taken.append(work.steps.pop(0))
    return taken


def _combine(
    p: LongProblem,
    outputs: LongOutputs,
    before: Quad | None,
    steps: list[Search],
    following: QueryGroup | None,
) -> None:
    """The weights of a quad meet their values, in between some steps of a search, and the terms of
    the group that follows become ready."""
    for block in range(QUAD):
        if before is not None and block < len(before.weights):
            combine_block(before, block)
        first = len(steps) * max(0, block - 1) // (QUAD - 1)
        for step in steps[first : len(steps) * block // (QUAD - 1)]:
            search(p, outputs, step)
        if block == _TURNED and following is not None:
            turn_terms(p, following)
    if before is not None and before.last:
        store_group(p, outputs, before)


def _own_places(places: list[Place], cores: int) -> list[Place]:
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


def attend(p: LongProblem, tensors: Tensors, outputs: LongOutputs, cores: int) -> tuple[int, int]:
    """All groups of all heads that are this program's; their blocks of queries, `first .. end`."""
    places = _own_places(_places(p, tensors[0], tensors[1]), cores)
    if len(places) == 0:
        return 0, 0
    plan = _plan(places)
    work = Work([], [])
    done = min(plan.due[0], plan.ends[min(TERM_TILES, len(places)) - 1])
    for step in _take(p, tensors, places, work, done):
        search(p, outputs, step)
    slot = 0
    before = None
    for number in range(len(places)):
        group = work.groups[number]
        products: list[nl.NkiTensor] = []
        for key in range(group.start, group.seen, QUAD):
            if slot == 0:
                turn_terms(p, group)
            following = None
            if key + QUAD >= group.seen and number + 1 < len(places):
                following = number + 1
            slot += 1
            # A tile of terms is free again when those of its group are turned.
            most = plan.ends[min(number + TERM_TILES, len(places) - 1)] - done
            count = min(max(QUAD, plan.due[slot] - done), most)
            steps = _take(p, tensors, places, work, count)
            done += len(steps)
            half = (len(steps) + 1) // 2
            scored = score_quad(p, outputs, group, key, steps[:half], products)
            turned = work.groups[following] if following is not None else None
            _combine(p, outputs, before, steps[half:], turned)
            before = scored
    _combine(p, outputs, before, [], None)
    return work.groups[0].row, work.groups[-1].row + work.groups[-1].blocks
