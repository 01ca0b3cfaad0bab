"""`sort`: the elements along a dimension in ascending or descending order, and where they were.

The order is stable: equal elements stay in order, NaN is larger than any number, as in eager.
float32, bfloat16, float16; a line has at most 4096 elements. The four finite float32 numbers of
each sign with the greatest magnitude count as equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.kernels.ordering._launch import launch_order, order_cost, reject_order
from trnx.nki_kernels.kernels.ordering._search import first_in_order_kernel
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_LONGEST = 4096


def reference(x: torch.Tensor, dim: int, descending: bool, stable: bool | None) -> Any:
    """torch.sort, always stable"""
    del stable
    return tuple(torch.sort(x, dim=dim, descending=descending, stable=True))


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    return reject_order(b, b.x.shape[b.dim] if b.x.ndim else 0, _LONGEST)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Where lines lie."""
    del hw
    return launch_order(b, b.x.shape[b.dim], b.descending)


def cost(b: Bindings) -> Cost:
    """The searches."""
    return order_cost(b, b.x.shape[b.dim])


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, ties, infinities, short and long lines, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int = -1,
        descending: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).round().to(dtype)
        return Sample({"x": x, "dim": dim, "descending": descending, "stable": True}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 24))
        yield sample(f"{size} columns", (5, size), descending=True)
    yield sample("the middle", (4, 20, 70), 1)
    yield sample("the first", (30, 140), 0, descending=True)
    yield sample("one dimension", (300,), 0)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (130, 33), dtype=dtype)
        yield sample(f"{dtype}, descending", (130, 33), descending=True, dtype=dtype)
    for descending in (True, False):
        special = sample(f"infinities, descending={descending}", (9, 40), descending=descending)
        x = special.values["x"]
        x[:, ::3], x[:, 1::5], x[0] = float("inf"), float("-inf"), float("-inf")
        yield special


def _sort(x: torch.Tensor, dim: int, descending: bool) -> Any:
    return aten.sort.default(x, dim, descending)


def _stable_sort(x: torch.Tensor, stable: bool | None, dim: int, descending: bool) -> Any:
    return aten.sort.stable(x, stable=stable, dim=dim, descending=descending)


register(
    KernelSpec(
        name="sort",
        patterns=(Pattern(_sort, {"stable": True}), Pattern(_stable_sort)),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=first_in_order_kernel,
        launch=launch,
    )
)
