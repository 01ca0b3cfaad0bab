"""Registers (`register_alloc`, `_move`, `_load`, `_store`) and the version of the target."""

from __future__ import annotations

from typing import Any

from trnx.simulator.errors import KernelSubsetError
from trnx.simulator.findings import DISPUTED
from trnx.simulator.isa.arguments import checked, integer
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.recorder import current
from trnx.simulator.language.enums import Engine, NcVersion
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import DMA_REACHABLE


@checked
def register_alloc(x: Any = None) -> VirtualRegister:
    """A new register: without a value, with an integer, or with a one-element tensor's value."""
    current("register_alloc")
    register = VirtualRegister()
    if isinstance(x, NkiTensor):
        register_load(register, x)
    elif x is not None:
        register_move(register, x)
    return register


def _wrapped(value: int) -> int:
    """The signed integer with the low 32 bits of `value`."""
    return (value + 2**31) % 2**32 - 2**31


def _check_destination(emit: Emit, dst: Any) -> None:
    """A counter is passed by value: writing to it does not change the loop (nl.fori_loop). The
    language guide says that it cannot be written at all.
    """
    emit.require(isinstance(dst, VirtualRegister), "dst must be a register")
    if dst.is_frozen:
        emit.finding(
            DISPUTED,
            "dst is the counter of a loop, which the device's front end may refuse to write "
            "(SDK/nki/get-started/nki-language-guide.rst)",
            KernelSubsetError,
        )
    dst.writes += 1
    dst.lacks = None
    if not dst.is_set:
        emit.sets_register(dst)


@instruction(engines=(Engine.sync,))
def register_move(emit: Emit, dst: VirtualRegister, src: Any) -> None:
    """dst = a constant or another register."""
    _check_destination(emit, dst)
    if isinstance(src, VirtualRegister):
        emit.require_set(src, "src")
        emit.step(dst.value.copy_, src.value)
    else:
        emit.step(dst.value.fill_, _wrapped(integer(emit, src, "src", 2**32)))
    dst.is_set = True


@instruction(engines=(Engine.dma,))
def register_load(emit: Emit, dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = the one element of `src`."""
    _check_destination(emit, dst)
    if src.size != 1:
        emit.illegal(f"src has {src.size} elements; it must have one")
    if not src.dtype.is_integer:
        emit.illegal(f"src is {src.dtype}; a register holds an integer")
    emit.step(dst.value.copy_, emit.read(src, "src", shape=(1,), buffers=DMA_REACHABLE))
    dst.is_set = True


@instruction(engines=(Engine.dma,))
def register_store(emit: Emit, dst: NkiTensor, src: VirtualRegister) -> None:
    """The one element of `dst` = a register."""
    emit.require(isinstance(src, VirtualRegister), "src must be a register")
    emit.require_set(src, "src")
    if dst.size != 1:
        emit.illegal(f"dst has {dst.size} elements; it must have one")
    if not dst.dtype.is_integer:
        emit.illegal(f"dst is {dst.dtype}; a register holds an integer")
    emit.step(emit.write(dst, "dst", shape=(1,), buffers=DMA_REACHABLE).copy_, src.value)


def get_nc_version() -> NcVersion:
    """The generation of the target."""
    return NcVersion(current("get_nc_version").hardware.generation)


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: the first."""
    return 0
