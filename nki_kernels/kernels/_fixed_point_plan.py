"""How `_fixed_point_sums.py` cuts rows, and in which order it issues its instructions.

Chunks have a unit of their own, pieces of them go through the engines one after the other. The
first ones are short, so that all engines have work early, and the last ones, so that little is left
to do behind the last load. Engines run in order: an instruction that waits holds up those behind
it. The order is that of a schedule with about the times of trn2 (`docs/timing.md`), made here
engine by engine: of those instructions that are ready, the one for the earliest elements goes
first, small ones before all others, since large ones of another engine wait for them.

The sizes were searched for by the ends of these schedules, which are within 0.2 us of the predicted
times of 128x2048 and 1024x4096, and by those times.

What bounds this on trn2, in ns for an element of each partition: ScalarE 2.5 (bound, lift, round),
VectorE 2.1 (two scans of halves, results), GpSimd 1.7 (half of what is left, half an addition),
TensorE 1.7 at half rate (the other half); 2.1 for each of the first three where they share evenly.
Load and store are 2.7 of DMA, a plain scan in float32, whose errors are 29 to 58 times eager's
(`scripts/bench/versus_aws.py --rows cumsum`), 1.04 of VectorE. 1024x4096 has 32,768 such elements:
87 us of DMA; with 3 us until the first elements can be used and 3 behind the last results it cannot
end before 93 us, and ends at 94.8 (the plain scan: 88.8). 128x2048 has 2,048: 2.4 us until the
first, 2.4 behind the last results; between these VectorE has 4.3 us of elements and 2 of fixed
times, and each piece goes through six instructions one after the other, the last ones of which all
engines but ScalarE share; it ends at 12.9 (the plain scan: 11.1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from trnx.nki_kernels.kernels._fixed_point_ways import Shares, Way, ways_of

EPOCH = 16384  # elements whose magnitudes are added
# Instructions: of a piece ...
LOAD, BOUND, LIFT, ROUND, ROUND_ON_VECTOR = range(5)
LEFT, LEFT_ON_VECTOR, LEFT_ON_TENSOR, SUM, SUM_LEFT, ADD, FINISH, FINISH_ON_GPSIMD = range(5, 13)
# ... and of a chunk: its unit, and what it starts with, in turn.
NOTHING, UNIT, MOVE, START, START_LEFT = range(13, 18)
# Nanoseconds of trn2: per element and per instruction, and until results can be seen.
_VECTOR, _SCALAR, _GPSIMD = (1.0417, 76.0, 107.0), (0.8333, 53.3, 246.0), (1.6667, 125.0, 79.0)
_TENSOR = (3.3333, 427.0, 646.0)  # for two elements, at half rate: it is not busy enough
_FEWEST_PAIRS = 256  # that take as long as loading the identity
_LATER = 512  # elements by which GpSimd prefers what VectorE needs to finish
_TRIGGER, _TRANSFER, _START_OF_TRANSFER, _END_OF_TRANSFER = 600.0, 1.33, 1000.0, 705.0
_RESULT = 64  # elements that take as long as ScalarE's accumulator is read out


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
    """`size` elements from `first` on of a chunk, of which VectorE rounds `rounds`, and finds what
    is left of `on_vector`; it also adds, where `adds` is 1."""

    chunk: int
    first: int
    size: int
    rounds: int
    on_vector: int
    adds: int
    on_tensor: int
    finishes: int


class Plan(NamedTuple):
    """Of the work of a core with so many tiles; `order` has instructions with their numbers."""

    tiles: int
    chunks: tuple[Chunk, ...]
    pieces: tuple[Piece, ...]
    order: tuple[tuple[int, int], ...]


def moves(chunk: Chunk) -> bool:
    """Whether a chunk moves what the one before last left to its grid, so that this stays little:
    it would be known too late of the last one."""
    return chunk.number > 1


@cache
def plan_of(length: int, tiles: int) -> Plan:
    """For rows of `length`, one a partition, cut in the way whose schedule ends first."""
    plans = [_plan(length, tiles, way) for way in ways_of(length, tiles)]
    return min(plans, key=lambda plan: plan[0])[1]


def _plan(length: int, tiles: int, way: Way) -> tuple[float, Plan]:
    """And the ns that it takes."""
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
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
                pieces.append(Piece(len(chunks), place, count, 0, 0, 0, 0, 0))
                place += count
            chunks.append(Chunk(*numbers, *before))
            first += sum(cut)
    shared = _shared(pieces, way)
    end, order = _Order(chunks, shared, way).found()
    return end, Plan(tiles, tuple(chunks), shared, tuple(order))


def _cuts(length: int, is_first: bool, is_last: bool, way: Way) -> list[list[int]]:
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


def _shared(pieces: Sequence[Piece], way: Way) -> tuple[Piece, ...]:
    found = []
    for i, piece in enumerate(pieces):
        behind = len(pieces) - 1 - i
        rounds = _share(piece.size, i, behind, way.rounds)
        on_vector = _share(piece.size, i, behind, way.shares)
        adds = int(behind < way.adds)
        on_tensor = int(_share(1024, i, behind, way.tensor) > 0)
        finishes = _share(piece.size, i, behind, way.finishes)
        found.append(
            piece._replace(
                rounds=rounds,
                on_vector=on_vector,
                adds=adds,
                on_tensor=on_tensor,
                finishes=finishes,
            )
        )
    return tuple(found)


def _share(size: int, i: int, behind: int, shares: Shares) -> int:
    """How much of piece `i`, `behind` which so many follow, is VectorE's; few elements are none."""
    first, last, share = shares
    if i < len(first):
        share = first[i]
    if behind < len(last):
        share = last[behind]
    count, padded = size * share // 1024 * 32, size + size % 2
    return padded if padded - count < 64 else count


class _Step(NamedTuple):
    """An instruction: its engine, ns of it, ns until it is seen, what it needs, and its turn."""

    engine: str
    taken: float
    seen: float
    needs: tuple[tuple[int, int], ...]
    turn: float


_SMALL = -1.0  # the turn of small instructions
_TWO = 74  # elements that take as long as a second small instruction
_STORE = 40  # no instruction of its own: it follows FINISH


class _Order:
    """The instructions of all pieces, and the order in which a schedule starts them."""

    def __init__(self, chunks: Sequence[Chunk], pieces: Sequence[Piece], way: Way) -> None:
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
        engine = {
            id(_VECTOR): "vector",
            id(_SCALAR): "scalar",
            id(_GPSIMD): "gpsimd",
            id(_TENSOR): "tensor",
        }[id(cost)]
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
        total = _RESULT if i == chunk.last_piece else 0
        self._add((BOUND, i), _SCALAR, count + total, bound, ahead)
        if i == chunk.last_piece:
            self._add_unit(c)
        if piece.first == 0:
            self._add_start(c, ahead)
        padded = count + count % 2
        rounded: list[tuple[int, int]] = []
        if piece.rounds:
            rounded.append((ROUND_ON_VECTOR, i))
            self._add(rounded[-1], _VECTOR, piece.rounds // 2, [(LOAD, i), (UNIT, c)], place)
        if padded > piece.rounds:
            rounded.append((ROUND, i))
            rest = padded - piece.rounds
            self._add((LIFT, i), _SCALAR, rest, [(LOAD, i), (UNIT, c)], place)
            self._add((ROUND, i), _SCALAR, rest, [(LIFT, i)], place)
        each = 2 if piece.on_tensor else 1
        if padded > piece.on_vector:
            rest = (padded - piece.on_vector) // each
            self._add((LEFT, i), _GPSIMD, rest, rounded, place + _LATER)
        if piece.on_vector:
            needs = rounded if piece.on_vector > piece.rounds else rounded[:1]
            self._add((LEFT_ON_VECTOR, i), _VECTOR, piece.on_vector // each, needs, place)
        if piece.on_tensor:
            pairs = max(_FEWEST_PAIRS, padded // 2)
            self._add((LEFT_ON_TENSOR, i), _TENSOR, pairs, rounded, place)
        start, start_left = (SUM, i - 1), (SUM_LEFT, i - 1)
        if piece.first == 0:
            is_first = chunk.number == 0
            start = (NOTHING, c) if is_first else (START, c)
            start_left = (NOTHING, c) if is_first else (START_LEFT, c)
        half = (count + 1) // 2
        self._add((SUM, i), _VECTOR, half, [*rounded, start], place)
        left = [
            (LEFT, i) if padded > piece.on_vector else None,
            (LEFT_ON_VECTOR, i) if piece.on_vector else None,
            (LEFT_ON_TENSOR, i) if piece.on_tensor else None,
        ]
        self._add((SUM_LEFT, i), _VECTOR, half, [*left, start_left], place)
        self._add((ADD, i), _VECTOR if piece.adds else _GPSIMD, half, [(SUM_LEFT, i)], place)
        needs = [(ADD, i), (SUM, i)]
        finished = []
        if padded > piece.finishes:
            finished.append((FINISH, i))
            self._add((FINISH, i), _VECTOR, padded - piece.finishes, needs, place)
        if piece.finishes:
            finished.append((FINISH_ON_GPSIMD, i))
            self._add(finished[-1], _GPSIMD, piece.finishes, needs, place)
        self._steps[_STORE, i] = _Step("store", _TRIGGER, moved, tuple(finished), place)

    def _add_unit(self, c: int) -> None:
        chunk, count = self._chunks[c], 1
        needs: list[tuple[int, int] | None] = [(BOUND, chunk.last_piece)]
        if chunk.before >= 0:
            count = _TWO
        if chunk.long_before >= 0:
            needs.append((SUM, self._chunks[chunk.long_before].last_piece))
            count = 3 * _TWO
        self._add((UNIT, c), _VECTOR, count, needs, _SMALL)

    def _add_start(self, c: int, ahead: float) -> None:
        chunks, chunk = self._chunks, self._chunks[c]
        if chunk.number == 0:
            self._add((NOTHING, c), _SCALAR, 64, [(BOUND, chunk.first_piece)], ahead)
            return
        last, unit = chunks[c - 1].last_piece, (UNIT, c)
        moved = None
        if moves(chunk):
            moved = (MOVE, c)
            needs = [unit, (SUM_LEFT, chunks[c - 2].last_piece)]
            if moves(chunks[c - 1]):
                needs.append((MOVE, c - 1))
            self._add(moved, _VECTOR, _TWO, needs, _SMALL)
        self._add((START, c), _VECTOR, 1, [(SUM, last), unit, moved], _SMALL)
        self._add((START_LEFT, c), _VECTOR, 1, [(START, c), (SUM_LEFT, last)], _SMALL)

    def found(self) -> tuple[float, list[tuple[int, int]]]:
        """The ns until the last store ends, and the instructions by start."""
        steps = self._steps
        waits = {name: len(step.needs) for name, step in steps.items()}
        follows: dict[tuple[int, int], list[tuple[int, int]]] = {name: [] for name in steps}
        for name, step in steps.items():
            for need in step.needs:
                follows[need].append(name)
        seen = dict.fromkeys(steps, 0.0)
        free = dict.fromkeys(("load", "store", "vector", "scalar", "gpsimd", "tensor"), 0.0)
        ready: dict[str, list[tuple[int, int]]] = {engine: [] for engine in free}
        for name, count in waits.items():
            if count == 0:
                ready[steps[name].engine].append(name)
        transfers, order = 0.0, []
        bus, holder = 0.0, ""
        while any(ready.values()):
            start, name = min(
                self._next(names, free[engine], seen, bus if engine != holder else 0.0)
                for engine, names in ready.items()
                if names
            )
            step = steps[name]
            if step.engine == "gpsimd" or name[0] == ROUND_ON_VECTOR:
                bus, holder = start + step.taken, step.engine
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
        return transfers + _END_OF_TRANSFER, order

    def _next(
        self,
        names: Sequence[tuple[int, int]],
        free: float,
        seen: dict[tuple[int, int], float],
        bus: float,
    ) -> tuple[float, tuple[int, int]]:
        """When an engine that is `free` then can start something, and what; `bus` is when the other
        one of GpSimd and VectorE's fast modes leaves what they share."""
        earliest = max(free, min(seen[name] for name in names))
        can = [name for name in names if seen[name] <= earliest]
        first = min(can, key=lambda name: (self._steps[name].turn, name[1], name[0]))
        if self._steps[first].engine == "gpsimd" or first[0] == ROUND_ON_VECTOR:
            earliest = max(earliest, bus)
        return earliest, first
