"""VectorE, ScalarE and GpSimdE: work in cycles by elements per partition, plus fixed overheads."""

from __future__ import annotations

from trnx.simulator.attributes import ActivationAttributes, OperatorAttributes
from trnx.simulator.hardware import Hardware
from trnx.simulator.rows import OperandRow
from trnx.simulator.storage import MemoryRegion
from trnx.simulator.timing.constants import Timing
from trnx.simulator.timing.cost import (
    GPSIMD,
    PSUM_BANK,
    PSUM_PORT,
    SBUF_PORT,
    SCALAR,
    VECTOR,
    Cost,
    Instruction,
    cycles_ps,
)

_HALVES = ("bfloat16", "float16")
_FP8 = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")
_SIZES = {"float32": 4, "int32": 4, "uint32": 4, "tfloat32": 4}

# Cycles per element where they depend on nothing but the instruction. Sources: SDK 2.26 nki.isa;
# exponential and quantize_mx: trainium3_arch.rst. What is not here takes one cycle per element and
# tile that is read (inferred).
_PER_ELEMENT = {
    "reciprocal": 8.0,
    "bn_aggr": 13 / 3,
    "tensor_tensor_scan": 2.0,
    "exponential": 0.25,
    "quantize_mx": 0.25,
    "bn_stats": 1.0,
    "max8": 1.0,
    "nc_find_index8": 1.0,
    "nc_match_replace8": 1.0,
    "dropout": 1.0,
    "nc_stream_shuffle": 1.0,
    "range_select": 1.0,
    "nc_transpose": 1.0,
}
_COPIES = ("tensor_copy", "tensor_scalar", "memset")
# Operators of tensor_tensor that NeuronCore-v2 computes at full rate on 2-byte types.
_FAST_ON_HALVES = ("add", "multiply", "subtract")
_TWO_TILES = ("tensor_tensor", "scalar_tensor_tensor", "tensor_copy_predicated", "select_reduce")
# Functions that ScalarE has without a table; any other needs the table of its own family (both
# inferred: the sets are not published).
_NO_TABLE = ("", "copy", "identity", "square", "relu", "abs", "sign", "prelu", "lrelu")
_TABLES = {
    "exp": ("exp", "sigmoid", "silu", "silu_dx", "logistic"),
    "gelu": ("gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid", "erf"),
    "tanh": ("tanh", "mish", "softplus"),
}
_TABLE_OF = {name: table for table, names in _TABLES.items() for name in names}


def vector_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    """Work, 73 cycles until the next can start, 147 until the result is visible."""
    work = _vector_cycles(hardware, instruction) * _stride_factor(constants, instruction)
    if instruction.opcode == "tensor_scalar_reduce":
        work += constants.vector_extra_cycles
    if instruction.is_dynamic:
        work = max(work, constants.dynamic_cycles)
    is_fast = work < instruction.size
    return Cost(
        VECTOR,
        cycles_ps(work + constants.vector_issue_cycles, hardware.vector_clock),
        cycles_ps(work + constants.vector_latency_cycles, hardware.vector_clock),
        ports=_ports(hardware, instruction, SBUF_PORT | PSUM_PORT, is_fast),
    )


def _vector_cycles(hardware: Hardware, instruction: Instruction) -> float:
    size, opcode = instruction.size, instruction.opcode
    if opcode in _PER_ELEMENT:
        return size * _PER_ELEMENT[opcode]
    if opcode in _COPIES:
        return size / _copy_width(hardware, instruction)
    if opcode == "tensor_reduce":
        return size / (2 if _are_halves(hardware, instruction.operands) else 1)
    if opcode in _TWO_TILES:
        return size * _two_tile_factor(hardware, instruction)
    return size * max(1, len(instruction.sources()))


def _are_halves(hardware: Hardware, operands: tuple[OperandRow, ...] | list[OperandRow]) -> bool:
    types = _HALVES + _FP8 if hardware.generation >= 4 else _HALVES
    return all(operand.dtype in types for operand in operands)


def _copy_width(hardware: Hardware, instruction: Instruction) -> float:
    """Elements a cycle and partition: the performance modes of trainium2_arch.rst."""
    tiles = instruction.tiles()
    is_half = _are_halves(hardware, tiles)
    in_psum = sum(tile.buffer is MemoryRegion.psum for tile in tiles)
    is_dense = all(tile.free_size == 1 or tile.pattern.step == _itemsize(tile) for tile in tiles)
    if instruction.opcode == "memset" and hardware.generation == 2:
        return 2 if is_half else 1
    if in_psum:
        one_side = in_psum < len(tiles) and is_half and is_dense
        return min(2, hardware.vector_half_width) if one_side else 1
    if is_half:
        return hardware.vector_half_width if is_dense else min(2, hardware.vector_half_width)
    return hardware.vector_other_width if is_dense else 1


def _two_tile_factor(hardware: Hardware, instruction: Instruction) -> float:
    """Two tiles from SBUF take two cycles, unless the types are short; PSUM has a port of its
    own.
    """
    sources = instruction.sources()
    if len(sources) < 2:
        return 1
    if any(source.buffer is MemoryRegion.psum for source in sources):
        return 1
    if not _are_halves(hardware, instruction.tiles()):
        return 2
    operator = instruction.attributes_of(OperatorAttributes).operator
    return 1 if hardware.generation >= 3 or operator in _FAST_ON_HALVES else 2


def _itemsize(operand: OperandRow) -> int:
    return _SIZES.get(operand.dtype) or (2 if operand.dtype.endswith("16") else 1)


def _stride_factor(constants: Timing, instruction: Instruction) -> float:
    limit = constants.stride_limit_bytes
    far = any(t.free_size > 1 and t.pattern.step > limit for t in instruction.tiles())
    return 2 if far else 1


def _ports(hardware: Hardware, instruction: Instruction, used: int, is_fast: bool = True) -> int:
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


def scalar_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    """One element a cycle for any function, 64 cycles until the next can start."""
    work = float(instruction.size)
    if instruction.opcode in ("tensor_copy", "tensor_scalar"):
        if _are_halves(hardware, instruction.tiles()):
            work /= hardware.scalar_half_width
    elif len(instruction.writes) > 1:
        work += constants.scalar_extra_cycles
    work *= _stride_factor(constants, instruction)
    name = instruction.attributes_of(ActivationAttributes).function
    if instruction.is_dynamic:
        work = max(work, constants.dynamic_cycles)
    return Cost(
        SCALAR,
        cycles_ps(work + constants.scalar_issue_cycles, hardware.scalar_clock),
        cycles_ps(work + constants.scalar_latency_cycles, hardware.scalar_clock),
        table="" if name in _NO_TABLE else _TABLE_OF.get(name, name),
        ports=_ports(hardware, instruction, PSUM_PORT),
    )


def gpsimd_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    """150 cycles and one per element and tile that is read; published for iota and affine_select
    alone, so the other instructions are inferred.
    """
    size = float(instruction.size)
    if instruction.opcode == "topk":
        work = 4 * size + max((write.free_size for write in instruction.writes), default=0)
    elif instruction.opcode == "tensor_partition_reduce":
        # Each of the 8 cores walks its 16 partitions.
        work = size * 16
    else:
        work = size * max(1, len(instruction.sources()))
    if instruction.is_dynamic:
        work = max(work, constants.dynamic_cycles)
    ps = cycles_ps(constants.gpsimd_start_cycles + work, hardware.gpsimd_clock)
    return Cost(GPSIMD, ps, ps, ports=_ports(hardware, instruction, SBUF_PORT))
