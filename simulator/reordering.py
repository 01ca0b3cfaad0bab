"""Lives of tensors in an order that a compiler may choose instead of the program's.

What uses the tensors of a memory that is full, and begins no tensor's life there, moves up to the
last instruction that it depends on: what was computed is read, and its memory free, as early as the
operands allow. AWS's own kernels rely on it (nki-library's `bwmm_shard_on_I` fills 48 PSUM tiles
and only then copies them out, for 8 banks). Whole storages depend on each other, not elements: an
order found here is legal, but one that needs less memory may exist.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trnx.simulator.loops import LoopRecord
from trnx.simulator.rows import Rows

# Instructions with state of their own in an engine, which keep their order.
_WITH_STATE = frozenset(
    {
        "activate2",
        "activation",
        "activation_reduce",
        "dropout",
        "exponential",
        "rand",
        "rand2",
        "rand_get_state",
        "rand_set_state",
        "range_select",
        "rng",
        "select_reduce",
        "set_rng_seed",
        "tensor_scalar_cumulative",
        "tensor_scalar_reduce",
    }
)
# Nothing crosses these.
_FENCES = frozenset({"core_barrier", "sendrecv"})


def reordered_lives(
    rows: Rows,
    core: int,
    births: Collection[int],
    crowded: Collection[int],
    fixed: Collection[int],
    loops: list[LoopRecord],
) -> dict[int, tuple[int, int]]:
    """Storage -> (first, last) of its uses by program `core`, as instructions of the program that
    they come directly after. The users of the storages `crowded` move, but for the instructions
    `births`, and for users of the storages `fixed`; loops are crossed by nothing.
    """
    rows.seal()
    order = _Order(fixed)
    edges = {loop.first for loop in loops} | {loop.last for loop in loops}
    codes = {name: code for code, name in enumerate(rows.opcodes())}
    registers = {code for name, code in codes.items() if name.startswith("register")}
    with_state = {codes[name] for name in _WITH_STATE & codes.keys()}
    fences = {codes[name] for name in _FENCES & codes.keys()}
    for index in range(len(rows)):
        if index in edges:
            order.floor = index
        if rows.core[index] != core:
            continue
        code = rows.opcode[index]
        state = rows.engine[index] if code in with_state else -1
        first, last = rows.first_operand[index], rows.first_operand[index + 1]
        operands = [(rows.storage[i], rows.kind[i] % 2 == 1) for i in range(first, last)]
        # What registers hold is not among the operands.
        moves = (
            index not in births
            and code not in registers | fences
            and not any(rows.dynamic[first:last])
            and any(storage in crowded for storage, _ in operands)
        )
        order.add(index, operands, state, moves)
        if code in fences:
            order.floor = index
    return order.lives


class _Order:
    """Earliest places of instructions, added in program order."""

    def __init__(self, fixed: Collection[int]) -> None:
        self._fixed = fixed
        self._written: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._state: dict[int, int] = {}
        self.floor = -1
        self.lives: dict[int, tuple[int, int]] = {}

    def add(
        self, index: int, operands: Sequence[tuple[int, bool]], state: int, moves: bool
    ) -> None:
        """Instruction `index`, with (storage, "is written"); `state` is the engine whose state it
        uses, or -1.
        """
        place = index
        if moves and not any(storage in self._fixed for storage, _ in operands):
            place = max(self.floor, self._state.get(state, -1))
            for storage, is_write in operands:
                place = max(place, self._written.get(storage, -1))
                if is_write:
                    place = max(place, self._read.get(storage, -1))
        if state >= 0:
            self._state[state] = place
        for storage, is_write in operands:
            done = self._written if is_write else self._read
            done[storage] = max(done.get(storage, -1), place)
            first, last = self.lives.get(storage, (index, -1))
            self.lives[storage] = (min(first, place), max(last, place))
