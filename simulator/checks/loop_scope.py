"""Tensors of a loop's body function: nothing behind the loop uses them.

`nl.fori_loop` and `nl.while_loop` call their body once, while it is recorded; on the device a
tensor that the body declares lives within the loop (SDK/nki/migration/index.rst).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trnx.simulator.checks.liveness import Allocation
from trnx.simulator.errors import IllegalInstructionError
from trnx.simulator.findings import Findings
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.loops import LoopRecord


def check_loop_scope(
    loops: Iterable[LoopRecord],
    allocations: Sequence[Allocation],
    rows: InstructionTable,
    findings: Findings,
) -> None:
    """Report tensors on chip that an instruction behind their loop uses, at that line."""
    for loop in loops:
        if not loop.tensors:
            continue
        for allocation in allocations:
            if allocation.number in loop.tensors and allocation.last >= loop.last:
                name = allocation.name or f"a tensor in {allocation.buffer.value}"
                findings.report(
                    IllegalInstructionError(
                        "loop-scope",
                        f"{name} was declared in the body function of the loop at {loop.location} "
                        "and is used behind the loop; declare it before the loop "
                        "(SDK/nki/migration/index.rst)",
                        rows.location(allocation.last),
                    )
                )
