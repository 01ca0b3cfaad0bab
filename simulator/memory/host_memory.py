"""Whether a tensor's memory holds its values: what must be known before anything reads it there.

Some tensors have no memory of their own (wrappers, sparse and nested layouts, `meta`), some have
lost it (`untyped_storage().resize_(0)`), and of some it holds other numbers than the values
(negative and conjugate bits, tensors that are zero without storage).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trnx.simulator.errors import TrnxError
from trnx.simulator.memory.views import last_element


class MemoryReadError(TrnxError, ValueError):
    """A tensor whose values are not in its memory, where a kernel was to find them."""


_WRAPS = "it is a {} that wraps other tensors and has no memory of its own; pass those"


def unreadable(tensor: torch.Tensor) -> str | None:
    """Why the values of `tensor` cannot be had from memory, and what to pass instead; None where
    `plain` gives them.
    """
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _WRAPS.format(type(tensor).__name__)
    if tensor.is_nested:
        return "it is nested; pass a padded tensor (`.to_padded_tensor(0.0)`)"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}; pass a strided tensor (`.to_dense()`)"
    if tensor.device.type != "cpu":
        return f"it is on device {str(tensor.device)!r}; pass one in CPU memory (`.to('cpu')`)"
    if tensor.is_quantized:
        return f"it is quantised ({tensor.dtype}); pass `.dequantize()` or `.int_repr()`"
    try:
        held = tensor.untyped_storage().nbytes()
    except NotImplementedError:  # of torch.func: a batch, a tangent
        return _WRAPS.format(type(tensor).__name__)
    if tensor._is_zerotensor() or not tensor.numel():
        return None
    end = tensor.storage_offset() * tensor.element_size() + span_bytes(tensor)
    if held < end or not tensor.data_ptr():
        return (
            f"its elements end at byte {end} of a storage that has {held} bytes: it was freed or "
            "shrunk (`untyped_storage().resize_`); restore the storage before the call"
        )
    return None


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a strided tensor to the end of the farthest; it has one."""
    return (last_element(tuple(tensor.shape), tensor.stride()) + 1) * tensor.element_size()


def are_apart(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether no output has memory of an input or of another output in it."""
    spans = [
        sorted((one.data_ptr(), one.data_ptr() + span_bytes(one)) for one in tensors if one.numel())
        for tensors in (inputs, outputs)
    ]
    return all(
        end <= other[0] or other[1] <= begin
        for at, (begin, end) in enumerate(spans[1])
        for other in (*spans[0], *spans[1][:at])
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """True where the memory of a readable tensor holds its values as they are."""
    return not (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor())


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A readable tensor itself where it `is_plain`, else a copy with the same strides."""
    if is_plain(tensor):
        return tensor
    held = tensor.detach()
    if not held.numel():
        return torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device="cpu")
    # The memory between the elements too: strides may overlap.
    span = last_element(tuple(held.shape), held.stride()) + 1
    if held._is_zerotensor():
        memory = torch.zeros(span, dtype=held.dtype, device="cpu")
    else:
        memory = held.as_strided((span,), (1,)).resolve_conj().resolve_neg()
    return memory.as_strided(held.shape, held.stride(), 0)
