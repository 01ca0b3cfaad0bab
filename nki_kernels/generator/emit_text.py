"""Pieces of generated source: calls, access patterns, modules, and the kernel that calls the parts
of a region.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trnx.nki_kernels.generator.emit_calls import indent

DTYPES = {
    torch.float32: "nl.float32",
    torch.bfloat16: "nl.bfloat16",
    torch.float16: "nl.float16",
    torch.int32: "nl.int32",
    torch.bool: "nl.uint8",
    torch.int64: "nl.int32",  # two words, in a last dimension
}
DECORATOR = "@nki.jit"
_LINE = 92  # before the indentation of the function's body


def emit_calls(name: str, count: int, calls: Sequence[PartCall]) -> list[str]:
    """The lines of a kernel of `count` inputs that calls a function for each part of it."""
    results = sum(len(call.results) for call in calls)
    lines = ["", DECORATOR, f"def {name}({', '.join(f'x{i}' for i in range(count))}):"]
    for call in calls:
        taken = ", ".join(f"x{i}" for i in call.inputs)
        given = ", ".join(f"out{i}" for i in call.results)
        lines += indent([f"{given} = {call.function}({taken})"])
    return [*lines, *indent([f"return {', '.join(f'out{i}' for i in range(results))}"])]


def module_text(summary: str, functions: Sequence[str]) -> str:
    """A module of these functions."""
    head = [
        f'"""{summary}"""',
        "",
        "import nki",
        "import nki.isa as nisa",
        "import nki.language as nl",
    ]
    every = "\n".join(functions)
    constants = [
        f'{name} = float("{name.lower()}")'
        for name in ("INF", "NAN")
        if re.search(rf"\b{name}\b", every)
    ]
    if constants:
        head += ["", *constants]
    return "\n".join([*head, "", *functions]) + "\n"


@dataclass(frozen=True)
class PartCall:
    """The call of a part's function, with the indices of the kernel's inputs and results."""

    function: str
    inputs: Sequence[int]
    results: Sequence[int]


def call(name: str, arguments: list[str]) -> list[str]:
    """A call, one argument a line where one line would be long."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _LINE:
        return [line]
    return [f"{name}(", *(f"    {argument}," for argument in arguments), ")"]


def access(pattern: Sequence[str], offset: Sequence[str]) -> str:
    """The arguments of an access pattern."""
    start = f", offset={' + '.join(offset)}" if offset else ""
    return f"pattern=[{', '.join(pattern)}]{start}"


def run_length(count: str, step: int) -> str:
    """The length of the run from the first to the last of `count` elements, `step` apart."""
    return f"{times(count, step)} - {step - 1}"


def times(factor: str, number: int) -> str:
    return factor if number == 1 else f"{factor} * {number}"
