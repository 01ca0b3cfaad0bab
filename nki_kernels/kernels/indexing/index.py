"""`index`: elements of x at the indices of up to six tensors, `x[i, :, j]`.

The index tensors broadcast against each other; dimensions without one are taken whole. Indices are
int32 or int64, and count from the end where they are negative; one outside of its dimension is an
error, as in eager. A bool mask is refused: how many elements it leaves depends on data. x: floats,
integers and bools, whose bytes are copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.kernels._copies import meta
from trnx.nki_kernels.kernels._patterns import pattern_of
from trnx.nki_kernels.kernels.indexing._gather_kernels import gather_rows_kernel
from trnx.nki_kernels.kernels.indexing._launch import launch_gather
from trnx.nki_kernels.kernels.indexing._terms import (
    axes_of_index,
    reject_index,
    reject_values,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

aten = torch.ops.aten
_NAMES = tuple(f"i{n}" for n in range(6))


def _pattern(count: int) -> Pattern:
    """A list of `count` index tensors or Nones; the others are None."""

    def function(*values: Any) -> Any:
        return aten.index.Tensor(values[0], list(values[1:]))

    kinds = dict.fromkeys(_NAMES[:count], torch.Tensor | None)
    return pattern_of(function, ("x", *_NAMES[:count]), kinds, _NAMES[count:])


def reference(x: torch.Tensor, **indices: torch.Tensor | None) -> torch.Tensor:
    """x[i0, i1, ...]; None takes a dimension whole."""
    found: torch.Tensor = aten.index.Tensor(x, _trimmed([indices[name] for name in _NAMES]))
    return found


def _trimmed(indices: list[Any]) -> list[Any]:
    while indices and indices[-1] is None:
        indices = indices[:-1]
    return indices


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if reject := reject_values(b, "x"):
        return reject
    for dim, name in enumerate(_NAMES):
        if b[name] is None:
            continue
        if reject := reject_index(name, b[name], b.x.shape[dim]):
            return reject
        if b[name].numel == 0:
            return Reject(f"{name}{b[name].shape} has no elements")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The rows that are gathered, and where each index tensor is read."""
    del hw
    axes, indices = axes_of_index(b.x, [b[name] for name in _NAMES])
    return launch_gather(b, "x", _NAMES, axes, indices, _result(b))


def _result(b: Bindings) -> torch.Tensor:
    return reference(**{name: meta(v) if isinstance(v, TensorSpec) else v for name, v in b.items()})


def cost(b: Bindings) -> Cost:
    """The indices are read once, what they name is read and written."""
    result = TensorSpec.of(_result(b))
    read = sum(b[name].nbytes for name in _NAMES if b[name] is not None)
    return Cost(hbm_bytes=read + 2 * result.nbytes)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """One and several index tensors at every place, broadcasts, negative indices, dtypes."""

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).mul(9).to(dtype)

    def at(size: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(-size, size, shape, generator=generator).to(dtype)

    def sample(note: str, x: torch.Tensor, *indices: torch.Tensor | None) -> Sample:
        named = dict.fromkeys(_NAMES) | dict(zip(_NAMES, indices, strict=False))
        return Sample({"x": x, **named}, note)

    for count in (1, 2, 127, 128, 129, 513):
        yield sample(f"{count} rows", draw(50, 24), at(50, count))
        yield sample(f"{count} of the second dimension", draw(3, 50, 7), None, at(50, count))
    yield sample("a token of each sequence", draw(5, 9, 70), torch.arange(5), at(9, 5))
    yield sample("pairs", draw(40, 30), at(40, 300), at(30, 300))
    yield sample("a mask of positions", draw(4, 60) > 0, at(4, 4, 1, 1, 1), at(60, 60))
    yield sample("apart", draw(6, 5, 7), at(6, 3, 1), None, at(7, 4))
    yield sample("the last two", draw(6, 5, 7), None, at(5, 3, 1), at(7, 4))
    yield sample("all four", draw(3, 4, 5, 6), at(3, 9), at(4, 9), at(5, 2, 1), at(6, 1))
    yield sample("images", draw(2, 3, 6, 7), None, None, at(6, 5, 1), at(7, 8))
    yield sample("no dimensions", draw(6, 5), at(6))
    yield sample("int32", draw(50, 24), at(50, 130, dtype=torch.int32))
    yield sample("a transposed index", draw(50, 3), at(50, 7, 40).t())
    yield sample("an expanded index", draw(50, 3), at(50, 7, 1).expand(7, 40))
    yield sample("wide rows", draw(7, 9000), at(7, 5))
    for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", draw(50, 24, dtype=dtype), at(50, 130))


register(
    KernelSpec(
        name="index",
        patterns=tuple(_pattern(count) for count in range(1, len(_NAMES) + 1)),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=gather_rows_kernel,
        launch=launch,
        strided=frozenset(_NAMES),
    )
)
