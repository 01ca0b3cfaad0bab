"""Which engine runs each instruction of a tile, so that the busiest one has the least to do.

An engine's load is the sum of what its instructions take in the timing model; what an overlap of
tiles hides is left to `stages.py`. VectorE is the default. Instructions move from the busiest
engine, one at a time, while that makes it less busy than any other engine becomes, and stop where
DMA is the busiest: a product or sum of two tiles to GpSimd; a scale and shift, a square, an
absolute value, a relu or a sum of all that a partition has to ScalarE; a copy to either; a
`scalar_tensor_tensor`, which VectorE alone has, as the two instructions that it stands for. GpSimd
and VectorE's fast modes share a port of SBUF, which counts as an engine (on trn1 all of VectorE
does). Ties go to the first instruction, so that the choice is deterministic. `share_in_step` has
VectorE and GpSimd each compute a part of a tile instead.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from trnx.nki_kernels.generator.instruction import (
    BIT_OPERATORS,
    Argument,
    Beside,
    Instruction,
    Tile,
)
from trnx.nki_kernels.generator.ir import Value
from trnx.simulator.costs.constants import timing
from trnx.simulator.costs.vector import table_of
from trnx.simulator.hardware import Hardware

VECTOR, SCALAR, GPSIMD, TENSOR = "vector", "scalar", "gpsimd", "tensor"
PORT, _DMA = "port", "dma"
_HALVES = (torch.bfloat16, torch.float16)
# Calls whose tiles VectorE walks in its fast modes.
_FAST = ("tensor_scalar", "tensor_copy", "memset")
# Operators of the two halves of a `scalar_tensor_tensor` that other engines compute.
_ON_SCALAR = ("nl.multiply", "nl.add")
_ON_GPSIMD = ("nl.multiply", "nl.add", "nl.subtract")
# What ScalarE's tensor_scalar computes (SDK nki.isa.tensor_scalar), from trn2 on.
AFFINE = (
    (("op0", "nl.multiply"), ("op1", "nl.add")),
    (("op0", "nl.multiply"),),
    (("op0", "nl.add"),),
)

# Tiles of fewer elements a partition are not shared: the fixed time of an instruction counts. Of
# the others GpSimd has so many eighths.
LEAST_SHARED = 320
_PARTS = 8

# What ScalarE computes for an operator of a `tensor_scalar` that stands alone.
_ALONE: Mapping[tuple[object, object], str] = {
    ("nl.abs", "0.0"): "nl.abs",
    ("nl.maximum", "0.0"): "nl.relu",
}

Load = Mapping[str, float]  # engine, port or DMA -> ns


@dataclasses.dataclass(frozen=True)
class EngineCosts:
    """What instructions take; `elements` is how many a value has in one partition of a tile, 0
    where all tiles share it. Tiles of `permuted` lie in an order of their own (`permute.py`). What
    VectorE has may move `to` other engines. What gives one of `often` runs so many times in a tile,
    others once. `copied` are the totals that are no more than copied out of PSUM. VectorE walks
    `in_steps` over the tiles of some reductions, and adds up `halved` ones as two tiles.
    """

    hardware: Hardware
    elements: Callable[[Value], int]
    permuted: Collection[Value] = ()
    to: tuple[str, ...] = (SCALAR, GPSIMD)
    often: Mapping[Value, float] = dataclasses.field(default_factory=dict)
    copied: Collection[Value] = ()
    in_steps: Callable[[Instruction], bool] = lambda _: False
    halved: Collection[Value] = ()

    def load(self, instruction: Instruction, engine: str) -> Load:
        """ns in a tile that `instruction` takes of `engine`, of one that has a part of it and of
        the port."""
        if instruction.beside is None:
            found = self.load_of_part(instruction, engine, 1.0)
        else:
            total: Counter[str] = Counter()
            for part, share in parts_of(instruction):
                total.update(self.load_of_part(part, engine_of(part), share))
            found = total
        often = self.often.get(instruction.dst, 1.0)
        return found if often == 1 else {name: ns * often for name, ns in found.items()}

    def load_of_part(self, instruction: Instruction, engine: str, share: float) -> Load:
        """The same for a `share` of a tile."""
        chip, constants = self.hardware, timing(self.hardware)
        size = max(self.elements(v) for v in (*instruction.reads(), *instruction.writes()))
        if instruction.call == "load":
            return {_DMA: self.dma(instruction.dst)}
        if engine == TENSOR:  # a product with ones, at twice the rate of other float32 ones
            columns = (
                1 if instruction.reads()[0].dtype in _HALVES else chip.fp32_cycles_per_column / 2
            )
            return {TENSOR: size * columns * 1e9 / chip.pe_clock}
        if engine == SCALAR:
            cycles = size * share + constants.scalar_issue_cycles
            if instruction.by_row is not None:
                each = constants.scalar_issue_cycles + constants.scalar_extra_cycles
                cycles = size + self._rows(instruction) * each
            return {SCALAR: cycles * 1e9 / chip.scalar_clock}
        if engine == GPSIMD:
            # It adds what is reduced to an accumulator.
            is_sum = instruction.call == "tensor_reduce"
            if instruction.overlap is not None:
                share = 0.0  # a few elements
            work = size * (2 if is_sum else max(1, self._tiles_read(instruction, size)))
            taken = (work * share + constants.gpsimd_start_cycles) * 1e9 / chip.gpsimd_clock
            return {GPSIMD: taken, PORT: taken}
        width = self._width(instruction, size)
        taken = (size * share / width + constants.vector_issue_cycles) * 1e9 / chip.vector_clock
        shares = width > 1 or chip.generation == 2
        return {VECTOR: taken, PORT: taken} if shares else {VECTOR: taken}

    def _rows(self, instruction: Instruction) -> int:
        """The calls of an instruction by row: each gives one sum."""
        return 0 if instruction.result is None else self.elements(instruction.result)

    def dma(self, value: Value) -> float:
        """ns that a load or store of a tile takes at the full rate."""
        nbytes = self.elements(value) * value.dtype.itemsize * self.hardware.partitions
        return nbytes * 1e9 / self.hardware.dma_bytes_per_second

    def _tiles_read(self, instruction: Instruction, size: int) -> int:
        return sum(self._spread(a) == size for _, a in instruction.arguments if isinstance(a, Tile))

    def _spread(self, tile: Tile) -> int:
        return self.elements(tile.like if tile.like is not None else tile.value)

    def _width(self, instruction: Instruction, size: int) -> float:
        """Elements a cycle of VectorE."""
        chip = self.hardware
        if instruction.call == "reciprocal":
            return 1 / 8
        if instruction.call in _FAST:
            tiles = [v for v in (instruction.dst, *instruction.reads()) if self.elements(v) == size]
            short = all(v.dtype in _HALVES for v in tiles)
            if any(v in self.permuted for v in tiles):  # no dense walk (trainium2_arch.rst)
                return min(2, chip.vector_half_width) if short else 1
            return chip.vector_half_width if short else chip.vector_other_width
        if instruction.call == "tensor_reduce" and instruction.dst not in self.halved:
            short = all(v.dtype in _HALVES for v in (instruction.dst, *instruction.reads()))
            return (2 if short else 1) / (2 if self.in_steps(instruction) else 1)
        two = chip.generation == 2 and self._tiles_read(instruction, size) > 1
        return 1 / 2 if two else 1


def parts_of(instruction: Instruction) -> list[tuple[Instruction, float]]:
    """What each engine computes of a tile, and its share of it: first the one with the first
    elements."""
    beside = instruction.beside
    if beside is None:
        return [(instruction, 1.0)]
    share = beside.count / beside.size
    first = dataclasses.replace(instruction, beside=None)
    return [(first, 1 - share), (beside.instruction, share)]


def table_of_call(instruction: Instruction) -> str:
    """The table of functions that ScalarE needs for an instruction; empty where it needs none."""
    if instruction.call != "activation":
        return ""
    op = dict(instruction.arguments)["op"]
    return table_of(op.removeprefix("nl.")) if isinstance(op, str) else ""


def table_loads(instructions: Sequence[Instruction]) -> int:
    """How often ScalarE loads a table of functions in every tile of many."""
    needed = [table for table in map(table_of_call, instructions) if table]
    return sum(a != b for a, b in zip(needed, [*needed[1:], *needed[:1]], strict=True))


def next_table(
    instructions: Sequence[Instruction], stages: Sequence[int], stage: int
) -> Instruction | None:
    """The first activation of a later stage where it needs another table than the last one of
    `stage`, which has some, and stages of other engines stand between the two: where all tiles run
    a stage before any runs the next one, ScalarE loads that table while the others work."""
    pairs = [(i, s) for i, s in zip(instructions, stages, strict=True) if table_of_call(i)]
    own = [table_of_call(i) for i, s in pairs if s == stage]
    later = [(i, s) for i, s in sorted(pairs, key=lambda pair: pair[1]) if s > stage]
    if not own or not later or table_of_call(later[0][0]) == own[-1]:
        return None
    return later[0][0] if later[0][1] > stage + 1 else None


def assign_engines(
    instructions: Sequence[Instruction],
    costs: EngineCosts,
    stored: Sequence[Value],
    fixed: frozenset[Value] = frozenset(),
    tables: int = 0,
) -> list[list[Instruction]]:
    """What runs in the place of each of `instructions`, with its engine; `stored` are the values
    that DMA writes back. What gives one of `fixed` stays where it is. ScalarE loads so many
    `tables` in every tile.
    """
    placed, places = list(instructions), list(range(len(instructions)))
    total: Counter[str] = Counter()
    for instruction in placed:
        total.update(costs.load(instruction, engine_of(instruction)))
    total.update({_DMA: sum(costs.dma(v) * costs.often.get(v, 1.0) for v in stored)})
    total.update({SCALAR: tables * timing(costs.hardware).scalar_table_ns})
    while (move := _best_move(placed, costs, total, fixed)) is not None:
        index, new = move
        total = _moved(total, costs, placed[index], new)
        placed[index : index + 1] = new
        places[index : index + 1] = [places[index]] * len(new)
    found: list[list[Instruction]] = [[] for _ in instructions]
    for place, instruction in zip(places, placed, strict=True):
        found[place].append(instruction)
    return found


def share_in_step(
    instructions: Sequence[Instruction],
    costs: EngineCosts,
    cut_along: Callable[[Value], tuple[int, int] | None],
    fixed: frozenset[Value] = frozenset(),
) -> list[Instruction]:
    """`instructions` with those of two tiles shared by VectorE and GpSimd so that both take about
    as long: neither then holds the port that the other one's next instruction may need. `cut_along`
    gives the axis along which a value's tile is cut, and its size; what gives one of `fixed` stays
    where it is."""

    def share(instruction: Instruction) -> Instruction:
        along = cut_along(instruction.dst)
        if along is None or instruction.dst in fixed or not _is_shareable(instruction, costs):
            return instruction
        other = dataclasses.replace(instruction, engine=GPSIMD)
        label, size = along
        counts = dict.fromkeys(-(-size * part // _PARTS) for part in range(1, _PARTS))
        ways = [
            dataclasses.replace(instruction, beside=Beside(other, label, count, size))
            for count in counts
            if count < size
        ]
        return min(ways, key=lambda way: max(costs.load(way, VECTOR).values()))

    return [share(instruction) for instruction in instructions]


def _is_shareable(instruction: Instruction, costs: EngineCosts) -> bool:
    """Whether VectorE and GpSimd may each compute a part of an instruction's tile: of two others
    with as many axes, and long. A square is left to ScalarE. On trn1 they would take turns."""
    dst, reads = instruction.dst, instruction.reads()
    if costs.hardware.generation == 2:
        return False
    if _as_activation(instruction, costs.elements(dst)) is not None:
        return False
    if GPSIMD not in _others(instruction, costs.hardware) or instruction.call != "tensor_tensor":
        return False
    tiles = [a for _, a in instruction.arguments if isinstance(a, Tile)]
    return (
        costs.elements(dst) >= LEAST_SHARED
        and all(v.dtype.is_floating_point for v in (dst, *reads))
        and all((tile.like or tile.value).axes == dst.axes and _is_plain(tile) for tile in tiles)
    )


def engine_of(instruction: Instruction) -> str:
    """The engine that runs an instruction, or the first part of it, chosen or NKI's default."""
    if instruction.engine is not None:
        return instruction.engine
    if instruction.call == "activation":
        return SCALAR
    words = (torch.int32, torch.int64)
    integers = all(v.dtype in words for v in (*instruction.reads(), instruction.dst))
    power = ("op", "nl.power") in instruction.arguments
    if instruction.call == "tensor_tensor" and (
        power or (integers and not _is_on_bits(instruction))
    ):
        return GPSIMD
    return VECTOR


def _is_on_bits(instruction: Instruction) -> bool:
    """Whether VectorE alone has the instruction, because it acts on bits."""
    given = dict(instruction.arguments)
    return instruction.on_bits or any(given.get(key) in BIT_OPERATORS for key in ("op", "op0"))


def _moved(
    total: Counter[str], costs: EngineCosts, old: Instruction, new: Sequence[Instruction]
) -> Counter[str]:
    result = Counter(total)
    result.subtract(costs.load(old, engine_of(old)))
    for instruction in new:
        result.update(costs.load(instruction, engine_of(instruction)))
    return result


def _best_move(
    placed: Sequence[Instruction],
    costs: EngineCosts,
    total: Counter[str],
    fixed: frozenset[Value],
) -> tuple[int, tuple[Instruction, ...]] | None:
    """The instruction and what to run in its place so that the busiest engine has the least to
    do, if that is less than now.
    """
    best, found = max(total.values()), None
    if best == total[_DMA]:
        return None
    for index, instruction in enumerate(placed):
        if instruction.dst in fixed:
            continue
        for new in _alternatives(instruction, costs):
            busiest = max(_moved(total, costs, instruction, new).values())
            if busiest < best - 1e-6:
                best, found = busiest, (index, new)
    return found


def _alternatives(
    instruction: Instruction, costs: EngineCosts
) -> Iterator[tuple[Instruction, ...]]:
    """What gives the same values on other engines."""
    if instruction.beside is not None:
        return
    hardware = costs.hardware
    # The first of two that leave the busiest engine as much is taken: GpSimd reads a tile twice for
    # its square, and ScalarE once.
    if engine_of(instruction) == VECTOR:
        activation = _as_activation(instruction, costs.elements(instruction.dst))
        yield from [] if activation is None else [(activation,)]
    for engine in _others(instruction, hardware):
        if engine in costs.to:
            yield (dataclasses.replace(instruction, engine=engine),)
    if instruction.dst in costs.copied and instruction.engine is None and SCALAR in costs.to:
        yield (dataclasses.replace(instruction, engine=SCALAR),)
    halves = instruction.call == "scalar_tensor_tensor" and GPSIMD in costs.to
    if halves and hardware.generation > 2:
        yield from _halves(instruction)


def _as_activation(instruction: Instruction, elements: int) -> Instruction | None:
    """A square, an absolute value, a relu or a sum of all that a partition has, as ScalarE has them
    without a table of functions: computed in float32 and rounded once, as VectorE does. The result
    has so many `elements` in a partition."""
    floats = all(v.dtype.is_floating_point for v in (*instruction.reads(), *instruction.writes()))
    given = dict(instruction.arguments)
    if not floats or instruction.on_bits or not all(map(_is_plain, given.values())):
        return None
    dst, data = instruction.dst, given.get("data", given.get("data1", ""))
    op: str | None = None
    if instruction.call == "tensor_reduce":
        (source,) = instruction.reads()
        if given["op"] != "nl.add" or dst.dtype is not torch.float32 or elements != 1:
            return None
        copy = Value("cast", "copy", (source,), source.dtype, source.axes)
        arguments: tuple[tuple[str, Argument], ...] = (
            ("op", "nl.copy"), ("data", data), ("reduce_op", "nl.add"),
            ("reduce_cmd", "nisa.reduce_cmd.reset_reduce"),
        )  # fmt: skip
        return Instruction("activation", copy, arguments, dst)
    if instruction.call == "tensor_tensor":
        op = "nl.square" if given["op"] == "nl.multiply" and data == given["data2"] else None
    elif instruction.call == "tensor_scalar" and len(given) == 3:
        op = _ALONE.get((given["op0"], given["operand0"]))
    return Instruction("activation", dst, (("op", op), ("data", data))) if op else None


def _is_plain(argument: Argument) -> bool:
    """Whether an argument is no tile, or one that is taken as it is."""
    return not isinstance(argument, Tile) or (argument.word is None and argument.seen_as is None)


def _halves(instruction: Instruction) -> Iterator[tuple[Instruction, ...]]:
    """`(data <op0> operand0) <op1> operand1` as two instructions: what is between them stays in
    float32, as it does in the one.
    """
    given = dict(instruction.arguments)
    op0, op1, data = given["op0"], given["op1"], given["data"]
    if "reverse0" in given or op0 not in _ON_SCALAR or op1 not in _ON_GPSIMD:
        return
    dst = instruction.dst
    inner = Value("alu", op0.removeprefix("nl."), (), torch.float32, dst.axes)
    tiles: list[Argument] = [Tile(inner, dst), given["operand1"]]
    if "reverse1" in given:
        tiles.reverse()
    scalar = (("data", data), ("op0", op0), ("operand0", given["operand0"]))
    tensor = (("data1", tiles[0]), ("data2", tiles[1]), ("op", op1))
    for engine in (SCALAR, VECTOR):
        yield (
            Instruction("tensor_scalar", inner, scalar, engine=engine),
            Instruction("tensor_tensor", dst, tensor, engine=GPSIMD),
        )


def _is_copied_in_float32(instruction: Instruction) -> bool:
    """Whether float32 holds what is copied, so that ScalarE may copy it."""
    values = (*instruction.reads(), instruction.dst)
    return not any(v.dtype in (torch.int32, torch.int64) for v in values)


def _others(instruction: Instruction, hardware: Hardware) -> tuple[str, ...]:
    """The engines besides VectorE that may run an instruction, with the same values."""
    if engine_of(instruction) != VECTOR or _is_on_bits(instruction):
        return ()
    if instruction.call == "tensor_copy" and not _is_copied_in_float32(instruction):
        return (GPSIMD,)
    if instruction.call == "tensor_copy":
        return (SCALAR, GPSIMD) if hardware.generation > 2 else (GPSIMD,)
    if instruction.call in ("tensor_tensor", "memset"):
        return (GPSIMD,)
    if instruction.call == "tensor_scalar" and hardware.generation > 2:
        ops = tuple(a for a in instruction.arguments if a[0] in ("op0", "op1"))
        plain = all(key not in ("reverse0", "reverse1") for key, _ in instruction.arguments)
        return (SCALAR,) if plain and ops in AFFINE else ()
    return ()
