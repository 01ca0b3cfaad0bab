"""Kernels of the tests of the Python subset; loaded as a twin."""

# ruff: noqa: ARG001, F841 (each shows one construct)

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


@nki.jit
def uses_torch_behind_its_return(x):
    return x
    return torch.abs(x)


@nki.jit
def has_a_lambda_behind_its_return(x):
    return x
    return lambda: x


def bad_helper(x):
    return torch.abs(x)


@nki.jit
def reaches_a_bad_helper(x):
    return bad_helper(x)


@nki.jit
def has_keywords(x, **options):
    return x


@nki.jit
def has_positions(x, /):
    return x


@nki.jit
def has_keyword_only(x, *, flag):
    return x


@nki.jit
def has_star(x):
    shape = (*x.shape,)
    return x if shape else None


@nki.jit
def has_set(x):
    return x if WIDTH in {4, 5} else None


@nki.jit
def has_dict_of_numbers(x):
    table = {"a": 1, 2: 3}
    return x if table else None


@nki.jit
def has_wide_integer(x):
    return x if x.shape[0] < 4294967296 else None


@nki.jit
def has_unsigned_integer(x):
    return x if x.shape[0] < 4294967295 else None


@nki.jit
def has_bytes(x):
    return x if b"a" else None


@nki.jit
def has_matmul_operator(x):
    return WIDTH @ x


@nki.jit
def has_expanded_keywords(x):
    return nl.load(**x)


@nki.jit
def has_for_else(x):
    for _ in range(2):
        pass
    else:
        return x


@nki.jit
def has_while_else(x):
    while WIDTH < 3:
        pass
    else:
        return x


@nki.jit
def has_class(x):
    class Inner:
        pass

    return x


@nki.jit
def has_del(x):
    y = x
    del y
    return x


@nki.jit
def has_match(x):
    match WIDTH:
        case 4:
            return x


@nki.jit
def has_global(x):
    global WIDTH
    return x


@nki.jit
def has_walrus(x):
    return (y := x)


@nki.jit
def has_yield(x):
    yield x


@nki.jit
def has_dict_comprehension(x):
    return x if {name: name + "a" for name in "ab"} else None


@nki.jit
def has_generator(x):
    return sum(1 for _ in range(2))


@nki.jit
def imports_inside(x):
    import math

    return math


@nki.jit
def changes_a_global(x):
    ROWS.append(3)
    return x


@nki.jit
def changes_an_item(x):
    ROWS[0] += 1
    return x


@nki.jit
def changes_settings(x):
    DEFAULTS.rows = 3
    return x


@nki.jit
def changes_a_default(x, made=[]):  # noqa: B006
    made.append(x)
    return x


@nki.jit
def changes_its_own(x, made):
    rows = [1]
    rows.append(ROWS[0])
    made.append(x)
    return x
