"""Whether an instruction is legal: engine, buffer, dtype and place of its operands, findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from trnx.simulator.errors import FindingError, IllegalInstructionError, UninitialisedReadError
from trnx.simulator.findings import DISPUTED_LEGALITY
from trnx.simulator.isa.indirect import check_tensor_indirect
from trnx.simulator.isa.recording import Recording
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.language.tensor_view import Indirect
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import ON_CHIP, MemoryRegion
from trnx.simulator.program.skipped_rows import require_turn

_CORE = 16


class Legality(Recording):
    """What the function of an instruction says about when it is legal."""

    __slots__ = ()

    def finding(
        self, check: str, message: str, kind: type[FindingError] = IllegalInstructionError
    ) -> None:
        """Report what a check found at the kernel's line; the instruction goes on if it returns."""
        self.is_repeatable = False
        self._recorder.findings.report(kind(check, f"{self.name}: {message}", self.location))

    def illegal(self, message: str) -> NoReturn:
        """Raise IllegalInstructionError at the kernel's line."""
        raise IllegalInstructionError(self.name, f"{self.name}: {message}", self.location)

    def require(self, condition: bool, message: str) -> None:
        """Raise IllegalInstructionError unless `condition`. For constant messages: one made of the
        operands costs more than the check, and is for `illegal` in an `if`.
        """
        if not condition:
            self.illegal(message)

    def needs_generation(self, generation: int) -> NoReturn:
        """Raise IllegalInstructionError: the instruction exists from this generation on."""
        self.illegal(
            f"needs trn{generation - 1} (NeuronCore-v{generation}) or newer; "
            f"the target is {self.hardware.target}"
        )

    def require_set(self, register: VirtualRegister, what: str) -> None:
        """A register must have got a value."""
        if not register.is_set:
            self.finding(
                "uninitialised-read", f"{what} is a register without value", UninitialisedReadError
            )
        if register.lacks is not None:
            flags, why = register.lacks
            self.step(require_turn, flags, f"{self.name}: {what} {why}", self.location)

    def on(
        self,
        requested: Any,
        allowed: Sequence[Engine] | None = None,
        default: Engine | None = None,
    ) -> Engine:
        """Choose the engine: `requested`; for unknown or None `default`, else the first allowed.
        `allowed` are those of the declaration that these operands leave.
        """
        allowed = allowed or self.spec.engines
        if requested is None or requested is Engine.unknown:
            self.engine = default or allowed[0]
        else:
            if requested not in allowed:
                names = ", ".join(engine.name for engine in allowed)
                self.finding(
                    "engine", f"engine {requested} cannot run it here; choose one of {names}"
                )
            self.engine = requested
        return self.engine

    def check(
        self,
        tensor: Any,
        operand: str,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
    ) -> NkiTensor:
        """Validate buffer, dtype and partition placement of an operand."""
        if not isinstance(tensor, NkiTensor):
            self.illegal(f"{operand} must be a tensor, not {type(tensor).__name__}")
        storage = tensor.storage
        if storage.buffer not in buffers:
            names = ", ".join(region.value for region in buffers)
            self.finding("buffer", f"{operand} is in {storage.buffer.value}; it must be in {names}")
        if dtypes is not None and tensor.dtype not in dtypes:
            self.finding(
                "dtype", f"{operand} is {tensor.dtype}; it must be one of {', '.join(dtypes)}"
            )
        if tensor.indirection is not None:
            self._check_indirection(tensor.indirection, operand)
        if storage.is_on_chip and (
            tensor.offset
            or storage.start_partition
            or tensor.shape[0] > 128
            or tensor.strides[0] != storage.pitch
        ):
            self._check_partitions(tensor, operand)
        return tensor

    def _check_indirection(self, indirect: Indirect, operand: str) -> None:
        if indirect.is_vector and self.engine is not Engine.dma:
            self.illegal(f"{operand} has a vector offset, which only DMA instructions take")
        if indirect.base is not None:
            check_tensor_indirect(self, operand)

    def _check_partitions(self, tensor: NkiTensor, operand: str) -> None:
        # Partition access rules (SDK/nki/guides/architecture/trainium_inferentia2_arch.rst): 128
        # at most; more than 64 start at 0, 33 to 64 at 0 or 64, up to 32 at a multiple of 32.
        count, start = tensor.shape[0], tensor.start_partition
        if count > 1 and tensor.strides[0] != tensor.pitch:
            self._check_stride(tensor, operand)
        if self.engine is Engine.dma:
            return
        if count > 128:
            self.finding("partitions", f"{operand} has {count} partitions; the maximum is 128")
        step = 32 if count <= 32 else 64 if count <= 64 else 128
        if start % step:
            self.finding(
                "start-partition",
                f"{operand} starts at partition {start} with {count} partitions; "
                f"the start must be a multiple of {step}",
            )

    def _check_stride(self, tensor: NkiTensor, operand: str) -> None:
        """Partitions are contiguous. NkiTensor.slice takes a step in any dimension, and queues of
        DMA may read what it gives; engines have a start and a count of partitions alone. A core of
        GpSimd has 16, of which nonzero_with_count takes the first.
        """
        step = tensor.strides[0] // tensor.pitch
        if step == _CORE and self.engine is Engine.gpsimd:
            return
        what = f"{operand} steps over partitions by {step}; they are contiguous"
        if self.engine is Engine.dma:
            self.finding(
                DISPUTED_LEGALITY,
                f"{what} by SDK/nki/deep-dives/nki-aps.rst, and NkiTensor.slice takes any step by "
                "SDK/nki/api/nki/language/__init__.py; a copy through HBM is right by both",
            )
        else:
            self.finding(
                "partition-stride",
                f"{what} (SDK/nki/deep-dives/nki-aps.rst); bring them together through HBM",
            )
