"""Stages: how the instructions of a tile are cut, so that several tiles are in work at a time.

Engines take their instructions in order. Where a tile comes back to an engine that it left, as in
VectorE -> ScalarE -> VectorE, that engine would wait for the other one before it could begin the
next tile. So a new stage begins there, and the kernel runs the first stage of a tile before the
second one of the tile before (software pipelining).
"""

from __future__ import annotations

from collections.abc import Sequence

from trnx.nki_kernels.generator.engines import engine_of
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.select_instructions import Instruction

# Each stage keeps what it hands over for one more tile; a chain that crosses more often waits.
_MOST = 3
# With fewer tiles the first and the last one, which overlap with nothing, decide: latency counts.
LEAST_TILES = 4


def cut_stages(instructions: Sequence[Instruction]) -> list[int]:
    """The stage of each instruction; operands never come from a later one. A load stands in the
    stage of its first reader.
    """
    made: dict[Value, _Made] = {}
    stages = [_place(instruction, made) for instruction in instructions]
    first: dict[Value, int] = {}
    for instruction, stage in zip(instructions, stages, strict=True):
        for value in instruction.reads():
            first[value] = min(stage, first.get(value, stage))
    for index, instruction in enumerate(instructions):
        if instruction.call == "load":
            stages[index] = first.get(instruction.dst, 0)
    return stages


# (stage, engine, engines that the tile left within the stage)
_Made = tuple[int, str, frozenset[str]]


def _place(instruction: Instruction, made: dict[Value, _Made]) -> int:
    """The stage of an instruction whose operands are in `made`, to which its results are added."""
    if instruction.call == "load":
        return 0
    touched = (*instruction.reads(), *instruction.writes())
    sources = [made[v] for v in touched if v in made]
    stage = max((source[0] for source in sources), default=0)
    engine = engine_of(instruction)
    left: frozenset[str] = frozenset()
    for at, other, before in sources:
        if at == stage:
            left |= before | ({other} - {engine})
    if engine in left and stage < _MOST - 1:
        stage, left = stage + 1, frozenset()
    made.update(dict.fromkeys(instruction.writes(), (stage, engine, left)))
    return stage
