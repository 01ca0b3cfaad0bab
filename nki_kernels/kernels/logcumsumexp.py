"""`logcumsumexp`: the logarithm of running sums of exponentials along any dimension.

With the running maximum m the sum s of exp(x - m) is a linear recurrence,
s[i] = s[i - 1] * exp(m[i - 1] - m[i]) + exp(x[i] - m[i]), which one scan instruction computes
(M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018). A maximum that is
infinite counts as the largest float32, so that no difference of infinities arises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._scan_plan import constants_of, reject_scan
from trnx.nki_kernels.kernels._scans import lanes, places, scan, tiles_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

_LARGEST = 3.4028234663852886e38


@nki.jit
def logcumsumexp_kernel(
    x: nl.NkiTensor, sizes: tuple[int, ...], groups: tuple[Any, ...], cores: int = 1
) -> nl.NkiTensor:
    """`sizes` are length, inner size and block, `groups` those of `cut`; `cores` share
    their tiles."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for group, tile in tiles_of(groups, cores):
        _tile(out, x, group, tile, sizes)
    return out


def _tile(
    out: nl.NkiTensor, x: nl.NkiTensor, group: tuple[Any, ...], tile: int, sizes: tuple[int, ...]
) -> None:
    """All positions of one tile, block after block."""
    length, inner, block = sizes
    p, rows, width = lanes(group), group[4], group[5]
    best = nl.ndarray((p, rows, 1, width), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((p, rows, 1, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=best, value=-_LARGEST)
    nisa.memset(dst=total, value=0.0)
    for first in range(0, length, block):
        count = min(block, length - first)
        form = (p, rows, count, width)
        pattern, offset = places(group, tile, first, count, (length, inner), 1)
        data = nl.ndarray(form, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
        maxima = nl.ndarray((p, rows, count + 1, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=maxima[:, :, 0:1, :], src=best)
        here = maxima[:, :, 1 : count + 1, :]
        scan(here, data, data, best[:, :, 0, :], nl.maximum, nl.maximum)
        nisa.tensor_scalar(
            dst=here,
            data=here,
            op0=nl.minimum,
            operand0=_LARGEST,
            op1=nl.maximum,
            operand1=-_LARGEST,
        )
        terms = _exponentials(data, here)
        factors = _exponentials(maxima[:, :, 0:count, :], here)
        sums = nl.ndarray(form, dtype=nl.float32, buffer=nl.sbuf)
        scan(sums, factors, terms, total[:, :, 0, :], nl.multiply, nl.add)
        nisa.tensor_copy(dst=best, src=maxima[:, :, count : count + 1, :])
        nisa.tensor_copy(dst=total, src=sums[:, :, count - 1 : count, :])
        logs = nl.ndarray(form, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=logs, op=nl.log, data=sums)
        result = nl.ndarray(form, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=logs, data2=here, op=nl.add)
        nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=result)


def _exponentials(data: nl.NkiTensor, maxima: nl.NkiTensor) -> nl.NkiTensor:
    """exp(data - maxima)"""
    difference = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=difference, data1=data, data2=maxima, op=nl.subtract)
    result = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=result, op=nl.exp, data=difference)
    return result


def reference(x: torch.Tensor, dim: int) -> torch.Tensor:
    """aten.logcumsumexp"""
    result: torch.Tensor = aten.logcumsumexp.default(x, dim)
    return result


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and elements."""
    del hw
    return reject_dtypes(b, "x") or reject_scan(b)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The tiles."""
    return Launch.of(logcumsumexp_kernel, b, ("x",), *constants_of(b, hw))


def cost(b: Bindings) -> Cost:
    """Maximum, two exponentials, a product and a sum, a logarithm."""
    return Cost(vector_flops=8 * b.x.numel, hbm_bytes=2 * b.x.nbytes)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, long rows, large numbers, infinities, dtypes."""

    def sample(
        note: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype = torch.float32
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(30).to(dtype)
        return Sample({"x": x, "dim": dim}, note)

    for size in (1, 127, 128, 129):
        yield sample(f"{size} rows", (size, 3), 1)
        yield sample(f"over {size} rows", (size, 5, 2), 0)
    yield sample("long rows", (3, 2500), 1)
    yield sample("in the middle", (3, 70, 33), 1)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (130, 37), 1, dtype)
    special = sample("infinities", (4, 40), 1)
    special.values["x"][0, 7], special.values["x"][1, :3] = float("inf"), float("-inf")
    special.values["x"][2], special.values["x"][3, 5] = float("-inf"), 3e38
    yield special


def _logcumsumexp(x: torch.Tensor, dim: int) -> Any:
    return aten.logcumsumexp.default(x, dim)


register(
    KernelSpec(
        name="logcumsumexp",
        patterns=(Pattern(_logcumsumexp),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=logcumsumexp_kernel,
        launch=launch,
    )
)
