"""register_alloc, register_move, register_load, register_store."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference.machine import DMA, Machine
from nki_reference.numbers import ARITHMETIC, FLOATS, STORED
from nki_reference.program import Register, View
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import entry

VALUES = (0, 1, -1, 7, 1000, 2**31 - 1, -(2**31))
LOADABLE = ("int32", "uint32", "int16", "uint16", "int8", "uint8")


def _draw_move(s: ProgramBuilder) -> None:
    source = s.register(s.c.pick(VALUES))
    target = s.register(None)
    s.call("register_move", dst=target, src=s.c.pick((source, 5, -(2**31))))
    _show(s, target)


def _show(s: ProgramBuilder, register: Register) -> None:
    dst = s.tile((1, 1), ("int32",), ("sbuf",), dst=True, reuse=False)
    s.call("register_store", dst=dst, src=register)


def _draw_load(s: ProgramBuilder) -> None:
    target = s.register(None)
    s.call("register_load", dst=target, src=s.tile((1, 1), LOADABLE, ("sbuf",)))
    _show(s, target)


def _draw_store(s: ProgramBuilder) -> None:
    source = s.register(s.c.pick(VALUES))
    s.call("register_store", dst=s.tile((1, 1), LOADABLE[:2], ("sbuf",), dst=True), src=source)


def _draw_alloc(s: ProgramBuilder) -> None:
    _show(s, s.register(s.c.pick(VALUES)))


@entry("register_alloc", _draw_alloc)
def register_alloc(m: Machine, x: Any = None, result: str = "") -> None:
    """A new register."""
    m.registers[result] = None
    if isinstance(x, View):
        register_load(m, Register(result), x)
    elif x is not None:
        register_move(m, Register(result), x)


@entry("register_move", _draw_move)
def register_move(m: Machine, dst: Any, src: Any) -> None:
    """dst = a constant of 32 bits or another register."""
    m.require(isinstance(dst, Register), "dst is no register")
    if isinstance(src, Register):
        m.registers[dst.name] = m.register(src)
        return
    m.require(isinstance(src, int) and -(2**31) <= src < 2**32, "src is no 32-bit integer")
    m.registers[dst.name] = _wrap(int(src))


def _wrap(value: int) -> int:
    return int(np.array(value & 0xFFFFFFFF, dtype=np.uint32).view(np.int32))


@entry("register_load", _draw_load)
def register_load(m: Machine, dst: Any, src: Any) -> None:
    """dst = the one element of src."""
    m.require(isinstance(dst, Register), "dst is no register")
    m.tile(src, ARITHMETIC, DMA, by_dma=True)
    m.require(src.index.size == 1, "src has not one element")
    m.require(src.dtype not in FLOATS, "src is no integer")
    m.registers[dst.name] = _wrap(int(m.stored(src).reshape(-1)[0]))


@entry("register_store", _draw_store)
def register_store(m: Machine, dst: Any, src: Any) -> None:
    """The one element of dst = the low bits of a register."""
    value = m.register(src)
    m.tile(dst, ARITHMETIC, DMA, by_dma=True)
    m.require(dst.index.size == 1, "dst has not one element")
    m.require(dst.dtype not in FLOATS, "dst is no integer")
    bits = np.array([value], dtype=np.int64)
    m.put(dst, bits.astype(STORED[dst.dtype]))
