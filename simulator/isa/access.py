"""How an instruction gets at its operands: as stored or as float32, read, written, updated.

All reads come first, then writes: a destination that overlaps what was read goes through scratch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from trnx.simulator.errors import AllocationOverlapError, UninitialisedReadError
from trnx.simulator.isa.indirect import load_scalar_indirect, store_scalar_indirect
from trnx.simulator.isa.legality import Legality
from trnx.simulator.isa.skips import hand_on
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.language.tensor_view import has_overlap
from trnx.simulator.memory.dtype_conversion import append_load_f32, append_store_f32
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import ON_CHIP, MemoryRegion, Step
from trnx.simulator.memory.views import reshape_strides


class Access(Legality):
    """Views of operands for the steps, and the record of which were read and written."""

    __slots__ = ()

    def read(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
    ) -> torch.Tensor:
        """The operand's elements as stored (raw bits of its torch dtype), as a strided view.

        Where `shape` is not expressible on its strides, the view is a scratch copy.
        """
        checked = self.check(tensor, operand, buffers, dtypes)
        if checked.indirection is not None:
            loaded = load_scalar_indirect(self, checked, operand)
            self._require_size(checked, operand, shape or checked.shape)
            return loaded.view(tuple(shape or checked.shape))
        self.require_written(checked, operand)
        self.operands.append((checked, False))
        wanted = checked.shape if shape is None else tuple(shape)
        view = self._direct_view(checked, operand, wanted)
        if view is None:
            copy = self.scratch(checked.shape, checked.dtype.torch)
            self.step(copy.copy_, self._whole_view(checked))
            return copy.view(wanted)
        return view

    def read_f32(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
    ) -> torch.Tensor:
        """The operand as float32: the view itself for float32, else an upcast in scratch."""
        view = self.read(tensor, operand, shape=shape, buffers=buffers, dtypes=dtypes)
        if view.dtype is torch.float32 and tensor.dtype != "tfloat32":
            return view
        copy = self.scratch(view.shape, torch.float32)
        append_load_f32(self.steps, tensor.dtype, view, copy)
        return copy

    def scalar_f32(self, value: Any, operand: str, like: NkiTensor) -> float | torch.Tensor:
        """A scalar operand: a Python number, or one float32 per partition as [P, 1, ...] (rank of
        `like`).
        """
        if not isinstance(value, NkiTensor):
            if isinstance(value, bool | int | float):
                return value
            self.illegal(f"{operand} must be a number or a tensor [partitions, 1], not {value!r}")
        if value.size != value.shape[0] or value.shape[0] != like.shape[0]:
            self.illegal(
                f"{operand} has shape {value.shape}; expected ({like.shape[0]}, 1), "
                "one value per partition"
            )
        return self.read_f32(value, operand, shape=(value.shape[0],) + (1,) * (like.ndim - 1))

    def require_written(self, tensor: NkiTensor, operand: str) -> None:
        """Every element that is read must have been written."""
        initialised = self._recorder.initialised
        if initialised.covers(tensor):
            self.required.append(tensor)
            return
        self.is_repeatable = False
        skipped = initialised.skipped(tensor)
        if skipped is not None:
            hand_on(self, skipped, operand, tensor)
            if not bool(initialised.unwritten(tensor).any()):
                return
        lost_to = initialised.lost_to(tensor)
        if lost_to is not None:
            other, where = lost_to
            self.finding(
                "address-overlap",
                f"{operand} ({tensor.describe()}) was overwritten at {where} by {other}, which has "
                "the same address; use the tensors one after the other or move one",
                AllocationOverlapError,
            )
            return
        finding = initialised.undefined(tensor) or UninitialisedReadError(
            "uninitialised-read",
            f"{self.name}: {operand} ({tensor.describe()}) has elements that nothing has written; "
            "write them first (nisa.memset, or a copy of the whole region)"
            f"{self._by_others(tensor)}",
            self.location,
        )
        missing = initialised.missing(self.propagation, operand, tensor)
        if missing is None:
            self._recorder.findings.report(finding)
        else:
            self.missing.append((missing, operand, finding))

    def _by_others(self, tensor: NkiTensor) -> str:
        """Of what several programs write: how to wait for them."""
        is_shared = tensor.storage.region is MemoryRegion.shared_hbm
        if not is_shared or math.prod(self._recorder.grid) == 1:
            return ""
        return "; if another program of the launch writes them, meet it first (nisa.core_barrier)"

    def _direct_view(
        self, tensor: NkiTensor, operand: str, wanted: tuple[int, ...]
    ) -> torch.Tensor | None:
        """The operand in the wanted shape; None where only a copy has it."""
        if wanted == tensor.shape:
            view, strides = tensor.torch_view(), tensor.strides
        else:
            self._require_size(tensor, operand, wanted)
            found = reshape_strides(tensor.shape, tensor.strides, wanted)
            if found is None or not tensor.storage.has_view(tensor.dtype, wanted, found):
                return None
            view, strides = tensor.storage.view(tensor.dtype, wanted, found, tensor.offset), found
        self.views.append((view, tensor, wanted, strides))
        return view

    def _whole_view(self, tensor: NkiTensor) -> torch.Tensor:
        """The operand in its own shape."""
        view = tensor.torch_view()
        self.views.append((view, tensor, tensor.shape, tensor.strides))
        return view

    def _require_size(self, tensor: NkiTensor, operand: str, wanted: Sequence[int]) -> None:
        size = math.prod(wanted)
        if size != tensor.size:
            self.illegal(
                f"{operand} has shape {tensor.shape}, {tensor.size} elements; "
                f"expected as many as {tuple(wanted)}, {size}"
            )

    def write(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
        elementwise: bool = True,
    ) -> torch.Tensor:
        """The destination as stored, to be written completely by the steps.

        It is the strided view itself unless it overlaps an operand that was read: exactly the same
        elements in the same order are fine for `elementwise` semantics, any other overlap goes
        through scratch, as hardware reads before it writes.
        """
        checked = self.check(tensor, operand, buffers, dtypes)
        if checked.indirection is not None:
            self._require_size(checked, operand, shape or checked.shape)
            stored = store_scalar_indirect(self, checked, operand)
            return stored.view(tuple(shape or checked.shape))
        if checked.form.is_broadcast and self.spec.discards:
            return self._discarded(checked, wanted=checked.shape if shape is None else tuple(shape))
        self._add_destination(checked, operand)
        wanted = checked.shape if shape is None else tuple(shape)
        view = self._direct_view(checked, operand, wanted)
        if view is not None and not self._must_buffer(checked, elementwise):
            return view
        copy = self.scratch(wanted, checked.dtype.torch)
        target = self._whole_view(checked)
        self._finish.append(functools.partial(target.copy_, copy.view(checked.shape)))
        return copy

    def _discarded(self, tensor: NkiTensor, wanted: tuple[int, ...]) -> torch.Tensor:
        """A destination where elements overwrite each other, as kernels have it that want the
        reduction alone: the last element of each place stays.
        """
        last = tuple(slice(-1, None) if step == 0 else slice(None) for step in tensor.strides)
        self.operands.append((tensor, True))
        self.writes.append(tensor)
        copy = self.scratch(wanted, tensor.dtype.torch)
        kept = copy.view(tensor.shape)[last]
        self._finish.append(functools.partial(tensor.torch_view()[last].copy_, kept))
        return copy

    def _add_destination(self, tensor: NkiTensor, operand: str) -> None:
        if tensor.form.is_broadcast:
            self.illegal(
                f"{operand} is a broadcast view; several elements would write one location"
            )
        if tensor.storage.constant:
            self.illegal(f"{operand} is a constant, which cannot be written")
        self.operands.append((tensor, True))
        self.writes.append(tensor)

    def _must_buffer(self, tensor: NkiTensor, elementwise: bool) -> bool:
        storage = tensor.storage
        for other, is_write in self.operands:
            if (
                other.storage is storage
                and not is_write
                and has_overlap(other, tensor)
                and not (elementwise and other.same_elements(tensor))
            ):
                return True
        return False

    def write_f32(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
        elementwise: bool = True,
        exact: bool = False,
    ) -> torch.Tensor:
        """A float32 destination that is rounded once into `tensor` after the steps.

        Integer destinations round to nearest even and saturate, unless `exact` promises values that
        the destination type holds (comparison results).
        """
        target = self.write(
            tensor, operand, shape=shape, buffers=buffers, dtypes=dtypes, elementwise=elementwise
        )
        if target.dtype is torch.float32 and tensor.dtype != "tfloat32":
            return target
        value = self.scratch(target.shape, torch.float32)
        # Before the copy out of scratch that `write` may have queued for this destination.
        rounding: list[Step] = []
        append_store_f32(rounding, tensor.dtype, value, target, exact)
        self._finish[:0] = rounding
        return value

    def update(
        self, tensor: Any, operand: str, *, buffers: Sequence[MemoryRegion] = ON_CHIP
    ) -> torch.Tensor:
        """A read-modify-write operand as stored: elements that the steps do not write stay."""
        checked = self._direct_destination(tensor, operand, buffers)
        self.keeps = True
        self.require_written(checked, operand)
        return self._whole_view(checked)

    def update_where(self, tensor: Any, predicate: NkiTensor, is_reversed: bool) -> torch.Tensor:
        """`update` of a destination that is written where a predicate says so."""
        if isinstance(tensor, NkiTensor) and not self._recorder.initialised.covers(tensor):
            self.is_repeatable = False
            if self._recorder.initialised.completes(tensor, predicate, is_reversed):
                return self.overwrite_some(tensor, "dst")
        return self.update(tensor, "dst")

    def overwrite_some(
        self, tensor: Any, operand: str, *, buffers: Sequence[MemoryRegion] = ON_CHIP
    ) -> torch.Tensor:
        """A destination of which values decide what is written; all of it counts as written."""
        self.keeps = True
        return self._whole_view(self._direct_destination(tensor, operand, buffers))

    def _direct_destination(
        self, tensor: Any, operand: str, buffers: Sequence[MemoryRegion]
    ) -> NkiTensor:
        checked = self.check(tensor, operand, buffers)
        self._add_destination(checked, operand)
        if checked.indirection is not None:
            self.illegal(f"{operand} cannot have a dynamic address")
        return checked

    def first_read(self) -> NkiTensor | None:
        """The operand that was read first, indices apart."""
        read = [tensor for tensor, is_write in self.operands if not is_write]
        indices = [tensor.indirection.index for tensor in read if tensor.indirection is not None]
        return next((tensor for tensor in read if not any(tensor is i for i in indices)), None)

    def reads(self, tensor: NkiTensor) -> None:
        """Record an operand that is read at addresses which only values decide."""
        self.operands.append((tensor, False))

    def writes_some(self, tensor: NkiTensor) -> None:
        """Record an operand that is written at addresses which only values decide."""
        if tensor.storage.constant:
            self.illegal("a constant cannot be written")
        self.keeps = True
        self.operands.append((tensor, True))
        self.writes.append(tensor)
