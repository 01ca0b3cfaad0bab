"""Kernels of the tests of the Python subset; loaded as a twin."""

import math
from enum import Enum
from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import torch

WIDTH = 4
SIZES = (1, 2, (3.0, "x", None))
TABLE = {1: 2}
NAMES = {"a", "b"}


class Mode(Enum):
    FAST = 1


class Pair(NamedTuple):
    a: int
    b: int


class Settings(nl.NKIObject):
    rows: int = 1


DEFAULTS = Settings(rows=2)
ROWS = [1, 2]


def helper(x, mode=Mode.FAST):
    settings = Settings(rows=WIDTH)
    pair = Pair(1, 2)
    assert mode is Mode.FAST, f"mode {mode}"
    total = math.prod(SIZES[:2]) + int(np.prod(ROWS)) + TABLE[1] + DEFAULTS.rows
    return x, settings.rows, pair.a, total, len(SIZES)


@nki.jit
def clean(x: torch.Tensor, count):
    tile, _, _, _, _ = helper(x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)

    def body(i):
        row = nl.ndarray((1, WIDTH), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=tile.select(0, i))

    nl.fori_loop(0, count, body)
    return out


@nki.jit
def has_lambda(x):
    return (lambda y: y)(x)


@nki.jit
def has_comprehension(x):
    many = [x for _ in range(2)]
    return many[0]


@nki.jit
def has_inner_function(x):
    def inner(y):
        return y

    return inner(x)


@nki.jit
def has_try(x):
    try:
        return x
    finally:
        pass


@nki.jit
def has_raise(x):
    if x.shape[0] == 0:
        raise ValueError
    return x


@nki.jit
def has_varargs(*xs):
    return xs[0]


@nki.jit
def has_format_spec(x):
    assert x.shape[0] > 0, f"{x.shape[0]:3d}"
    return x


@nki.jit
def uses_torch(x):
    return torch.abs(x)


@nki.jit
def uses_a_set(x):
    return x if "a" in NAMES else None


def bad_helper(x):
    return torch.abs(x)


@nki.jit
def reaches_a_bad_helper(x):
    return bad_helper(x)
