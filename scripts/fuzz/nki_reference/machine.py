"""The reference machine: memory as numpy arrays, accumulator registers, what was written.

Results that the reference knows only to within an error are kept with their bounds until the
simulator's values have been compared with them and adopted. `IllegalError` means that the documents
rule the call out: the simulator has to refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_reference.numbers import (
    ANY,
    STORED,
    Array,
    decode,
    encode,
    raw,
    size_of,
)
from nki_reference.program import Offset, Program, Register, Storage, Token, View

ON_CHIP = ("sbuf", "psum")
SBUF = ("sbuf",)
PSUM = ("psum",)
HBM = ("private_hbm", "shared_hbm", "argument")
DMA = ("sbuf", *HBM)
LANES = 128
# Half a unit in the last place of float32.
HALF_ULP = 2.0**-24


class IllegalError(Exception):
    """The documents do not allow this call."""


class UnwrittenError(IllegalError):
    """An operand has elements that nothing has written: the result has too."""


class Accumulator:
    """The 128 registers of an engine: values, the most that they may be off, and if known."""

    def __init__(self) -> None:
        self.values = np.zeros(LANES)
        self.errors = np.zeros(LANES)
        self.known = np.zeros(LANES, dtype=bool)


class Machine:
    """State of one core that runs a program."""

    def __init__(self, program: Program, core: int = 0) -> None:
        self.generation = program.generation
        self.cores = program.cores
        self.core = core
        self.peer: Machine | None = None
        self.memory: dict[Storage, Array] = {}
        self.written: dict[Storage, Array] = {}
        # Elements that a product wrote last, and those where something else has followed.
        self.products: dict[Storage, Array] = {}
        self.spoilt: dict[Storage, Array] = {}
        # Lowest and highest stored elements, and where anything is right.
        self.bounds: dict[Storage, tuple[Array, Array, Array]] = {}
        self.vector = Accumulator()
        self.scalar = Accumulator()
        self.registers: dict[str, int | None] = {}
        # Equal values met in a search of which any may be taken.
        self.ties = False
        # A value was read that is known to within bounds, and was not read back from the simulator.
        self.has_guessed = False
        # The instruction is one whose dst may be broadcast, for the sake of its second result.
        self.discards = False
        # Words of the random generators by engine; negative where nothing is known.
        self.states: dict[str, Array] = {}
        # What a core has sent before either receives.
        self.sent: Array | None = None
        for storage in program.storages:
            self._declare(storage)

    def _declare(self, storage: Storage) -> None:
        values = storage.values
        if self.core and storage.other is not None:
            values = storage.other
        start, column = storage.address or (0, 0)
        if storage.is_on_chip:
            self.require(0 <= start <= LANES - storage.shape[0], "more than 128 partitions")
            limit = 2**14 if storage.buffer == "psum" else 2**18
            end = column + storage.pitch * size_of(storage.dtype)
            self.require(column >= 0 and end <= limit, "no room")
        self.written[storage] = np.full(storage.size, values is not None)
        if values is None:
            values = np.zeros(storage.size, dtype=STORED[storage.dtype])
        self.memory[storage] = np.array(values).reshape(-1)
        self.products[storage] = np.zeros(storage.size, dtype=bool)
        self.spoilt[storage] = np.zeros(storage.size, dtype=bool)

    # ---- legality ----

    def require(self, condition: Any, message: str) -> None:
        """Raise IllegalError unless `condition`."""
        if not condition:
            raise IllegalError(message)

    def since(self, generation: int) -> None:
        """The call exists from this generation on."""
        self.require(self.generation >= generation, f"needs generation {generation}")

    def tile(
        self,
        view: Any,
        dtypes: Sequence[str] = ANY,
        buffers: Sequence[str] = ON_CHIP,
        *,
        by_dma: bool = False,
    ) -> None:
        """An operand of the right buffer and type at a place that the engines address."""
        self.require(isinstance(view, View), f"{view} is not a tensor")
        self.require(view.buffer in buffers, f"{view.expression} is in {view.buffer}")
        self.require(view.dtype in dtypes, f"{view.expression} is {view.dtype}")
        if view.buffer not in ON_CHIP or by_dma:
            return
        step = 32 if view.partitions <= 32 else 64 if view.partitions <= 64 else 128
        self.require(view.partitions <= LANES, "more than 128 partitions")
        self.require(view.start % step == 0, f"{view.expression} starts at {view.start}")

    def same_extent(self, *views: View) -> None:
        """Equal partitions and elements per partition."""
        self.require(len({view.flat for view in views}) == 1, "tiles of different sizes")

    def column(self, view: Any, like: View, dtypes: Sequence[str] = ANY) -> None:
        """One element in each of the partitions of `like`."""
        self.tile(view, dtypes)
        self.require(view.flat == (like.partitions, 1), f"{view.expression} is no column")

    def token(self, token: Any, allowed: Sequence[str]) -> str:
        """The name of an operator, which must be one of these."""
        self.require(isinstance(token, Token), f"{token!r} is not an operator")
        name = str({"max": "maximum", "min": "minimum"}.get(token.name, token.name))
        self.require(name in allowed, f"{token.path} is not allowed")
        return name

    def engine(self, token: Any, allowed: Sequence[str], default: str = "") -> str:
        """The engine asked for, or the default (else the first allowed)."""
        name: str = "unknown"
        if token is not None:
            name = token.name if isinstance(token, Token) else ""
        if name == "unknown":
            return default or allowed[0]
        self.require(name in allowed, f"engine {token} is not allowed")
        return name

    def number(self, value: Any) -> float:
        """A number as an immediate."""
        self.require(isinstance(value, bool | int | float), f"{value!r} is not a number")
        return float(value)

    # ---- reading ----

    def indices(self, view: View) -> Array:
        """Flat indices of the view's elements, for this core and with the dynamic offset added."""
        index = view.index if not self.core or view.other is None else view.other
        if view.offset is None:
            return index
        value = self.offset_values(view.offset)
        self.require(
            ((value >= 0) & (value < view.offset.limit)).all(), "an index is out of bounds"
        )
        shift = value * view.offset.scale
        if view.offset.group:
            return np.asarray(index + _lists(shift, view.offset.group, view.shape))
        if view.offset.is_vector:
            return np.asarray(index + shift.reshape(-1, *(1,) * (index.ndim - 1)))
        return np.asarray(index + shift.reshape(()))

    def offset_values(self, offset: Offset) -> Array:
        """The values of a dynamic index."""
        if isinstance(offset.index, Register):
            return np.array([self.register(offset.index)])
        values = self.stored(offset.index).astype(np.int64)
        return values if offset.group else values.reshape(-1)

    def register(self, register: Any) -> int:
        """A register's value."""
        self.require(isinstance(register, Register), f"{register!r} is not a register")
        value = self.registers.get(register.name)
        if value is None:
            raise IllegalError(f"register {register.name} has no value")
        return value

    def stored(self, view: View) -> Array:
        """The stored elements in the view's shape."""
        indices = self.indices(view)
        if not self.written[view.storage][indices].all():
            raise UnwrittenError(f"{view.expression} is not written")
        if view.storage in self.bounds:
            low, high, is_open = self.bounds[view.storage]
            self.has_guessed |= bool(((raw(low) != raw(high)) | is_open)[indices].any())
        return self.memory[view.storage][indices]

    def elements(self, view: View) -> Array:
        """The stored elements as [partitions, elements]."""
        return self.stored(view).reshape(view.flat)

    def f32(self, view: View) -> Array:
        """The values as float32 [partitions, elements]."""
        return decode(self.elements(view), view.dtype)

    def scalar_f32(self, value: Any, like: View, dtypes: Sequence[str] = ("float32",)) -> Array:
        """A number as float32, or a column of one value per partition as [partitions, 1]."""
        if isinstance(value, View):
            self.column(value, like, dtypes)
            return self.f32(value)
        with np.errstate(all="ignore"):
            return np.asarray(self.number(value)).astype(np.float32)

    # ---- writing ----

    def put(self, view: View, stored: Array, chosen: Array | None = None) -> None:
        """Write stored elements, all or those of the mask `chosen`."""
        indices = self.indices(view)
        values = np.asarray(stored).reshape(indices.shape)
        is_plain = np.unique(indices).size == indices.size
        self.require(is_plain or self.discards, "an element is written twice")
        self.require(values.dtype == self.memory[view.storage].dtype, "internal: wrong type")
        if chosen is not None:
            mask = np.asarray(chosen).reshape(indices.shape)
            indices, values = indices[mask], values[mask]
        self.memory[view.storage][indices] = values
        if view.storage in self.bounds:
            low, high, is_open = self.bounds[view.storage]
            low[indices], high[indices], is_open[indices] = values, values, False
        self.mark(view, indices)

    def mark(self, view: View, indices: Array, by_product: bool = False) -> None:
        """Elements are written, by the Tensor engine or by another."""
        storage = view.storage
        self.written[storage][indices] = True
        if by_product:
            self.products[storage][indices] = True
            self.spoilt[storage][indices] = False
            return
        self.spoilt[storage][indices] |= self.products[storage][indices]
        self.products[storage][indices] = False

    def store(self, view: View, values: Array, errors: Array | float | None = None) -> None:
        """Round values [partitions, elements] once into the view; `errors` bound the values."""
        with np.errstate(all="ignore"):
            values = np.broadcast_to(np.asarray(values), view.flat)
            self.put(view, encode(values, view.dtype))
            if errors is not None:
                wide = values.astype(np.float64)
                low, high = encode(wide - errors, view.dtype), encode(wide + errors, view.dtype)
                self.bound(view, low, high, np.isposinf(np.broadcast_to(errors, view.flat)))

    def bound(self, view: View, low: Array, high: Array, is_open: Array | None = None) -> None:
        """What was just written lies between these stored elements, or is anything."""
        storage = view.storage
        if storage not in self.bounds:
            memory = self.memory[storage]
            self.bounds[storage] = (
                memory.copy(),
                memory.copy(),
                np.zeros(memory.shape, dtype=bool),
            )
        indices = self.indices(view)
        is_open = np.zeros(indices.shape, dtype=bool) if is_open is None else is_open
        for part, values in zip(self.bounds[storage], (low, high, is_open), strict=True):
            part[indices] = values.reshape(indices.shape)

    def adopt(self, storage: Storage, actual: Array) -> None:
        """Go on with the simulator's values, which lie within the bounds."""
        self.memory[storage] = actual.copy()
        self.bounds.pop(storage, None)

    def advance(self, engine: str, view: View) -> None:
        """Random numbers were drawn in the lanes of a view."""
        words = self.states.get(engine)
        if words is not None:
            words[view.start : view.start + view.partitions] = -1

    # ---- accumulators ----

    def accumulate(
        self,
        registers: Accumulator,
        command: str,
        op: str,
        view: View,
        values: Array,
        errors: Array | float = 0.0,
        initial: Array | None = None,
    ) -> None:
        """Reduce values [partitions, elements] into the registers of the view's lanes."""
        lanes = slice(view.start, view.start + view.partitions)
        if command == "idle":
            return
        if command == "reduce":
            self.require(registers.known[lanes].all(), "nothing has set the registers")
        if command in ("reset", "reset_reduce"):
            registers.values[lanes] = IDENTITIES[op]
            registers.errors[lanes] = 0.0
            registers.known[lanes] = True
        if command == "reset":
            return
        if command == "load_reduce":
            assert initial is not None
            registers.values[lanes] = np.broadcast_to(initial, (view.partitions, 1))[:, 0]
            registers.errors[lanes] = 0.0
            registers.known[lanes] = True
        with np.errstate(all="ignore"):
            wide = values.astype(np.float32).astype(np.float64)
        spread = np.broadcast_to(np.asarray(errors, dtype=np.float64), wide.shape)
        start = registers.values[lanes][:, None]
        with np.errstate(all="ignore"):
            joined = np.concatenate((start, wide), axis=1)
            result, error = reduce_rows(op, joined)
            if op in ("add", "subtract"):
                error = error + spread.sum(1)
            elif op == "multiply":
                error = error + np.abs(result) * (spread / np.abs(wide)).sum(1)
            else:
                error = error + spread.max(1)
            registers.errors[lanes] = registers.errors[lanes] + error
            registers.values[lanes] = result

    def read_out(self, registers: Accumulator, result: View, like: View, sign: float = 1.0) -> None:
        """Write the registers of the lanes of `like` into a column."""
        lanes = slice(like.start, like.start + like.partitions)
        values, errors = registers.values[lanes], registers.errors[lanes]
        known = registers.known[lanes]
        values = np.where(known, values, 0.0) * sign
        errors = np.where(known, errors, np.inf)
        is_exact = known.all() and not errors.any()
        self.store(result, values[:, None], None if is_exact else errors[:, None])


def _lists(table: Array, group: int, shape: tuple[int, ...]) -> Array:
    """[partitions, elements]: element i of a group is in its partition i % group, column
    i // group.
    """
    partitions, count = shape
    found = np.empty(shape, dtype=np.int64)
    for partition in range(partitions):
        first = partition // group * group
        for i in range(count):
            found[partition, i] = table[first + i % group, i // group]
    return found


IDENTITIES = {
    "add": 0.0,
    "subtract": 0.0,
    "multiply": 1.0,
    "maximum": -math.inf,
    "minimum": math.inf,
    "abs_max": 0.0,
    "abs_min": math.inf,
}


def reduce_rows(op: str, rows: Array) -> tuple[Array, Array]:
    """(result, bound of the float32 error in any order of summing up) of float64 rows."""
    count = rows.shape[1]
    if op in ("maximum", "minimum"):
        result = rows.max(1) if op == "maximum" else rows.min(1)
        return result, np.zeros_like(result)
    if op in ("abs_max", "abs_min"):
        size = np.abs(rows)
        at = size.argmax(1) if op == "abs_max" else size.argmin(1)
        result = np.take_along_axis(rows, at[:, None], 1)[:, 0]
        # Where rounding to float32 makes magnitudes alike, the sign depends on the order.
        with np.errstate(invalid="ignore"):
            away = np.abs(size - np.abs(result)[:, None])
            near = away <= np.abs(result)[:, None] * 2.0**-20
        either = (near & (rows > 0)).any(1) & (near & (rows < 0)).any(1)
        return result, np.where(either, 2 * np.abs(result), 0.0)
    if op == "multiply":
        result = rows.prod(1)
        return result, np.abs(result) * count * 2 * HALF_ULP + count * 2.0**-149
    signed = np.concatenate((rows[:, :1], -rows[:, 1:]), 1) if op == "subtract" else rows
    size = np.where(np.isfinite(rows), np.abs(rows), 0.0).sum(1)
    # Near overflow the order of summing up decides.
    error = np.where(size > 1e38, np.inf, size * count * 2 * HALF_ULP)
    return signed.sum(1), error


def nbytes(view: View) -> int:
    """Bytes of a partition that the view's elements take."""
    return view.free * size_of(view.dtype)
