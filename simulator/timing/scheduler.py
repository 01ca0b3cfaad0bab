"""`schedule`: when the instructions of a Program run on the chip.

The same Program gives the same times on any machine: integers in a fixed order.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from trnx.simulator.costs.constants import Timing, timing
from trnx.simulator.costs.cost import COUNT
from trnx.simulator.hardware import Hardware
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.timing.dependencies import Dependencies
from trnx.simulator.timing.machine import Machine
from trnx.simulator.timing.model import CostModel
from trnx.simulator.timing.order import interleaved, unroll
from trnx.simulator.timing.rewritten_tiles import as_written, rewritten
from trnx.simulator.timing.schedule import Schedule
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
    rewrites: bool = True,
) -> Schedule:
    """Simulate the instructions of `rows` on `hardware`.

    `constants` replaces those of the generation, `unknown_trips` is the count of loops that only a
    run knows, `skips=False` simulates repetitions one by one, too (the times are the same).
    `rewrites=False` takes the kernel in program order, without what the compiler does to tiles that
    are written anew (see `rewritten_tiles`).
    """
    numbers = constants or timing(hardware)
    order, assumptions = unroll(rows, unknown_trips)
    fresh, order, lines = (rewritten if rewrites else as_written)(rows, order)
    costs, of_row = CostModel(hardware, rows, numbers).table()
    cost_of = _taken(of_row, order, "I", np.uint32)
    own = np.array([cost.queue for cost in costs], np.uint16)
    core = _taken(rows.core, order, "B", np.uint8)
    queues = (
        np.frombuffer(core, np.uint8).astype(np.uint16) * COUNT
        + own[np.frombuffer(cost_of, np.uint32)]
        if order
        else np.zeros(0, np.uint16)
    )
    queue = array("H", queues.astype(np.uint16).tobytes())
    graph = Dependencies(rows, order, queue, costs, cost_of, hardware, fresh)
    permutation = interleaved(core)
    if permutation is not None:
        graph.renumber(permutation)
        order = _taken(order, permutation, "I", np.uint32)
        cost_of = _taken(cost_of, permutation, "I", np.uint32)
        queue = _taken(queue, permutation, "H", np.uint16)
    result = Schedule(order, queue, costs, cost_of, graph.lifetimes, assumptions, lines)
    machine = Machine(hardware, numbers, graph, result)
    if skips and len(order) >= _SMALL:
        machine.run(SteadyState(machine, signatures(graph, result)))
    else:
        machine.run()
    return result


def _taken(column: array[int], order: array[int], code: str, kind: type) -> array[int]:
    values: npt.NDArray[Any] = np.frombuffer(column, kind)[np.frombuffer(order, np.uint32)]
    return array(code, values.tobytes())
