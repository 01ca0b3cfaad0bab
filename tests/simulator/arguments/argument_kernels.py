"""Kernels of the tests of arguments and results; loaded as a twin."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NKIObject


class Mode(Enum):
    double = 2
    triple = 3


class Config(NKIObject):
    factor: float = 1.0
    rows: int = 0


@dataclass(frozen=True)
class Frozen(NKIObject):
    factor: float
    tensor: object = None


class Pair(NamedTuple):
    first: object
    second: object


def _copy_out(tile, dtype):
    out = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def copy(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return _copy_out(tile, x.dtype)


@nki.jit
def scale(x, factor=2.0, bias=None):
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    if bias is not None:
        b = nl.load(bias)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=b, op=nl.add)
    return _copy_out(tile, x.dtype)


@nki.jit
def nested(x):
    y = scale(x, factor=3.0)
    return copy(y)


@nki.jit
def with_config(x, config):
    return scale(x, factor=config.factor)


@nki.jit
def with_frozen(config):
    return scale(config.tensor, factor=config.factor)


@nki.jit
def with_mode(x, mode):
    if mode == Mode.triple:
        return scale(x, factor=3.0)
    return scale(x, factor=mode.value)


@nki.jit
def returns_dict(x):
    return {"a": copy(x), "b": scale(x)}


@nki.jit
def returns_named(x):
    return Pair(copy(x), scale(x))


@nki.jit
def returns_nested(x):
    return (copy(x), [scale(x), copy(x)])


@nki.jit
def returns_list(x):
    return [copy(x), scale(x)]


@nki.jit
def returns_arg(x):
    return x


@nki.jit
def returns_arg_twice(x):
    return x, x


@nki.jit
def clears(x):
    nisa.dma_copy(dst=x, src=nl.zeros(x.shape, dtype=x.dtype, buffer=nl.sbuf))


@nki.jit
def returns_view(x):
    y = copy(x)
    return y[1:]


@nki.jit
def swaps(a, b):
    t = nl.load(a)
    u = nl.load(b)
    nl.store(a, value=u)
    nl.store(b, value=t)
    return a, b


@nki.jit
def adds_into(a, b):
    t = nl.load(a)
    u = nl.load(b)
    nl.store(a, value=nl.add(t, u))
    return a


@nki.jit
def allocates(x, shape):
    nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    return x


@nki.jit
def indexes(x, what):
    tile = nl.load(x)
    tile[what]
    return x


@nki.jit
def adds_what(x, what):
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=what)
    return x


@nki.jit
def holds_many_names(x):
    tiles = []
    for _ in range(3000):
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="long_name_" * 90)
        nisa.memset(dst=tile, value=0.0)
        tiles.append(tile)
    for tile in tiles:
        nisa.tensor_tensor(dst=tiles[0], data1=tiles[0], data2=tile, op=nl.add)
    return x


@nki.jit
def clears_a_part(x, y):
    """Clears the first row of x, and returns x, y as it is, and a copy of what x had been."""
    before = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    first = x[0:1]
    nisa.dma_copy(dst=before, src=x)
    nisa.dma_copy(dst=first, src=nl.zeros(first.shape, dtype=x.dtype, buffer=nl.sbuf))
    return x, y, before


@nki.jit
def second_half_of_rows(x):
    """By an access pattern that counts elements of dense rows."""
    rows, columns = x.shape
    half = columns // 2
    tile = nl.ndarray((rows, half), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.ap(pattern=[[columns, rows], [1, half]], offset=columns - half))
    return _copy_out(tile, x.dtype)


@nki.jit
def is_in(x, region):
    assert x.buffer == region
    assert x[0:1, 0:1].buffer == region
    return x


@nki.jit
def clears_like(x):
    return nl.zeros_like(x)
