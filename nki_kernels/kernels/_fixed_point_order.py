"""In which order `_fixed_point_sums.py` issues its instructions: that of a schedule with about the
times of trn2 (`docs/timing.md`).

Engines run in order: an instruction that waits holds up those behind it. The schedule is made here
engine by engine: of those instructions that are ready, the one for the earliest elements goes
first, small ones before all others, since large ones of another engine wait for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trnx.nki_kernels.kernels._fixed_point_steps import (
    ADD,
    ADD_ON_TENSOR,
    BOUND,
    BOUND_ALL,
    COPY,
    FINISH,
    FINISH_ON_GPSIMD,
    LEFT,
    LEFT_ON_TENSOR,
    LEFT_ON_VECTOR,
    LIFT,
    LOAD,
    MOVE,
    NOTHING,
    ROUND,
    ROUND_ON_VECTOR,
    START,
    START_LEFT,
    SUM,
    SUM_LEFT,
    Chunk,
    Piece,
    grid_of,
    moves,
)
from trnx.nki_kernels.kernels._fixed_point_ways import Way

# Nanoseconds of trn2: per element and per instruction, and until results can be seen.
_VECTOR, _SCALAR, _GPSIMD = (1.0417, 76.0, 107.0), (0.8333, 53.3, 246.0), (1.6667, 125.0, 79.0)
_TENSOR = (1.6667, 213.0, 219.0)  # for two elements, at full rate
_FEWEST_PAIRS = 256  # that take as long as loading the identity
_WINDOW, _WARM_FROM, _WARM_PRODUCT = 3000.0, 300.0, 106.7  # of TensorE's throttle (`warm_up`)
_LATER = 512  # elements by which GpSimd prefers what VectorE needs to finish
_TRIGGER, _TRANSFER, _START_OF_TRANSFER, _END_OF_TRANSFER = 600.0, 1.33, 1000.0, 705.0
_RESULT = 64  # elements that take as long as ScalarE's accumulator is read out


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


class _Tensor:
    """TensorE's throttle (`docs/timing.md`): how long it was busy, and whether that was enough."""

    def __init__(self, products: int) -> None:
        self._level = products * _WARM_PRODUCT
        self._is_warm = self._level >= _WINDOW
        self._level = _WINDOW / 2 if self._is_warm else self._level
        self.end = _WARM_FROM + products * _WARM_PRODUCT if products else 0.0

    def slower(self, start: float, taken: float) -> float:
        """ns that what is `taken` at full rate takes more."""
        self._level -= max(0.0, start - self.end)
        if self._level <= 0:
            self._level, self._is_warm = 0.0, False
        more = 0.0 if self._is_warm else min(2 * taken, _WINDOW - self._level) / 2
        self._level += taken + more
        self.end = start + taken + more
        if self._is_warm or self._level >= _WINDOW:
            self._is_warm, self._level = True, min(self._level, _WINDOW / 2)
        return more


class Order:
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
        chunk, grid = chunks[c], grid_of(chunks, c)
        ahead = place - min(way.lead, place * way.hurry)
        early = bisect_left(places, places[i + 1] - way.window) - 1  # out of the window
        room = ((_STORE, early),) if early >= 0 else ()
        moved = count * _TRANSFER
        self._steps[LOAD, i] = _Step("load", _TRIGGER, moved, room, place)
        bound = [(LOAD, i), (BOUND, i - 1) if i else None]
        total = _RESULT if i == chunk.last_piece else 0
        self._add((BOUND, i), _SCALAR, count + total, bound, ahead)
        if i == chunk.last_piece and chunk.in_powers:
            self._add_bound(c)
        if piece.first == 0:
            self._add_start(c, ahead)
        padded = count + count % 2
        rounded: list[tuple[int, int]] = []
        if piece.rounds:
            rounded.append((ROUND_ON_VECTOR, i))
            self._add(rounded[-1], _VECTOR, piece.rounds // 2, [(LOAD, i), grid], place)
        if padded > piece.rounds:
            rounded.append((ROUND, i))
            rest = padded - piece.rounds
            self._add((LIFT, i), _SCALAR, rest, [(LOAD, i), grid], place)
            self._add((ROUND, i), _SCALAR, rest, [(LIFT, i)], place)
        left = self._add_left(i, place, rounded)
        start, start_left = (SUM, i - 1), (SUM_LEFT, i - 1)
        if piece.first == 0:
            is_first = chunk.number == 0
            start = (NOTHING, c) if is_first else (START, c)
            start_left = (NOTHING, c) if is_first else (START_LEFT, c)
        half = (count + 1) // 2
        self._add((SUM, i), _VECTOR, half, [*rounded, start], place)
        self._add((SUM_LEFT, i), _VECTOR, half, [*left, start_left], place)
        finished = self._add_results(i, place)
        self._steps[_STORE, i] = _Step("store", _TRIGGER, moved, tuple(finished), place)

    def _add_results(self, i: int, place: int) -> list[tuple[int, int]]:
        """What makes the results of a piece."""
        piece = self._pieces[i]
        padded = piece.size + piece.size % 2
        half, found = padded // 2, []
        if piece.in_psum:
            pairs = -(-half // _FEWEST_PAIRS) * _FEWEST_PAIRS * 5 // 2  # five products, not two
            self._add((ADD_ON_TENSOR, i), _TENSOR, pairs, [(SUM, i), (SUM_LEFT, i)], place)
            self._add((COPY, i), _SCALAR, padded, [(ADD_ON_TENSOR, i)], place)
            return [(COPY, i)]
        self._add((ADD, i), _VECTOR if piece.adds else _GPSIMD, half, [(SUM_LEFT, i)], place)
        needs = [(ADD, i), (SUM, i)]
        if padded > piece.finishes:
            found.append((FINISH, i))
            self._add(found[-1], _VECTOR, padded - piece.finishes, needs, place)
        if piece.finishes:
            found.append((FINISH_ON_GPSIMD, i))
            self._add(found[-1], _GPSIMD, piece.finishes, needs, place)
        return found

    def _add_left(
        self, i: int, place: int, rounded: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """What finds what is left of a piece."""
        piece, found = self._pieces[i], []
        padded = piece.size + piece.size % 2
        if piece.on_tensor:
            found.append((LEFT_ON_TENSOR, i))
            pairs = max(_FEWEST_PAIRS, padded // 2)
            self._add(found[-1], _TENSOR, pairs, rounded, place)
        each = 1 + piece.on_tensor
        if padded > piece.on_vector:
            found.append((LEFT, i))
            rest = (padded - piece.on_vector) // each
            self._add(found[-1], _GPSIMD, rest, rounded, place + _LATER)
        if piece.on_vector:
            found.append((LEFT_ON_VECTOR, i))
            needs = rounded if piece.on_vector > piece.rounds else rounded[:1]
            self._add(found[-1], _VECTOR, piece.on_vector // each, needs, place)
        return found

    def _add_bound(self, c: int) -> None:
        chunk = self._chunks[c]
        count = 1 if chunk.before < 0 else _TWO
        needs: list[tuple[int, int] | None] = [(BOUND, chunk.last_piece)]
        if chunk.long_before >= 0:
            needs.append((SUM, self._chunks[chunk.long_before].last_piece))
            count += 2 * _TWO
        self._add((BOUND_ALL, c), _VECTOR, count, needs, _SMALL)

    def _add_start(self, c: int, ahead: float) -> None:
        chunks, chunk = self._chunks, self._chunks[c]
        if chunk.number == 0:
            needs = [(BOUND, chunk.first_piece)] if chunk.tile else []
            self._add((NOTHING, c), _SCALAR, 64, needs, ahead)
            return
        last, grid = chunks[c - 1].last_piece, grid_of(chunks, c)
        moved = None
        if moves(chunk):
            moved = (MOVE, c)
            needs = [grid, (SUM_LEFT, chunks[c - 2].last_piece)]
            if moves(chunks[c - 1]):
                needs.append((MOVE, c - 1))
            self._add(moved, _VECTOR, _TWO, needs, _SMALL)
        self._add((START, c), _VECTOR, 1, [(SUM, last), grid, moved], _SMALL)
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
        tensor = _Tensor(self._way.warm_up)
        free["tensor"] = tensor.end
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
            slower = tensor.slower(start, step.taken) if step.engine == "tensor" else 0.0
            free[step.engine] = start + step.taken + slower
            end = start + step.seen + slower
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
