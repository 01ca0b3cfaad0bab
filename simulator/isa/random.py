"""Random numbers: rng, dropout, set_rng_seed, rand_set_state, rand_get_state, rand2.

The hardware's streams are not documented. Here each engine keeps, per lane, words that are a key
and, last, a counter; a number is a hash of key and counter. So equal seeds give equal numbers, a
state that is stored and set again continues where it was, and lanes differ. Every run starts from
the same state. Source for operands: the entries of these names in SDK nki.isa.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from trnx.simulator.costs.vector import on_vector, per_element
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import (
    FLOATS,
    bits_of,
    common_shape,
    flat,
    match_tiles,
    number,
    reachable,
    require_dtype,
    scalar,
)
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import SBUF

_WORDS = {Engine.gpsimd: 6, Engine.vector: 24}
_MASK = 0xFFFFFFFF
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
# Of rand2's entry: float8_e4m3fn is not among them.
_UNIFORM = (*(name for name in FLOATS if name != "float8_e4m3fn"), *_INTEGERS)


def _state(emit: Emit, engine: Engine) -> torch.Tensor:
    """[128, words] of 32-bit values held as int64; zero at the start of a run."""
    return emit.state(f"{engine.name}.random", (128, _WORDS[engine]), torch.int64)


def _multiply(a: torch.Tensor, factor: int) -> torch.Tensor:
    """a * factor modulo 2**32; int64 wraps around, which does not change the low bits."""
    return (a * factor) & _MASK


def _mix(value: torch.Tensor) -> torch.Tensor:
    """A bijection of 32-bit words that spreads every bit over the word (murmur3's finaliser)."""
    value = _multiply(value ^ (value >> 16), 0x85EBCA6B)
    value = _multiply(value ^ (value >> 13), 0xC2B2AE35)
    return value ^ (value >> 16)


def random_words(state: torch.Tensor, count: int) -> torch.Tensor:
    """The next `count` 32-bit numbers of every lane as int64 [lanes, count]; advances the state."""
    lanes = torch.arange(state.shape[0], device="cpu")[:, None]
    key = _mix(lanes + 0x9E3779B9)
    for word in state[:, :-1].unbind(1):
        key = _mix(key ^ word[:, None]) + 0x7F4A7C15 & _MASK
    counter = (state[:, -1:] + torch.arange(1, count + 1, device="cpu")) & _MASK
    state[:, -1] = counter[:, -1]
    return _mix(_mix(counter ^ key) + key & _MASK)


def _lanes(state: torch.Tensor, tile: NkiTensor) -> torch.Tensor:
    return state[tile.start_partition : tile.start_partition + tile.shape[0]]


@instruction(engines=(Engine.vector, Engine.gpsimd))
def rng(emit: Emit, dst: NkiTensor, engine: Any = Engine.vector, name: str | None = None) -> None:
    """dst = random bits, the low ones of 32."""
    newer = emit.generation >= 3
    used = emit.on(engine, (Engine.vector, Engine.gpsimd) if newer else (Engine.vector,))
    emit.check(dst, "dst")
    reachable(emit, dst=dst)
    require_dtype(emit, "dst", dst, _INTEGERS)
    out = bits_of(emit.write(dst, "dst", shape=flat(dst)))
    emit.step(_fill_bits, _lanes(_state(emit, used), dst), out)


def _fill_bits(state: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(random_words(state, out.shape[1]))


@instruction(engines=(Engine.vector,))
def set_rng_seed(emit: Emit, src_seeds: NkiTensor, name: str | None = None) -> None:
    """Seed VectorE's generator with one 32-bit value."""
    emit.check(src_seeds, "src_seeds")
    if src_seeds.size != 1:
        emit.illegal(f"src_seeds has shape {src_seeds.shape}; expected (1, 1)")
    is_word = src_seeds.dtype.itemsize == 4 and not src_seeds.dtype.is_packed
    if not is_word:
        emit.illegal(f"src_seeds is {src_seeds.dtype}; not a 32-bit value")
    seed = bits_of(emit.read(src_seeds, "src_seeds", shape=(1, 1)))
    emit.step(_seed, _state(emit, Engine.vector), seed)


def _seed(state: torch.Tensor, seed: torch.Tensor) -> None:
    state.zero_()
    state[:, 0] = seed.to(torch.int64).view(()) & _MASK


def _state_engine(emit: Emit, engine: Any) -> Engine:
    newer = emit.generation >= 4
    return emit.on(engine, (Engine.gpsimd, Engine.vector) if newer else (Engine.gpsimd,))


def _check_words(emit: Emit, tile: NkiTensor, operand: str, engine: Engine) -> None:
    require_dtype(emit, operand, tile, ("uint32",))
    if tile.free_size != _WORDS[engine]:
        emit.illegal(f"{operand} has {tile.free_size} words; {engine.name} has {_WORDS[engine]}")


@instruction(engines=(Engine.gpsimd, Engine.vector), generation=3)
def rand_set_state(
    emit: Emit, src_seeds: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> None:
    """Set the generator's state of each lane."""
    used = _state_engine(emit, engine)
    emit.check(src_seeds, "src_seeds", SBUF)
    _check_words(emit, src_seeds, "src_seeds", used)
    words = emit.read(src_seeds, "src_seeds", shape=flat(src_seeds))
    emit.step(_lanes(_state(emit, used), src_seeds).copy_, words)


@instruction(engines=(Engine.gpsimd, Engine.vector), generation=3)
def rand_get_state(
    emit: Emit, dst: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> None:
    """Store the generator's state of each lane."""
    used = _state_engine(emit, engine)
    emit.check(dst, "dst")
    reachable(emit, dst=dst)
    _check_words(emit, dst, "dst", used)
    out = emit.write(dst, "dst", shape=flat(dst))
    emit.step(out.copy_, _lanes(_state(emit, used), dst))


@instruction(engines=(Engine.vector,), generation=4)
def rand2(emit: Emit, dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> None:
    """dst = numbers uniform in [min, max], on trn3."""
    emit.check(dst, "dst")
    require_dtype(emit, "dst", dst, _UNIFORM)
    if not isinstance(min, NkiTensor) and not isinstance(max, NkiTensor):
        low_number, high_number = number(emit, min, "min"), number(emit, max, "max")
        if not low_number < high_number:
            emit.illegal(f"min={min} must be less than max={max}")
        if not (math.isfinite(low_number) and math.isfinite(high_number)):
            emit.illegal(f"min={min} and max={max} must be finite")
    shape = flat(dst)
    low = scalar(emit, min, "min", dst, shape)
    high = scalar(emit, max, "max", dst, shape)
    out = emit.write_f32(dst, "dst", shape=shape)
    emit.step(_uniform, _lanes(_state(emit, Engine.vector), dst), low, high, out)


def unit_interval(state: torch.Tensor, count: int) -> torch.Tensor:
    """The next numbers of every lane in [0, 1), multiples of 2**-24."""
    return (random_words(state, count) >> 8).to(torch.float32) * 2.0**-24


def _uniform(state: torch.Tensor, low: torch.Tensor, high: torch.Tensor, out: torch.Tensor) -> None:
    torch.lerp(low.expand_as(out), high.expand_as(out), unit_interval(state, out.shape[1]), out=out)


@instruction(engines=(Engine.vector,), cost=(on_vector(per_element(1)),))
def dropout(
    emit: Emit, dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None
) -> None:
    """dst = data with elements replaced by 0 with probability prob; the others are not scaled."""
    match_tiles(emit, dst, data=data)
    if dst.dtype != data.dtype:
        emit.illegal(f"dst is {dst.dtype}, data is {data.dtype}; must be equal")
    if not isinstance(prob, NkiTensor):
        if not (0 <= number(emit, prob, "prob") <= 1):
            emit.illegal(f"prob={prob} must be from 0 to 1")
    else:
        require_dtype(emit, "prob", prob, FLOATS if data.dtype.is_float else ("float32",))
    shape = common_shape(dst, data)
    value = bits_of(emit.read(data, "data", shape=shape))
    limit = scalar(emit, prob, "prob", data, (dst.shape[0], 1), any_dtype=True)
    out = bits_of(emit.write(dst, "dst", shape=shape))
    emit.step(_drop, _lanes(_state(emit, Engine.vector), data), value, limit, out)


def _drop(state: torch.Tensor, value: torch.Tensor, limit: torch.Tensor, out: torch.Tensor) -> None:
    numbers = unit_interval(state, value[0].numel())
    # Not "at least": where the probability is NaN, everything is kept.
    keep = (numbers < limit).logical_not_().view(value.shape)
    # The bits of zero are zero in every type.
    torch.where(keep, value, torch.zeros((), dtype=value.dtype), out=out)
