"""The recorded instructions as columns of numbers: about a hundred bytes an instruction.

Display and analyses go through `Instruction` and `Operand`, made on demand.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from trnx.simulator.costs.attributes import NONE, Attributes
from trnx.simulator.costs.operands import AccessPattern, Operand, access_pattern
from trnx.simulator.errors import Location
from trnx.simulator.kernel_lines import Line, location_of
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtypes import DTYPES
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.observer import Recorded
from trnx.simulator.program.specification import InstructionSpec

_REGIONS = tuple(MemoryRegion)
_REGION_CODE = {region: code for code, region in enumerate(_REGIONS)}
_DTYPE_CODE = {str(dtype): code for code, dtype in enumerate(DTYPES)}


@dataclass(frozen=True)
class Instruction:
    """One instruction; `attributes` are what its cost depends on besides the operands."""

    index: int
    opcode: str
    engine: str
    location: Location
    operands: tuple[Operand, ...]
    core: int = 0
    attributes: Attributes = NONE


def _extend(new: list[tuple[int, ...]], *columns: array[int] | None) -> None:
    """Move rows to the columns; what has None for a column is left out."""
    if new:
        for column, values in zip(columns, zip(*new, strict=True), strict=True):
            if column is not None:
                column.extend(values)
        new.clear()


class InstructionTable:
    """Columns of the instructions and of their operands."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._specs: list[InstructionSpec] = []
        self._engines: dict[Engine, int] = {}
        # By the identity of the code, which is cheap, where its hash is not.
        self._line_codes: dict[tuple[int, int], int] = {}
        self._lines: list[Line] = []
        # What instructions of one line have in common, as the columns have it.
        self._heads: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._attributes: dict[Attributes, int] = {NONE: 0}
        self._patterns: dict[AccessPattern, int] = {}
        self._forms: dict[tuple[object, ...], tuple[int, int, int, int]] = {}
        # Register loops: (first instruction, end, times; None where only a run knows; core). Those
        # of two cores that meet in them overlap: each has the instructions of its core.
        self.loops: list[tuple[int, int, int | None, int]] = []
        # Instructions and operands that are not in the columns yet, and how many there are.
        self._new: list[tuple[int, ...]] = []
        self._new_operands: list[tuple[int, ...]] = []
        self._new_kinds: list[int] = []
        # How many instructions there are; `len`, which costs a call.
        self.count = self._operand_count = 0
        self.opcode = array("H")
        self.engine = array("B")
        self.core = array("B")
        self.attributes = array("H")
        self.flops = array("Q")
        # 1 where something of what an instruction writes over stays.
        self.keeps = array("B")
        # Storages on chip whose address the kernel chose.
        self.placed: set[int] = set()
        self.line = array("I")
        self.first_operand = array("I", [0])
        self.first_step = array("I", [0])
        self.storage = array("I")
        self.kind = array("B")
        self.dtype = array("B")
        self.start_partition = array("H")
        self.partitions = array("I")
        self.free_size = array("Q")
        self.low = array("Q")
        self.high = array("Q")
        self.pattern = array("I")
        self.dynamic = array("B")

    def __len__(self) -> int:
        return self.count

    def append(self, instruction: Recorded, step_count: int) -> None:
        """Add one instruction, at the end of which there are `step_count` steps."""
        operands = instruction.operands
        for tensor, is_write in operands:
            row = tensor.row
            if row is None:
                row = tensor.row = self._operand_row(tensor)
            self._new_operands.append(row)
            self._new_kinds.append(row[-1] + is_write)
        self._operand_count += len(operands)
        self.count += 1
        code, number = instruction.line
        key = (
            id(code),
            number,
            instruction.name,
            instruction.engine,
            instruction.core,
            instruction.attributes,
        )
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._head(instruction)
        self._new.append(
            (*head, instruction.flops, instruction.keeps, self._operand_count, step_count)
        )
        if len(self._new) >= 1024:
            self.seal()

    def _head(self, instruction: Recorded) -> tuple[int, ...]:
        line, name = instruction.line, instruction.name
        place = (id(line[0]), line[1])
        if place not in self._line_codes:
            self._line_codes[place] = len(self._lines)
            self._lines.append(line)
        if name not in self._names:
            self._specs.append(instruction.spec)
        return (
            self._line_codes[place],
            self._names.setdefault(name, len(self._names)),
            self._engines.setdefault(instruction.engine, len(self._engines)),
            instruction.core,
            self._attributes.setdefault(instruction.attributes, len(self._attributes)),
        )

    def _operand_row(self, tensor: NkiTensor) -> tuple[int, ...]:
        """How the columns have an operand; its kind, where it is read, comes last."""
        low, high, start, partitions = tensor.byte_range()
        storage = tensor.storage
        indirect = tensor.indirection
        dynamic_step = None if indirect is None else indirect.scale
        form = (tensor.dtype, tensor.shape, tensor.strides, storage.buffer, dynamic_step)
        dtype, size, pattern, region = self._forms.get(form) or self._form(
            tensor, dynamic_step, form
        )
        if storage.place is not None:
            self.placed.add(storage.index)
        return (
            *(storage.index, dtype, start, partitions, size),
            *(low, high, pattern, indirect is not None, region),
        )

    def _form(
        self, tensor: NkiTensor, dynamic_step: int | None, form: tuple[object, ...]
    ) -> tuple[int, int, int, int]:
        """What rows of operands of one form have in common: dtype, size, pattern, region."""
        storage, dtype = tensor.storage, tensor.dtype
        is_on_chip = storage.is_on_chip
        pattern = access_pattern(
            tensor.shape, tensor.strides, dtype.itemsize, is_on_chip, dynamic_step
        )
        found = self._forms[form] = (
            _DTYPE_CODE[dtype],
            tensor.free_size if is_on_chip else tensor.size,
            self._patterns.setdefault(pattern, len(self._patterns)),
            _REGION_CODE[storage.buffer] * 2,
        )
        return found

    def seal(self) -> None:
        """Bring the columns up to date; they are filled by the thousand."""
        _extend(
            self._new,
            *(self.line, self.opcode, self.engine, self.core, self.attributes),
            *(self.flops, self.keeps, self.first_operand, self.first_step),
        )
        _extend(
            self._new_operands,
            *(self.storage, self.dtype, self.start_partition, self.partitions),
            *(self.free_size, self.low, self.high, self.pattern, self.dynamic, None),
        )
        self.kind.extend(self._new_kinds)
        self._new_kinds.clear()

    def reads_back(self) -> bool:
        """Whether something is read in shared HBM that instructions write."""
        self.seal()
        shared = _REGION_CODE[MemoryRegion.shared_hbm] * 2
        places = zip(self.storage, self.kind, strict=True)
        touched = {(storage, kind - shared) for storage, kind in places if kind - shared in (0, 1)}
        return any((storage, 0) in touched for storage, is_write in touched if is_write)

    def __getitem__(self, index: int) -> Instruction:
        self.seal()
        first, last = self.first_operand[index], self.first_operand[index + 1]
        return Instruction(
            index,
            list(self._names)[self.opcode[index]],
            list(self._engines)[self.engine[index]].name,
            location_of(self._lines[self.line[index]]),
            tuple(self._operand(i) for i in range(first, last)),
            self.core[index],
            list(self._attributes)[self.attributes[index]],
        )

    def _operand(self, i: int) -> Operand:
        return Operand(
            self.storage[i],
            _REGIONS[self.kind[i] // 2],
            str(DTYPES[self.dtype[i]]),
            bool(self.kind[i] % 2),
            self.start_partition[i],
            self.partitions[i],
            self.free_size[i],
            self.low[i],
            self.high[i],
            list(self._patterns)[self.pattern[i]],
            bool(self.dynamic[i]),
        )

    def __iter__(self) -> Iterator[Instruction]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InstructionTable):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def patterns(self) -> tuple[AccessPattern, ...]:
        """The patterns that the column `pattern` numbers."""
        return tuple(self._patterns)

    def location(self, row: int) -> Location:
        """The kernel's line of one instruction; the rows are complete."""
        return location_of(self._lines[self.line[row]])

    def locations(self) -> tuple[Location, ...]:
        """The source lines that the column `line` numbers."""
        return tuple(location_of(line) for line in self._lines)

    def engines(self) -> tuple[str, ...]:
        """The engines that the column `engine` numbers."""
        return tuple(engine.name for engine in self._engines)

    def spec(self, index: int) -> InstructionSpec:
        """What is declared about an instruction."""
        return self._specs[self.opcode[index]]

    def specs(self) -> tuple[InstructionSpec, ...]:
        """The declarations of the names that the column `opcode` numbers."""
        return tuple(self._specs)

    def opcodes(self) -> tuple[str, ...]:
        """The names that the column `opcode` numbers."""
        return tuple(self._names)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = [value for value in vars(self).values() if isinstance(value, array)]
        return sum(column.itemsize * len(column) for column in columns)

    def opcode_counts(self) -> dict[str, int]:
        """Instructions by name."""
        names = list(self._names)
        counts = dict.fromkeys(names, 0)
        for code in self.opcode:
            counts[names[code]] += 1
        return counts
