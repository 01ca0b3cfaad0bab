"""Takes from a failing program what the failure does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch_programs.program import Program


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A smaller program that fails too; `fails` judges one."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(program):
            if fails(candidate):
                program, is_smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for name in program.outputs:
        found = program.without_output(name)
        if found is not None:
            yield found
    for index in reversed(range(len(program.lines))):
        found = program.without_line(index)
        if found is not None:
            yield found.without_dead_inputs()
