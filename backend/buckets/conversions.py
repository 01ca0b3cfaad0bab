"""Tensors from exact sizes to those of a bucket, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from trnx.fx_passes.padding.layouts import Fill
from trnx.simulator.memory.tensor_spec import TensorSpec

Numbers = Sequence[int | float]
# The padded sizes of a dimension's parts, and where their exact ones are in the numbers of a call.
Parts = tuple[tuple[int, ...], tuple[int, ...]]


class CannotPadError(Exception):
    """The strides of a value cannot be had for the sizes of a bucket; the caller runs exact sizes,
    and users never see it."""


def _check(spec: TensorSpec) -> None:
    """Raises CannotPadError where two places are one element, but along dimensions of stride 0."""
    steps = zip(spec.shape, spec.strides, strict=True)
    reach = 0
    for step, size in sorted((step, size) for size, step in steps if step and size > 1):
        if step <= reach:
            raise CannotPadError(f"{spec} overlaps itself")
        reach += step * (size - 1)


def _runs(parts: Parts, numbers: Numbers) -> Iterator[tuple[int, int, int]]:
    """Where each part starts in the padded and in the exact dimension, and its exact size."""
    padded_start = start = 0
    for padded, place in zip(*parts, strict=True):
        size = int(numbers[place])
        yield padded_start, start, size
        padded_start, start = padded_start + padded, start + size


def _paired(
    padded: torch.Tensor, exact: torch.Tensor, parts: Mapping[int, Parts], numbers: Numbers
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Views of the good elements of both; the first ones along dimensions without parts."""
    pairs = [(padded, exact)]
    for dim, size in enumerate(exact.shape):
        if dim in parts:
            runs = list(_runs(parts[dim], numbers))
        elif padded.shape[dim] != size:
            runs = [(0, 0, size)]
        else:
            continue
        pairs = [
            (a.narrow(dim, place, size), b.narrow(dim, start, size))
            for a, b in pairs
            for place, start, size in runs
        ]
    yield from pairs


def padder(
    spec: TensorSpec, parts: Mapping[int, Parts] | None = None, fill: float = 0
) -> Callable[..., torch.Tensor]:
    """Makes of an exact tensor, and the numbers of the call, the one of `spec`: its first elements
    along each dimension, or those of each of its parts, are those of the tensor, all others `fill`;
    dimensions of stride 0 repeat."""
    _check(spec)
    once = [1 if step == 0 else size for size, step in zip(spec.shape, spec.strides, strict=True)]
    apart = {dim: one for dim, one in (parts or {}).items() if spec.strides[dim] != 0}

    def pad(value: torch.Tensor, numbers: Numbers = ()) -> torch.Tensor:
        if value.shape == spec.shape and value.stride() == spec.strides:
            return value
        made = torch.empty_strided(once, spec.strides, dtype=spec.dtype, device="cpu")
        if value.shape != spec.shape:
            made.fill_(fill)
        for dim, step in enumerate(spec.strides):
            if step == 0:
                value = value.narrow(dim, 0, 1)
        for into, good in _paired(made, value, apart, numbers):
            into.copy_(good)
        return made.expand(spec.shape)

    return pad


class Cutter:
    """Makes of a padded tensor the exact one, in memory of its own.

    `sizes` are the padded sizes of each dimension (outermost first), `exact` where their exact ones
    are in the numbers of a call; `shape` and `strides` say the same of the exact tensor. `parts`
    are those of the sizes that have some, by dimension and place in it.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[int]],
        exact: Sequence[Sequence[int]],
        shape: Sequence[int],
        strides: Sequence[int],
        parts: Mapping[int, Mapping[int, Parts]] | None = None,
    ) -> None:
        self._parts = dict(parts or {})
        self._sizes = [list(axis) for axis in sizes]
        self._exact = [list(axis) for axis in exact]
        self._shape = list(shape)
        self._strides = list(strides)

    def __call__(self, value: torch.Tensor, numbers: Numbers) -> torch.Tensor:
        shape = [int(numbers[i]) for i in self._shape]
        strides = [int(numbers[i]) for i in self._strides]
        made = torch.empty_strided(shape, strides, dtype=value.dtype, device="cpu")
        into, good = made, value
        padded: list[int] = []
        exact: list[int] = []
        apart: dict[int, Parts] = {}
        for dim, step in enumerate(strides):
            if step == 0 and shape[dim] > 1:  # its places repeat one
                into, good = into.narrow(dim, 0, 1), good.narrow(dim, 0, 1)
            else:
                apart |= {len(padded) + i: one for i, one in self._parts.get(dim, {}).items()}
                padded += self._sizes[dim]
                exact += [int(numbers[i]) for i in self._exact[dim]]
        good, into = _viewed(good, padded), _viewed(into, exact)
        for source, target in _paired(good, into, apart, numbers):
            target.copy_(source)
        return made


def _viewed(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return value if list(value.shape) == shape else value.view(shape)


def fill_padding(
    value: torch.Tensor, numbers: Numbers, fills: Sequence[tuple[int, int, Fill]]
) -> torch.Tensor:
    """`value` after its padding was written: dimensions, each with the place of its exact size and
    what its padding gets."""
    for dim, index, fill in fills:
        start = int(numbers[index])
        if start < value.shape[dim]:
            value.narrow(dim, start, value.shape[dim] - start).fill_(fill)
    return value


def places(index: torch.Tensor, numbers: Numbers, size_place: int, dim: int) -> torch.Tensor:
    """An index along dimension `dim`, of the size at `size_place` in the numbers of the call, with
    negative ones counted from the front. Raises eager's IndexError for one beyond the ends."""
    if not index.numel():
        return index
    low, high = (int(one) for one in torch.aminmax(index))
    size = int(numbers[size_place])
    if low < -size or high >= size:
        at: tuple[Any, ...] = (*[slice(None)] * dim, index)
        torch.empty([1] * dim + [size], dtype=torch.bool, device="cpu")[at]
    return index if low >= 0 else torch.where(index < 0, index + size, index)
