"""Kernels with register loops that may make no turn, and results that need what they write.

Each takes (x, count, inner, fills): float32 [4, 8], two int32 [1], and whether something writes the
tile before its loops.
"""

# ruff: noqa: ARG001 (all kernels have the same parameters)

import nki
import nki.isa as nisa
import nki.language as nl
from kernel_parts import register_of, stored


def _tile(x, fills):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    if fills:
        nisa.memset(tile, value=7.0)
    return tile


@nki.jit
def one_loop(x, count, inner, fills):
    tile = _tile(x, fills)

    def body(i):
        nisa.dma_copy(dst=tile, src=x)

    nl.fori_loop(0, register_of(count), body)
    return stored(tile)


@nki.jit
def while_loop(x, count, inner, fills):
    tile = _tile(x, fills)
    left = register_of(count)
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    while left:
        nisa.dma_copy(dst=tile, src=x)
        nisa.register_store(held, left)
        nisa.tensor_scalar(dst=held, data=held, op0=nl.subtract, operand0=1)
        nisa.register_load(left, held)
    return stored(tile)


@nki.jit
def nested(x, count, inner, fills):
    """The inner loop writes half of the tile, the outer one the other half."""
    tile = _tile(x, fills)
    bound = register_of(inner)
    for _ in nl.dynamic_range(register_of(count)):
        for _ in nl.dynamic_range(bound):
            nisa.dma_copy(dst=tile[0:2], src=x[0:2])
        nisa.dma_copy(dst=tile[2:4], src=x[2:4])
    return stored(tile)


@nki.jit
def either(x, count, inner, fills):
    """Two loops, one of which is enough."""
    tile = _tile(x, fills)
    for _ in nl.dynamic_range(register_of(count)):
        nisa.dma_copy(dst=tile, src=x)
    for _ in nl.dynamic_range(register_of(inner)):
        nisa.dma_copy(dst=tile, src=x)
    return stored(tile)


@nki.jit
def either_within(x, count, inner, fills):
    """Two loops within two turns of a third: one of them is enough."""
    tile = _tile(x, fills)
    first, second = register_of(count), register_of(inner)
    for _ in nl.dynamic_range(2):
        for _ in nl.dynamic_range(first):
            nisa.dma_copy(dst=tile, src=x)
        for _ in nl.dynamic_range(second):
            nisa.dma_copy(dst=tile, src=x)
    return stored(tile)


@nki.jit
def used_in_the_body(x, count, inner, fills):
    """A tile of the body, of which each turn uses what it has written itself."""
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(total, value=0.0)

    def body(i):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_tensor(total, total, tile, op=nl.add)

    nl.fori_loop(0, register_of(count), body)
    return stored(total)


@nki.jit
def no_turn_at_all(x, count, inner, fills):
    """A loop whose bounds say that it makes no turn."""
    tile = _tile(x, fills)

    def body(i):
        nisa.dma_copy(dst=tile, src=x)

    nl.fori_loop(3, 3, body)
    return stored(tile)


@nki.jit
def straight_to_the_result(x, count, inner, fills):
    """What the kernel returns is written in the loop."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if fills:
        nisa.dma_copy(dst=out, src=_tile(x, True))

    def body(i):
        nisa.dma_copy(dst=out, src=x)

    nl.fori_loop(0, register_of(count), body)
    return out


@nki.jit
def register_of_the_body(x, count, inner, fills):
    """A loop alone sets the register that says which row is copied, or something before it."""
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(held, value=2)
    row = nisa.register_alloc(0 if fills else None)
    for _ in nl.dynamic_range(register_of(count)):
        nisa.register_load(row, held)
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.select(0, row).reshape((1, x.shape[1])))
    return stored(tile)


@nki.jit
def bound_of_the_body(x, count, inner, fills):
    """A loop alone sets the bound of the next one."""
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(held, value=2)
    bound = nisa.register_alloc(0 if fills else None)
    for _ in nl.dynamic_range(register_of(count)):
        nisa.register_load(bound, held)
    tile = nl.zeros(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    loaded = nl.load(x)
    for _ in nl.dynamic_range(bound):
        nisa.tensor_tensor(tile, tile, loaded, op=nl.add)
    return stored(tile)
