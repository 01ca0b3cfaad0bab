"""Draws a program of layers: roles take values that there are, or arguments of their own."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from torch_programs.builder import Builder, layout_of
from torch_programs.layers import ACTIVATIONS, LAYERS, Layer, Role
from torch_programs.operations import OPERATIONS
from torch_programs.program import DTYPES, Input, Line, Program

# What a letter of a role may be; heads and rotated halves have even sizes.
SIZES = {
    "b": (1, 2, 3),
    "s": (1, 2, 5, 16, 33, 128, 129),
    "t": (1, 4, 17, 64, 130),
    "h": (2, 8, 16, 32, 64),
    "i": (1, 4, 8, 32, 64, 127, 128, 129),
    "o": (1, 6, 32, 64, 130),
    "v": (1, 7, 50, 200),
    "n": (1, 9, 130),
    "c": (1, 3, 8),
    "w": (3, 6, 9),
    "l": (4, 24),
}
# Those of a second call, which keeps some of the first one's.
OTHER_SIZES = (2, 4, 6, 10, 30, 64, 70, 126, 128, 132)
KEPT = ("", "HIOVCWL", "HCWV")
LEADING = ("", "b", "bs", "s", "n")  # dimensions that `*` stands for
PLACES = ("", "b", "s", "bs")  # dimensions of row numbers
CONTEXTS = ("",) * 8 + ("torch.no_grad()", 'torch.autocast("cpu", dtype=torch.bfloat16)')
TRIES = 60


class LayerBuilder(Builder):
    """One program of a generator."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self._dims = {name.upper(): draw.choice(sizes) for name, sizes in SIZES.items()}
        for name in "IOTNL":  # few sizes in all, so that what a layer gives fits the next one
            if draw.random() < 0.5:
                self._dims[name] = self._dims[draw.choice("SHIO")]
        narrow = draw.choice(("F32", "F32", "BF16", "F16"))
        self._float = "F32" if self._wants_gradients else narrow

    def build(self) -> Program:
        """The program."""
        draw = self._draw
        wanted = draw.randint(2, 9)
        for _ in range(TRIES):
            if len(self._lines) >= wanted:
                break
            if draw.random() < 0.7 or not self._values:
                self._try_layer(draw.choice(LAYERS))
            else:
                self._try_line(draw.choice(OPERATIONS))
        program = Program(
            tuple(self._inputs),
            tuple(self._lines),
            self._outputs(),
            (self._dims,),
            {
                "select": draw.choice(("legal", "legal", "profit")),
                "runner": draw.choice(("simulator", "simulator", "reference")),
            },
            context=draw.choice(CONTEXTS),
        )
        return self._with_other_sizes(program) if draw.random() < 0.3 else program

    def _try_layer(self, layer: Layer) -> None:
        """Add its lines, where eager takes them all."""
        inputs, lines = list(self._inputs), list(self._lines)
        values, exact = dict(self._values), set(self._exact)
        sizes: dict[str, int] = {}
        texts = [self._operand(role, sizes) for role in layer.roles]
        given: dict[str, str] = {}
        for name, expression in layer.lines:
            line = self._line(name, self._activated(expression), texts, given)
            if not self._runs(line):
                self._inputs, self._lines, self._values, self._exact = inputs, lines, values, exact
                return
            self._lines.append(line)

    def _line(self, name: str, expression: str, texts: list[str], given: dict[str, str]) -> Line:
        """A line of a layer; `given` has what its names are in the program, this one too then."""
        text = re.sub(r"\b[a-z]\b", lambda found: given.get(found[0], found[0]), expression)
        text = text.format(*texts)
        reads = tuple(dict.fromkeys(re.findall(r"\b[vx]\d+\b", text)))
        if not name:
            return Line(text, None, reads)
        given[name] = f"v{len(self._lines)}"
        return Line(f"{given[name]} = {text}", given[name], reads)

    def _activated(self, expression: str) -> str:
        """`@x` is an activation of x."""
        if not expression.startswith("@"):
            return expression
        return self._draw.choice(ACTIVATIONS).replace("{}", expression[1:])

    def _operand(self, role: Role, sizes: dict[str, int]) -> str:
        """An expression for a role; it chooses the sizes of letters that have none in `sizes`."""
        draw = self._draw
        found = list(self._fitting(role, sizes)) if draw.random() < 0.65 else []
        if not found:
            return self._argument(role, sizes)
        if draw.random() < 0.5:  # late values make deep programs
            latest = list(self._values)[-4:]
            found = [one for one in found if one[1] in latest] or found
        plain = [one for one in found if one[0] == one[1]]
        text, _, bound = draw.choice(plain if plain and draw.random() < 0.7 else found)
        sizes.update(bound)
        return text

    def _fitting(
        self, role: Role, sizes: dict[str, int]
    ) -> Iterator[tuple[str, str, dict[str, int]]]:
        """Values for a role, and views of them, with the value and the sizes of letters."""
        for name, value in self._values.items():
            is_float = role.kind == "float" or (role.kind == "buffer" and not value.requires_grad)
            if not is_float or not value.is_floating_point() or not value.numel():
                continue
            for text, shape in _views(name, tuple(value.shape)):
                bound = role.bind(shape, sizes)
                if bound is not None:
                    yield text, name, bound

    def _argument(self, role: Role, sizes: dict[str, int]) -> str:
        draw = self._draw
        if role.kind == "places":
            dims = [self._size(letter, {}) for letter in draw.choice(PLACES)]
        else:
            leading = draw.choice(LEADING) if role.is_open else ""
            dims = [self._size(letter, sizes) for letter in leading + role.dims]
        dtype = {"places": "I64", "bools": "BOOL"}.get(role.kind, self._float)
        if dtype == self._float and not self._wants_gradients and draw.random() < 0.06:
            dtype = draw.choice(("F32", "BF16", "F16"))
        made = Input(
            f"x{len(self._inputs)}",
            tuple(dims),
            dtype,
            "dense" if not dims or role.kind == "buffer" else layout_of(draw),
            draw.randrange(1 << 20),
            self._wants_gradients and role.kind == "float",
            sizes.get(role.dims, 1) if role.kind == "places" else 0,
        )
        self._inputs.append(made)
        self._values[made.name] = made.make(self._dims, DTYPES)
        self._exact.add(made.name)
        return made.name

    def _size(self, letter: str, sizes: dict[str, int]) -> str | int:
        """The name of a dimension, or a number."""
        if letter.isdigit():
            return int(letter)
        known = sizes.setdefault(letter, self._dims[letter.upper()])
        return next((name for name, size in self._dims.items() if size == known), known)

    def _outputs(self) -> tuple[str, ...]:
        """What nothing reads, and sometimes an intermediate or an argument."""
        read = {name for line in self._lines for name in line.reads}
        last = [line.gives for line in self._lines if line.gives and line.gives not in read]
        more = self._draw.choices(list(self._values), k=self._draw.choice((0, 0, 1, 2)))
        return tuple(sorted({*more, *last} or list(self._values)[-1:]))

    def _other_sizes(self) -> dict[str, int]:
        """Equal sizes stay equal."""
        new = {size: self._draw.choice(OTHER_SIZES) for size in self._dims.values()}
        new |= {size: size for size in (1, *(self._dims[n] for n in self._draw.choice(KEPT)))}
        return {name: new[size] for name, size in self._dims.items()}


def _views(name: str, shape: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A value and views of it, as expressions and shapes."""
    yield name, tuple(shape)
    yield f"{name}[None]", (1, *shape)
    if len(shape) == 1:
        yield f"{name}.expand({shape[0]}, -1)", (*shape, *shape)
    if len(shape) >= 2:
        yield f"{name}.mT", (*shape[:-2], shape[-1], shape[-2])
        yield f"{name}[0]", tuple(shape[1:])
        yield f"{name}[..., 0]", tuple(shape[:-1])


def build(seed: int, number: int) -> Program:
    """The program of a seed and a number: equal numbers, equal programs."""
    return LayerBuilder(random.Random(f"layers {seed}/{number}")).build()
