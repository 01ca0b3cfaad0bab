"""Inputs for the checks of a kernel: its samples, and what follows from them.

From the smallest sample of each kind (ranks and missing tensors) are made: every size as 1, 127,
128, 129 and as a large one, other floating dtypes, small values, other strides for the bindings
that may have them, and other numbers for the bindings that are numbers. A case that the pattern
itself refuses in eager, or that its guard refuses, says nothing about the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trnx.nki_kernels.spec import KernelSpec, Sample

SEED = 20
EDGES = (1, 127, 128, 129)
LARGE = (4096, 32768)
# Elements of a large tensor: more would trace for minutes.
_MOST_ELEMENTS = 1 << 24
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Values that move the result by rounding alone stay the same; a number beside them does not.
_SMALL = 2.0**-10
# Masks are written with numbers as large as this.
_INFINITE = 1e4


@dataclass(frozen=True, eq=False)
class Case:
    """Values of the bindings; tensors may be on `meta`, where the kernel is only traced.

    `check` is what the case tries out, `note` says how it differs from the sample. `error` is the
    sample's (`trnx.nki_kernels.spec.Sample`), for these sizes. `binding` is the one that differs.
    """

    check: str
    note: str
    values: Mapping[str, Any]
    error: float = 0.0
    binding: str = ""

    @property
    def sizes(self) -> str:
        """The tensors, for a message: `x[129, 64] bfloat16`."""
        parts = []
        for name, value in self.values.items():
            if isinstance(value, torch.Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                parts.append(f"{name}{list(value.shape)} {dtype}")
        return ", ".join(parts)


def cases_of(spec: KernelSpec, samples: Iterable[Sample]) -> Iterator[Case]:
    """The samples, then what is derived of the smallest ones."""
    given = list(samples)
    for index, sample in enumerate(given):
        note = f"sample {sample.note or index}"
        yield Case("samples", note, sample.values, sample.error)
    smallest: dict[Any, Sample] = {}
    for sample in sorted(given, key=lambda one: _numel(one.values)):
        smallest.setdefault(_kind(sample.values), sample)
    for sample in smallest.values():
        yield from _small_values(sample)
        yield from _edges(sample)
        yield from _dtypes(sample)
        yield from _strides(sample, spec.strided)
        yield from _numbers(sample)
        yield from _ranks(sample)
        yield from _large(sample)


def is_dim(value: Any) -> bool:
    """Whether a binding may be a dim: an integer, or a list of one."""
    if isinstance(value, (list, tuple)):
        return len(value) == 1 and is_dim(value[0])
    return isinstance(value, int) and not isinstance(value, bool)


def like_dim(value: Any, dim: int) -> Any:
    """`dim` in the form of the binding `value`."""
    return type(value)([dim]) if isinstance(value, (list, tuple)) else dim


def tensors_of(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The bindings that are tensors."""
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def magnitude(values: Mapping[str, Any]) -> float:
    """The largest absolute value of the floating tensors that is no stand-in for infinity."""
    sizes = [
        t.detach().double().abs() for t in tensors_of(values).values() if t.is_floating_point()
    ]
    kept = [size[size < _INFINITE] for size in sizes]
    return max((size.max().item() for size in kept if size.numel()), default=0.0)


def _numel(values: Mapping[str, Any]) -> int:
    return sum(tensor.numel() for tensor in tensors_of(values).values())


def _kind(values: Mapping[str, Any]) -> Any:
    """Equal for samples that differ in sizes, dtypes and numbers alone."""
    return tuple(
        (name, value.ndim if isinstance(value, torch.Tensor) else value is None)
        for name, value in sorted(values.items())
    )


def _sizes(values: Mapping[str, Any]) -> list[int]:
    found = {size for tensor in tensors_of(values).values() for size in tensor.shape}
    return sorted(size for size in found if size > 1)


def _resized(values: Mapping[str, Any], old: int, new: int) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(new if size == old else size for size in tensor.shape)
        for name, tensor in tensors_of(values).items()
    }


def _with_size_in_lists(value: Any, old: int, new: int) -> Any:
    """Lists of sizes (`normalized_shape`) follow the tensors."""
    if isinstance(value, (list, tuple)):
        return type(value)(new if item == old else item for item in value)
    return value


def _edges(sample: Sample) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(SEED)
    for old in _sizes(sample.values):
        for new in EDGES:
            if new == old:
                continue
            values = {k: _with_size_in_lists(v, old, new) for k, v in sample.values.items()}
            for name, shape in _resized(sample.values, old, new).items():
                values[name] = drawn(sample.values[name], shape, generator)
            error = sample.error * max(1.0, new / old) ** 2
            yield Case("ragged edges", f"size {old} as {new}", values, error)


def drawn(tensor: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A tensor of another shape whose elements are those of `tensor`, drawn at random."""
    count = math.prod(shape)
    if not tensor.numel():
        return tensor.new_zeros(shape)
    places = torch.randint(tensor.numel(), (count,), generator=generator)
    return tensor.reshape(-1)[places].reshape(shape)


def _dtypes(sample: Sample) -> Iterator[Case]:
    tensors = tensors_of(sample.values)
    floats = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    if not floats:
        return
    main = floats[0]
    for dtype in (*_DTYPES, torch.float64):
        if dtype is main:
            continue
        values = dict(sample.values)
        for name, tensor in tensors.items():
            if tensor.dtype is main:
                values[name] = tensor.to(dtype)
        # Kernels may round what they keep between instructions to the type of their tensors.
        error = max(sample.error, 4 * torch.finfo(dtype).eps * magnitude(sample.values))
        yield Case("dtypes", f"as {dtype}".replace("torch.", ""), values, error)


def _small_values(sample: Sample) -> Iterator[Case]:
    values = dict(sample.values)
    for name, tensor in tensors_of(values).items():
        if tensor.is_floating_point():
            values[name] = tensor * _SMALL
    yield Case("values", "small values", values, sample.error)


def _strides(sample: Sample, strided: frozenset[str]) -> Iterator[Case]:
    for name in sorted(strided):
        tensor = sample.values.get(name)
        if not isinstance(tensor, torch.Tensor) or not tensor.ndim:
            continue
        wide = torch.stack([tensor, tensor + 1 if tensor.dtype.is_floating_point else tensor], -1)
        views = {"every second element": wide[..., 0]}
        if tensor.ndim > 1:
            views["transposed in memory"] = tensor.mT.contiguous().mT
        for note, view in views.items():
            yield Case("strides", f"{name} {note}", {**sample.values, name: view}, sample.error,
                       name)  # fmt: skip


def _numbers(sample: Sample) -> Iterator[Case]:
    ranks = [tensor.ndim for tensor in tensors_of(sample.values).values()]
    for name, value in sample.values.items():
        others: list[Any] = []
        if isinstance(value, bool):
            others = [not value]
        elif is_dim(value):
            dims = [like_dim(value, dim) for dim in range(max(ranks, default=0))]
            others = [dim for dim in dims if dim != value]
        elif isinstance(value, float):
            others = [value * 4096 if value else 0.5]
        for other in others:
            yield Case("numbers", f"{name}={other}", {**sample.values, name: other}, sample.error,
                       name)  # fmt: skip


def _ranks(sample: Sample) -> Iterator[Case]:
    """The tensors with most dimensions, with one more in front."""
    tensors = tensors_of(sample.values)
    most = max((tensor.ndim for tensor in tensors.values()), default=0)
    if not most:
        return
    values = dict(sample.values)
    for name, tensor in tensors.items():
        if tensor.ndim == most:
            values[name] = torch.stack([tensor, tensor])
    yield Case("guard", f"{most + 1} dimensions", values, sample.error)


def _large(sample: Sample) -> Iterator[Case]:
    for old in _sizes(sample.values):
        for new in LARGE:
            shapes = _resized(sample.values, old, new)
            if new <= old or sum(map(math.prod, shapes.values())) > _MOST_ELEMENTS:
                continue
            values = {k: _with_size_in_lists(v, old, new) for k, v in sample.values.items()}
            for name, shape in shapes.items():
                dtype = sample.values[name].dtype
                values[name] = torch.empty(shape, dtype=dtype, device="meta")
            yield Case("capacity", f"size {old} as {new}", values)
