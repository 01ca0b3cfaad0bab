"""Discrete-event simulation: queues in order, DMA engines, throttle, shared ports, meetings.

Among the heads of all queues whose predecessors are scheduled, the one that can start first starts;
starts never go back in time. What repeats is skipped by `steady`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from trnx.simulator.costs.constants import Timing
from trnx.simulator.costs.cost import (
    COUNT,
    PSUM_BANK,
    PSUM_PORT,
    SBUF_PORT,
    SCALAR,
    TENSOR,
    Cost,
    picoseconds,
)
from trnx.simulator.hardware import Hardware
from trnx.simulator.timing.dependencies import Dependencies
from trnx.simulator.timing.resources import Hbm, Lanes, Squares, Throttle
from trnx.simulator.timing.schedule import Schedule, Wait

_PORTS = (SBUF_PORT, PSUM_PORT)
_PRIORITY_CLASSES = 4


class Machine:
    """State of the engines while instructions are scheduled; `watch` marks positions after which
    `on_watched(machine, position, now)` is called.
    """

    def __init__(
        self,
        hardware: Hardware,
        constants: Timing,
        graph: Dependencies,
        result: Schedule,
    ) -> None:
        self.graph = graph
        self.result = result
        self.costs: Sequence[Cost] = result.costs
        self.handoff = picoseconds(constants.handoff_ns)
        self._dma_start = picoseconds(constants.dma_start_ns)
        self._table_ps = picoseconds(constants.scalar_table_ns)
        rate = hardware.hbm_stack_bytes_per_second
        self._hbm_ps = [round(cost.hbm_bytes * 1e12 / rate) for cost in self.costs]
        self.queues = sorted(set(result.queue))
        self.waiting = {q: result.positions(q).tolist() for q in self.queues}
        self.head = dict.fromkeys(self.queues, 0)
        self.free = dict.fromkeys(self.queues, 0)
        self.visible = dict.fromkeys(self.queues, 0)
        cores = {q // COUNT for q in self.queues}
        classes = _PRIORITY_CLASSES if any(cost.priority for cost in self.costs) else 1
        stagger = picoseconds(constants.dma_stagger_ns)
        self.lanes = {c: Lanes(hardware.dma_engines, classes, stagger) for c in cores}
        self.throttle = {c: Throttle(picoseconds(constants.throttle_ns)) for c in cores}
        self.squares = {c: Squares() for c in cores}
        self.hbm = Hbm()
        self.tables: dict[int, str] = {}
        # (core, port or bank) -> (free, the queue that took it last).
        self.ports: dict[tuple[int, int], tuple[int, int]] = {}
        self.arrived: dict[int, int] = {}
        self.blocked: dict[int, list[int]] = {}
        self.blocker: dict[int, int] = {}
        self._ready: list[tuple[int, int]] = []
        self.watch = bytearray(len(result.order))

    def run(self, on_watched: Callable[[Machine, int, int], bool] | None = None) -> None:
        """Schedule everything."""
        for q in self.queues:
            self.examine(q)
        ready, watch = self._ready, self.watch
        while ready:
            start, q = heappop(ready)
            position = self.waiting[q][self.head[q]]
            if not self._issue(q, position, start):
                continue
            if watch[position] and on_watched is not None and on_watched(self, position, start):
                self.resume()

    def resume(self) -> None:
        """Look at all heads again."""
        self._ready.clear()
        self.blocked.clear()
        self.blocker.clear()
        self.arrived.clear()
        for q in self.queues:
            self.examine(q)

    def examine(self, q: int) -> None:
        """See when the head of `q` can start, or what it has to wait for."""
        waiting, head = self.waiting[q], self.head[q]
        if head == len(waiting):
            return
        position = waiting[head]
        graph, result = self.graph, self.result
        visible, handoff = result.visible, self.handoff
        start, cause, reason = self.free[q], -1, 0
        edges = graph.edges
        for i in range(graph.first[position], graph.first[position + 1]):
            edge = edges[i]
            before = edge >> 1
            seen = visible[before]
            if seen < 0:
                self.blocked.setdefault(before, []).append(q)
                self.blocker[q] = before
                return
            if seen + handoff > start:
                start, cause, reason = seen + handoff, before, 1 + (edge & 1)
        self.blocker.pop(q, None)
        if cause < 0:
            cause = waiting[head - 1] if head else -1
        result.cause[position], result.reason[position] = cause, reason
        partner = graph.partner.get(position, -1)
        if partner >= 0:
            self._arrive(q, position, partner, start)
        else:
            heappush(self._ready, (start, q))

    def _arrive(self, q: int, position: int, partner: int, start: int) -> None:
        """Start together with the partner, when both are here."""
        self.arrived[position] = start
        other = self.arrived.get(partner)
        if other is None:
            return
        result = self.result
        later = max(start, other)
        for at, own in ((position, start), (partner, other)):
            if own < later:
                late = position if at == partner else partner
                result.cause[at], result.reason[at] = result.cause[late], Wait.partner
        del self.arrived[position], self.arrived[partner]
        heappush(self._ready, (later, q))
        heappush(self._ready, (later, result.queue[partner]))

    def _issue(self, q: int, position: int, start: int) -> bool:
        """Start the head of `q`; False where a port makes it wait."""
        result = self.result
        cost = self.costs[result.cost_of[position]]
        if cost.ports:
            later, holder = self._port_start(q, position, cost, start)
            if later > start:
                result.reason[position], result.cause[position] = Wait.port, holder
                heappush(self._ready, (later, q))
                return False
        interval, latency = cost.interval, cost.latency
        kind = cost.queue
        if kind == TENSOR:
            later = self.squares[q // COUNT].start(cost, start)
            if later > start:
                heappush(self._ready, (later, q))
                return False
            interval = self._product(q, position, cost, start)
            latency += interval - cost.interval
        elif kind == SCALAR and cost.table and self.tables.get(q) != cost.table:
            self.tables[q] = cost.table
            interval, latency = interval + self._table_ps, latency + self._table_ps
        seen = self._transfer(q, position, cost, start) if cost.lanes else start + latency
        # Queues are in order: so are the semaphores that tell of the end.
        seen = self.visible[q] = max(seen, self.visible[q])
        result.start[position], result.visible[position] = start, seen
        result.free[position] = self.free[q] = start + interval
        if cost.ports:
            self._hold(q, position, cost, start + interval)
        self.head[q] += 1
        self.examine(q)
        for other in self.blocked.pop(position, ()):
            self.examine(other)
        return True

    def _product(self, q: int, position: int, cost: Cost, start: int) -> int:
        """How long a product keeps TensorE's queue."""
        # Weights load behind the product before, unless the engine waited for another.
        work = cost.interval + (cost.weights if self.result.reason[position] else 0)
        load = cost.squares_ps * cost.squares.bit_count() // 16 if cost.squares else work
        beyond = cost.squares_ps - load if cost.squares else 0
        slower = self.throttle[q // COUNT].stretched(start, load, beyond, cost.rows) - load
        self.result.throttled_ps += slower
        self.squares[q // COUNT].take(cost, start + cost.squares_ps + slower)
        return work + slower

    def _port_keys(self, q: int, position: int, cost: Cost) -> list[tuple[int, int]]:
        core = q // COUNT
        keys = [(core, port) for port in _PORTS if cost.ports & port]
        if cost.ports & PSUM_BANK:
            keys.append((core, PSUM_BANK + self.graph.bank[position]))
        return keys

    def _port_start(self, q: int, position: int, cost: Cost, start: int) -> tuple[int, int]:
        """When the ports are free, and who holds them until then."""
        holder = -1
        for key in self._port_keys(q, position, cost):
            free, owner = self.ports.get(key, (0, q))
            if owner != q and free > start:
                start, holder = free, self.waiting[owner][self.head[owner] - 1]
        return start, holder

    def _hold(self, q: int, position: int, cost: Cost, until: int) -> None:
        for key in self._port_keys(q, position, cost):
            self.ports[key] = until, q

    def _transfer(self, q: int, position: int, cost: Cost, start: int) -> int:
        """When the data of a DMA is visible."""
        result = self.result
        begin, last = self.lanes[q // COUNT].take(cost, start + self._dma_start)
        if cost.hbm_bytes:
            last = max(last, self.hbm.take(self._hbm_ps[result.cost_of[position]], begin))
        result.begin[position], result.last[position] = begin, last
        return last + cost.latency
