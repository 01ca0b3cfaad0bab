"""Kernels of the tests of nki.language's tile maths; loaded as a twin."""

import nki
import nki.isa as nisa
import nki.language as nl


def _result(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@nki.jit
def unary(x, name, dtype):
    return _result(getattr(nl, name)(nl.load(x), dtype=dtype))


@nki.jit
def binary(x, y, name):
    left = nl.load(x) if hasattr(x, "shape") else x
    right = nl.load(y) if hasattr(y, "shape") else y
    return _result(getattr(nl, name)(left, right))


@nki.jit
def reduction(x, name, axis, keepdims):
    return _result(getattr(nl, name)(nl.load(x), axis=axis, keepdims=keepdims))


@nki.jit
def normalised(x, w):
    tile = nl.load(x)
    weight = nl.broadcast_to(nl.load(w), x.shape)
    return _result(nl.rms_norm(tile, weight, 1, x.shape[1])), _result(nl.softmax(tile, axis=1))


@nki.jit
def product(x, y, transpose_x):
    return _result(nl.matmul(nl.load(x), nl.load(y), transpose_x=transpose_x))


@nki.jit
def moved(x):
    return _result(nl.transpose(nl.load(x))), _result(nl.load_transpose2d(x))


@nki.jit
def chosen(x):
    tile = nl.load(x)
    positive = nl.greater(tile, 0.0)
    return _result(nl.where(positive, tile, -1.0)), _result(nl.where(positive, 2.0, tile))


@nki.jit
def filled(dtype):
    hbm = nl.full((3, 130), 2, dtype=dtype, buffer=nl.shared_hbm)
    identity = nl.shared_identity_matrix(5, dtype=dtype)
    return hbm, _result(identity), _result(nl.zeros_like(identity)), _result(nl.ones((4, 2), dtype))


@nki.jit
def random(shape):
    return _result(nl.rand(shape, nl.float32))


@nki.jit
def assigned(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    tile[...] = x
    tile[:, 0:1] = 5.0
    out[...] = tile
    return out


@nki.jit
def activated(x, op, scale):
    tile = nl.load(x)
    nisa.activation(dst=tile, op=getattr(nl, op), data=tile, scale=scale)
    return _result(tile)


@nki.jit
def sine_of_scalar_engine(x):
    tile = nl.load(x)
    nisa.activation(dst=tile, op=nl.sin, data=tile)
    return _result(tile)


@nki.jit
def stored_number(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, 7.0)
    return out


@nki.jit
def root_of_number(x):
    return _result(nl.multiply(nl.load(x), nl.sqrt(4.0)))
