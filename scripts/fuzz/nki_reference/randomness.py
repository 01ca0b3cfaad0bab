"""rng, dropout, set_rng_seed, rand_set_state, rand_get_state, rand2.

The streams of the hardware are not documented: the reference knows in what range results lie, and
that equal states give equal numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference.machine import SBUF, Machine
from nki_reference.numbers import ANY, ARITHMETIC, FLOATS, INTEGERS, STORED
from nki_reference.program import Token, View
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import entry, never

WORDS = {"gpsimd": 6, "vector": 24}
RESULTS = tuple(dtype for dtype in ARITHMETIC if dtype != "float8_e4m3fn")


def _anything(m: Machine, view: View) -> None:
    """Any value of an integer type."""
    limits = np.iinfo(STORED[view.dtype])
    ones = np.ones(view.flat, dtype=STORED[view.dtype])
    m.put(view, ones)
    m.bound(view, np.full_like(ones, limits.min), np.full_like(ones, limits.max))


def _draw_rng(s: ProgramBuilder) -> None:
    flat = s.extent()
    on_gpsimd = s.generation >= 3 and s.c.flag(40)
    dst = s.tile(flat, INTEGERS, SBUF if on_gpsimd else ("sbuf", "psum"), dst=True)
    engine = Token("nisa.engine.gpsimd") if on_gpsimd else s.engine(("vector",))
    s.call("rng", dst=dst, engine=engine)


@entry("rng", _draw_rng, is_exact=never)
def rng(m: Machine, dst: View, engine: Any = None, name: Any = None) -> None:
    """Random bits."""
    m.tile(dst, INTEGERS)
    allowed = ("vector",) if m.generation == 2 else ("vector", "gpsimd")
    used = m.engine(engine, allowed)
    m.require(used != "gpsimd" or dst.buffer == "sbuf", "GpSimd cannot access PSUM")
    m.advance(used, dst)
    _anything(m, dst)


def _draw_seed(s: ProgramBuilder) -> None:
    seed = s.tile((1, 1), ("int32", "uint32", "float32"))
    s.call("set_rng_seed", src_seeds=seed)
    # Twice from one seed: the same numbers, which the entry of rng does not know.
    s.call("rng", dst=s.tile((4, 3), ("uint32",), SBUF, dst=True, reuse=False))


@entry("set_rng_seed", _draw_seed)
def set_rng_seed(m: Machine, src_seeds: View, name: Any = None) -> None:
    """Seed VectorE with one 32-bit value."""
    m.tile(src_seeds, ("int32", "uint32", "float32", "tfloat32"))
    m.require(src_seeds.index.size == 1, "one element")
    m.stored(src_seeds)
    m.states.pop("vector", None)


def _state(m: Machine, view: View, engine: Any) -> str:
    m.since(3)
    used = m.engine(engine, ("gpsimd",) if m.generation == 3 else ("gpsimd", "vector"))
    m.tile(view, ("uint32",))
    m.require(view.free == WORDS[used], "words of the state")
    return used


def _state_engine(s: ProgramBuilder) -> tuple[str, Token | None]:
    used = s.c.pick(("gpsimd", "vector")) if s.generation >= 4 else "gpsimd"
    token = Token(f"nisa.engine.{used}") if used == "vector" or s.c.flag() else None
    return used, token


def _draw_set_state(s: ProgramBuilder) -> None:
    used, engine = _state_engine(s)
    flat = s.c.pick((1, 32, 128)), WORDS[used]
    s.call("rand_set_state", src_seeds=s.tile(flat, ("uint32",), SBUF), engine=engine)
    # What was set is what is read.
    dst = s.tile(flat, ("uint32",), SBUF, dst=True, reuse=False)
    s.call("rand_get_state", dst=dst, engine=engine)


@entry("rand_set_state", _draw_set_state, generations=(3, 4))
def rand_set_state(m: Machine, src_seeds: View, engine: Any = None, name: Any = None) -> None:
    """Set the words of each lane."""
    used = _state(m, src_seeds, engine)
    m.require(src_seeds.buffer == "sbuf", "seeds are in SBUF")
    words = m.states.setdefault(used, np.full((128, WORDS[used]), -1, dtype=np.int64))
    words[src_seeds.start : src_seeds.start + src_seeds.partitions] = m.elements(src_seeds)


def _draw_get_state(s: ProgramBuilder) -> None:
    used, engine = _state_engine(s)
    buffers = ("sbuf", "psum") if used == "vector" else SBUF
    dst = s.tile((s.c.pick((1, 32, 128)), WORDS[used]), ("uint32",), buffers, dst=True)
    s.call("rand_get_state", dst=dst, engine=engine)


@entry("rand_get_state", _draw_get_state, generations=(3, 4), is_exact=never)
def rand_get_state(m: Machine, dst: View, engine: Any = None, name: Any = None) -> None:
    """Read the words of each lane: those that were set, unless numbers were drawn since."""
    used = _state(m, dst, engine)
    m.require(dst.buffer == "sbuf" or used == "vector", "GpSimd cannot access PSUM")
    words = m.states.get(used)
    lanes = slice(dst.start, dst.start + dst.partitions)
    if words is None or (words[lanes] < 0).any():
        _anything(m, dst)
        return
    m.put(dst, words[lanes].astype(np.uint32))


def _draw_rand2(s: ProgramBuilder) -> None:
    flat = s.extent()
    dst = s.tile(flat, RESULTS, dst=True)
    if s.c.flag():
        low: Any = s.tile((flat[0], 1), values=np.full((flat[0], 1), -2.0, np.float32), reuse=False)
    else:
        low = s.c.pick((0.0, -1.0, 0))
    s.call("rand2", dst=dst, min=low, max=s.c.pick((1.0, 100.0, 1)))


@entry("rand2", _draw_rand2, generations=(4,), is_exact=never)
def rand2(m: Machine, dst: View, min: Any, max: Any, name: Any = None) -> None:
    """Uniform numbers in [min, max]."""
    m.since(4)
    m.tile(dst, RESULTS)
    low, high = (m.scalar_f32(bound, dst).astype(np.float64) for bound in (min, max))
    if not isinstance(min, View) and not isinstance(max, View):
        m.require(low < high, "min must be less than max")
        m.require(np.isfinite(low) and np.isfinite(high), "the range is infinite")
    m.advance("vector", dst)
    middle = np.broadcast_to((low + high) / 2, dst.flat)
    spread = np.broadcast_to(np.abs(high - low) / 2, dst.flat)
    m.store(dst, middle, spread * (1 + 1e-6))


def _draw_dropout(s: ProgramBuilder) -> None:
    flat = s.extent()
    data = s.tile(flat, ARITHMETIC)
    prob: Any = s.c.pick((0.0, 1.0, 0.5, 0))
    if s.c.flag(30):
        values = s.values.integers(0, 2, (flat[0], 1)).astype(np.float32)
        prob = s.tile((flat[0], 1), values=values, reuse=False)
    s.call("dropout", dst=s.tile(flat, (data.dtype,), dst=True), data=data, prob=prob)


@entry("dropout", _draw_dropout, is_exact=never)
def dropout(m: Machine, dst: View, data: View, prob: Any, name: Any = None) -> None:
    """Each element is kept or 0: kept where the probability is 0, 0 where it is 1."""
    m.tile(dst, ANY)
    m.tile(data, ANY)
    m.same_extent(dst, data)
    m.require(dst.dtype == data.dtype, "types")
    allowed = ("float32",) if data.dtype not in FLOATS else FLOATS
    chance = np.broadcast_to(m.scalar_f32(prob, data, allowed), dst.flat)
    if not isinstance(prob, View):
        m.require(0 <= prob <= 1, "a probability")
    stored = m.elements(data)
    zero = np.zeros_like(stored)
    m.advance("vector", dst)
    m.put(dst, np.where(chance >= 1, zero, stored))
    if ((chance > 0) & (chance < 1)).any():
        is_open = (chance > 0) & (chance < 1)
        # A NaN stays, as expected above, or becomes 0.
        stored = np.where(is_open & np.isnan(stored.astype(np.float32)), zero, stored)
        low = np.where(is_open & (stored > zero), zero, np.where(chance >= 1, zero, stored))
        high = np.where(is_open & (stored < zero), zero, np.where(chance >= 1, zero, stored))
        m.bound(dst, low, high)
