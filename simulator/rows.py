"""The recorded instructions as columns of numbers: about a hundred bytes an instruction.

Display and analyses go through `Row` and `OperandRow`, made on demand.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from trnx.simulator.dtypes import DTYPES
from trnx.simulator.errors import Location
from trnx.simulator.storage import MemoryRegion
from trnx.simulator.tensor import NkiTensor

_REGIONS = tuple(MemoryRegion)
_REGION_CODE = {region: code for code, region in enumerate(_REGIONS)}
_DTYPE_CODE = {str(dtype): code for code, dtype in enumerate(DTYPES)}


@dataclass(frozen=True)
class OperandRow:
    """One operand: where it lies and how much it moves. Bytes count within a partition on chip."""

    storage: int
    buffer: MemoryRegion
    dtype: str
    is_write: bool
    start_partition: int
    partitions: int
    free_size: int
    low: int
    high: int


@dataclass(frozen=True)
class Row:
    """One instruction."""

    index: int
    opcode: str
    engine: str
    location: Location
    operands: tuple[OperandRow, ...]
    core: int = 0


class Rows:
    """Columns of the instructions and of their operands."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._engines: dict[str, int] = {}
        self._lines: dict[tuple[CodeType, int], int] = {}
        self.opcode = array("H")
        self.engine = array("B")
        self.core = array("B")
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

    def __len__(self) -> int:
        return len(self.opcode)

    def append(
        self,
        opcode: str,
        engine: str,
        line: tuple[CodeType, int],
        operands: Sequence[tuple[NkiTensor, bool]],
        step_count: int,
        core: int = 0,
    ) -> None:
        """Add one instruction."""
        self.opcode.append(self._names.setdefault(opcode, len(self._names)))
        self.engine.append(self._engines.setdefault(engine, len(self._engines)))
        self.line.append(self._lines.setdefault(line, len(self._lines)))
        for tensor, is_write in operands:
            self._append_operand(tensor, is_write)
        self.first_operand.append(len(self.storage))
        self.first_step.append(step_count)
        self.core.append(core)

    def _append_operand(self, tensor: NkiTensor, is_write: bool) -> None:
        low, high, start, partitions = tensor.byte_range()
        self.storage.append(tensor.storage.index)
        self.kind.append(_REGION_CODE[tensor.buffer] * 2 + is_write)
        self.dtype.append(_DTYPE_CODE[tensor.dtype])
        self.start_partition.append(start)
        self.partitions.append(partitions)
        self.free_size.append(tensor.free_size if tensor.is_on_chip else tensor.size)
        self.low.append(low)
        self.high.append(high)

    def __getitem__(self, index: int) -> Row:
        codes, line = list(self._lines)[self.line[index]]
        first, last = self.first_operand[index], self.first_operand[index + 1]
        return Row(
            index,
            list(self._names)[self.opcode[index]],
            list(self._engines)[self.engine[index]],
            Location(codes.co_filename, line, codes.co_name),
            tuple(self._operand(i) for i in range(first, last)),
            self.core[index],
        )

    def _operand(self, i: int) -> OperandRow:
        return OperandRow(
            self.storage[i],
            _REGIONS[self.kind[i] // 2],
            str(DTYPES[self.dtype[i]]),
            bool(self.kind[i] % 2),
            self.start_partition[i],
            self.partitions[i],
            self.free_size[i],
            self.low[i],
            self.high[i],
        )

    def __iter__(self) -> Iterator[Row]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

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
