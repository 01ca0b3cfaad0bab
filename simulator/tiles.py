"""Tile maths of nki.language (`nl.load`, `nl.add` on tiles, ...): new tiles by instructions."""

from __future__ import annotations

from typing import Any

from trnx.simulator.dtypes import resolve
from trnx.simulator.isa.dma import dma_copy
from trnx.simulator.language import ndarray
from trnx.simulator.ops import Op
from trnx.simulator.storage import MemoryRegion
from trnx.simulator.tensor import NkiTensor


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the values of `src`."""
    tile = ndarray(src.shape, resolve(dtype or src.dtype), MemoryRegion.sbuf)
    dma_copy(tile, src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy a tile to HBM."""
    dma_copy(dst, value)


def apply(op: Op, *args: Any, **kwargs: Any) -> NkiTensor:
    """`op(x)` or `op(x, y)` on tiles and scalars."""
    raise NotImplementedError(op.name)


FUNCTIONS: dict[str, Any] = {"load": load, "store": store}
