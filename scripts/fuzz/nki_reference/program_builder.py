"""`ProgramBuilder`: makes storages, views and values for the calls of one program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_reference.chains import chain
from nki_reference.choices import Choices
from nki_reference.numbers import FLOATS, INTEGERS, STORED, Array, encode, size_of
from nki_reference.program import TARGETS, Call, Offset, Program, Register, Storage, Token, View

PARTITIONS = (1, 2, 5, 16, 31, 32, 33, 64, 65, 127, 128)
FREE = (1, 2, 3, 8, 17, 32, 64, 127, 128, 129, 255, 257, 512, 513)
PSUM_TILES = 5
BANK = 2048
# Kinds of values; products and scans keep away from overflow.
PLAIN, TAME, SPECIAL = "plain", "tame", "special"


class ProgramBuilder:
    """One program in the making; `pool` are the views that later calls may use again."""

    def __init__(self, choices: Choices, target: str, cores: int = 1) -> None:
        self.c = choices
        self.target = target
        self.generation = TARGETS[target]
        self.cores = cores
        self.storages: list[Storage] = []
        self.pool: list[View] = []
        # Views of the call in the making: they have content only after it.
        self._waiting: list[View] = []
        self.calls: list[Call] = []
        self.values = np.random.default_rng(choices.integer(0, 2**31))
        self._psum = 0
        self._names = 0
        # The shape that most tiles of the program have, so that calls can chain.
        self.partitions = choices.pick(PARTITIONS)
        self.free = self._free()

    def program(self) -> Program:
        """The program of what was made."""
        return Program(self.target, self.storages, self.calls, self.cores)

    def call(self, name: str, /, **arguments: Any) -> Call:
        """Append a call; arguments that are None are left out."""
        given = {key: value for key, value in arguments.items() if value is not None}
        call = Call(name, given)
        self.calls.append(call)
        self.pool += self._waiting
        self._waiting.clear()
        return call

    # ---- choices ----

    def dtype(self, allowed: Sequence[str], common: Sequence[str] = ("float32", "bfloat16")) -> str:
        """One of the allowed types, often a common one."""
        likely = [dtype for dtype in common if dtype in allowed]
        return self.c.pick(likely) if likely and self.c.flag(40) else self.c.pick(allowed)

    def op(self, names: Sequence[str]) -> Token:
        """One operator of nki.language."""
        return Token(f"nl.{self.c.pick(names)}")

    def engine(self, names: Sequence[str]) -> Token | None:
        """No engine, `unknown` or one of these."""
        name = self.c.pick(("", "unknown", *names))
        return Token(f"nisa.engine.{name}") if name else None

    def command(self, names: Sequence[str]) -> Token:
        """A reduce command."""
        return Token(f"nisa.reduce_cmd.{self.c.pick(names)}")

    def number(self, kind: str = PLAIN) -> float:
        """An immediate."""
        simple: tuple[float, ...] = (0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1.7)
        if kind == SPECIAL:
            simple += (1e30, -1e-30, math.inf)
        return self.c.pick(simple)

    def extent(self) -> tuple[int, int]:
        """(partitions, elements): the program's, or others."""
        if self.c.flag(75):
            return self.partitions, self.free
        return self.c.pick(PARTITIONS), self._free()

    def _free(self) -> int:
        """Elements of a partition: often few, to be quick."""
        if self.c.flag(60):
            return self.c.pick(FREE[:7])
        return self.c.integer(1, 513) if self.c.flag(40) else self.c.pick(FREE)

    # ---- values ----

    def content(self, count: int, dtype: str, kind: str = PLAIN) -> Array:
        """Stored elements."""
        rng = self.values
        if dtype in INTEGERS:
            limits = np.iinfo(STORED[dtype])
            if kind == TAME:
                return rng.integers(max(limits.min, -8), 9, count).astype(STORED[dtype])
            small = rng.integers(max(limits.min, -100), 101, count)
            wide = rng.integers(limits.min, limits.max + 1, count)
            return np.where(rng.random(count) < 0.5, small, wide).astype(STORED[dtype])
        if dtype not in FLOATS:
            bits = rng.integers(0, 256, count * size_of(dtype), dtype=np.uint8)
            return bits.view(STORED[dtype])
        scale = 1.0 if kind == TAME else self.c.pick((1.0, 4.0, 100.0))
        values = rng.standard_normal(count) * scale
        # Equal values and zeros, for comparisons, searches and logical operators.
        values = np.where(rng.random(count) < 0.3, np.rint(values), values)
        if kind == SPECIAL or (kind == PLAIN and self.c.flag(20)):
            special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-39], count)
            values = np.where(rng.random(count) < 0.1, special, values)
        return encode(values, dtype)

    # ---- storages and views ----

    def storage(
        self,
        shape: Sequence[int],
        dtype: str,
        buffer: str = "sbuf",
        values: Array | None = None,
        kind: str = PLAIN,
        *,
        fresh: bool = False,
        address: tuple[int, int] | None = None,
    ) -> Storage:
        """A new storage with the given content, random content, or (fresh) none."""
        self._names += 1
        size = math.prod(shape)
        other = None
        if not fresh and values is None:
            values = self.content(size, dtype, kind)
            if self.cores > 1 and buffer != "shared_hbm":
                other = self.content(size, dtype, kind).reshape(tuple(shape))
        if values is not None:
            values = np.asarray(values, dtype=STORED[dtype]).reshape(tuple(shape))
        name = f"t{self._names}"
        made = Storage(name, tuple(shape), dtype, buffer, values, address, other)
        self.storages.append(made)
        self._psum += buffer == "psum"
        return made

    def whole(self, storage: Storage) -> View:
        """All of a storage."""
        return View(storage, storage.name, np.arange(storage.size).reshape(storage.shape))

    def buffer(self, allowed: Sequence[str], elements: int, dtype: str) -> str:
        """SBUF, or PSUM where it is allowed and there is room."""
        fits = elements * size_of(dtype) <= BANK and self._psum < PSUM_TILES
        return "psum" if "psum" in allowed and fits and self.c.flag(25) else "sbuf"

    def tile(
        self,
        flat: tuple[int, int],
        dtypes: Sequence[str] = ("float32",),
        buffers: Sequence[str] = ("sbuf", "psum"),
        *,
        kind: str = PLAIN,
        dst: bool = False,
        values: Array | None = None,
        apart: Sequence[Any] = (),
        reuse: bool = True,
        dims: int | None = None,
        static: bool = False,
    ) -> View:
        """An operand of `flat` = (partitions, elements): one of the program's, or a new view.

        A destination (`dst`) shares no storage with the views `apart`. `dims` fixes the rank;
        `static` operands have no dynamic address.
        """
        strangers = {view.storage for view in apart if isinstance(view, View)}
        if reuse and values is None and self.c.flag(50):
            fitting = [
                view
                for view in self.pool
                if view.flat == flat
                and view.dtype in dtypes
                and view.buffer in buffers
                and view.storage not in strangers
                and (dims is None or len(view.shape) == dims)
                and not (dst and np.unique(view.index).size < view.index.size)
                and (kind != TAME or dst)
                and not (static and view.offset is not None)
            ]
            if fitting:
                return self.c.pick(fitting)
        dtype = self.dtype(dtypes)
        may_move = not dst and not static and values is None and dims in (None, 2)
        if may_move and self.c.flag(4):
            made = self._dynamic(flat, dtype, kind)
            self._waiting.append(made)
            return made
        made = self._view(flat, dtype, buffers, kind, dst, values, dims)
        if reuse:
            self._waiting.append(made)
        return made

    def column(self, partitions: int, dtypes: Sequence[str] = ("float32",), **more: Any) -> View:
        """One element per partition."""
        return self.tile((partitions, 1), dtypes, **more)

    def scalar(self, like: View, dtypes: Sequence[str] = ("float32",), kind: str = PLAIN) -> Any:
        """A number, or a column of values for the partitions of `like`."""
        if self.c.flag(60):
            return self.number(kind)
        return self.column(like.partitions, dtypes, kind=kind)

    def register(self, value: int | None) -> Register:
        """A register with a value, or without."""
        self._names += 1
        name = f"r{self._names}"
        self.calls.append(Call("register_alloc", {"x": value}, result=name))
        return Register(name)

    def _view(
        self,
        flat: tuple[int, int],
        dtype: str,
        buffers: Sequence[str],
        kind: str,
        dst: bool,
        values: Array | None,
        dims: int | None,
    ) -> View:
        layout = self.c.pick(LAYOUTS if values is None else LAYOUTS[:1])
        partitions, free = flat
        first = self._first_partition(partitions)
        sizes = self._free_sizes(free, dims)
        room = first + partitions
        shape, expression, index = self._layout(layout, room, sizes, dst)
        pitch = math.prod(shape[1:])
        buffer = self.buffer(buffers, pitch, dtype)
        if values is not None and first:
            padded = np.zeros((room, pitch), dtype=STORED[dtype])
            padded[first:] = np.asarray(values).reshape(partitions, -1)
            values = padded
        fresh = dst and values is None and layout == "whole" and not first and self.c.flag(60)
        made = self.storage(shape, dtype, buffer, values, kind, fresh=fresh)
        text = expression.replace("@", made.name).replace("#", str(partitions))
        if first:
            if text.startswith(f"{made.name}.ap("):
                # The access pattern addresses the storage: its offset carries the partition.
                text = text.replace(f", {room}]", f", {partitions}]", 1)
                text = text.replace("offset=", f"offset={first * pitch} + ")
            else:
                text = text.replace(made.name, f"{made.name}[{first}:{room}]", 1)
            index = index[first:]
        return View(made, text, index)

    def _dynamic(self, flat: tuple[int, int], dtype: str, kind: str) -> View:
        """Columns of a tile from one that a register names."""
        spare = self.c.integer(0, 3)
        storage = self.storage((flat[0], flat[1] + spare), dtype, "sbuf", kind=kind)
        register = self.register(self.c.integer(0, spare))
        text = f"{storage.name}[:, nl.ds({register.name}, {flat[1]})]"
        index = _arange(storage.shape)[:, : flat[1]]
        return View(storage, text, index, offset=Offset(register, 1, spare + 1, False))

    def _first_partition(self, partitions: int) -> int:
        step = 32 if partitions <= 32 else 64 if partitions <= 64 else 128
        starts = [start for start in range(0, 128, step) if start + partitions <= 128]
        return self.c.pick(starts) if len(starts) > 1 and self.c.flag(25) else 0

    def _free_sizes(self, free: int, dims: int | None) -> tuple[int, ...]:
        """The free dimensions: one, or a split into two or three."""
        wanted = dims - 1 if dims is not None else self.c.pick((1, 1, 1, 2, 3))
        sizes = [free]
        while len(sizes) < wanted:
            last = sizes.pop()
            divisors = [d for d in range(1, min(last, 64) + 1) if last % d == 0]
            first = self.c.pick(divisors)
            sizes += [first, last // first]
        return tuple(sizes)

    def _layout(
        self, layout: str, room: int, sizes: tuple[int, ...], dst: bool
    ) -> tuple[tuple[int, ...], str, Array]:
        """(shape of the storage, expression with @ for its name, indices [room, *sizes])."""
        if layout == "chain":
            return chain(self.c, room, sizes, dst)
        dots = ":, " * len(sizes)
        last = sizes[-1]
        if layout == "margin":
            left, right = self.c.integer(0, 3), self.c.integer(0, 3)
            shape = (room, *sizes[:-1], last + left + right)
            index = _arange(shape)[..., left : left + last]
            return shape, f"@[{dots}{left}:{left + last}]", index
        if layout == "strided":
            step = self.c.integer(2, 3)
            start = self.c.integer(0, step - 1)
            shape = (room, *sizes[:-1], step * last + self.c.integer(0, 1))
            stop = start + step * (last - 1) + 1
            index = _arange(shape)[..., start:stop:step]
            return shape, f"@[{dots}{start}:{stop}:{step}]", index
        if layout == "ap":
            return self._pattern(room, sizes, dst)
        if layout == "permuted" and len(sizes) > 1:
            order = (0, *range(len(sizes), 0, -1))
            shape = (room, *reversed(sizes))
            return shape, f"@.permute({order})", _arange(shape).transpose(order)
        if layout == "reshaped" and len(sizes) > 1:
            shape = (room, math.prod(sizes))
            full = (room, *sizes)
            text = f"@.reshape_dim(1, {sizes})"
            return shape, text, _arange(shape).reshape(full)
        if layout == "broadcast" and not dst and last > 1:
            shape = (room, *sizes[:-1], 1)
            index = np.broadcast_to(_arange(shape), (room, *sizes))
            return shape, f"@.broadcast({len(sizes)}, {last})", index
        shape = (room, *sizes)
        return shape, "@", _arange(shape)

    def _pattern(
        self, room: int, sizes: tuple[int, ...], dst: bool
    ) -> tuple[tuple[int, ...], str, Array]:
        """An explicit access pattern with gaps, in any order of the dimensions."""
        order = list(range(len(sizes)))
        if self.c.flag(40):
            order.reverse()
        strides, step = [0] * len(sizes), self.c.integer(1, 2)
        for dim in reversed(order):
            strides[dim] = step
            step = step * sizes[dim] + self.c.integer(0, 1)
        if not dst and self.c.flag(30):
            strides[self.c.integer(0, len(sizes) - 1)] = 0
        start = self.c.integer(0, 2)
        reach = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        pitch = start + reach + 1 + self.c.integer(0, 3)
        free = [[s, n] for n, s in zip(sizes, strides, strict=True)]
        pattern = [[pitch, room], *free]
        index = np.full((room, *sizes), start)
        for dim, (stride, count) in enumerate(pattern):
            along = [1] * (len(sizes) + 1)
            along[dim] = count
            index = index + np.arange(count).reshape(along) * stride
        return (room, pitch), f"@.ap(pattern={pattern}, offset={start})", index


LAYOUTS = (
    "whole",
    "whole",
    "margin",
    "strided",
    "ap",
    "permuted",
    "reshaped",
    "broadcast",
    "chain",
    "chain",
    "chain",
)


def _arange(shape: Sequence[int]) -> Array:
    return np.arange(math.prod(shape)).reshape(tuple(shape))
