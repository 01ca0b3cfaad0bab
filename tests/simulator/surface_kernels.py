"""Kernels of the tests of the nki_cpu_simulator surface and of the rules drawn from its suite."""

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl


@dataclass
class Plan(nl.NKIObject):
    rows: int
    columns: int
    offset = None


class Sizes(nl.NKIObject):
    rows: int
    half: int

    def derive(self):
        self.half = self.rows // 2


@nki.jit
def doubled_in_place(x, optional=None):
    if optional:
        x = optional
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    if tile:
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=x, src=tile)
    return x


@nki.jit
def passes_through(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def uses_the_written_half(x):
    """Moves whole tiles, of which half is written, and returns that half."""
    plan = Plan(rows=128, offset=4)
    sizes = Sizes(rows=plan.rows)
    sizes.derive()
    tile = nl.ndarray((plan.rows, 8), dtype=nl.float32, buffer=nl.sbuf)
    turned = nl.ndarray((8, plan.rows), dtype=nl.float32, buffer=nl.psum)
    moved = nl.ndarray((8, plan.rows), dtype=nl.float32, buffer=nl.sbuf)
    out = nl.ndarray((8, sizes.half), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile[0 : sizes.half], src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.nc_transpose(dst=turned, data=tile)
    nisa.tensor_copy(dst=moved, src=turned)
    nisa.dma_copy(dst=out, src=moved[:, 0 : sizes.half])
    return out


@nki.jit
def uses_the_other_half(x):
    tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    out = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile[0:64], src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def both_store_the_same(x):
    """Does not use program_id: both programs fill the result and write it then."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    zeros = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.memset(dst=zeros, value=0.0)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=zeros)
    nisa.dma_copy(dst=out[0:2], src=tile[0:2])
    nisa.dma_copy(dst=tile, src=out)
    return out


@nki.jit
def both_store_their_own(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(nl.program_id()))
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def keeps_the_sum_alone(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    unused = nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.sbuf)
    total = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    out = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.activation_reduce(
        dst=unused.broadcast(1, x.shape[1]),
        op=nl.square,
        data=tile,
        reduce_op=nl.add,
        reduce_res=total,
    )
    nisa.dma_copy(dst=out, src=total)
    return out
