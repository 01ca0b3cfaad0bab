"""Operator tokens: `nl.add`, `nl.exp`, ... as `op=` arguments of instructions, callable on tiles.

An `Op` compares by identity and has a `name`, by which it is found in the table of operators. On
tiles it is an instruction of the Vector engine where the ALU has it, else a `tile_map`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from trnx.simulator.errors import IllegalInstructionError
from trnx.simulator.frontend.simulator import current
from trnx.simulator.isa.arguments import takes
from trnx.simulator.isa.copy import tensor_copy
from trnx.simulator.isa.instruction import INSTRUCTIONS
from trnx.simulator.isa.tile_map import tile_map
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.operators.table import OPERATORS, Operator, Token
from trnx.simulator.language.tensor import RESULT, NkiTensor
from trnx.simulator.memory.dtypes import DType, resolve
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.memory.views import Shape
from trnx.simulator.older_dialects import GUIDE


def _signature(operands: tuple[str, ...]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in operands]
    return inspect.Signature([*parameters, inspect.Parameter("dtype", kind, default=None)])


_SIGNATURES = {1: _signature(("x",)), 2: _signature(("x", "y"))}


class Op(Token):
    """One operator of nki.language; calling it computes on tiles at once."""

    __slots__ = ("__name__", "__signature__", "arity", "name")

    def __init__(self, name: str, arity: int) -> None:
        self.name = name
        self.arity = arity
        self.__name__ = name
        self.__signature__ = _SIGNATURES[arity]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            given = self.__signature__.bind(*args, **kwargs).arguments
        except TypeError as mismatch:
            fail(f"nl.{self.name}: {mismatch}; {takes(self, mismatch, kwargs)}")
        dtype = given.pop("dtype", None)
        return apply(self, *given.values(), dtype=dtype)

    def __repr__(self) -> str:
        return f"nl.{self.name}"


def ops() -> dict[str, Op]:
    """The tokens of all operators, by name; one object for each operator."""
    return {name: _token(name, operator.arity) for name, operator in OPERATORS.items()}


_token = functools.cache(Op)


def new_tile(
    shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf
) -> NkiTensor:
    """A tile for a result."""
    return current("tile").allocate(tuple(shape), resolve(dtype), buffer, RESULT)


def fail(message: str) -> NoReturn:
    """Raise IllegalInstructionError at the kernel's line."""
    raise IllegalInstructionError("tile", message, kernel_location())


def wider(*tiles: NkiTensor) -> DType:
    """The type that holds the values of all tiles; NKI's own types count as what holds them."""
    result = tiles[0].dtype
    for tile in tiles[1:]:
        if tile.dtype != result:
            result = resolve(torch.promote_types(result.torch, tile.dtype.torch))
    return result


def broadcast(tile: NkiTensor, shape: Shape) -> NkiTensor:
    """A view of a tile in a shape that its own broadcasts to."""
    for dim, size in enumerate(shape):
        if tile.shape[dim] != size:
            tile = tile.broadcast(dim, size)
    return tile


def _common_shape(tiles: Sequence[NkiTensor]) -> Shape:
    rank = max(tile.ndim for tile in tiles)
    if any(tile.ndim != rank for tile in tiles):
        shapes = [tile.shape for tile in tiles]
        fail(f"operands must have one rank: {shapes}; `tile.expand_dim(1)` gives a dimension of 1")
    shape = tuple(max(sizes) for sizes in zip(*(tile.shape for tile in tiles), strict=True))
    for tile in tiles:
        if any(have not in (1, want) for have, want in zip(tile.shape, shape, strict=True)):
            fail(f"operands do not broadcast: {[tile.shape for tile in tiles]}")
        if tile.shape[0] != shape[0]:
            fail("the partition dimension does not broadcast: use nl.broadcast_to(tile, shape)")
    return shape


def map_tiles(
    name: str,
    function: Callable[..., Any],
    *tiles: NkiTensor,
    dtype: Any = None,
    is_of_rows: bool = False,
) -> NkiTensor:
    """A new tile `function(*tiles, out=...)`, in float32, rounded once. `is_of_rows`: elements come
    from all of their partition's.
    """
    shape = _common_shape(tiles)
    out = new_tile(shape, dtype or wider(*tiles))
    tile_map(out, [broadcast(tile, shape) for tile in tiles], function, name, is_of_rows)
    return out


def apply(op: Op, *args: Any, dtype: Any = None) -> NkiTensor:
    """`op(x)` or `op(x, y)` on tiles and numbers."""
    if len(args) != op.arity:
        fail(f"nl.{op.name} takes {op.arity} operands, got {len(args)}")
    if op.arity == 1 and not isinstance(args[0], NkiTensor):
        fail(
            f"nl.{op.name} takes a tile, not {args[0]!r}; functions of a number are Python's, such "
            "as math.sqrt"
        )
    if op.name == "copy":
        return copy(args[0], dtype)
    if op.name == "rsqrt" and args[0].storage.buffer is MemoryRegion.psum:
        fail(
            "nl.rsqrt runs on GpSimd since NKI 0.5 and does not access PSUM; use nisa.activation "
            f"with op=nl.rsqrt ({GUIDE}#nki-migrate-0-4-to-0-5)"
        )
    if op.name == "invert":
        return _invert(args[0], dtype)
    operator = OPERATORS[op.name]
    if not operator.is_on_tiles:
        fail(f"nl.{op.name} is an operator of instructions; it cannot be called on tiles")
    if op.arity == 2:
        return _binary(op, operator, args[0], args[1], dtype)
    return map_tiles(op.name, operator.function, args[0], dtype=dtype)


def _binary(op: Op, operator: Operator, x: Any, y: Any, dtype: Any) -> NkiTensor:
    tiles = [operand for operand in (x, y) if isinstance(operand, NkiTensor)]
    if not tiles:
        fail(f"nl.{op.name}: at least one operand must be a tile")
    if not operator.is_alu:
        return _map_pair(operator, x, y, dtype)
    if len(tiles) == 2:
        shape = _common_shape(tiles)
        out = new_tile(shape, dtype or wider(*tiles))
        INSTRUCTIONS["tensor_tensor"](out, broadcast(x, shape), broadcast(y, shape), op)
        return out
    tile = tiles[0]
    out = new_tile(tile.shape, dtype or tile.dtype)
    scalar = y if tile is x else x
    INSTRUCTIONS["tensor_scalar"](out, tile, op0=op, operand0=scalar, reverse0=tile is not x)
    return out


def _map_pair(operator: Operator, x: Any, y: Any, dtype: Any) -> NkiTensor:
    """Of an operator that the ALU does not have."""
    name, function = operator.name, operator.function
    if not isinstance(x, NkiTensor):
        number = torch.tensor(float(x), dtype=torch.float32, device="cpu")
        return map_tiles(name, functools.partial(function, number), y, dtype=dtype)
    if not isinstance(y, NkiTensor):
        return map_tiles(name, _with_second(function, y), x, dtype=dtype)
    return map_tiles(name, function, x, y, dtype=dtype)


def _with_second(function: Callable[..., Any], second: Any) -> Callable[..., Any]:
    def apply(first: torch.Tensor, *, out: torch.Tensor) -> None:
        function(first, second, out=out)

    return apply


def _invert(x: NkiTensor, dtype: Any) -> NkiTensor:
    return _binary(
        ops()["bitwise_xor"],
        OPERATORS["bitwise_xor"],
        x,
        -1 if x.dtype.limits and x.dtype.limits[0] < 0 else (1 << 8 * x.dtype.itemsize) - 1,
        dtype,
    )


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the values of a tile."""
    tile = new_tile(x.shape, dtype or x.dtype)
    tensor_copy(tile, x)
    return tile
