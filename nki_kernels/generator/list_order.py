"""The order in which the stages of a few tiles run: list scheduling.

Engines take their instructions in order. Where tiles are few, and stay in SBUF, any stage of any
tile may run next whose operands are there. Of those that can start first the one with the longest
way to go runs: so an engine that others wait for has no gaps, and little is left to do at the end.
ScalarE does not change its table of functions while another stage needs it, unless nothing else
can run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from trnx.nki_kernels.generator.timeline import Op, visible_times
from trnx.simulator.costs.constants import Timing

Turn = tuple[int, int]  # stage, tile


def list_order(ops: Sequence[Op], turns: Mapping[Turn, range], constants: Timing) -> list[Turn]:
    """An order of `turns`, of which each has some of `ops`. Loads and what stands before all turns
    take place when they do in the order of `ops`."""
    if not turns:
        return []
    engines = _Engines(ops, turns, constants)
    count = 1 + max(tile for _, tile in turns)
    following = [0] * (1 + max(stage for stage, _ in turns))
    order: list[Turn] = []
    while len(order) < len(turns):
        ready = [
            (stage, tile)
            for stage, tile in enumerate(following)
            if tile < count and (not stage or following[stage - 1] > tile)
        ]
        kept = [turn for turn in ready if not engines.changes_table(turn)]
        # The first stage has the longest way to go.
        turn = min(kept or ready, key=engines.start)
        engines.run(turn)
        following[turn[0]] += 1
        order.append(turn)
    return order


class _Engines:
    """When engines are free, and results visible."""

    def __init__(self, ops: Sequence[Op], turns: Mapping[Turn, range], constants: Timing) -> None:
        self._ops, self._turns, self._constants = ops, turns, constants
        moved = {i for places in turns.values() for i in places if not ops[i].transfer}
        times = visible_times(ops, constants)
        self._visible = {i: ns for i, ns in enumerate(times) if i not in moved}
        self._free: defaultdict[str, float] = defaultdict(float)
        self._port = 0.0
        self._table = ""
        self._left = Counter(table for turn in turns if (table := self._table_of(turn)))

    def _computed(self, turn: Turn) -> list[Op]:
        return [self._ops[i] for i in self._turns[turn] if not self._ops[i].transfer]

    def _table_of(self, turn: Turn) -> str:
        return next((op.table for op in self._computed(turn) if op.table), "")

    def changes_table(self, turn: Turn) -> bool:
        """Whether ScalarE needs another table for a turn than one that is left."""
        table = self._table_of(turn)
        return bool(table) and table != self._table and self._left[self._table] > 0

    def start(self, turn: Turn) -> float:
        """When the first instruction of a turn can start."""
        return next(map(self._start, self._computed(turn)), 0.0)

    def _start(self, op: Op) -> float:
        ready = [self._visible[i] + self._constants.handoff_ns for i in op.after]
        return max([self._free[op.queue], self._port if op.port else 0.0, *ready])

    def run(self, turn: Turn) -> None:
        """All instructions of a turn."""
        self._left[self._table_of(turn)] -= 1
        for i in self._turns[turn]:
            op = self._ops[i]
            if op.transfer:
                continue
            start = self._start(op)
            if op.table and op.table != self._table:
                self._table = op.table
                start += self._constants.scalar_table_ns
            self._visible[i] = start + op.latency
            self._free[op.queue] = start + op.interval
            if op.port:
                self._port = self._free[op.queue]
