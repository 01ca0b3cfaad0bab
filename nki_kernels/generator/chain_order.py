"""The order of a chain of short instructions, which wait for each other and not for their engines.

Engines take their instructions in order, so one that waits for its operands holds up those behind
it. In a chain on few elements (what is computed between two phases) an instruction can start about
half a latency after the one before it; those that others wait for longest go first.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnx.nki_kernels.generator.engines import engine_of
from trnx.nki_kernels.generator.instruction import Instruction

# Until VectorE can start the next instruction, and until the result is visible to it
# (`simulator/costs/constants.py`: 73 and 147 cycles, and what a hand-off takes).
_ISSUE, _LATENCY = 73, 176


def in_chain_order(instructions: Sequence[Instruction]) -> list[Instruction]:
    """`instructions` by a list schedule: of those whose operands are under way, the one that can
    start first, and of several the one with the longest chain behind it."""
    before = [
        [j for j in range(i) if _depends(instructions[i], instructions[j])]
        for i in range(len(instructions))
    ]
    behind = [_LATENCY] * len(instructions)
    for i in reversed(range(len(instructions))):
        for j in before[i]:
            behind[j] = max(behind[j], _LATENCY + behind[i])
    free: dict[str, int] = {}
    seen: dict[int, int] = {}

    def start(i: int) -> int:
        operands = max((seen[j] for j in before[i]), default=0)
        return max(operands, free.get(engine_of(instructions[i]), 0))

    while len(seen) < len(instructions):
        ready = [
            i for i in range(len(instructions)) if i not in seen and seen.keys() >= set(before[i])
        ]
        chosen = min(ready, key=lambda i: (start(i), -behind[i], i))
        at = start(chosen)
        free[engine_of(instructions[chosen])] = at + _ISSUE
        seen[chosen] = at + _LATENCY
    return [instructions[i] for i in seen]


def _depends(later: Instruction, earlier: Instruction) -> bool:
    """Whether one reads or writes what the other writes."""
    written, touched = set(earlier.writes()), {*later.reads(), *later.writes()}
    return bool(written & touched or set(later.writes()) & set(earlier.reads()))
