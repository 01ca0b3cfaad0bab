"""How `_fixed_point_sums.py` cuts rows, and in which order it issues its instructions.

Chunks have a unit of their own, pieces of them go through the engines one after the other. The
first ones are short, so that all engines have work early, and the last ones, so that little is left
to do behind the last load. Engines run in order: an instruction that waits holds up those behind
it. The order is that of a schedule with about the times of trn2 (`docs/timing.md`), made here
engine by engine: of those instructions that are ready, the one for the earliest elements goes
first, small ones before all others, since large ones of another engine wait for them.

The sizes were searched for by the predicted times of 128x2048, 128x4096 and 128x1000, of 1024x4096,
4096x2048 and 128x8192, and of 128x16384 and 64x32768.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

EPOCH = 16384  # elements whose magnitudes are added
# Instructions: of a piece ...
LOAD, BOUND, ROUND, SCALE, LEFT, LEFT_ON_VECTOR, SUM, SUM_LEFT, ADD, FINISH = range(10)
# ... and of a chunk: several in turn of its unit and of the sum before it.
PROBE, NOTHING, UNIT, START = 10, 11, 20, 30
UNIT_STEPS, START_STEPS = 6, 5


class _Way(NamedTuple):
    """How to cut: `head` are the first pieces by chunk, `middle` those of other chunks, `tail` of
    the last one. VectorE finds what is left of `shares` / 32 of the first pieces, of the last ones
    (from the end), and of others. Bounds are `lead` elements ahead of what needs them, but no more
    than `hurry` of the elements so far; loads are `window` ahead of stores (SBUF limits that).
    """

    head: tuple[tuple[int, ...], ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    shares: tuple[tuple[int, ...], tuple[int, ...], int]
    lead: int
    window: int
    hurry: float


# Few positions, of which the ends count; rows of few and of many chunks: what is left adds up over
# chunks, and so do the roundings of its sums.
_FEW, _SHORT_ROW = 4096, 8192
_SHORT = _Way(
    ((384,), (640,), (512, 512)), (512, 512, 512, 512), (768, 768, 512),
    ((32, 2, 10, 6, 8), (13, 6), 8), 3072, 10240, 0.9,
)  # fmt: skip
_MIDDLE = _Way(
    ((512,), (512,), (1024,), (1024, 1024)), (1536, 1536, 1024), (1408, 1344, 832, 512),
    ((32, 20), (0,), 6), 3072, 12288, 0.5,
)  # fmt: skip
_LONG = _Way(
    ((512,), (512,), (1024,)), (1024, 1024), (1024, 512, 256, 256), ((32, 8, 32, 4), (16, 8), 4),
    3072, 14336, 0.7,
)  # fmt: skip
# Nanoseconds of trn2: per element and per instruction, and until results can be seen.
_VECTOR, _SCALAR, _GPSIMD = (1.04, 76.0, 107.0), (0.83, 53.0, 270.0), (1.67, 125.0, 30.0)
_LATER = 512  # elements by which GpSimd prefers what VectorE needs to finish
_TRIGGER, _TRANSFER, _START_OF_TRANSFER, _END_OF_TRANSFER = 600.0, 1.33, 1000.0, 330.0


class Chunk(NamedTuple):
    """`size` elements of a row of tile `tile`, `number` of that row; in `first_piece ..
    last_piece`. `before` and `long_before` are the last chunks of the two epochs before, or -1."""

    tile: int
    first: int
    size: int
    number: int
    first_piece: int
    last_piece: int
    begins_epoch: int
    before: int
    long_before: int


class Piece(NamedTuple):
    """`size` elements from `first` on of a chunk; VectorE takes what is left of `on_vector`."""

    chunk: int
    first: int
    size: int
    on_vector: int


class Plan(NamedTuple):
    """Of the work of a core with so many tiles; `order` has instructions with their numbers."""

    tiles: int
    chunks: tuple[Chunk, ...]
    pieces: tuple[Piece, ...]
    order: tuple[tuple[int, int], ...]


@cache
def plan_of(length: int, tiles: int) -> Plan:
    """For rows of `length`, one a partition."""
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    way = _LONG if length > _SHORT_ROW else _MIDDLE
    if length * tiles <= _FEW:
        way = _SHORT
    for tile in range(tiles):
        ends: dict[int, int] = {}
        first = 0
        for number, cut in enumerate(_cuts(length, tile == 0, tile == tiles - 1, way)):
            epoch = first // EPOCH
            begins, last = epoch not in ends, len(pieces) + len(cut) - 1
            before = (ends.get(epoch - 1, -1), ends.get(epoch - 2, -1))
            ends[epoch] = len(chunks)
            numbers = (tile, first, sum(cut), number, len(pieces), last, int(begins))
            place = 0
            for count in cut:
                pieces.append(Piece(len(chunks), place, count, 0))
                place += count
            chunks.append(Chunk(*numbers, *before))
            first += sum(cut)
    shared = _shared(pieces, way)
    return Plan(tiles, tuple(chunks), shared, tuple(_Order(chunks, shared, way).found()))


def _cuts(length: int, is_first: bool, is_last: bool, way: _Way) -> list[list[int]]:
    """Pieces by chunk."""
    cuts: list[list[int]] = []
    left = length
    for sizes in way.head if is_first else ():
        if left > 0:
            cuts.append(_pieces(min(left, sum(sizes)), sizes))
            left -= sum(sizes)
    while left > 0:
        sizes = way.tail if is_last and left <= sum(way.tail) else way.middle
        cuts.append(_pieces(min(left, sum(sizes)), sizes))
        left -= sum(sizes)
    return cuts


def _pieces(count: int, sizes: Sequence[int]) -> list[int]:
    """The last `sizes` that make `count`, the first of them shorter."""
    found: list[int] = []
    for size in reversed(sizes):
        if count > 0:
            found.insert(0, min(size, count))
            count -= size
    if len(found) > 1 and found[0] % 2:  # only a row may end with an odd number
        found[0], found[-1] = found[0] + 1, found[-1] - 1
    return found


def _shared(pieces: Sequence[Piece], way: _Way) -> tuple[Piece, ...]:
    first, last, usual = way.shares
    found = []
    for i, piece in enumerate(pieces):
        share = first[i] if i < len(first) else usual
        behind = len(pieces) - 1 - i
        if behind < len(last):
            share = last[behind]
        count = piece.size * share // 1024 * 32
        padded = piece.size + piece.size % 2
        found.append(piece._replace(on_vector=padded if padded - count < 64 else count))
    return tuple(found)


class _Step(NamedTuple):
    """An instruction: its engine, ns of it, ns until it is seen, what it needs, and its turn."""

    engine: str
    taken: float
    seen: float
    needs: tuple[tuple[int, int], ...]
    turn: float


_STORE = 40  # no instruction of its own: it follows FINISH


class _Order:
    """The instructions of all pieces, and the order in which a schedule starts them."""

    def __init__(self, chunks: Sequence[Chunk], pieces: Sequence[Piece], way: _Way) -> None:
        self._chunks, self._pieces, self._way = chunks, pieces, way
        self._steps: dict[tuple[int, int], _Step] = {}
        places = [0]
        for piece in pieces:
            places.append(places[-1] + piece.size)
        for i in range(len(pieces)):
            self._add_piece(i, places)

    def _add(
        self,
        name: tuple[int, int],
        cost: tuple[float, float, float],
        count: int,
        needs: Iterable[tuple[int, int] | None],
        turn: float,
    ) -> None:
        engine = {id(_VECTOR): "vector", id(_SCALAR): "scalar", id(_GPSIMD): "gpsimd"}[id(cost)]
        each, fixed, latency = cost
        taken = each * count + fixed
        found = tuple(need for need in needs if need is not None)
        self._steps[name] = _Step(engine, taken, each * count + latency + 76, found, turn)

    def _add_piece(self, i: int, places: Sequence[int]) -> None:
        chunks, piece, way = self._chunks, self._pieces[i], self._way
        c, count, place = piece.chunk, piece.size, places[i]
        chunk = chunks[c]
        ahead = place - min(way.lead, place * way.hurry)
        early = bisect_left(places, places[i + 1] - way.window) - 1  # out of the window
        room = ((_STORE, early),) if early >= 0 else ()
        moved = count * _TRANSFER
        self._steps[LOAD, i] = _Step("load", _TRIGGER, moved, room, place)
        bound = [(LOAD, i), (BOUND, i - 1) if i else None]
        if piece.first == 0 and chunk.number == 0:
            self._add((PROBE, c), _SCALAR, 64, bound, ahead)
            bound.append((PROBE, c))
        self._add((BOUND, i), _SCALAR, count, bound, ahead)
        if i == chunk.last_piece:
            self._add_unit(c)
        if piece.first == 0:
            self._add_start(c, ahead)
        unit = (UNIT + UNIT_STEPS - 1, c)
        self._add((ROUND, i), _SCALAR, count, [(LOAD, i), (UNIT + 4, c)], place)
        rest = count + count % 2 - piece.on_vector
        if rest > 0:
            self._add((SCALE, i), _SCALAR, rest, [(ROUND, i), unit], place)
            self._add((LEFT, i), _GPSIMD, rest, [(SCALE, i)], place + _LATER)
        if piece.on_vector:
            needs = [(ROUND, i), unit]
            self._add((LEFT_ON_VECTOR, i), _VECTOR, piece.on_vector, needs, place)
        start, start_left = (SUM, i - 1), (SUM_LEFT, i - 1)
        if piece.first == 0:
            is_first = chunk.number == 0
            start = (NOTHING, c) if is_first else (START + 2, c)
            start_left = (NOTHING, c) if is_first else (START + 4, c)
        half = (count + 1) // 2
        self._add((SUM, i), _VECTOR, half, [(ROUND, i), start], place)
        left = [(LEFT, i) if rest > 0 else None, (LEFT_ON_VECTOR, i) if piece.on_vector else None]
        self._add((SUM_LEFT, i), _VECTOR, half, [*left, start_left], place)
        self._add((ADD, i), _GPSIMD, half, [(SUM_LEFT, i)], place)
        self._add((FINISH, i), _VECTOR, count, [(ADD, i), (SUM, i), unit], place)
        self._steps[_STORE, i] = _Step("store", _TRIGGER, moved, ((FINISH, i),), place)

    def _add_unit(self, c: int) -> None:
        chunk, small = self._chunks[c], -1.0
        first = (PROBE, c) if chunk.number == 0 else (UNIT + 3, c - 1)
        needs: list[tuple[int, int] | None] = [(BOUND, chunk.last_piece), first]
        if chunk.long_before >= 0:
            needs.append((SUM, self._chunks[chunk.long_before].last_piece))
            needs.append((UNIT + UNIT_STEPS - 1, chunk.long_before))
        self._add((UNIT, c), _VECTOR, 75 if chunk.number == 0 else 1, needs, small)
        for step in range(1, UNIT_STEPS):
            self._add((UNIT + step, c), _VECTOR, 1, [(UNIT + min(step - 1, 3), c)], small)

    def _add_start(self, c: int, ahead: float) -> None:
        chunks, chunk, small = self._chunks, self._chunks[c], -1.0
        if chunk.number == 0:
            self._add((NOTHING, c), _SCALAR, 64, [(BOUND, chunk.first_piece)], ahead)
            return
        last = chunks[c - 1].last_piece
        before = (SUM_LEFT, chunks[c - 2].last_piece) if chunk.number % 2 == 0 else None
        scales = (UNIT + UNIT_STEPS - 1, c)
        needs: list[list[tuple[int, int] | None]] = [
            [(SUM, last), (UNIT + UNIT_STEPS - 1, c - 1)],
            [(START, c), (UNIT + 4, c), before],
            [(START + 1, c)],
            [(START + 2, c), scales],
            [(START + 3, c), (SUM_LEFT, last)],
        ]
        for step in range(START_STEPS):
            self._add((START + step, c), _VECTOR, 1, needs[step], small)

    def found(self) -> list[tuple[int, int]]:
        """By start."""
        steps = self._steps
        waits = {name: len(step.needs) for name, step in steps.items()}
        follows: dict[tuple[int, int], list[tuple[int, int]]] = {name: [] for name in steps}
        for name, step in steps.items():
            for need in step.needs:
                follows[need].append(name)
        seen = dict.fromkeys(steps, 0.0)
        free = dict.fromkeys(("load", "store", "vector", "scalar", "gpsimd"), 0.0)
        ready: dict[str, list[tuple[int, int]]] = {engine: [] for engine in free}
        for name, count in waits.items():
            if count == 0:
                ready[steps[name].engine].append(name)
        transfers, order = 0.0, []
        while any(ready.values()):
            start, name = min(
                self._next(names, free[engine], seen) for engine, names in ready.items() if names
            )
            step = steps[name]
            ready[step.engine].remove(name)
            free[step.engine] = start + step.taken
            end = start + step.seen
            if step.engine in ("load", "store"):
                transfers = max(transfers, start + _START_OF_TRANSFER) + step.seen
                end = transfers + _END_OF_TRANSFER
            if name[0] != _STORE:
                order.append(name)
            for other in follows[name]:
                waits[other] -= 1
                seen[other] = max(seen[other], end)
                if waits[other] == 0:
                    ready[steps[other].engine].append(other)
        return order

    def _next(
        self, names: Sequence[tuple[int, int]], free: float, seen: dict[tuple[int, int], float]
    ) -> tuple[float, tuple[int, int]]:
        """When an engine that is `free` then can start something, and what."""
        earliest = max(free, min(seen[name] for name in names))
        can = [name for name in names if seen[name] <= earliest]
        return earliest, min(can, key=lambda name: (self._steps[name].turn, name[1], name[0]))
