"""Kernels in the dialect of NKI 0.1, each with its arguments and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

HEAD = """\
import functools
import math

import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
"""


class Case(NamedTuple):
    """A kernel's source behind `HEAD`, its inputs, and the reference."""

    source: str
    inputs: tuple[Any, ...]
    expected: Callable[..., Any]


def _array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _bfloat16_blocks(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each block rounded once to bfloat16, which the next ones read."""
    tile = torch.from_numpy(x).bfloat16().float()
    blocks = [tile, tile * 3, tile.exp(), (tile @ tile.T)[:, :40]]
    rounded = [one.bfloat16().float().numpy() for one in blocks]
    return np.stack([rounded[0], rounded[2], rounded[1], rounded[3]])


CASES = {
    "arange": Case(
        """\
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        rows = i * 64 + nl.arange(64)[:, None]  # of this turn
        cols = nl.arange(40)[None, :]
        tile = nl.load(x[rows, cols])
        nl.store(out[rows, cols], value=(tile + 1.0) * tile)
    return out
""",
        (_array(128, 40),),
        lambda x: (x + 1) * x,
    ),
    "lazily cleared blocks": Case(
        """\
def kernel(x, w):
    out = nl.ndarray((2, 64, 40), dtype=x.dtype, buffer=nl.shared_hbm)
    acc = nl.zeros((2, nl.par_dim(64), 40), dtype=np.float32, name='', buffer=nl.psum,
                   lazy_initialization=True)
    total = nl.zeros((nl.par_dim(64), 40), dtype=np.float32, lazy_initialization=True)
    for i in nl.affine_range(2):
        for _ in nl.affine_range(3):
            acc[i] += nisa.nc_matmul(nl.load(x[i]), nl.load(w))
        total += nl.copy(acc[i], dtype=np.float32)
        nl.store(out[i], value=nl.add(acc[i], total))
    return out
""",
        (_array(2, 32, 64), _array(32, 40)),
        lambda x, w: 3 * (x.transpose(0, 2, 1) @ w + np.cumsum(x.transpose(0, 2, 1) @ w, axis=0)),
    ),
    "numbers with a dtype": Case(
        """\
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    zero = nl.ndarray((nl.par_dim(64), 40), dtype=np.float32, buffer=nl.sbuf)
    zero[...] = nisa.memset(shape=(64, 40), value=np.dtype(np.uint16).type(3), dtype=np.float32)
    half = nisa.tensor_scalar(data=tile, op0=nl.multiply,
                              operand0=np.dtype(np.float32).type(-0.5), dtype=np.float32)
    nl.store(out, value=nl.add(half, zero))
    return out
""",
        (_array(64, 40),),
        lambda x: 3 - x / 2,
    ),
    "mask": Case(
        """\
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ip, jf = nl.mgrid[0:128, 0:32]
    for i in nl.affine_range(math.ceil(x.shape[0] / 128)):
        for j in nl.affine_range(math.ceil(x.shape[1] / 32)):
            tile = nl.load(x[i * 128 + ip, j * 32 + jf],
                           mask=(i * 128 + ip < x.shape[0]) & (j * 32 + jf < x.shape[1]))
            tile[...] = nl.multiply(tile, 2.0, mask=(i * 128 + ip < x.shape[0]))
            nl.store(out[i * 128 + ip, j * 32 + jf], value=tile,
                     mask=(i * 128 + ip < x.shape[0]) & (j * 32 + jf < x.shape[1]))
    return out
""".replace("            inside = (i * 128 + ip < x.shape[0]) & (j * 32 + jf < x.shape[1])\n", ""),
        (_array(129, 33),),
        lambda x: 2 * x,
    ),
    "norm of masked rows": Case(
        """\
def kernel(x, weight):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ip, jf = nl.arange(128)[:, None], nl.arange(x.shape[1])[None, :]
    row = nl.load(weight.reshape((1, x.shape[1]))[nl.arange(1)[:, None], jf])
    for i in nl.affine_range(math.ceil(x.shape[0] / 128)):
        tile = nl.load(x[i * 128 + ip, jf], mask=(i * 128 + ip < x.shape[0]))
        mean = nl.sum(nl.square(tile), axis=[1]) / x.shape[1]
        scaled = nl.multiply(tile, nl.rsqrt(mean + 1e-5))
        scaled[...] = nl.multiply(scaled, row.broadcast_to((128, x.shape[1])),
                                  mask=(i * 128 + ip < x.shape[0]))
        nl.store(out[i * 128 + ip, jf], value=scaled, mask=(i * 128 + ip < x.shape[0]))
    return out
""",
        (_array(129, 33), _array(33)),
        lambda x, w: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * w,
    ),
    "results": Case(
        """\
def kernel(x):
    out = nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    top = nisa.tensor_reduce(np.max, tile, axis=(1,))
    shifted = nisa.tensor_scalar(tile, np.subtract, top, mask=None, dtype=np.float32)
    total = nisa.tensor_reduce(
        op=np.add,  # of all columns
        data=nisa.activation(op=np.exp, data=shifted), axis=1)
    nl.store(out, value=nisa.reciprocal(total))
    return out
""",
        (_array(100, 17),),
        lambda x: 1 / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True),
    ),
    "blocks": Case(
        """\
def kernel(lhs_t, rhs):
    k, m = lhs_t.shape
    out = nl.ndarray((m, rhs.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    i_l = nl.mgrid[0:128, 0:m]
    i_r = nl.mgrid[0:128, 0:rhs.shape[1]]
    tiles = nl.ndarray((k // 128, nl.par_dim(128), m), dtype=lhs_t.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(k // 128):
        tiles[i, i_l.p, i_l.x] = nl.load(lhs_t[i * 128 + i_l.p, i_l.x])
    acc = nl.zeros((m, rhs.shape[1]), nl.float32, buffer=nl.psum)
    for i in nl.affine_range(k // 128):
        moving = nl.load(rhs[i * 128 + i_r.p, i_r.x])
        acc[...] += nisa.nc_matmul(tiles[i, i_l.p, i_l.x], moving)
    nl.store(out, value=nl.copy(acc, dtype=nl.float32))
    return out
""",
        (_array(256, 48), _array(256, 30)),
        lambda a, b: a.T @ b,
    ),
    "access_pattern": Case(
        """\
def kernel(x):
    p, f = x.shape
    out = nl.ndarray((p, 3 * 4), dtype=x.dtype, buffer=nl.hbm)
    tile = nl.load(x)
    turned = nl.ndarray((p, 3 * 4), dtype=x.dtype)
    ip = nl.arange(p)[:, None, None]
    i3 = nl.arange(3)[None, :, None]
    i4 = nl.arange(4)[None, None, :]
    turned[ip, i4 * 3 + i3] = nl.copy(tile[ip, i3 * 4 + i4])
    nl.store(out, value=turned)
    return out
""",
        (_array(5, 12),),
        lambda x: x.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12),
    ),
    "pool": Case(
        """\
def kernel(x):
    c, h, w = x.shape
    out = nl.ndarray((c, h // 2, w // 3), dtype=x.dtype, buffer=nl.shared_hbm)
    i0, i1, i2, i3, i4 = nl.mgrid[0:c, 0:h // 2, 0:2, 0:w // 3, 0:3]
    tile = nl.load(x)
    nl.store(out, value=nl.max(tile[i0, 2 * i1 + i2, 3 * i3 + i4], axis=[2, 4]))
    return out
""",
        (_array(7, 4, 9),),
        lambda x: x.reshape(7, 2, 2, 3, 3).max((2, 4)),
    ),
    "causal": Case(
        """\
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    row, col = nl.mgrid[0:32, 0:32]
    kept = nisa.affine_select(pred=(row >= col), on_true_tile=tile, on_false_value=-1.0)
    ramp = nisa.iota(2 * nl.arange(32)[None, :] + 5, dtype=nl.float32)
    both = nl.add(kept, nl.broadcast_to(ramp, shape=(32, 32)))
    nl.store(out, value=both)
    return out
""",
        (_array(32, 32),),
        lambda x: np.where(np.tril(np.ones((32, 32))) > 0, x, -1) + 2 * np.arange(32) + 5,
    ),
    "gather": Case(
        """\
def kernel(x, rows):
    import neuronxcc.nki.language as nl
    out = nl.ndarray((32, 16), dtype=x.dtype, buffer=nl.shared_hbm)
    ip, jf = nl.mgrid[0:32, 0:16]
    chosen = nl.load(rows[ip, nl.arange(1)[None, :]])
    nl.store(out, value=nl.load(x[chosen[ip, 0], jf]))
    return out
""",
        (_array(64, 16), (np.arange(32, dtype=np.int32) * 7 % 64).reshape(32, 1)),
        lambda x, rows: x[rows[:, 0]],
    ),
    "mask_by_name": Case(
        """\
def kernel(x):
    rows, n = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(math.ceil(rows / 128)):
        row = 128 * i + nl.arange(128)[:, None]
        col = nl.arange(n)[None, :]
        is_row = (-128 * i - nl.arange(128)[:, None] + (rows - 1) >= 0)
        both = is_row & (col <= n - 1)
        tile = nl.load(x[row, col], dtype=np.float32, mask=both)
        nl.store(out[row, col], value=nl.multiply(tile, 2.0), mask=is_row)
    return out
""",
        (_array(129, 33),),
        lambda x: 2 * x,
    ),
    "imports_inside": Case(
        """\
def kernel(x):
    import math as m
    import numpy as np
    import neuronxcc.nki.isa as nisa
    import neuronxcc.nki.language as nl
    from neuronxcc.nki import trace
    from neuronxcc.nki.language import par_dim
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((par_dim(127), 40), dtype=np.float32, buffer=nl.sbuf)
    tile[...] = nl.load(x)
    nl.store(out, value=nisa.activation(op=nl.exp, data=tile, scale=m.sqrt(4)))
    return out
""",
        (_array(127, 40),),
        lambda x: np.exp(2 * x),
    ),
    "no_stride": Case(
        """\
def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ip, jf = nl.mgrid[0:100, 0:24]
    wide = nl.ndarray((100, 24), dtype=x.dtype)
    nisa.dma_copy(dst=wide[ip, jf], src=y[1 + ip * 0, jf])
    nl.store(out, value=nl.add(nl.load(x), wide))
    return out
""",
        (_array(100, 24), _array(3, 24)),
        lambda x, y: x + y[1],
    ),
    "places": Case(
        """\
def kernel(x):
    import neuronxcc.nki.compiler as ncc
    from neuronxcc.nki.language import par_dim
    out = nl.ndarray((48, 100), dtype=nl.float32, buffer=nl.shared_hbm)
    unit = nl.shared_constant(np.identity(100, dtype=np.int8), dtype=nl.float32)
    def psum_addr(banks, idx, pdim_size, fdim_size):
        return banks[idx], 0, 0
    tile = nl.ndarray((par_dim(100), 48), dtype=x.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0))
    tile[...] = nl.load(x)
    turned = nl.zeros((par_dim(48), 100), dtype=np.float32,
                      buffer=ncc.psum.alloc(functools.partial(psum_addr, banks={(): 1})))
    turned[...] += nisa.nc_matmul(tile, nl.load(unit))
    nl.store(out, value=turned)
    return out
""",
        (_array(100, 48),),
        lambda x: x.T,
    ),
    "gather_with_mask": Case(
        """\
def kernel(x, rows):
    batch, n, width = x.shape
    count = rows.shape[1]
    out = nl.ndarray((batch, count, width), dtype=x.dtype, buffer=nl.shared_hbm)
    for b in nl.affine_range(batch):
        for i in nl.affine_range(math.ceil(count / 128)):
            place = i * 128 + nl.arange(128)[:, None]
            col = nl.arange(width)[None, :]
            inside = place < count
            chosen = nl.load(rows[b, place, nl.arange(1)[None, :]], mask=inside)
            source = x[b, chosen, col]
            tile = nl.load(source, mask=inside)
            nl.store(out[b, place, col], value=tile, mask=inside)
    return out
""",
        (_array(2, 300, 16), (np.arange(258, dtype=np.int32) * 7 % 300).reshape(2, 129, 1)),
        lambda x, rows: np.stack([x[b, rows[b, :, 0]] for b in range(2)]),
    ),
    "turned_by_dma": Case(
        """\
def kernel(x):
    out = nl.ndarray((x.shape[1], x.shape[0]), dtype=x.dtype, buffer=nl.shared_hbm)
    turned = nisa.dma_transpose(nl.load(x))
    nl.store(out, value=turned)
    return out
""",
        (_array(64, 32),),
        lambda x: x.T,
    ),
    "masked_target": Case(
        """\
def kernel(x):
    rows, n = x.shape
    out = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm)
    ip = nl.arange(128)[:, None, None]
    ia = nl.arange(4)[None, :, None]
    ib = nl.arange(3)[None, None, :]
    tile = nl.load(x)
    turned = nl.zeros((rows, n), dtype=x.dtype, buffer=nl.sbuf)
    turned[ip, 3 * ia + ib] = nl.copy(tile[ip, ia + 4 * ib], mask=(ip < rows))
    nl.store(out, value=turned)
    return out
""",
        (_array(100, 12),),
        lambda x: x.reshape(100, 3, 4).transpose(0, 2, 1).reshape(100, 12),
    ),
    "quotient_of_integers": Case(
        """\
def kernel(x):
    out = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    place = nisa.iota(nl.arange(64)[:, None], dtype=nl.int32)
    row = nl.floor(place / 5, dtype=nl.int32)
    nl.store(out, value=nl.add(nl.copy(row, dtype=nl.float32), nl.load(x)))
    return out
""",
        (_array(64, 1),),
        lambda x: np.arange(64).reshape(64, 1) // 5 + x,
    ),
    "reduced over loops": Case(
        """\
def kernel(x):
    out = nl.ndarray((2, 64, 2), dtype=np.float32, buffer=nl.shared_hbm)
    most = nl.ndarray((2, nl.par_dim(64), 1), dtype=np.float32, buffer=nl.sbuf)
    total = nl.full((2, nl.par_dim(64), 1), fill_value=np.dtype(np.float32).type(7),
                    dtype=np.float32, buffer=nl.sbuf)
    part = nl.ndarray((2, 3, nl.par_dim(64), 1), dtype=np.float32, buffer=nl.sbuf)
    for j in nl.affine_range(1, 4):
        for b in nl.affine_range(2):
            for k in nl.sequential_range(2):
                tile = nl.load(x[b, 2 * j - 2 + k])
                part[b, j - 1, nl.arange(64)[:, None], 0] = nisa.tensor_reduce(
                    nl.max, data=tile, axis=[1], dtype=np.float32)
                most[b, nl.arange(64)[:, None], 0] = nl.loop_reduce(
                    part[b, j - 1, nl.arange(64)[:, None], 0], op=np.max, loop_indices=[k, j],
                    mask=None, dtype=np.float32)
                total[b, nl.arange(64)[:, None], nl.arange(1)[None, :]] = nl.loop_reduce(
                    part[b, j - 1, nl.arange(64)[:, None], nl.arange(1)[None, :]], np.add, [j, k])
    for b in nl.affine_range(2):
        nl.store(out[b, nl.arange(64)[:, None], 0], value=most[b, nl.arange(64)[:, None], 0])
        nl.store(out[b, nl.arange(64)[:, None], 1], value=total[b, nl.arange(64)[:, None], 0])
    return out
""",
        (_array(2, 6, 64, 40),),
        lambda x: np.stack([x.max((1, 3)), x.max(3).sum(1)], axis=-1),
    ),
    "a reduction with a name": Case(
        """\
def kernel(x):
    out = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(3):
        tile = nl.load(x[i])
        product = nl.loop_reduce(tile, op=np.multiply, loop_indices=(i,), dtype=np.float32)
    nl.store(out, value=product)
    return out
""",
        (_array(3, 64, 40),),
        lambda x: x.prod(0),
    ),
    "masked sums in many banks": Case(
        """\
def kernel(x, w):
    out = nl.ndarray((4, 6, 64, 300), dtype=np.float32, buffer=nl.shared_hbm)
    acc = nl.zeros((4, 6, 2, nl.par_dim(64), 256), dtype=np.float32, buffer=nl.psum,
                   lazy_initialization=True)
    rows = nl.ndarray((4, 6, nl.par_dim(32), 128), dtype=np.float32, buffer=nl.sbuf)
    for i in nl.affine_range(4):
        for j in nl.affine_range(6):
            rows[i, j, nl.arange(32)[:, None, None],
                 64 * nl.arange(2)[None, :, None] + nl.arange(64)[None, None, :]] = nl.load(
                x[i, j, nl.arange(32)[:, None, None], nl.arange(2)[None, :, None],
                  nl.arange(64)[None, None, :]])
            for n in nl.affine_range(2):
                inside = 256 * n + nl.arange(256)[None, :] < 300
                for k in nl.affine_range(2):
                    cols = nl.load(w[k, nl.arange(32)[:, None], 256 * n + nl.arange(256)[None, :]],
                                   mask=-256 * n + -1 * nl.arange(256)[None, :] + 299 >= 0)
                    acc[i, j, n, nl.arange(64)[:, None], nl.arange(256)[None, :]] += (
                        nisa.nc_matmul(
                            rows[i, j, nl.arange(32)[:, None], 64 * k + nl.arange(64)[None, :]],
                            cols[nl.arange(32)[:, None], nl.arange(256)[None, :]], mask=inside))
                nl.store(out[i, j, nl.arange(64)[:, None], 256 * n + nl.arange(256)[None, :]],
                         value=nl.copy(
                             acc[i, j, n, nl.arange(64)[:, None], nl.arange(256)[None, :]],
                             mask=inside),
                         mask=inside)
    return out
""",
        (_array(4, 6, 32, 2, 64), _array(2, 32, 300)),
        lambda x, w: np.einsum("ijpkm,kpn->ijmn", x, w),
    ),
    "sums of transposed products": Case(
        """\
def kernel(x, w):
    out = nl.ndarray((64, 40), dtype=np.float32, buffer=nl.shared_hbm)
    rows = nl.load(x)
    acc = nl.zeros((64, 40), nl.float32, buffer=nl.psum)
    total = nl.zeros((64, 40), nl.float32, buffer=nl.sbuf)
    for k in nl.affine_range(2):
        acc += nl.matmul(rows[:, k * 32:(k + 1) * 32], nl.load(w[k * 32:(k + 1) * 32]))
        total += nl.matmul(rows[:, k * 32:(k + 1) * 32], nl.load(w[k * 32:(k + 1) * 32]))
    nl.store(out, value=nl.add(nl.copy(acc), total))
    return out
""",
        (_array(64, 64), _array(64, 40)),
        lambda x, w: 2 * x @ w,
    ),
    "products that overwrite": Case(
        """\
def kernel(x, w):
    out = nl.ndarray((2, 64, 40), dtype=np.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((nl.par_dim(64), 40), dtype=np.float32, buffer=nl.psum)
    for i in nl.affine_range(2):
        acc[...] = nisa.nc_matmul(
            nl.load(x[i]),
            nl.load(w),
        )
        nl.store(out[i], value=nl.copy(acc))
    return out
""",
        (_array(2, 32, 64), _array(32, 40)),
        lambda x, w: x.transpose(0, 2, 1) @ w,
    ),
    "a grid as the index": Case(
        """\
def kernel(x):
    out = nl.ndarray((64, 40), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x[nl.mgrid[32:96, 0:40]])
    nl.store(out[nl.mgrid[0:64, 0:40]], value=nisa.reciprocal(tile[nl.mgrid[0:64, 0:40]]))
    return out
""",
        (_array(128, 48),),
        lambda x: 1 / x[32:96, :40],
    ),
    "vectors as columns and rows": Case(
        """\
def kernel(x, bias, at):
    out = nl.empty_like(x, buffer=nl.hbm)
    size = nl.ndarray((100,), dtype=x.dtype, buffer=nl.private_hbm)
    i_p = nl.arange(128)[:, None]
    i_f = nl.arange(40)[None, :]
    rows = nl.load(at[i_p], mask=i_p < 100)
    gathered = nl.load(x[rows[i_p, 0], i_f], mask=i_p < 100)
    nl.store(size[i_p], value=gathered[i_p, 3], mask=i_p < 100)
    biased = gathered[0:100, 0:40] + nl.load(bias[i_f]).broadcast_to((100, 40))
    nl.store(out, value=biased * nl.load(size[nl.arange(100)[:, None]]))
    return out
""",
        (_array(100, 40), _array(40), np.arange(100, dtype=np.int32)[::-1] % 50),
        lambda x, bias, at: (x[at] + bias) * x[at][:, 3:4],
    ),
    "blocks keep their dtype and their memory": Case(
        """\
def kernel(x):
    out = nl.ndarray((4, 64, 40), dtype=np.float32, buffer=nl.shared_hbm)
    tiles = nl.ndarray((4, nl.par_dim(64), 40), dtype=nl.bfloat16, buffer=nl.sbuf)
    tiles[0] = nl.load(
        x,
    )
    tiles[1] = tiles[0] * 3.0
    tiles[2] = tiles[1]
    tiles[1] = nl.exp(tiles[0])
    tiles[3] = nl.matmul(tiles[0], nl.transpose(tiles[0]))[0:64, 0:40]
    for i in nl.affine_range(4):
        nl.store(out[i], value=nl.copy(tiles[i], dtype=np.float32))
    return out
""",
        (_array(64, 40),),
        lambda x: _bfloat16_blocks(x),
    ),
    "a masked load into one tile of a list": Case(
        """\
def kernel(x):
    out = nl.ndarray((200, 48), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = nl.zeros((2, nl.par_dim(128), 48), dtype=x.dtype, buffer=nl.sbuf)
    i_p, i_f = nl.mgrid[0:128, 0:48]
    for b in nl.affine_range(2):
        tiles[b] = nl.load(x[b * 128 + i_p, i_f], mask=(b * 128 + i_p < 200))
    for b in nl.affine_range(2):
        nl.store(
            out[b * 128 + i_p, i_f],
            value=tiles[b, i_p, i_f] * 2.0,
            mask=(b * 128 + i_p < 200),
        )
    return out
""",
        (_array(200, 48),),
        lambda x: 2 * x,
    ),
    "a list of tiles that functions hand to each other": Case(
        """\
def kernel(x):
    out = nl.ndarray((200, 48), dtype=x.dtype, buffer=nl.shared_hbm)
    doubled = nl.ndarray((2, nl.par_dim(128), 48), dtype=x.dtype, buffer=nl.sbuf)
    loaded = load_blocks(x, 200)
    i_p, i_f = nl.mgrid[0:128, 0:48]
    for b in nl.affine_range(2):
        doubled[b, i_p, i_f] = nl.multiply(loaded[b, i_p, i_f], 2.0, mask=(b * 128 + i_p < 200))
    store_blocks(out, rows=200, tiles=doubled)
    return out


def load_blocks(x, rows):
    tiles = nl.ndarray((2, nl.par_dim(128), 48), dtype=x.dtype, buffer=nl.sbuf)
    i_p, i_f = nl.mgrid[0:128, 0:48]
    for b in nl.affine_range(2):
        tiles[b, i_p, i_f] = nl.load(x[b * 128 + i_p, i_f], mask=(b * 128 + i_p < rows))
    return tiles


def store_blocks(out, tiles, rows):
    i_p, i_f = nl.mgrid[0:128, 0:48]
    for b in nl.affine_range(2):
        mask = b * 128 + i_p < rows
        nl.store(out[b * 128 + i_p, i_f], value=tiles[b, i_p, i_f], mask=mask)
""",
        (_array(200, 48),),
        lambda x: 2 * x,
    ),
}
