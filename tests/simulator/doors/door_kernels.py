"""Kernels for the tests of the front doors."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def double(a):
    tile = nl.load(a)
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.add(tile, tile))
    return out


@nki.jit
def add_small(a):
    tile = nl.load(a)
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.add(tile, 0.001953125))
    return out


@nki.jit
def into_first(a, b):
    nl.store(a, value=nl.add(nl.load(a), nl.load(b)))


@nki.jit
def programs(a):
    out = nl.ndarray(a.shape, dtype=nl.int32, buffer=nl.shared_hbm)
    tile = nl.full((1, 1), 10 + nl.program_id(0), dtype=nl.int32)
    row = nl.program_id(0)
    nisa.dma_copy(dst=out[row : row + 1, :], src=tile)
    return out


@nki.jit
def version(a):
    out = nl.ndarray(a.shape, dtype=nl.int32, buffer=nl.shared_hbm)
    nl.store(out, value=nl.full((1, 1), int(nisa.get_nc_version()), dtype=nl.int32))
    return out


@nki.jit(mode="torchxla", platform_target="trn1", debug_kernel=True, show_compiler_tb=True)
def version_on_trn1(a):
    return version(a)


@nki.jit
def asks_a_tensor(a):
    tile = nl.load(a)
    if nl.equal(tile, 1.0):
        return a
    return a
