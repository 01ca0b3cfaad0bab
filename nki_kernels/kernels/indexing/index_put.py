"""`index_put`: values at the indices of up to six tensors, `x[i, :, j] = values`, or added there.

Values broadcast. Without `accumulate`, of values for one element the last is written, in the
simulator as in eager; the device may write another of them. With it, every value is added, in
float32: x is float32, bfloat16 or float16. Indices are those of `index`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._patterns import pattern_of
from trnx.nki_kernels.kernels.indexing._launch import launch_scatter
from trnx.nki_kernels.kernels.indexing._scatter_kernels import put_rows_kernel
from trnx.nki_kernels.kernels.indexing._terms import (
    axes_of_index,
    reject_index,
    reject_sums,
    reject_values,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_NAMES = tuple(f"i{n}" for n in range(6))


def _pattern(count: int) -> Pattern:
    """A list of `count` index tensors or Nones; the others are None."""

    def function(*values: Any) -> Any:
        base, *indices, given, accumulate = values
        return aten.index_put.default(base, indices, given, accumulate)

    names = ("base", *_NAMES[:count], "values", "accumulate")
    kinds = {**dict.fromkeys(_NAMES[:count], torch.Tensor | None), "accumulate": bool}
    return pattern_of(function, names, kinds, _NAMES[count:])


def reference(
    base: torch.Tensor, values: torch.Tensor, accumulate: bool, **indices: torch.Tensor | None
) -> torch.Tensor:
    """torch.index_put; None takes a dimension whole."""
    given: list[Any] = [indices[name] for name in _NAMES]
    while given[-1] is None:
        given.pop()
    found: torch.Tensor = aten.index_put.default(base, given, values, accumulate)
    return found


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if reject := reject_values(b, "base", "values"):
        return reject
    if b.base.dtype is not b["values"].dtype:
        return Reject(f"base is {b.base.dtype}, values {b['values'].dtype}")
    for dim, name in enumerate(_NAMES):
        if b[name] is None:
            continue
        if reject := reject_index(name, b[name], b.base.shape[dim]):
            return reject
        if b[name].numel == 0:
            return Reject(f"{name}{b[name].shape} has no elements")
    if b.accumulate:
        return reject_dtypes(b, "base") or reject_sums("base", b.base.numel)
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The rows that are written."""
    axes, indices = axes_of_index(b.base, [b[name] for name in _NAMES])
    return launch_scatter(b, hw, b.base.shape, _NAMES, axes, indices, adds=b.accumulate)


def cost(b: Bindings) -> Cost:
    """The base is read and written, and values are read; sums read and write what they add to."""
    read = sum(b[name].nbytes for name in _NAMES if b[name] is not None)
    passes = 3 if b.accumulate else 2
    return Cost(hbm_bytes=2 * b.base.nbytes + read + passes * b["values"].nbytes)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """One and several index tensors at every place, duplicates, broadcast values, dtypes."""

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).mul(9).to(dtype)

    def at(size: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(-size, size, shape, generator=generator).to(dtype)

    def sample(
        note: str,
        base: torch.Tensor,
        values: torch.Tensor,
        *indices: torch.Tensor | None,
        accumulate: bool = True,
    ) -> Sample:
        named = dict.fromkeys(_NAMES) | dict(zip(_NAMES, indices, strict=False))
        # Eager rounds every sum of half precision, up to this often.
        rounded = 0.0
        if accumulate and base.dtype is not torch.float32:
            rounded = 64 * 60 * torch.finfo(base.dtype).eps
        given = {"base": base, "values": values, "accumulate": accumulate}
        return Sample({**given, **named}, f"{note}, {'added' if accumulate else 'put'}", rounded)

    for accumulate in (True, False):
        for count in (1, 2, 127, 128, 129, 300):
            x, y = draw(50, 24), draw(count, 24)
            yield sample(f"{count} rows", x, y, at(50, count), accumulate=accumulate)
            x, y = draw(3, 50, 7), draw(3, count, 7)
            yield sample(f"{count} columns", x, y, None, at(50, count), accumulate=accumulate)
        x, i, j = draw(40, 30), at(40, 200), at(30, 200)
        yield sample("pairs", x, draw(200), i, j, accumulate=accumulate)
        yield sample("one value", x, draw(1), i, j, accumulate=accumulate)
        x, i, j = draw(6, 5, 7), at(6, 3, 1), at(7, 4)
        yield sample("apart", x, draw(3, 4, 5), i, None, j, accumulate=accumulate)
        yield sample("a row for all", x, draw(5, 7), at(6, 9), accumulate=accumulate)
        x, i = draw(9, 5000), at(9, 5, dtype=torch.int32)
        yield sample("wide rows", x, draw(5, 5000), i, accumulate=accumulate)
        yield sample("one address", draw(5, 3), draw(400, 3), at(1, 400), accumulate=accumulate)
        for dtype in (torch.bfloat16, torch.float16):
            x, y = draw(50, 24, dtype=dtype), draw(130, 24, dtype=dtype)
            yield sample(f"{dtype}", x, y, at(50, 130), accumulate=accumulate)
    for dtype in (torch.int32, torch.bool, torch.uint8):
        x, y = draw(50, 24, dtype=dtype), draw(130, 24, dtype=dtype)
        yield sample(f"{dtype}", x, y, at(50, 130), accumulate=False)


register(
    KernelSpec(
        name="index_put",
        patterns=tuple(_pattern(count) for count in range(1, len(_NAMES) + 1)),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=put_rows_kernel,
        launch=launch,
        strided=frozenset({"values", *_NAMES}),
    )
)
