"""Tensors between PyTorch and JAX on the CPU: memory is shared wherever XLA can read it.

XLA reads row-major buffers that start at a multiple of 64 bytes. A tensor that is dense in another
order of its dimensions is handed over permuted (the region transposes it back); any other tensor is
copied first. Because memory is shared, a region waits for XLA before it returns: after that PyTorch
may write.

A tensor goes in as a NumPy array of the same memory, which JAX takes ten times faster than it makes
an array of its own. A tensor that comes twice running (a parameter) gets such an array
of its own, by DLPack, which is reused while the tensor object lives and its storage, shape and
strides are the same; writes in place are seen, since the memory is the same. A copy is never
reused: a write to the original, which no version counter betrays when it goes through `.data`,
would leave it stale. An array is dropped with its tensor, so it prolongs no lifetime.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import torch
from torch.utils import dlpack

from trnx.fallback.aten_to_jax.dtypes import JAX_DTYPES
from trnx.fallback.settings import own_settings
from trnx.simulator.memory.host_memory import is_plain, plain

ALIGNMENT = 64
_CPU_DEVICE = (1, 0)  # DLPack's number for the CPU, and the device's index


class _Capsule:
    """What `from_dlpack` of JAX and NumPy asks for, without the checks of `Tensor.__dlpack__`."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return dlpack.to_dlpack(self._tensor)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU_DEVICE


def shareable(tensor: torch.Tensor) -> bool:
    """Whether XLA can read the tensor where it lies."""
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0 and is_plain(tensor)


def to_numpy(tensor: torch.Tensor) -> Any:
    """A NumPy array on the memory of a detached tensor, or of its row-major copy.

    JAX copies it once more where it is not aligned. Needs 64-bit types enabled around the call of
    the program (`jax.enable_x64`).
    """
    if not tensor.is_contiguous() or tensor.is_neg():
        tensor = plain(tensor).contiguous()
    # Not `tensor.numpy()`: after it nobody can resize the storage (FSDP frees and restores it).
    if tensor.dtype is torch.bfloat16:  # NumPy's own types lack it
        held = np.from_dlpack(_Capsule(tensor.view(torch.int16)))
        return held.view(JAX_DTYPES[torch.bfloat16])
    return np.from_dlpack(_Capsule(tensor))


def _import(tensor: torch.Tensor) -> Any:
    """A JAX array on the tensor's memory, made in a thread of its own.

    A JAX array keeps the code of the frames that it was made in. Dynamo keeps what it compiled as
    long as the code that calls it, and that keeps the array: a cycle that no collector sees.
    """

    def make() -> Any:
        with own_settings():
            return jax.dlpack.from_dlpack(_Capsule(tensor))

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(make).result()


class InputSlot:
    """One tensor input of a region, with the array of the tensor that was there twice running.

    `order` is the order of dimensions (slowest first) in which the region expects the tensor.
    """

    __slots__ = ("__weakref__", "_cached", "_order", "_seen")

    def __init__(self, order: Sequence[int] | None) -> None:
        self._order = tuple(order) if order is not None else None
        self._seen: weakref.ref[torch.Tensor] | None = None
        self._cached: tuple[Any, int, Any, Any, Any, Any] | None = None

    def array(self, tensor: torch.Tensor) -> Any:
        """What to call the program with. Safe under threads: the cache is one reference."""
        cached = self._cached
        if cached is not None:
            reference, address, strides, shape, dtype, array = cached
            if (
                reference() is tensor
                and tensor.data_ptr() == address
                and tensor.stride() == strides
                and tensor.shape == shape
                and tensor.dtype is dtype
            ):
                return array
        # An alias: the array must hold the storage, but not keep the tensor's own object alive.
        ordered = tensor.detach()
        if self._order is not None:
            ordered = ordered.permute(self._order)
        seen = self._seen
        if seen is not None and seen() is tensor and shareable(ordered):
            return self._remember(tensor, _import(ordered))
        self._seen = weakref.ref(tensor)
        return to_numpy(ordered)

    def _remember(self, tensor: torch.Tensor, array: Any) -> Any:
        slot = weakref.ref(self)

        def forget(reference: weakref.ref[torch.Tensor]) -> None:
            this = slot()
            if this is not None and this._cached is not None and this._cached[0] is reference:
                this._cached = None

        reference = weakref.ref(tensor, forget)
        self._cached = (
            reference,
            tensor.data_ptr(),
            tensor.stride(),
            tensor.shape,
            tensor.dtype,
            array,
        )
        return array


class OutputSlot:
    """One output of a region: XLA's row-major buffer as a tensor with the strides promised.

    The region hands the dimensions over in `order`, and dimensions of stride 0 with size 1.
    """

    __slots__ = ("_fits", "_order", "_plain", "_shape", "_strides")

    def __init__(self, shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self._strides = tuple(strides)
        self._order = tuple(order)
        self._fits = 0 in self._shape or self._fills_memory()
        dense = torch.empty(self._shape, device="meta").stride()
        # from_dlpack gives empty tensors strides of its own.
        self._plain = dense == self._strides and 0 not in self._shape

    def _fills_memory(self) -> bool:
        """Whether the strides are those of XLA's buffer: no gaps, no overlap but by stride 0."""
        step = 1
        for dim in reversed(self._order):
            size, stride = self._shape[dim], self._strides[dim]
            if size > 1 and stride:
                if stride != step:
                    return False
                step *= size
        return True

    def tensor(self, array: Any, *, copy: bool = False) -> torch.Tensor:
        """The tensor, on XLA's memory unless `copy` is set or its strides have gaps."""
        # A capsule: from_dlpack spends as long again on negotiating with the array itself.
        value = dlpack.from_dlpack(array.__dlpack__())
        if copy:
            value = value.clone()
        if self._plain:
            return value
        if self._fits:
            return value.as_strided(self._shape, self._strides)
        result = torch.empty_strided(self._shape, self._strides, dtype=value.dtype)
        window = result
        for dim, stride in enumerate(self._strides):
            if stride == 0 and self._shape[dim] > 1:
                window = window.narrow(dim, 0, 1)
        window.permute(self._order).copy_(value)
        return result
