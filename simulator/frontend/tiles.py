"""Tile maths of nki.language (`nl.load`, `nl.softmax`, ...): each makes a new tile in SBUF.

Functions that are no instruction compute in float32 by one `tile_map`, since the reference leaves
their lowering to the compiler. Free dimensions broadcast as in NumPy; the result has the wider type
of the operands unless `dtype` is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trnx.simulator.frontend.simulator import current
from trnx.simulator.frontend.tile_operators import broadcast, copy, fail, map_tiles, new_tile, wider
from trnx.simulator.isa.dma import dma_copy, dma_transpose
from trnx.simulator.isa.instruction import INSTRUCTIONS
from trnx.simulator.isa.partition_broadcast import partition_broadcast
from trnx.simulator.isa.tensor import nc_matmul, nc_transpose
from trnx.simulator.isa.tile_map import tile_map
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtypes import resolve
from trnx.simulator.memory.storage import HBM, MemoryRegion
from trnx.simulator.memory.views import Shape

Axes = int | Sequence[int]


# ---- movement ----


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the values of `src`, which is in HBM."""
    _require_hbm("load", "src", src)
    tile = new_tile(src.shape, dtype or src.dtype)
    dma_copy(tile, src)
    return tile


def store(dst: NkiTensor, value: NkiTensor | float) -> None:
    """Copy a tile to HBM."""
    _require_hbm("store", "dst", dst)
    if isinstance(value, int | float):
        fail(f"nl.store: value is {value!r}, not a tile; use nl.full(shape, {value!r}, dtype)")
    dma_copy(dst, value)


def _require_hbm(name: str, operand: str, tensor: NkiTensor) -> None:
    if isinstance(tensor, NkiTensor) and tensor.buffer not in HBM:
        instead = "nl.transpose" if "transpose" in name else "nisa.tensor_copy"
        fail(f"nl.{name}: {operand} is in {tensor.buffer.value}, not in HBM; use {instead}")


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with `src` transposed, which is in HBM."""
    _require_hbm("load_transpose2d", "src", src)
    tile = new_tile((src.shape[1], src.shape[0]), src.dtype)
    dma_transpose(tile, src)
    return tile if dtype is None or resolve(dtype) == src.dtype else copy(tile, dtype)


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with one more dimension of size 1."""
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """A new tile of `shape`; `x` itself where nothing changes."""
    if tuple(shape) == x.shape:
        return x if dtype is None or resolve(dtype) == x.dtype else copy(x, dtype)
    if len(shape) != x.ndim or any(
        have not in (1, want) for have, want in zip(x.shape, shape, strict=True)
    ):
        fail(f"broadcast_to: {x.shape} does not broadcast to {tuple(shape)}")
    view = broadcast(x, (x.shape[0], *shape[1:]))
    if x.shape[0] == shape[0]:
        return copy(view, dtype)
    tile = new_tile(shape, dtype or x.dtype)
    partition_broadcast(tile, view)
    return tile


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with partition and free dimension swapped."""
    if max(x.shape) <= 32:
        turned = new_tile((x.shape[1], x.shape[0]), x.dtype)
        nc_transpose(turned, x, engine=Engine.vector)
    else:
        turned = new_tile((x.shape[1], x.shape[0]), x.dtype, MemoryRegion.psum)
        nc_transpose(turned, x, engine=Engine.tensor)
    return copy(turned, dtype)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x @ y (x.T @ y with `transpose_x`) as a new SBUF tile of x's type."""
    stationary = x if transpose_x else transpose(x)
    product = new_tile((stationary.shape[1], y.shape[1]), "float32", MemoryRegion.psum)
    nc_matmul(product, stationary, y)
    return copy(product, x.dtype)


def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None
) -> NkiTensor:
    """Elements of each partition's flattened free dimensions, picked by `indices`; axis 0 alone."""
    if axis != 0:
        fail(f"gather_flattened: axis {axis} is not possible")
    out = new_tile(indices.shape, data.dtype)
    INSTRUCTIONS["nc_n_gather"](out, data, indices)
    return out if dtype is None else copy(out, dtype)


# ---- reductions ----


def _free_axes(x: NkiTensor, axis: Axes) -> tuple[int, ...]:
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(a + x.ndim if a < 0 else a for a in given))
    if axes != tuple(range(x.ndim - len(axes), x.ndim)) or not axes or axes[0] == 0:
        fail(f"axis {axis} must be the last free dimensions of {x.shape}")
    return axes


def _reduce(
    name: str, x: NkiTensor, axis: Axes, dtype: Any, keepdims: bool, function: Callable[..., Any]
) -> NkiTensor:
    axes = _free_axes(x, axis)
    rest = x.shape[: axes[0]]
    kept = (*rest, *(1 for _ in axes))
    out = new_tile(kept, dtype or x.dtype)
    tile_map(out, [x], functools.partial(function, dims=axes), name, True)
    return out if keepdims else out.reshape(_drop(rest))


def _drop(rest: Shape) -> Shape:
    # A tile on chip has at least two dimensions.
    return rest if len(rest) > 1 else (*rest, 1)


def _reducer(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def apply(x: torch.Tensor, *, out: torch.Tensor, dims: tuple[int, ...]) -> None:
        out.copy_(function(x.flatten(dims[0])).reshape(out.shape))

    return apply


_REDUCERS: dict[str, Callable[..., Any]] = {
    "sum": _reducer(lambda x: x.sum(-1)),
    "max": _reducer(lambda x: x.amax(-1)),
    "min": _reducer(lambda x: x.amin(-1)),
    "mean": _reducer(lambda x: x.mean(-1)),
    "prod": _reducer(lambda x: x.prod(-1)),
    "var": _reducer(lambda x: x.var(-1, correction=0)),
    "all": _reducer(lambda x: (x != 0).all(-1).to(x.dtype)),
}


def _reduction(name: str) -> Callable[..., NkiTensor]:
    always_keeps = name == "var"

    def reduce(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        return _reduce(name, x, axis, dtype, keepdims or always_keeps, _REDUCERS[name])

    reduce.__name__ = name
    reduce.__doc__ = f"The {name} over the last free dimensions of a tile, as a new tile."
    return reduce


def softmax(x: NkiTensor, axis: Axes = -1, dtype: Any = None) -> NkiTensor:
    """Softmax over the last free dimensions."""
    first = _free_axes(x, axis)[0]

    def apply(value: torch.Tensor, *, out: torch.Tensor) -> None:
        out.copy_(torch.softmax(value.flatten(first), -1).reshape(out.shape))

    return map_tiles("softmax", apply, x, dtype=dtype, is_of_rows=True)


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axes,
    n: int,
    epsilon: float = 1e-6,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w, in float32."""
    if compute_dtype is not None and resolve(compute_dtype) != "float32":
        fail(f"rms_norm: compute_dtype {compute_dtype} is not possible; it is float32")
    axes = _free_axes(x, axis)

    def apply(value: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
        mean = value.square().sum(axes, keepdim=True) / n
        torch.mul(value * torch.rsqrt(mean + epsilon), weight, out=out)

    return map_tiles("rms_norm", apply, x, w, dtype=dtype or x.dtype, is_of_rows=True)


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where `condition` is not zero, else y; x and y are tiles or numbers."""
    tiles = [operand for operand in (x, y) if isinstance(operand, NkiTensor)]
    # Steps hold numbers, and no tiles: their memory would live as long as the Program.
    numbers = [None if isinstance(operand, NkiTensor) else operand for operand in (x, y)]

    def apply(chosen: torch.Tensor, *values: torch.Tensor, out: torch.Tensor) -> None:
        rest = iter(values)
        a, b = (next(rest) if number is None else number for number in numbers)
        out.copy_(torch.where(chosen != 0, a, b))

    kind = dtype or (wider(*tiles) if tiles else condition.dtype)
    return map_tiles("where", apply, condition, *tiles, dtype=kind)


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """Elements of x zeroed with probability `rate`."""
    out = new_tile(x.shape, dtype or x.dtype)
    INSTRUCTIONS["dropout"](out, x, rate)
    return out


def random_seed(seed: NkiTensor) -> None:
    """Seed the generator of `rand`."""
    INSTRUCTIONS["set_rng_seed"](seed)


def _unit_interval(bits: torch.Tensor, *, out: torch.Tensor) -> None:
    # The upper 24 bits fill a float32 in [0, 1) exactly.
    out.copy_(torch.floor(bits / 256) * 2.0**-24)


def rand(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A new tile of uniform values in [0, 1)."""
    bits = new_tile(shape, "uint32")
    INSTRUCTIONS["rng"](bits)
    out = current("rand").allocate(tuple(shape), resolve(dtype), MemoryRegion(buffer), name)
    tile_map(out, [bits], _unit_interval, "rand")
    return out


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        load, store, load_transpose2d, expand_dims, broadcast_to, transpose, matmul,
        gather_flattened, softmax, rms_norm, where, dropout, random_seed, rand,
        *(_reduction(name) for name in _REDUCERS),
    )
}  # fmt: skip
