"""`schedule`: when the instructions of a Program run on the chip.

The same Program gives the same times on any machine: integers in a fixed order.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trnx.simulator.costs.constants import Timing, timing
from trnx.simulator.costs.cost import COUNT, Cost
from trnx.simulator.hardware import Hardware
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.timing.compiler import EVERY, Pass
from trnx.simulator.timing.dependencies import Dependencies
from trnx.simulator.timing.forwarded_copies import forwarded
from trnx.simulator.timing.machine import Machine
from trnx.simulator.timing.model import CostModel
from trnx.simulator.timing.order import interleaved, unroll
from trnx.simulator.timing.rewritten_tiles import as_written, rewritten
from trnx.simulator.timing.schedule import Changed, Schedule
from trnx.simulator.timing.steady_state import SteadyState, signatures

# Programs below this are simulated one by one: looking for repetition would cost more.
_SMALL = 2000


def schedule(
    rows: InstructionTable,
    hardware: Hardware,
    *,
    constants: Timing | None = None,
    unknown_trips: int = 1,
    skips: bool = True,
    passes: Collection[Pass] = EVERY,
) -> Schedule:
    """Simulate the instructions of `rows` on `hardware`.

    `constants` replaces those of the generation, `unknown_trips` is the count of loops that only a
    run knows, `skips=False` simulates repetitions one by one, too (the times are the same).
    `passes` are those of the compiler; `PROGRAM_ORDER` has none.
    """
    numbers = constants or timing(hardware)
    order, assumptions = unroll(rows, unknown_trips)
    compiled = _compiled(rows, order, passes)
    costs, of_row = CostModel(hardware, compiled.rows, numbers).table()
    order = compiled.order
    cost_of = _taken(of_row, order)
    queue = _queues(compiled.rows, order, costs, cost_of)
    graph = Dependencies(compiled.rows, order, queue, costs, cost_of, hardware, compiled.fresh)
    permutation = interleaved(_taken(rows.core, order))
    if permutation is not None:
        graph.renumber(permutation)
        order, cost_of, queue = (_taken(one, permutation) for one in (order, cost_of, queue))
    result = Schedule(order, queue, costs, cost_of, graph.lifetimes, assumptions, compiled.changed)
    machine = Machine(hardware, numbers, graph, result)
    if skips and len(order) >= _SMALL:
        machine.run(SteadyState(machine, signatures(graph, result)))
    else:
        machine.run()
    return result


def _queues(
    rows: InstructionTable, order: array[int], costs: Sequence[Cost], cost_of: array[int]
) -> array[int]:
    """Of each position the queue: core * COUNT + that of its cost."""
    own = np.array([cost.queue for cost in costs], np.uint16)
    core = np.frombuffer(_taken(rows.core, order), np.uint8).astype(np.uint16)
    queues = core * COUNT + own[np.frombuffer(cost_of, np.uint32)] if order else core
    return array("H", queues.astype(np.uint16).tobytes())


class _Compiled(NamedTuple):
    """The instructions, a run of them, the operands that begin a copy of a tile, and the source
    lines that passes changed.
    """

    rows: InstructionTable
    order: array[int]
    fresh: array[int]
    changed: Changed


def _compiled(rows: InstructionTable, order: array[int], passes: Collection[Pass]) -> _Compiled:
    copies: tuple[int, ...] = ()
    if Pass.forward_copies in passes:
        rows, order, copies = forwarded(rows, order)
    usual = as_written(rows, order)
    found = rewritten(rows, order)
    named = found if Pass.rename_tiles in passes else usual
    order = found.order if Pass.drop_unread in passes else order
    changed = Changed(copies, found.lines if passes else ())
    return _Compiled(rows, order, named.fresh, changed)


def _taken(column: array[int], order: array[int]) -> array[int]:
    values: npt.NDArray[Any] = np.frombuffer(column, column.typecode)
    return array(column.typecode, values[np.frombuffer(order, np.uint32)].tobytes())
