"""VectorE, ScalarE and GpSimdE: work in cycles by elements per partition, plus fixed overheads."""

from __future__ import annotations

from collections.abc import Callable

from trnx.simulator.costs.attributes import ActivationAttributes, OperatorAttributes
from trnx.simulator.costs.constants import Timing
from trnx.simulator.costs.cost import (
    GPSIMD,
    PSUM_BANK,
    PSUM_PORT,
    SBUF_PORT,
    SCALAR,
    VECTOR,
    Cost,
    EngineCost,
    Workload,
    cycles_ps,
)
from trnx.simulator.costs.operands import Operand
from trnx.simulator.hardware import Hardware
from trnx.simulator.language.enums import Engine
from trnx.simulator.memory.storage import MemoryRegion

_HALVES = ("bfloat16", "float16")
_FP8 = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")
_SIZES = {"float32": 4, "int32": 4, "uint32": 4, "tfloat32": 4}

# Operators of tensor_tensor that NeuronCore-v2 computes at full rate on 2-byte types.
_FAST_ON_HALVES = ("add", "multiply", "subtract")
# Functions that ScalarE has without a table; any other needs the table of its own family (both
# inferred: the sets are not published).
_NO_TABLE = ("", "copy", "identity", "square", "relu", "abs", "sign", "prelu", "lrelu")
_TABLES = {
    "exp": ("exp", "sigmoid", "silu", "silu_dx", "logistic"),
    "gelu": ("gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid", "erf"),
    "tanh": ("tanh", "mish", "softplus"),
}
_TABLE_OF = {name: table for table, names in _TABLES.items() for name in names}


def table_of(function: str) -> str:
    """The table that ScalarE needs for a function; empty where it needs none."""
    return "" if function in _NO_TABLE else _TABLE_OF.get(function, function)


# Cycles of work by the operands; SDK 2.26 nki.isa where a declaration names no other source.
Cycles = Callable[[Hardware, Workload], float]


# ---- cycles of work ----


def per_element(cycles: float) -> Cycles:
    """So many cycles an element and partition, whatever the operands are."""

    def work(hardware: Hardware, instruction: Workload) -> float:
        del hardware
        return instruction.size * cycles

    return work


def per_source(hardware: Hardware, instruction: Workload) -> float:
    """A cycle an element and tile that is read: what no source gives a formula for (inferred)."""
    del hardware
    return float(instruction.size * max(1, len(instruction.sources())))


def copied(hardware: Hardware, instruction: Workload) -> float:
    """In VectorE's performance modes for one tile."""
    return instruction.size / _copy_width(hardware, instruction)


def filled(hardware: Hardware, instruction: Workload) -> float:
    """As a copy; NeuronCore-v2 has one performance mode for it."""
    if hardware.generation > 2:
        return copied(hardware, instruction)
    return instruction.size / (2 if _are_halves(hardware, instruction.tiles()) else 1)


def halves_at_twice_the_rate(hardware: Hardware, instruction: Workload) -> float:
    """A cycle an element, half of one where all operands are of 2-byte types."""
    return instruction.size / (2 if _are_halves(hardware, instruction.operands) else 1)


def halves_on_scalar(hardware: Hardware, instruction: Workload) -> float:
    """ScalarE's rate for 2-byte tiles."""
    is_fast = _are_halves(hardware, instruction.tiles())
    return instruction.size / (hardware.scalar_half_width if is_fast else 1)


def two_tiles(hardware: Hardware, instruction: Workload) -> float:
    """On NeuronCore-v2 two tiles from SBUF take two cycles an element, unless types are short."""
    return instruction.size * _two_tile_factor(hardware, instruction)


def scanned(hardware: Hardware, instruction: Workload) -> float:
    """Two cycles an element on NeuronCore-v2 (SDK 2.26 nki.isa); one since (row C-IV mamba)."""
    return instruction.size * (2.0 if hardware.generation == 2 else 1.0)


def sorted_out(hardware: Hardware, instruction: Workload) -> float:
    """topk: four passes, and the results."""
    del hardware
    most = max((write.free_size for write in instruction.writes), default=0)
    return 4 * float(instruction.size) + most


# ---- engines ----


def on_vector(cycles: Cycles, is_two_instructions: bool = False) -> EngineCost:
    """`cycles` on VectorE. `is_two_instructions`: of the ISA, the second of which has a fixed
    time.
    """

    def cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
        work = cycles(hardware, instruction) * _stride_factor(constants, instruction)
        if is_two_instructions:
            work += constants.vector_extra_cycles
        return _vector_cost(hardware, constants, instruction, work)

    return EngineCost(Engine.vector, cost)


def on_scalar(cycles: Cycles) -> EngineCost:
    """`cycles` on ScalarE."""

    def cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
        return _scalar_cost(hardware, constants, instruction, cycles(hardware, instruction))

    return EngineCost(Engine.scalar, cost)


def on_gpsimd(cycles: Cycles) -> EngineCost:
    """`cycles` on GpSimdE."""

    def cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
        return _gpsimd_cost(hardware, constants, instruction, cycles(hardware, instruction))

    return EngineCost(Engine.gpsimd, cost)


def _vector_cost(hardware: Hardware, constants: Timing, instruction: Workload, work: float) -> Cost:
    """Work, 73 cycles until the next can start, 147 until the result is visible."""
    if instruction.is_dynamic:
        work = max(work, constants.dynamic_cycles)
    is_fast = work < instruction.size
    return Cost(
        VECTOR,
        cycles_ps(work + constants.vector_issue_cycles, hardware.vector_clock),
        cycles_ps(work + constants.vector_latency_cycles, hardware.vector_clock),
        ports=_ports(hardware, instruction, SBUF_PORT | PSUM_PORT, is_fast),
    )


def _are_halves(hardware: Hardware, operands: tuple[Operand, ...] | list[Operand]) -> bool:
    types = _HALVES + _FP8 if hardware.generation >= 4 else _HALVES
    return all(operand.dtype in types for operand in operands)


def _copy_width(hardware: Hardware, instruction: Workload) -> float:
    """Elements a cycle and partition: the performance modes of trainium2_arch.rst."""
    tiles = instruction.tiles()
    is_half = _are_halves(hardware, tiles)
    in_psum = sum(tile.buffer is MemoryRegion.psum for tile in tiles)
    is_dense = all(tile.free_size == 1 or tile.pattern.step == _itemsize(tile) for tile in tiles)
    if in_psum:
        one_side = in_psum < len(tiles) and is_half and is_dense
        return min(2, hardware.vector_half_width) if one_side else 1
    if is_half:
        return hardware.vector_half_width if is_dense else min(2, hardware.vector_half_width)
    return hardware.vector_other_width if is_dense else 1


def _two_tile_factor(hardware: Hardware, instruction: Workload) -> float:
    """Two tiles from SBUF take two cycles on NeuronCore-v2, unless the types are short; PSUM has a
    port of its own. Later ones read both in one cycle (rows B4, measured in float32).
    """
    sources = instruction.sources()
    if hardware.generation > 2 or len(sources) < 2:
        return 1
    if any(source.buffer is MemoryRegion.psum for source in sources):
        return 1
    if not _are_halves(hardware, instruction.tiles()):
        return 2
    operator = instruction.attributes_of(OperatorAttributes).operator
    return 1 if operator in _FAST_ON_HALVES else 2


def _itemsize(operand: Operand) -> int:
    return _SIZES.get(operand.dtype) or (2 if operand.dtype.endswith("16") else 1)


def _stride_factor(constants: Timing, instruction: Workload) -> float:
    limit = constants.stride_limit_bytes
    far = any(t.free_size > 1 and t.pattern.step > limit for t in instruction.tiles())
    return 2 if far else 1


def _ports(hardware: Hardware, instruction: Workload, used: int, is_fast: bool = True) -> int:
    """On NeuronCore-v2 VectorE and GpSimd share a port of SBUF, VectorE and ScalarE one of PSUM.
    Later, GpSimd and VectorE's fast modes share a bus, and a bank of PSUM serves one of VectorE and
    ScalarE at its full rate; taking turns has the same sum (inferred: how they share is not
    published).
    """
    in_sbuf = instruction.touches(MemoryRegion.sbuf)
    in_psum = instruction.touches(MemoryRegion.psum)
    if hardware.generation > 2:
        ports = SBUF_PORT if in_sbuf and is_fast and used & SBUF_PORT else 0
        return ports | (PSUM_BANK if in_psum and used & PSUM_PORT else 0)
    return ((SBUF_PORT if in_sbuf else 0) | (PSUM_PORT if in_psum else 0)) & used


def _scalar_cost(hardware: Hardware, constants: Timing, instruction: Workload, work: float) -> Cost:
    """Work, 64 cycles until the next can start; a second result is read out of an accumulator."""
    if len(instruction.writes) > 1:
        work += constants.scalar_extra_cycles
    work *= _stride_factor(constants, instruction)
    name = instruction.attributes_of(ActivationAttributes).function
    if instruction.is_dynamic:
        work = max(work, constants.dynamic_cycles)
    return Cost(
        SCALAR,
        cycles_ps(work + constants.scalar_issue_cycles, hardware.scalar_clock),
        cycles_ps(work + constants.scalar_latency_cycles, hardware.scalar_clock),
        table=table_of(name),
        ports=_ports(hardware, instruction, PSUM_PORT),
    )


def _gpsimd_cost(hardware: Hardware, constants: Timing, instruction: Workload, work: float) -> Cost:
    """150 cycles and the work; published for iota and affine_select alone, so the costs of other
    instructions are inferred.
    """
    if instruction.is_dynamic:
        work = max(work, constants.dynamic_cycles)
    ps = cycles_ps(constants.gpsimd_start_cycles + work, hardware.gpsimd_clock)
    return Cost(GPSIMD, ps, ps, ports=_ports(hardware, instruction, SBUF_PORT))


# What an instruction costs that declares nothing else.
vector_cost = on_vector(per_source).function
scalar_cost = on_scalar(per_element(1)).function
gpsimd_cost = on_gpsimd(per_source).function
