"""Programs as plain data: storages, views with their element indices, calls; and their source text.

A view carries the Python expression that makes it in a kernel, and the flat indices of its elements
that the reference uses. Both come from the same decisions; the indices by numpy's own views of
`arange`, so that the simulator's views are tested as well.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nki_reference.numbers import RAW, Array, raw, size_of

INDENT = "    "
SCRIPT = """\
import base64
import zlib

import numpy as np
import trnx.simulator
from trnx.simulator import simulate

trnx.simulator.install()
import nki.isa as nisa
import nki.language as nl


{kernel}

def array(data, dtype, shape):
    return np.frombuffer(zlib.decompress(base64.b85decode(data)), dtype).reshape(shape).copy()


inputs = [
{inputs}
]
print({launch})
"""
TARGETS = {"trn1": 2, "trn2": 3, "trn3": 4}


@dataclass(eq=False)
class Storage:
    """One `nl.ndarray`. `values` is its content before the program, in the order of its shape."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: str  # sbuf, psum, private_hbm, shared_hbm or argument
    values: Array | None
    address: tuple[int, int] | None = None
    # A second core's content, where there are two.
    other: Array | None = None
    # A call makes it; nothing declares it.
    is_result: bool = False

    @property
    def is_on_chip(self) -> bool:
        """In SBUF or PSUM."""
        return self.buffer in ("sbuf", "psum")

    @property
    def pitch(self) -> int:
        """Elements of a partition."""
        return math.prod(self.shape[1:])

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(eq=False)
class View:
    """An operand: `expression` in the kernel, `index` of its elements in the flat storage."""

    storage: Storage
    expression: str
    index: Array
    # Of the second core, where it differs.
    other: Array | None = None
    # What only values decide: a scalar or vector index that is added to the elements' indices.
    offset: Offset | None = None
    # The expression is wrong by itself, and has to be refused.
    is_broken: bool = False

    @property
    def dtype(self) -> str:
        """Of the storage."""
        return self.storage.dtype

    @property
    def buffer(self) -> str:
        """Of the storage."""
        return self.storage.buffer

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the elements."""
        return tuple(self.index.shape)

    @property
    def partitions(self) -> int:
        """The first dimension."""
        return self.shape[0]

    @property
    def free(self) -> int:
        """Elements of a partition."""
        return math.prod(self.shape[1:])

    @property
    def flat(self) -> tuple[int, int]:
        """(partitions, elements of a partition)."""
        return self.partitions, self.free

    @property
    def start(self) -> int:
        """First partition in the chip's memory."""
        base = self.storage.address[0] if self.storage.address else 0
        return base + int(self.index.flat[0]) // self.storage.pitch


@dataclass(eq=False)
class Offset:
    """A dynamic address: `index` (a view or a register) times `scale`; valid below `limit`. With a
    `group` the index has lists of columns, one for so many partitions (`.indirect`).
    """

    index: Any
    scale: int
    limit: int
    is_vector: bool
    group: int = 0


@dataclass(frozen=True)
class Token:
    """A name of nki.language or nki.isa, such as `nl.add`."""

    path: str

    @property
    def name(self) -> str:
        """The last part: what the reference looks at."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Register:
    """A variable of the kernel that holds a register."""

    name: str


@dataclass(eq=False)
class Call:
    """`nisa.<name>(**arguments)`; the result goes to the variable `result`, if there is one.

    Calls of `language` are those of its argument `function`, and make the tile `dst`.
    """

    name: str
    arguments: dict[str, Any]
    result: str = ""

    def text(self) -> str:
        """The kernel's line."""
        given, name, result = dict(self.arguments), f"nisa.{self.name}", self.result
        if self.name == "language":
            name, result = given.pop("function").path, given.pop("dst").storage.name
        arguments = ", ".join(f"{key}={literal(value)}" for key, value in given.items())
        return f"{result} = {name}({arguments})" if result else f"{name}({arguments})"


@dataclass(frozen=True)
class Loop:
    """Calls `first` to `last` (exclusive) run in a register loop: `fori`, `dynamic` or `while`. Its
    bound is the element of `count`, which a while loop counts down.
    """

    first: int
    last: int
    kind: str
    count: Storage
    lower: int = 0
    step: int = 1
    counter: str = "turn"


@dataclass(eq=False)
class Program:
    """Storages and calls for one target; `snapshots` are the storages read back after each call.

    `is_wild`: something in it was changed at random, so that it need not make sense.
    """

    target: str
    storages: list[Storage]
    calls: list[Call]
    cores: int = 1
    is_wild: bool = False
    snapshots: dict[int, list[Storage]] = field(default_factory=dict)
    loop: Loop | None = None

    @property
    def generation(self) -> int:
        """2, 3 or 4."""
        return TARGETS[self.target]

    def inputs(self) -> list[Array]:
        """Arguments of the kernel: the bits of every initialised storage."""
        found = []
        for storage in self.storages:
            if storage.values is None:
                continue
            bits = raw(storage.values).copy()
            if self.cores > 1 and storage.buffer != "shared_hbm":
                other = storage.values if storage.other is None else storage.other
                bits = np.stack((bits, raw(other)))
            found.append(bits)
        return found

    def source(self) -> str:
        """The kernel's text."""
        return _Writer(self).text()

    def script(self) -> str:
        """A file that runs the kernel on its inputs in the simulator."""
        arrays = []
        for array in self.inputs():
            data = base64.b85encode(zlib.compress(array.tobytes(), 9)).decode()
            arrays.append(f'    array("{data}", "{array.dtype}", {array.shape}),')
        grid = f", grid={self.cores}" if self.cores > 1 else ""
        return SCRIPT.format(
            kernel=self.source(),
            inputs="\n".join(arrays),
            launch=f'simulate(kernel, target="{self.target}"{grid})(*inputs)',
        )


def literal(value: Any) -> str:
    """The Python expression of an argument."""
    if isinstance(value, View):
        return value.expression
    if isinstance(value, Token):
        return value.path
    if isinstance(value, Register | Storage):
        return value.name
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(literal(item) + ", " for item in value) + ")"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


class _Writer:
    """Writes one kernel: declarations, loads, calls, read-backs."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lines: list[str] = []
        self._outputs: list[str] = []
        self._depth = 1

    def text(self) -> str:
        program = self._program
        names = [f"x_{storage.name}" for storage in program.storages if storage.values is not None]
        self._lines.append(f"def kernel({', '.join(names)}):")
        if program.cores > 1:
            self._line("core = nl.program_id(0)")
        for storage in program.storages:
            if not storage.is_result:
                self._declare(storage)
        for number, call in enumerate(program.calls):
            self._open_loop(number)
            self._line(call.text())
            self._close_loop(number)
            for storage in program.snapshots.get(number, []):
                self._read_back(storage)
        for storage in program.snapshots.get(-1, []):
            self._read_back(storage)
        self._line(f"return ({''.join(name + ', ' for name in self._outputs)})")
        return "\n".join(self._lines) + "\n"

    def _line(self, text: str) -> None:
        self._lines.append(INDENT * self._depth + text)

    def _open_loop(self, number: int) -> None:
        loop = self._program.loop
        if loop is None or number != loop.first:
            return
        self._line("bound = nisa.register_alloc()")
        self._line(f"nisa.register_load(dst=bound, src={loop.count.name})")
        if loop.kind == "fori":
            self._line(f"def body({loop.counter}):")
        elif loop.kind == "dynamic":
            bounds = f"{loop.lower}, bound, {loop.step}"
            self._line(f"for {loop.counter} in nl.dynamic_range({bounds}):")
        else:
            self._line("while bound:")
        self._depth += 1

    def _close_loop(self, number: int) -> None:
        loop = self._program.loop
        if loop is None or number != loop.last - 1:
            return
        if loop.kind == "while":
            count = loop.count.name
            self._line(f"nisa.tensor_scalar({count}, {count}, op0=nl.subtract, operand0=1)")
            self._line(f"nisa.register_load(dst=bound, src={count})")
        self._depth -= 1
        if loop.kind == "fori":
            self._line(f"nl.fori_loop({loop.lower}, bound, body, {loop.step})")

    def _bits(self, storage: Storage) -> str:
        return f"nl.{RAW[size_of(storage.dtype)]}"

    def _argument(self, storage: Storage) -> str:
        name = f"x_{storage.name}"
        per_core = self._program.cores > 1 and storage.buffer != "shared_hbm"
        return f"{name}[core]" if per_core else name

    def _declare(self, storage: Storage) -> None:
        if storage.buffer == "argument":
            self._line(f"{storage.name} = {self._argument(storage)}.view(nl.{storage.dtype})")
            return
        address = f", address={storage.address}" if storage.address else ""
        self._line(
            f"{storage.name} = nl.ndarray({storage.shape}, dtype=nl.{storage.dtype}, "
            f"buffer=nl.{storage.buffer}{address})"
        )
        if storage.values is not None:
            self._load(storage)

    def _load(self, storage: Storage) -> None:
        bits = self._bits(storage)
        source, target = self._argument(storage), f"{storage.name}.view({bits})"
        if storage.buffer == "psum":
            staged = f"load_{storage.name}"
            self._line(f"{staged} = nl.ndarray({storage.shape}, dtype={bits}, buffer=nl.sbuf)")
            self._line(f"nisa.dma_copy(dst={staged}, src={source})")
            self._line(f"nisa.tensor_copy(dst={target}, src={staged})")
            return
        self._line(f"nisa.dma_copy(dst={target}, src={source})")

    def _read_back(self, storage: Storage) -> None:
        bits, name = self._bits(storage), f"out{len(self._outputs)}"
        cores = self._program.cores
        shape: Sequence[int] = storage.shape if cores == 1 else (cores, *storage.shape)
        self._line(f"{name} = nl.ndarray({tuple(shape)}, dtype={bits}, buffer=nl.shared_hbm)")
        source = f"{storage.name}.view({bits})"
        if storage.buffer == "psum":
            staged = f"stage_{name}"
            self._line(f"{staged} = nl.ndarray({storage.shape}, dtype={bits}, buffer=nl.sbuf)")
            self._line(f"nisa.tensor_copy(dst={staged}, src={source})")
            source = staged
        target = name if cores == 1 else f"{name}[core]"
        self._line(f"nisa.dma_copy(dst={target}, src={source})")
        self._outputs.append(name)
