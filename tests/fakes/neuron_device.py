"""A device `neuron` in Python: tensors of PyTorch's PrivateUse1 key over host memory.

Every operator of the device runs on aliases of its tensors in host memory, so that views, writes in
place and autograd are PyTorch's own. As on the device, there is no complex and no float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
HOST = torch.device("cpu")
_HOST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# compiler/error-codes/EVRF004.rst (complex); eager computes float64 in float32 on the device.
_REFUSED = frozenset({torch.complex64, torch.complex128, torch.float64})
# Calls of operators on the device, those within a handed-over graph apart: (op, is in a graph).
calls: list[tuple[str, bool]] = []
in_graph: list[bool] = []


class _Module:
    """`torch.neuron`."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        del seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        del device
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        del state, device

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """An alias of a tensor of the device, in host memory."""
    held = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(held.data_ptr(), HOST, held.nbytes())
    storage.owner = held
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, *place)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the device over the memory of one in host memory, which it keeps alive."""
    _check(tensor)
    held = tensor.untyped_storage()
    device = torch.device("neuron", 0)
    storage = torch._C._construct_storage_from_data_pointer(held.data_ptr(), device, held.nbytes())
    storage.owner = held
    return _set(torch._C._acc.create_empty_tensor([0], tensor.dtype), storage, tensor)


def is_refused(tensor: torch.Tensor) -> bool:
    """Whether the device has no such tensor; numbers may be float64."""
    return tensor.dtype in _REFUSED and (tensor.ndim > 0 or tensor.is_complex())


def _check(tensor: torch.Tensor) -> None:
    if is_refused(tensor):
        raise RuntimeError(f"{tensor.dtype} is not supported on the Neuron device")


def _set(target: torch.Tensor, storage: Any, like: torch.Tensor) -> torch.Tensor:
    place = like.storage_offset(), like.size(), like.stride()
    aten.set_.source_Storage_storage_offset.redispatch(_HOST_KEYS, target, storage, *place)
    return target


class _Call:
    """One call of an operator: its tensors in host memory, and the way back."""

    def __init__(self, op: Any, args: Any, kwargs: Any) -> None:
        self.op = op
        self.given: dict[int, torch.Tensor] = {}  # alias -> tensor of the device
        self.storages: dict[int, Any] = {}
        self.aliases: list[torch.Tensor] = []
        self.args = tree_map(self.down, args)
        self.kwargs = tree_map(self.down, kwargs)

    def down(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return HOST
        if not isinstance(value, torch.Tensor) or value.device.type != "neuron":
            return value
        alias = to_host(value)
        if not alias.numel():
            alias = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
        self.aliases.append(alias)
        self.given[id(alias)] = value
        self.storages[alias.untyped_storage().data_ptr()] = value.untyped_storage()
        return alias

    def up(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = self.given.get(id(value))
        if known is not None:
            return known if known.shape == value.shape else self.resized(known, value)
        storage = self.storages.get(value.untyped_storage().data_ptr()) if value.numel() else None
        if storage is None:
            return to_device(value)
        return _set(torch._C._acc.create_empty_tensor([0], value.dtype), storage, value)

    def resized(self, known: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """An empty `out=` that the operator has given a size."""
        return _set(known, to_device(value).untyped_storage(), value)

    def run(self) -> Any:
        if self.op is aten._copy_from.default:
            self.args[1].copy_(self.args[0])
            return self.given[id(self.args[1])] if id(self.args[1]) in self.given else self.args[1]
        if self.op is aten._local_scalar_dense.default:
            return self.args[0].item()
        return tree_map(self.up, self.op(*self.args, **self.kwargs))


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    calls.append((str(op), bool(in_graph)))
    return _Call(op, args, kwargs).run()


def _convolution(*args: Any) -> Any:
    return _fallback(aten.convolution.default, *args)


def _convolution_backward(*args: Any) -> Any:
    *given, needed = args
    return _fallback(aten.convolution_backward.default, *given[:3], None, *given[3:], needed)


_library = torch.library.Library("_", "IMPL")
_aten = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Make the device `neuron` known to this process, for good."""
    _setup_privateuseone_for_python_backend("neuron", backend_module=_Module())
    # Operators of a device are not Python to Dynamo, which would trace into these.
    _library.fallback(torch.compiler.disable(_fallback), "PrivateUse1")
    # What torch calls for convolutions of a device that is not its own.
    _aten.impl("convolution_overrideable", _convolution, "PrivateUse1")
    _aten.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
