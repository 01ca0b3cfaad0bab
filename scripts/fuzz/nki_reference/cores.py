"""core_barrier and sendrecv between the two cores of one logical core."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference.machine import HBM, ON_CHIP, SBUF, Machine
from nki_reference.numbers import ANY, size_of
from nki_reference.program import Token, View
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import entry

LIMITS = {4: 1024, 2: 512, 1: 256}
OTHER = Token("1 - core")


def _draw_barrier(s: ProgramBuilder) -> None:
    """Each core writes its half of shared HBM; after the barrier both read all of it."""
    rows, columns = s.c.pick((1, 4, 64)), s.c.pick((1, 5, 64))
    dtype = s.dtype(ANY)
    shared = s.storage((2 * rows, columns), dtype, "shared_hbm", fresh=True)
    grid = np.arange(2 * rows * columns).reshape(2 * rows, columns)
    half = f"{shared.name}[core * {rows}:core * {rows} + {rows}]"
    own = View(shared, half, grid[:rows], other=grid[rows:])
    tile = s.tile((rows, columns), (dtype,), SBUF)
    s.call("dma_copy", dst=own, src=tile)
    engine = s.engine(("gpsimd", "vector", "scalar", "tensor", "sync"))
    s.call("core_barrier", data=s.whole(shared), cores=(0, 1), engine=engine)
    both = s.whole(s.storage((2 * rows, columns), dtype, fresh=True))
    s.call("dma_copy", dst=both, src=s.whole(shared))


@entry("core_barrier", _draw_barrier, generations=(3, 4), cores=2)
def core_barrier(m: Machine, data: View, cores: Any, engine: Any = None, name: Any = None) -> None:
    """Both cores are here."""
    m.since(3)
    m.require(m.cores == 2, "two cores")
    m.tile(data, ANY, (*HBM, *ON_CHIP), by_dma=True)
    m.require(isinstance(cores, tuple | list) and tuple(cores) == (0, 1), "cores")
    m.engine(engine, ("gpsimd", "vector", "scalar", "tensor", "sync"))


def _draw_sendrecv(s: ProgramBuilder) -> None:
    flat = s.extent()
    dtype = s.dtype(ANY)
    src = s.tile(flat, (dtype,), SBUF, static=True)
    dst = s.tile(flat, (dtype,), SBUF, dst=True, apart=(src,), reuse=False)
    if dst.shape != src.shape:
        dst = s.whole(s.storage(src.shape, dtype))
    small = flat[1] * size_of(dtype) <= LIMITS[size_of(dtype)]
    s.call(
        "sendrecv",
        src=src,
        dst=dst,
        send_to_rank=OTHER,
        recv_from_rank=OTHER,
        pipe_id=s.c.integer(0, 3),
        dma_engine=Token("nisa.dma_engine.gpsimd_dma") if small and s.c.flag(30) else None,
    )


def _send(m: Machine, src: Any, **_: Any) -> None:
    m.tile(src, ANY, SBUF, by_dma=True)
    m.require(src.offset is None, "a dynamic address")
    m.sent = m.stored(src)


@entry("sendrecv", _draw_sendrecv, generations=(3, 4), cores=2, send=_send, moves=True)
def sendrecv(
    m: Machine,
    src: View,
    dst: View,
    send_to_rank: Any,
    recv_from_rank: Any,
    pipe_id: Any,
    dma_engine: Any = None,
    name: Any = None,
) -> None:
    """dst = what the other core has sent."""
    m.since(3)
    m.require(m.cores == 2 and m.peer is not None, "two cores")
    m.tile(dst, ANY, SBUF, by_dma=True)
    m.require(dst.offset is None, "a dynamic address")
    m.require(send_to_rank == OTHER and recv_from_rank == OTHER, "ranks")
    m.require(src.shape == dst.shape and src.dtype == dst.dtype, "src and dst differ")
    if isinstance(dma_engine, Token) and dma_engine.name == "gpsimd_dma":
        size = size_of(src.dtype)
        m.require(src.free * size <= LIMITS[size], "too many bytes")
    assert m.peer is not None
    assert m.peer.sent is not None
    m.put(dst, m.peer.sent)
