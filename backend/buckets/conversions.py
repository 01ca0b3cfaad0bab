"""Tensors from exact sizes to those of a bucket, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from trnx.simulator.memory.tensor_spec import TensorSpec

Numbers = Sequence[int | float]


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


def padder(spec: TensorSpec) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes of an exact tensor the one of `spec`: its first elements along each dimension are those
    of the tensor, all others 0; dimensions of stride 0 repeat."""
    _check(spec)
    once = [1 if step == 0 else size for size, step in zip(spec.shape, spec.strides, strict=True)]

    def pad(value: torch.Tensor) -> torch.Tensor:
        if value.shape == spec.shape and value.stride() == spec.strides:
            return value
        made = torch.empty_strided(once, spec.strides, dtype=spec.dtype, device="cpu")
        good = made
        if value.shape != spec.shape:
            made.zero_()
        for dim, size in enumerate(once):
            if size != value.shape[dim]:
                length = 1 if spec.strides[dim] == 0 else value.shape[dim]
                good, value = good.narrow(dim, 0, length), value.narrow(dim, 0, length)
        good.copy_(value)
        return made.expand(spec.shape)

    return pad


class Cutter:
    """Makes of a padded tensor the exact one, in memory of its own.

    `sizes` are the padded sizes of each dimension (outermost first), `exact` where their exact ones
    are in the numbers of a call; `shape` and `strides` say the same of the exact tensor.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[int]],
        exact: Sequence[Sequence[int]],
        shape: Sequence[int],
        strides: Sequence[int],
    ) -> None:
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
        for dim, step in enumerate(strides):
            if step == 0 and shape[dim] > 1:  # its places repeat one
                into, good = into.narrow(dim, 0, 1), good.narrow(dim, 0, 1)
            else:
                padded += self._sizes[dim]
                exact += [int(numbers[i]) for i in self._exact[dim]]
        good, into = _viewed(good, padded), _viewed(into, exact)
        for dim, size in enumerate(exact):
            if good.shape[dim] != size:
                good = good.narrow(dim, 0, size)
        into.copy_(good)
        return made


def _viewed(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return value if list(value.shape) == shape else value.view(shape)


def clear(value: torch.Tensor, numbers: Numbers, dims: Sequence[tuple[int, int]]) -> torch.Tensor:
    """`value` with zeros in its padding along dimensions, each with the place of its exact size."""
    for dim, index in dims:
        start = int(numbers[index])
        if start < value.shape[dim]:
            value.narrow(dim, start, value.shape[dim] - start).zero_()
    return value
