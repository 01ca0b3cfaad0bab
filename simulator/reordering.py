"""Lives of tensors in an order that a compiler may choose instead of the program's.

Each instruction comes just before what needs its result, but what uses a memory that is full, and
begins no tensor's life there, follows its operands at once.

So what a kernel loads early is loaded late, and what it computed is read, and its memory free, as
early as the operands allow. AWS's own kernels rely on both: nki-library's `output_projection_tkg`
loads all its weights before the first product, as tiles of their own so that the compiler decides
when; its `bwmm_shard_on_I` fills 48 PSUM tiles and only then copies them out, for 8 banks. Of what
an instruction waits for, the longest chain comes first, so that accumulations are done one after
another.

Whole storages depend on each other, not elements: the order is legal, but one that needs less
memory may exist. Loops and fences are crossed by nothing; instructions with state of their own, or
with tensors whose address the kernel chose, keep their order.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

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
# In place of an engine: no state; the state of all that is fixed.
_FREE, _FIXED = -1, -2
# Nothing crosses these.
_FENCES = frozenset({"core_barrier", "sendrecv"})


def reordered_lives(
    rows: Rows,
    core: int,
    loops: list[LoopRecord],
    fixed: Collection[int],
    crowded: Collection[int],
    births: Collection[int],
) -> dict[int, tuple[int, int]]:
    """Storage -> (first, last) of its uses by program `core`, as places in program order that the
    instructions take. The users of the storages `fixed` keep their order; those of the storages
    `crowded` follow their operands at once, but for the instructions `births`.
    """
    lives: dict[int, tuple[int, int]] = {}
    segment = _Segment()
    for one in _movables(rows, core, loops):
        if one.is_edge or one.is_fence:
            segment.close(lives)
            segment = _Segment()
        storages = {storage for storage, _ in one.operands}
        is_fixed = one.stays or not storages.isdisjoint(fixed)
        is_prompt = one.row not in births and not storages.isdisjoint(crowded)
        segment.add(one, is_fixed, is_prompt and not is_fixed)
        if one.is_fence:
            segment.close(lives)
            segment = _Segment()
    segment.close(lives)
    return lives


class _Movable(NamedTuple):
    """An instruction as it may move: its operands as (storage, "is written"), and `state`,
    the engine whose state it uses, or _FREE. One that `stays` uses what is not among its operands
    (registers); a loop begins or ends at an edge; nothing crosses a fence.
    """

    row: int
    operands: Sequence[tuple[int, bool]]
    state: int
    stays: bool
    is_edge: bool
    is_fence: bool


def _movables(rows: Rows, core: int, loops: list[LoopRecord]) -> Iterator[_Movable]:
    """The instructions of program `core`, and those of others at the edges of its loops, which have
    no operands here.
    """
    rows.seal()
    edges = {loop.first for loop in loops} | {loop.last for loop in loops}
    codes = {name: code for code, name in enumerate(rows.opcodes())}
    registers = {code for name, code in codes.items() if name.startswith("register")}
    with_state = {codes[name] for name in _WITH_STATE & codes.keys()}
    fences = {codes[name] for name in _FENCES & codes.keys()}
    for index in range(len(rows)):
        is_edge = index in edges
        if rows.core[index] != core:
            if is_edge:
                yield _Movable(index, (), _FREE, True, True, False)
            continue
        code = rows.opcode[index]
        state = rows.engine[index] if code in with_state else _FREE
        first, last = rows.first_operand[index], rows.first_operand[index + 1]
        operands = [(rows.storage[i], rows.kind[i] % 2 == 1) for i in range(first, last)]
        stays = code in registers or any(rows.dynamic[first:last]) or not operands
        yield _Movable(index, operands, state, stays, is_edge, code in fences)


class _Segment:
    """Instructions between two fences, added in program order, and what each waits for."""

    def __init__(self) -> None:
        self._indices: list[int] = []
        self._operands: list[Sequence[tuple[int, bool]]] = []
        self._is_prompt: list[bool] = []
        self._needs: list[list[int]] = []
        self._wanted_by: list[list[int]] = []
        self._depths: list[int] = []
        self._written: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        self._chains: dict[int, int] = {}

    def add(self, one: _Movable, is_fixed: bool, is_prompt: bool) -> None:
        """The next instruction: `is_fixed` ones keep their order among each other, `is_prompt` ones
        follow what they need at once.
        """
        place = len(self._indices)
        needs = self._needs_of(one.operands, place)
        # What has state keeps its order on its engine; what is fixed keeps it everywhere.
        for chain in {one.state, _FIXED if is_fixed else _FREE} - {_FREE}:
            if chain in self._chains:
                needs.add(self._chains[chain])
            self._chains[chain] = place
        self._indices.append(one.row)
        self._operands.append(one.operands)
        self._is_prompt.append(is_prompt)
        self._needs.append(sorted(needs, key=lambda need: (-self._depths[need], need)))
        self._depths.append(1 + max((self._depths[need] for need in needs), default=0))
        self._wanted_by.append([])
        for need in needs:
            self._wanted_by[need].append(place)

    def _needs_of(self, operands: Sequence[tuple[int, bool]], place: int) -> set[int]:
        """What wrote the operands, and what read those that are written."""
        needs = {self._written[storage] for storage, _ in operands if storage in self._written}
        written = {storage for storage, is_write in operands if is_write}
        for storage in written:
            needs.update(self._readers.pop(storage, ()))
            self._written[storage] = place
        for storage, _ in operands:
            if storage not in written:
                self._readers.setdefault(storage, []).append(place)
        return needs

    def close(self, lives: dict[int, tuple[int, int]]) -> None:
        """Add the lives of what the segment uses."""
        for index, place in zip(self._indices, self._order(), strict=True):
            for storage, _ in self._operands[place]:
                first, last = lives.get(storage, (index, -1))
                lives[storage] = (min(first, index), max(last, index))

    def _order(self) -> list[int]:
        """Places in the order of demand, from what nothing of the segment waits for."""
        waiting = [len(needs) for needs in self._needs]
        done = [False] * len(waiting)
        order: list[int] = []
        for root, wanted_by in enumerate(self._wanted_by):
            stack = [] if wanted_by else [(root, iter(self._needs[root]))]
            while stack:
                place, needs = stack[-1]
                need = next((need for need in needs if not done[need]), None)
                if need is not None:
                    stack.append((need, iter(self._needs[need])))
                    continue
                stack.pop()
                if not done[place]:
                    self._do(place, done, waiting, order)
        return order

    def _do(self, place: int, done: list[bool], waiting: list[int], order: list[int]) -> None:
        """Append `place`, and what follows at once."""
        ready = [place]
        while ready:
            now = heapq.heappop(ready)
            done[now] = True
            order.append(now)
            for after in self._wanted_by[now]:
                waiting[after] -= 1
                if not waiting[after] and self._is_prompt[after]:
                    heapq.heappush(ready, after)
