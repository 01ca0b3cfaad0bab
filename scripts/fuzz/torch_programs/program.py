"""A program: inputs, lines of source, outputs. Sizes are names, so that one program has many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch

# Dtypes as programs spell them; with `EXACT` floats are float64, which gives the reference.
DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
FLOATS = ("F32", "BF16", "F16")
EXACT = {name: torch.float64 if name in FLOATS else dtype for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Input:
    """A tensor argument: `sizes` are names of dimensions or numbers, `layout` how it lies."""

    name: str
    sizes: tuple[str | int, ...]
    dtype: str
    layout: str  # dense, transposed, strided, offset, expanded
    seed: int
    needs_grad: bool = False
    below: int = 0  # integers are row numbers below it

    def shape(self, dims: Mapping[str, int]) -> list[int]:
        """The sizes for these dimensions."""
        return [dims[size] if isinstance(size, str) else size for size in self.sizes]

    def make(self, dims: Mapping[str, int], dtypes: Mapping[str, torch.dtype]) -> torch.Tensor:
        """The tensor for these dimensions; the same values for every choice of float dtypes."""
        shape = self.shape(dims)
        generator = torch.Generator().manual_seed(self.seed)
        filled = self._values(_stored_shape(shape, self.layout), generator)
        # Rounded to the program's own dtype first, so that the reference has the same numbers.
        stored = filled.to(DTYPES[self.dtype]).to(dtypes[self.dtype])
        made = _lay_out(stored, shape, self.layout)
        return made.requires_grad_() if self.needs_grad else made

    def _values(self, shape: list[int], generator: torch.Generator) -> torch.Tensor:
        if self.dtype == "BOOL":
            return torch.randint(0, 2, shape, generator=generator)
        if self.dtype in FLOATS:
            return torch.randn(shape, generator=generator)
        if self.below:
            return torch.randint(0, self.below, shape, generator=generator)
        return torch.randint(-9, 10, shape, generator=generator)

    def source(self) -> str:
        """For the head of a printed program."""
        sizes = ", ".join(map(str, self.sizes))
        grad = ", needs_grad" if self.needs_grad else ""
        return f"{self.name}: {self.dtype}[{sizes}] {self.layout}{grad}"


def _stored_shape(shape: list[int], layout: str) -> list[int]:
    if layout == "transposed":
        return shape[::-1]
    if layout == "strided":
        return [2 * size for size in shape[:1]] + shape[1:]
    if layout == "offset":
        return [size + 1 for size in shape[:1]] + shape[1:]
    if layout == "expanded":
        return [min(size, 1) for size in shape[:1]] + shape[1:]
    return shape


def _lay_out(stored: torch.Tensor, shape: list[int], layout: str) -> torch.Tensor:
    if layout == "transposed":
        return stored.permute(*reversed(range(len(shape))))
    if layout == "strided":
        return stored[::2]
    if layout == "offset":
        return stored[1:]
    if layout == "expanded":
        return stored.expand(shape)
    return stored


@dataclass(frozen=True)
class Line:
    """One statement: what it gives (None for a write) and what it reads."""

    text: str
    gives: str | None
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A function of tensors, and how it is compiled and called."""

    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    dims: tuple[Mapping[str, int], ...]  # one a call
    options: Mapping[str, Any]
    is_dynamic: bool = False
    context: str = ""  # a context manager around the lines

    @property
    def has_gradients(self) -> bool:
        """True where backward is compared too."""
        return any(one.needs_grad for one in self.inputs)

    def source(self) -> str:
        """The function."""
        head = f"def program({', '.join(one.name for one in self.inputs)}):"
        body = [f"    {line.text}" for line in self.lines]
        if self.context:
            body = [f"    with {self.context}:", *(f"    {line}" for line in body or ["    pass"])]
        return "\n".join([head, *body, f"    return ({', '.join(self.outputs)},)", ""])

    def function(self, dtypes: Mapping[str, torch.dtype], code: CodeType | None = None) -> Any:
        """The function, with these dtypes for the names of dtypes."""
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **dtypes}
        exec(code or compile(self.source(), f"<program {id(self)}>", "exec"), names)
        return names["program"]

    def arguments(
        self, dims: Mapping[str, int], dtypes: Mapping[str, torch.dtype]
    ) -> list[torch.Tensor]:
        """Fresh tensors for one call."""
        return [one.make(dims, dtypes) for one in self.inputs]

    def without_line(self, index: int) -> Program | None:
        """The program without a line and what depends on it; None where no output is left."""
        gone: set[str] = set()
        kept: list[Line] = []
        for number, line in enumerate(self.lines):
            if number == index or gone.intersection(line.reads):
                gone |= {line.gives} if line.gives else set()
            else:
                kept.append(line)
        outputs = tuple(name for name in self.outputs if name not in gone)
        return replace(self, lines=tuple(kept), outputs=outputs) if outputs else None

    def without_output(self, name: str) -> Program | None:
        """The program without an output, and without what only that needs."""
        outputs = tuple(one for one in self.outputs if one != name)
        return replace(self, outputs=outputs) if outputs else None

    def without_dead_inputs(self) -> Program:
        """The program without arguments that nothing reads."""
        read = {name for line in self.lines for name in line.reads} | set(self.outputs)
        return replace(self, inputs=tuple(one for one in self.inputs if one.name in read))

    def script(self) -> str:
        """A description that a person can read and type in."""
        inputs = "\n".join(f"# {one.source()}" for one in self.inputs)
        calls = f"# dims {list(self.dims)}, options {dict(self.options)}, dynamic {self.is_dynamic}"
        return f"{inputs}\n{calls}\n{self.source()}"
