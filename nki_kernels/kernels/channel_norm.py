"""`batch_norm_training` and `group_norm`: norms whose statistics are those of channels.

Channels lie on the partitions, so that scale and shift are one number each there. VectorE takes
mean and variance of pieces of at most 512 elements (bn_stats) and merges them (bn_aggr), also those
of the channels of a group. Where what belongs to a channel does not fit in its partition, it is
read a second time for ScalarE, which applies scale and shift. float32, or half precision with
float32 parameters and statistics (batch norm, as under autocast: `dtype` is then that of x and the
result), or all of one dtype (group norm); float32 inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._channel_norm import channel_norm_kernel
from trnx.nki_kernels.kernels._patterns import in_float32, pattern_without
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_KEPT_BYTES = 65536  # of a channel in its partition, so that the next channels' fit too
_STATISTICS_BYTES = 49152
_BATCH = ("x", "weight", "bias", "running_mean", "running_var")
_GROUP = ("x", "weight", "bias")
_STATISTICS = ("running_mean", "running_var")


def _reject_statistics(images: int, length: int) -> Reject | None:
    """A Reject where the statistics of all pieces of a channel do not fit beside its elements."""
    pieces = images * math.ceil(length / 512)
    if pieces * 24 > _STATISTICS_BYTES:
        return Reject(f"the statistics of {pieces} pieces of a channel do not fit in a partition")
    return None


def _reject_parameters(b: Bindings, names: tuple[str, ...], size: int) -> Reject | None:
    for name in names:
        if b[name] is not None and b[name].shape != (size,):
            return Reject(f"{name}{b[name].shape} is not of the {size} channels of x{b.x.shape}")
    return None


# -- batch norm in training, instance norm ---------------------------------------------------------


def supports_batch(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, more than one value a channel, and the size of the statistics."""
    del hw
    if reject := reject_dtypes(b, *_BATCH):
        return reject
    if b.x.ndim < 2 or b.x.numel <= b.x.shape[1]:
        return Reject(f"x{b.x.shape} has no two values of a channel")
    if (b.running_mean is None) != (b.running_var is None):
        return Reject("one of running_mean and running_var is missing")
    given = [name for name in _BATCH[1:] if b[name] is not None]
    for name in given:
        if b[name].dtype is not torch.float32:
            return Reject(f"{name} has the dtype {b[name].dtype}, not float32")
    if b.x.dtype is not (b.dtype or torch.float32) or (b.dtype and not given):
        return Reject(f"x is {b.x.dtype}, the result {b.dtype or torch.float32}")
    if reject := _reject_parameters(b, _BATCH[1:], b.x.shape[1]):
        return reject
    images = b.x.shape[0]
    return _reject_statistics(images, b.x.numel // images // b.x.shape[1])


def launch_batch(b: Bindings, hw: Hardware) -> Launch:
    """Images, channels, and whether a channel stays in SBUF."""
    del hw
    images, channels = b.x.shape[:2]
    keep = b.x.nbytes // channels <= _KEPT_BYTES
    constants = (b.eps, b.momentum, images, channels, 1, (channels,), keep)
    return Launch.of(channel_norm_kernel, b, _BATCH, *constants)


def cost(b: Bindings) -> Cost:
    """Eight operations an element."""
    tensors = [b[n] for n in _BATCH if b.get(n) is not None]
    return Cost(vector_flops=8 * b.x.numel, hbm_bytes=sum(t.nbytes for t in tensors) + b.x.nbytes)


def reference_batch(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    dtype: torch.dtype | None = None,
) -> Any:
    """aten's batch norm in training, without and with running statistics; in float32, and the
    result in `dtype`, where that is given."""

    def norm(x: torch.Tensor) -> Any:
        if running_mean is None or running_var is None:
            op = aten._native_batch_norm_legit.no_stats
            return op(x, weight, bias, True, momentum, eps)
        functional = aten._native_batch_norm_legit_functional.default
        return functional(x, weight, bias, running_mean, running_var, True, momentum, eps)

    results = 3 if running_mean is None else 5
    return norm(x) if dtype is None else in_float32(norm, x, dtype, results)


def samples_batch(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of channels, planes and images, missing parameters and statistics, a large mean."""

    def sample(
        note: str,
        *shape: int,
        affine: bool = True,
        running: bool = True,
        dtype: torch.dtype = torch.float32,
        shift: float = 0.0,
    ) -> Sample:
        def vector(used: bool) -> torch.Tensor | None:
            return torch.rand(shape[1], generator=generator) + 0.5 if used else None

        values = {
            "x": (torch.randn(shape, generator=generator) + shift).to(dtype),
            "weight": vector(affine),
            "bias": vector(affine),
            "running_mean": vector(running),
            "running_var": vector(running),
            "momentum": 0.1,
            "eps": 1e-5,
            "dtype": None if dtype is torch.float32 else dtype,
        }
        # x * scale + shift: both have the size of the mean in standard deviations.
        return Sample(values, note, error=4e-7 * (4 + 4 * abs(shift)))

    for channels in (1, 127, 128, 129):
        yield sample(f"{channels} channels", 2, channels, 5, 7)
    for length in (1, 511, 512, 513, 2049):
        yield sample(f"planes of {length}", 3, 4, length)
    yield sample("two dimensions", 300, 6)
    yield sample("read twice", 9, 3, 50, 50)
    yield sample("no parameters", 2, 6, 9, 9, affine=False)
    yield sample("no running statistics", 1, 130, 9, 9, affine=False, running=False)
    yield sample("a large mean", 4, 6, 20, 20, shift=20.0)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 3, 40, 14, 14, dtype=dtype)
        yield sample(f"{dtype}, no running statistics", 2, 6, 9, 9, running=False, dtype=dtype)


register(
    KernelSpec(
        name="batch_norm_training",
        patterns=(
            pattern_without(reference_batch),
            pattern_without(reference_batch, *_STATISTICS),
            pattern_without(reference_batch, "dtype"),
            pattern_without(reference_batch, *_STATISTICS, "dtype"),
        ),
        supports=supports_batch,
        reference=reference_batch,
        cost=cost,
        samples=samples_batch,
        kernel=channel_norm_kernel,
        launch=launch_batch,
    )
)


# -- group norm ------------------------------------------------------------------------------------


def supports_group(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, groups of at most as many channels as there are partitions."""
    if reject := reject_dtypes(b, *_GROUP):
        return reject
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} is empty")
    each = b.channels // b.groups
    if each > hw.partitions:
        return Reject(f"a group of {each} channels is larger than {hw.partitions} partitions")
    for name in ("weight", "bias"):
        if b[name] is not None and b[name].dtype is not (torch.float32 if b.dtype else b.x.dtype):
            return Reject(f"{name} has the dtype {b[name].dtype}, x {b.x.dtype}")
    if b.dtype and (b.x.dtype is not b.dtype or b.weight is b.bias is None):
        return Reject(f"x is {b.x.dtype}, the result {b.dtype}")
    if reject := _reject_parameters(b, ("weight", "bias"), b.channels):
        return reject
    return _reject_statistics(1, b.length)


def launch_group(b: Bindings, hw: Hardware) -> Launch:
    """Channels of all images, those of a group, and whether a channel stays in SBUF."""
    del hw
    keep = b.length * b.x.dtype.itemsize <= _KEPT_BYTES
    rows, group = b.images * b.channels, b.channels // b.groups
    constants = (None, None, b.eps, 0.0, 1, rows, group, (b.images, b.groups), keep)
    return Launch.of(channel_norm_kernel, b, _GROUP, *constants)


def reference_group(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    images: int,
    channels: int,
    length: int,
    groups: int,
    eps: float,
    dtype: torch.dtype | None = None,
) -> Any:
    """aten.native_group_norm; in float32, and the result in `dtype`, where that is given."""

    def norm(x: torch.Tensor) -> Any:
        op = aten.native_group_norm.default
        return op(x, weight, bias, images, channels, length, groups, eps)

    return norm(x) if dtype is None else in_float32(norm, x, dtype, 3)


def samples_group(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of channels, groups and planes, missing parameters, a large mean."""

    def sample(
        note: str,
        *shape: int,
        groups: int,
        affine: bool = True,
        dtype: torch.dtype = torch.float32,
        parameters: torch.dtype | None = None,
        shift: float = 0.0,
    ) -> Sample:
        def vector() -> torch.Tensor | None:
            drawn = torch.rand(shape[1], generator=generator) + 0.5
            return drawn.to(parameters or dtype) if affine else None

        values = {
            "x": (torch.randn(shape, generator=generator) + shift).to(dtype),
            "weight": vector(),
            "bias": vector(),
            "images": shape[0],
            "channels": shape[1],
            "length": math.prod(shape[2:]),
            "groups": groups,
            "eps": 1e-5,
            "dtype": dtype if parameters else None,
        }
        return Sample(values, note, error=4e-7 * (4 + 4 * abs(shift)))

    for channels in (1, 127, 128, 129):
        yield sample(f"groups of one of {channels} channels", 2, channels, 5, 7, groups=channels)
    for channels in (127, 128):
        yield sample(f"one group of {channels} channels", 3, channels, 5, 7, groups=1)
    yield sample("a group larger than the partitions", 1, 129, 5, groups=1)
    yield sample("groups of three", 3, 96, 9, 9, groups=32)
    yield sample("groups of ten", 2, 320, 8, 8, groups=32)
    yield sample("few channels", 33, 8, 20, groups=2)
    yield sample("read twice", 1, 4, 130, 130, groups=2)
    yield sample("no parameters", 2, 6, 9, 9, groups=3, affine=False)
    yield sample("a large mean", 2, 8, 20, 20, groups=2, shift=20.0)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 3, 40, 14, 14, groups=8, dtype=dtype)
        mixed = f"{dtype}, float32 parameters"
        yield sample(mixed, 3, 40, 9, 9, groups=8, dtype=dtype, parameters=torch.float32)


register(
    KernelSpec(
        name="group_norm",
        patterns=(pattern_without(reference_group), pattern_without(reference_group, "dtype")),
        supports=supports_group,
        reference=reference_group,
        cost=cost,
        samples=samples_group,
        kernel=channel_norm_kernel,
        launch=launch_group,
    )
)
