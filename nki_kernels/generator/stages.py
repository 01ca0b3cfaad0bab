"""Stages: how the instructions of a tile are cut, so that several tiles are in work at a time.

Engines take their instructions in order. Where an engine reads what another one gives, it would
wait for that tile before it could begin the next one. So a new stage begins there, and the kernel
runs the first stage of a tile before the second one of the tile before (software pipelining). One
begins too where ScalarE needs another table of functions (`TileCalls.alternates`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trnx.nki_kernels.generator.engines import engine_of, table_of_call
from trnx.nki_kernels.generator.instruction import Instruction
from trnx.nki_kernels.generator.ir import Value

# A chain that crosses between engines more often than that waits. Each stage keeps what it hands
# over for one more tile: few are for chains whose tiles would get too small.
MOST_STAGES, FEW_STAGES = 8, 3
# With fewer tiles the first and the last one, which overlap with nothing, decide: latency counts.
LEAST_TILES = 4


def cut_stages(
    instructions: Sequence[Instruction],
    most: int,
    repeats: Callable[[Value], bool],
    *,
    apart: bool = False,
) -> list[int]:
    """The stage of each instruction, `most` or fewer; operands never come from a later one. A load
    stands in the stage of its first reader. Only values that `repeats` holds for differ between
    tiles, so that one can wait for them. Instructions of one engine that wait for each other stand
    `apart` where that is said: an engine does not wait for its own results then.
    """
    made: dict[Value, tuple[int, str]] = {}
    tables: dict[int, str] = {}
    stages = [_place(i, made, tables, most, repeats, apart=apart) for i in instructions]
    first: dict[Value, int] = {}
    for instruction, stage in zip(instructions, stages, strict=True):
        for value in instruction.reads():
            first[value] = min(stage, first.get(value, stage))
    for index, instruction in enumerate(instructions):
        if instruction.call == "load":
            stages[index] = first.get(instruction.dst, 0)
    return stages


def _place(
    instruction: Instruction,
    made: dict[Value, tuple[int, str]],
    tables: dict[int, str],
    most: int,
    repeats: Callable[[Value], bool],
    *,
    apart: bool,
) -> int:
    """The stage of an instruction whose operands are in `made`, as (stage, engine), to which its
    results are added; `tables` are those of ScalarE's functions in each stage.
    """
    if instruction.call == "load":
        return 0
    touched = (*instruction.reads(), *instruction.writes())
    sources = [made[v] for v in touched if v in made]
    stage = max((at for at, _ in sources), default=0)
    engine = engine_of(instruction)
    waits = any(at == stage and (apart or other != engine) for at, other in sources)
    stage = min(stage + waits, most - 1)
    table = table_of_call(instruction)
    while table and tables.setdefault(stage, table) != table and stage < most - 1:
        stage += 1
    made.update({v: (stage, engine) for v in instruction.writes() if repeats(v)})
    return stage
