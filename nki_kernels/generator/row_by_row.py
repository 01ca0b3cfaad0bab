"""Sums of functions row by row: a partition has several rows, and ScalarE takes one after another.

An activation has a bias and a sum for each partition. Where a partition has one row, `exp(x - max)`
and its sum are one instruction. Where it has several, which makes tiles long, the difference is one
of two tiles and the sum another pass of VectorE, unless there is an activation for each row: that
takes the fixed time of an instruction and of a sum once a row, and ScalarE alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from trnx.nki_kernels.generator.instruction import Argument, Instruction, Tile
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.tiled_region import TiledRegion

# With fewer elements in a row the fixed times are more than what VectorE takes.
_LEAST_ROW = 32


def row_by_row(region: TiledRegion) -> list[TiledRegion]:
    """`region`, in tiles of whole rows, with its sums of functions row by row; none where it has
    no such sums, or no tile of several rows that are long enough."""
    geometry = region.geometry
    labels = geometry.free_labels
    is_led = geometry.folded and labels[0] == geometry.partition and len(labels) > 1
    if not is_led or geometry.in_phases or frozenset(labels[1:]) - geometry.reduced:
        return []
    rows = _Rows(region)
    if rows.size < _LEAST_ROW:
        return []
    sums = {i: total for i in region.instructions if (total := rows.total_of(i)) is not None}
    if not sums:
        return []
    dropped = list(sums.values())
    found: list[Instruction] = []
    for i in region.instructions:
        if i in sums:
            shift = rows.shift_of(i)
            dropped += [] if shift is None else [shift]
            found += rows.merged(i, sums[i], shift)
        else:
            found.append(i)
    left = [i for i in found if i not in dropped]
    halved = region.halved - {total.dst for total in sums.values()}
    return [dataclasses.replace(region, instructions=left, stages=[0] * len(left), halved=halved)]


class _Rows:
    """Which instructions of a region have several rows of a partition, and which one value each."""

    def __init__(self, region: TiledRegion) -> None:
        self._region = region
        self._label = region.geometry.partition
        self._held = frozenset(region.held.values())
        labels = region.geometry.free_labels
        self.size = 1
        for label in labels[1:]:
            self.size *= region.geometry.count(label)
        self._whole, self._one = labels, labels[:1]

    def total_of(self, activation: Instruction) -> Instruction | None:
        """What adds up all that an activation gives of each row, in float32."""
        values = activation.dst
        is_plain = activation.call == "activation" and activation.result is None
        if not is_plain or not self._has_rows(values) or values.dtype is not torch.float32:
            return None
        if activation.engine is not None or activation.beside is not None:
            return None
        if len(self._writers(values)) > 1:
            return None
        return next((i for i in self._region.instructions if self._adds_up(i, values)), None)

    def _adds_up(self, instruction: Instruction, values: Value) -> bool:
        total, given = instruction.dst, dict(instruction.arguments)
        return (
            instruction.call == "tensor_reduce"
            and given["op"] == "nl.add"
            and _is_plain(given["data"], values)
            and total.dtype is torch.float32
            and self._region.labels(total) == self._one
        )

    def shift_of(self, activation: Instruction) -> Instruction | None:
        """What subtracts one float32 of each row from what the activation reads, and nothing else
        reads."""
        given = dict(activation.arguments)
        data = given["data"]
        if not isinstance(data, Tile) or {"bias", "scale"} & given.keys():
            return None
        made = self._writers(data.value)
        readers = [i for i in self._region.instructions if data.value in i.reads()]
        if len(made) != 1 or len(readers) != 1 or data.value in self._held:
            return None
        return made[0] if self._is_shift(made[0]) else None

    def _is_shift(self, instruction: Instruction) -> bool:
        if instruction.call != "tensor_tensor" or instruction.beside is not None:
            return False
        given, shifted = dict(instruction.arguments), instruction.dst
        x, below = given["data1"], given["data2"]
        return (
            given["op"] == "nl.subtract"
            and shifted.dtype is torch.float32
            and isinstance(x, Tile)
            and isinstance(below, Tile)
            and _is_plain(x, x.value)
            and _is_plain(below, below.value)
            and x.value.dtype.is_floating_point
            and below.value.dtype is torch.float32
            and self._has_rows(x.value)
            and self._region.labels(below.value) == self._one
        )

    def merged(
        self, activation: Instruction, total: Instruction, shift: Instruction | None
    ) -> list[Instruction]:
        """An activation of each row that also shifts it and adds it up."""
        arguments: list[tuple[str, Argument]] = [*activation.arguments]
        before: list[Instruction] = []
        if shift is not None:
            x, below = (tile for _, tile in shift.arguments if isinstance(tile, Tile))
            bias = Value("alu", "multiply", (below.value, -1.0), torch.float32, below.value.axes)
            negated: list[tuple[str, Argument]] = [("data", Tile(below.value, None))]
            negated += [("op0", "nl.multiply"), ("operand0", "-1.0")]
            before.append(Instruction("tensor_scalar", bias, tuple(negated)))
            arguments = [(key, x if key == "data" else a) for key, a in arguments]
            arguments.append(("bias", Tile(bias, None)))
        arguments += [("reduce_op", "nl.add"), ("reduce_cmd", "nisa.reduce_cmd.reset_reduce")]
        merged = dataclasses.replace(
            activation, arguments=tuple(arguments), result=total.dst, by_row=self._label
        )
        return [*before, merged]

    def _has_rows(self, value: Value) -> bool:
        return self._region.labels(value) == self._whole

    def _writers(self, value: Value) -> Sequence[Instruction]:
        return [i for i in self._region.instructions if value in i.writes()]


def _is_plain(argument: Argument, value: Value) -> bool:
    """Whether an argument is the tile of `value` as it is."""
    if not isinstance(argument, Tile) or argument.value is not value:
        return False
    return argument.word is None and argument.seen_as is None
