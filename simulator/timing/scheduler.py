"""Discrete-event simulation of a Program: queues in order, DMA engines, throttle, shared ports.

Among the heads of all queues whose predecessors are scheduled, the one that can start first starts.
Everything is ordinary IEEE arithmetic in a fixed order: the same Program gives the same times on
any machine. Times are nanoseconds.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from trnx.simulator.hardware import Hardware
from trnx.simulator.rows import Rows
from trnx.simulator.timing.constants import timing
from trnx.simulator.timing.cost import PSUM_PORT, QUEUES, SBUF_PORT, SCALAR, TENSOR, Cost
from trnx.simulator.timing.dependencies import Dependencies, unroll
from trnx.simulator.timing.model import CostModel

_COUNT = len(QUEUES)


@dataclass
class Schedule:
    """When each instruction of `order` starts and when its results are visible.

    `cause` is the position that it waited for last (-1: none). `busy` and `stalled` are per queue
    (core * 8 + queue); `stalled[q][p]` is time that q waited for results of p. DMA engines are busy
    `dma_busy` in sum over engines.
    """

    order: array[int]
    queue: list[int]
    is_exact: bool
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    cause: list[int] = field(default_factory=list)
    busy: dict[int, float] = field(default_factory=dict)
    stalled: dict[int, dict[int, float]] = field(default_factory=dict)
    dma_busy: float = 0.0
    dma_bytes_hbm: int = 0
    throttled: float = 0.0

    @property
    def total(self) -> float:
        """When the last result is visible."""
        return max(self.end, default=0.0)


def schedule(rows: Rows, hardware: Hardware) -> Schedule:
    """Simulate the instructions of `rows` on `hardware`."""
    order, is_exact = unroll(rows)
    model = CostModel(hardware, rows)
    costs = [model.of(row) for row in order]
    queue = [rows.core[row] * _COUNT + cost.queue for row, cost in zip(order, costs, strict=True)]
    dependencies = Dependencies(rows, order, queue, hardware)
    result = Schedule(order, queue, is_exact)
    _Machine(hardware, costs, dependencies, result).run()
    return result


class _Throttle:
    """dI/dt limit of TensorE: half rate until it was busy for the window, again after the load of
    a window falls below one half.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._level = 0.0
        self._is_warm = window == 0
        self._last_end = 0.0

    def stretched(self, start: float, interval: float) -> float:
        """The time that work of `interval` takes when it starts at `start`."""
        if not self._window:
            return interval
        self._level -= start - self._last_end
        if self._level <= 0:
            self._level, self._is_warm = 0.0, False
        taken = interval if self._is_warm else self._cold(interval)
        self._level += taken
        limit = self._window / 2
        if self._is_warm:
            self._level = min(self._level, limit)
        elif self._level >= self._window:
            self._is_warm, self._level = True, limit
        self._last_end = start + taken
        return taken

    def _cold(self, interval: float) -> float:
        """Half rate for what is left of the window, then full rate."""
        slow = min(interval, (self._window - self._level) / 2)
        return interval + slow


class _Machine:
    """State of the engines while instructions are scheduled."""

    def __init__(
        self, hardware: Hardware, costs: list[Cost], graph: Dependencies, result: Schedule
    ) -> None:
        self._constants = timing(hardware)
        self._hbm_rate = hardware.hbm_stack_bytes_per_second / 1e9
        self._costs = costs
        self._graph = graph
        self._result = result
        self._queues = sorted(set(result.queue))
        self._waiting: dict[int, list[int]] = {q: [] for q in self._queues}
        for position, q in enumerate(result.queue):
            self._waiting[q].append(position)
        self._head = dict.fromkeys(self._queues, 0)
        self._free = dict.fromkeys(self._queues, 0.0)
        self._last = dict.fromkeys(self._queues, -1)
        self._visible = dict.fromkeys(self._queues, 0.0)
        cores = {q // _COUNT for q in self._queues}
        self._lanes = {core: [0.0] * hardware.dma_engines for core in cores}
        self._throttle = {core: _Throttle(self._constants.throttle_ns) for core in cores}
        self._hbm = 0.0
        self._table: dict[int, str] = {}
        self._ports: dict[tuple[int, int], tuple[float, int]] = {}
        result.start = [-1.0] * len(costs)
        result.end = [-1.0] * len(costs)
        result.cause = [-1] * len(costs)
        result.busy = dict.fromkeys(self._queues, 0.0)
        result.stalled = {q: {} for q in self._queues}

    def run(self) -> None:
        """Schedule everything."""
        ready: dict[int, tuple[float, int]] = {}
        blocked: dict[int, int] = {}
        active = [q for q in self._queues if self._waiting[q]]
        end = self._result.end
        while active:
            best, best_start = -1, float("inf")
            for q in active:
                if q not in ready:
                    if q in blocked and end[blocked[q]] < 0:
                        continue
                    missing = self._examine(q, ready)
                    if missing >= 0:
                        blocked[q] = missing
                        continue
                start = ready[q][0]
                if start < best_start:
                    best, best_start = q, start
            self._issue(best, *ready.pop(best))
            self._head[best] += 1
            if self._head[best] == len(self._waiting[best]):
                active.remove(best)

    def _examine(self, q: int, ready: dict[int, tuple[float, int]]) -> int:
        """Note when the head of `q` can start and what decides; or the predecessor it lacks."""
        position = self._waiting[q][self._head[q]]
        graph, end = self._graph, self._result.end
        start, cause = self._free[q], self._last[q]
        handoff = self._constants.handoff_ns
        for i in range(graph.first[position], graph.first[position + 1]):
            before = graph.edges[i]
            visible = end[before]
            if visible < 0:
                return before
            if visible + handoff > start:
                start, cause = visible + handoff, before
        ready[q] = (start, cause)
        return -1

    def _issue(self, q: int, start: float, cause: int) -> None:
        position = self._waiting[q][self._head[q]]
        cost, result = self._costs[position], self._result
        wait = start - self._free[q]
        if wait > 0 and cause >= 0:
            reasons = result.stalled[q]
            other = result.queue[cause]
            reasons[other] = reasons.get(other, 0.0) + wait
        start = self._port_start(q, cost, start)
        interval, latency = self._times(q, cost, start, wait > 0)
        end = self._transfer(q, cost, start) if cost.lanes else start + latency
        result.start[position], result.end[position] = start, end
        result.cause[position] = cause
        result.busy[q] += interval
        self._free[q] = start + interval
        self._last[q] = position
        for port in (SBUF_PORT, PSUM_PORT):
            if cost.ports & port:
                self._ports[q // _COUNT, port] = (start + interval, q)

    def _port_start(self, q: int, cost: Cost, start: float) -> float:
        for port in (SBUF_PORT, PSUM_PORT):
            if cost.ports & port:
                free, owner = self._ports.get((q // _COUNT, port), (0.0, q))
                if owner != q and free > start:
                    start = free
        return start

    def _times(self, q: int, cost: Cost, start: float, has_waited: bool) -> tuple[float, float]:
        """Interval and latency with what depends on the state of the engine."""
        interval, latency = cost.interval, cost.latency
        if cost.queue == TENSOR:
            work = interval + cost.weights if has_waited else interval
            taken = self._throttle[q // _COUNT].stretched(start, work)
            self._result.throttled += taken - work
            return taken, latency + taken - interval
        if cost.queue == SCALAR and cost.table and self._table.get(q) != cost.table:
            self._table[q] = cost.table
            load = self._constants.scalar_table_ns
            return interval + load, latency + load
        return interval, latency

    def _transfer(self, q: int, cost: Cost, start: float) -> float:
        """When the data of a DMA is visible; its engines are those that are free first."""
        lanes = self._lanes[q // _COUNT]
        if cost.lanes < len(lanes):
            lanes.sort()
        begin = start + self._constants.dma_start_ns
        first, last = float("inf"), 0.0
        for i in range(cost.lanes):
            at = max(lanes[i], begin + i * self._constants.dma_stagger_ns)
            first = min(first, at)
            lanes[i] = at + cost.transfer
            last = max(last, lanes[i])
        if cost.hbm_bytes:
            self._hbm = max(self._hbm, first) + cost.hbm_bytes / self._hbm_rate
            last = max(last, self._hbm)
        self._result.dma_busy += cost.lanes * cost.transfer
        self._result.dma_bytes_hbm += cost.hbm_bytes
        # Rings are in order: so are the semaphores that tell of the end.
        visible = max(last + cost.latency, self._visible[q])
        self._visible[q] = visible
        return visible
