"""Draws a program: each line is tried in eager, and kept where eager takes it."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_programs.operations import OPERATIONS, Operation
from torch_programs.program import DTYPES, Input, Line, Program
from trnx.backend.torch_internals import fake_mode

SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 96, 127, 128, 129, 130, 200, 513, 1025)
LAYOUTS = ("dense",) * 5 + ("transposed", "strided", "offset", "expanded")
LARGEST = 30_000  # elements of a value
LARGEST_BETWEEN = 100 * LARGEST  # where a program is called with other sizes
GREATEST = 1e3  # magnitude of a float, so that half precision has room
TRIES = 150

_ONE_OF_KIND = {
    "float": lambda x: x.is_floating_point(),
    "number": lambda x: x.dtype is not torch.bool,
    "integer": lambda x: not x.is_floating_point() and x.dtype is not torch.bool,
    "bool": lambda x: x.dtype is torch.bool,
    "any": lambda _: True,
}


class Builder:
    """One program of a generator."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._dims = {f"S{i}": draw.choice(SIZES) for i in range(3)}
        self._wants_gradients = draw.random() < 0.3
        self._inputs: list[Input] = []
        self._lines: list[Line] = []
        self._values: dict[str, torch.Tensor] = {}
        self._exact: set[str] = set()

    def build(self) -> Program:
        """The program."""
        for _ in range(self._draw.randint(1, 4)):
            self._add_input()
        wanted = self._draw.randint(2, 14)
        for _ in range(TRIES):
            if len(self._lines) >= wanted:
                break
            self._try_line(self._draw.choice(OPERATIONS))
        program = Program(
            tuple(self._inputs),
            tuple(self._lines),
            self._outputs(),
            (self._dims,),
            {"select": self._draw.choice(("legal", "legal", "profit"))},
        )
        return self._with_other_sizes(program) if self._draw.random() < 0.12 else program

    def _add_input(self) -> None:
        draw = self._draw
        rank = draw.choice((1, 2, 2, 2, 3, 3, 4))
        names: tuple[str | int, ...] = tuple(
            draw.choice((*self._dims, *self._dims, 1)) for _ in range(rank)
        )
        dtype = "F32" if self._wants_gradients else draw.choice(("F32",) * 4 + tuple(DTYPES))
        made = Input(
            f"x{len(self._inputs)}",
            names,
            dtype,
            layout_of(draw),
            draw.randrange(1 << 20),
            self._wants_gradients,
        )
        if math.prod(self._dims[n] if isinstance(n, str) else n for n in names) > LARGEST:
            self._add_input()
            return
        self._inputs.append(made)
        self._values[made.name] = made.make(self._dims, DTYPES)
        self._exact.add(made.name)

    def _try_line(self, operation: Operation) -> None:
        fits = _ONE_OF_KIND[operation.kinds]
        first = [name for name, value in self._values.items() if fits(value)]
        if not first:
            return
        # Values of late lines make deep programs.
        latest = first[-3:] if self._draw.random() < 0.6 else first
        reads = [self._draw.choice(latest)]
        reads += self._draw.choices(list(self._values), k=operation.tensors - 1)
        if operation.needs_exact and not self._exact.issuperset(reads):
            return
        text = self._text(operation, reads)
        gives = None if operation.writes else f"v{len(self._lines)}"
        line = Line(text if gives is None else f"{gives} = {text}", gives, tuple(reads))
        if not self._runs(line):
            return
        self._lines.append(line)
        if gives is not None and operation.is_exact and self._exact.issuperset(reads):
            self._exact.add(gives)

    def _text(self, operation: Operation, reads: list[str]) -> str:
        rank = self._values[reads[0]].dim()
        draw = self._draw
        return operation.template.format(
            *reads,
            dim=draw.randrange(-rank, rank) if rank else 0,
            number=draw.choice((0.5, 1.5, 2.0, -0.75, 0.1)),
            whole=draw.choice((0, 1, 3)),
        )

    def _runs(self, line: Line) -> bool:
        """Try a line on the values; keep what it gives where that is small and finite."""
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **DTYPES, **self._values}
        is_write = line.gives is None
        saved = {name: x.detach().clone() for name, x in self._values.items() if is_write}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(line.text, names)
        except Exception:  # noqa: BLE001  (eager does not take the line, whatever its reason)
            return False
        if line.gives is None:
            return self._is_usable_after_write(saved)
        value = names[line.gives]
        if not isinstance(value, torch.Tensor) or not _is_usable(value):
            return False
        self._values[line.gives] = value
        return True

    def _is_usable_after_write(self, saved: Mapping[str, torch.Tensor]) -> bool:
        if all(_is_usable(value) for value in self._values.values()):
            return True
        for name, value in self._values.items():
            if value.is_contiguous():
                value.copy_(saved[name])
        return False

    def _outputs(self) -> tuple[str, ...]:
        """What is computed last, and sometimes an intermediate, a view of one or an argument."""
        given = [line.gives for line in self._lines if line.gives is not None]
        if not given:
            return (self._inputs[0].name,)
        chosen = {
            given[-1],
            *(self._draw.choices([*given, *self._values], k=self._draw.randint(0, 2))),
        }
        return tuple(sorted(chosen))

    def _other_sizes(self) -> dict[str, int]:
        return {name: self._draw.choice(SIZES[1:]) for name in self._dims}

    def _with_other_sizes(self, program: Program) -> Program:
        """Called with two sets of sizes, where eager takes the second too."""
        sizes = self._other_sizes()
        if any(math.prod(one.shape(sizes)) > LARGEST_BETWEEN for one in program.inputs):
            return program
        arguments = program.arguments(sizes, DTYPES)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                _require_small(program.function(DTYPES), arguments)
                values = program.function(DTYPES)(*arguments)
        except Exception:  # noqa: BLE001  (eager does not take these sizes)
            return program
        if not all(_is_usable(value) for value in values):
            return program
        return replace(program, dims=(*program.dims, sizes), is_dynamic=True)


class _TooLargeError(Exception):
    """A value between has more elements than a program should."""


class _Sizes(TorchDispatchMode):
    """Ends what makes a value that is too large."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves(made)
        if any(isinstance(x, torch.Tensor) and x.numel() > LARGEST_BETWEEN for x in leaves):
            raise _TooLargeError
        return made


def _require_small(function: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> None:
    """Raises _TooLargeError before memory is asked for, and what eager raises of these sizes."""
    with fake_mode() as mode, _Sizes():
        function(*map(mode.from_tensor, arguments))


def _is_usable(value: torch.Tensor) -> bool:
    if value.numel() > LARGEST or value.dim() > 5:
        return False
    if value.dtype not in DTYPES.values():
        return False
    if not value.is_floating_point() or not value.numel():
        return True
    return bool((value.detach().abs() < GREATEST).all())


def layout_of(draw: random.Random) -> str:
    """How a tensor lies."""
    return draw.choice(LAYOUTS)


def build(seed: int, number: int) -> Program:
    """The program of a seed and a number: equal numbers, equal programs."""
    return Builder(random.Random(f"{seed}/{number}")).build()
