"""When a few instructions run: engines and DMA queues in order, and what they share.

A small model of `simulator/timing/machine.py`, without a Program: an `Op` names those that it waits
for. Among the first ops of all queues the one that can start first starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.engines import TENSOR
from trnx.simulator.costs.constants import Timing
from trnx.simulator.timing.resources import Throttle


@dataclass(frozen=True)
class Op:
    """`interval` ns of a `queue`, and `latency` until the result is visible. A DMA takes `transfer`
    ns of the DMA engines in between; ops with a `port` exclude each other; ScalarE loads its
    `table` where it has another one. `after` are the indices of ops before it that it waits for."""

    queue: str
    interval: float
    latency: float
    after: tuple[int, ...] = ()
    transfer: float = 0.0
    port: bool = False
    table: str = ""


def visible_times(ops: Sequence[Op], constants: Timing) -> list[float]:
    """When the result of each op is visible, in ns."""
    return times(ops, constants)[1]


def times(ops: Sequence[Op], constants: Timing) -> tuple[list[float], list[float]]:
    """When each op starts, and when its result is visible, in ns."""
    waiting: dict[str, list[int]] = {}
    for index, op in enumerate(ops):
        waiting.setdefault(op.queue, []).append(index)
    heads = dict.fromkeys(waiting, 0)
    free = dict.fromkeys(waiting, 0.0)
    seen = [math.nan] * len(ops)
    started = [math.nan] * len(ops)
    engines = port = 0.0
    table = ""
    throttle = Throttle(round(constants.throttle_ns))
    starts: dict[str, float] = {q: _start(ops, waiting, heads, free, seen, q, constants)
                                for q in waiting}  # fmt: skip
    while starts:
        q = min(starts, key=lambda queue: starts[queue])
        start, index = starts[q], waiting[q][heads[q]]
        if math.isinf(start):
            raise AssertionError(f"op {index} waits for one that does not come before it")
        op = ops[index]
        if op.port and port > start:
            starts[q] = port
            continue
        interval, latency = op.interval, op.latency
        if op.table and op.table != table:
            table = op.table
            interval += constants.scalar_table_ns
            latency += constants.scalar_table_ns
        if q == TENSOR:
            interval = throttle.stretched(round(start), round(op.interval))
            latency += interval - op.interval
        if op.transfer:
            engines = max(engines, start + constants.dma_start_ns) + op.transfer
            seen[index] = engines + latency
        else:
            seen[index] = start + latency
        started[index] = start
        free[q] = start + interval
        port = free[q] if op.port else port
        heads[q] += 1
        if heads[q] == len(waiting[q]):
            del starts[q]
        for other in starts:
            if other == q or math.isinf(starts[other]):
                starts[other] = _start(ops, waiting, heads, free, seen, other, constants)
    return started, seen


def _start(
    ops: Sequence[Op],
    waiting: dict[str, list[int]],
    heads: dict[str, int],
    free: dict[str, float],
    seen: list[float],
    q: str,
    constants: Timing,
) -> float:
    """When the first op of a queue can start; infinite where one that it waits for has no time."""
    start = free[q]
    for before in ops[waiting[q][heads[q]]].after:
        if math.isnan(seen[before]):
            return math.inf
        start = max(start, seen[before] + constants.handoff_ns)
    return start
