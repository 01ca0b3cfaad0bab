"""NKI helper of kernels: when ScalarE loads its table of a function."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def load_table(op: object, one: nl.NkiTensor | None = None) -> None:
    """ScalarE loads its table for a function now, while it would wait, and not before the first
    use. `one`: a number in SBUF, `[1, 1]`, that the function takes."""
    data = one
    if one is None:
        data = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=data, value=1.0, engine=nisa.engine.gpsimd)
    unused = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=unused, op=op, data=data)


def early_epsilon(eps: float) -> nl.NkiTensor:
    """`eps` of a norm, `[128, 1]` in float32. ScalarE loads its table of the reciprocal root by it
    while the rows are on their way."""
    epsilon = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    load_table(nl.rsqrt, epsilon[0:1])
    return epsilon
