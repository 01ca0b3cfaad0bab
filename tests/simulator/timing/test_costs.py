"""Costs of instructions, constants, memory of the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.costs.attributes import (
    NONE,
    ActivationAttributes,
    Attributes,
    OperatorAttributes,
    ProductAttributes,
    ProductMode,
)
from trnx.simulator.costs.constants import Timing, free_constants, timing
from trnx.simulator.costs.cost import DMA_GPSIMD, DMA_STORE, Cost, Workload
from trnx.simulator.costs.operands import AccessPattern, Operand, access_pattern
from trnx.simulator.frontend.nki_modules import nki_modules
from trnx.simulator.hardware import TRN1, TRN2, TRN3, Hardware, hardware
from trnx.simulator.isa.instruction import SPECS
from trnx.simulator.language.enums import Engine
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.timing.model import CostModel

nki_modules()  # declares every instruction
CHIPS = (TRN1, TRN2, TRN3)
SBUF, PSUM, HBM = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.shared_hbm


def _tile(
    size: int,
    dtype: str = "float32",
    buffer: MemoryRegion = SBUF,
    *,
    write: bool = False,
    partitions: int = 128,
    step: int = 0,
) -> Operand:
    itemsize = 4 if dtype == "float32" else 2
    step = step or itemsize
    run = size * itemsize if step == itemsize else itemsize
    pattern = AccessPattern(step, run, 0, 0)
    return Operand(0, buffer, dtype, write, 0, partitions, size, 0, size * step, pattern)


def _cost(
    chip: Hardware,
    opcode: str,
    engine: Engine,
    attributes: Attributes,
    operands: Sequence[Operand],
) -> Cost:
    return CostModel(chip, InstructionTable()).cost(
        SPECS[opcode], Workload(engine, attributes, operands)
    )


def _vector_work(chip: Hardware, opcode: str, *operands: Operand, op: str = "") -> float:
    cost = _cost(chip, opcode, Engine.vector, OperatorAttributes(op), operands)
    # Times are whole picoseconds.
    return round(cost.interval * chip.vector_clock / 1e12 - timing(chip).vector_issue_cycles, 2)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((116, 728), (1400, 1)),
        ((58, 2, 728), (2800, 1400, 1)),
        ((2, 58, 728), (1400, 2800, 1)),
        ((2, 58, 8, 91), (1400, 2800, 91, 1)),
        ((2, 58, 4, 728), (1400, 2800, 0, 1)),
    ],
)
def test_the_order_of_a_walk_does_not_change_its_bytes(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Columns 0 to 727 of 116 rows of 1400: what another operand has beside them is free."""
    pattern = access_pattern(shape, strides, 2, is_on_chip=False)
    assert (pattern.pitch, pattern.span) == (2800, 1456)
    parts = access_pattern((128, *shape), (0, *strides), 2, is_on_chip=True)
    assert (parts.pitch, parts.span) == (2800, 1456)


def test_vector_performance_modes() -> None:
    bf16 = [_tile(512, "bfloat16"), _tile(512, "bfloat16", write=True)]
    assert _vector_work(TRN2, "tensor_copy", *bf16) == pytest.approx(128)
    strided = [_tile(512, "bfloat16", step=4), bf16[1]]
    assert _vector_work(TRN2, "tensor_copy", *strided) == pytest.approx(256)
    from_psum = [_tile(512, "bfloat16", PSUM), bf16[1]]
    assert _vector_work(TRN2, "tensor_copy", *from_psum) == pytest.approx(256)
    wide = [_tile(512), _tile(512, write=True)]
    assert _vector_work(TRN2, "tensor_copy", *wide) == pytest.approx(256)
    assert _vector_work(TRN1, "tensor_copy", *wide) == pytest.approx(512)
    evicted = [_tile(512, buffer=PSUM), bf16[1]]
    assert _vector_work(TRN2, "tensor_copy", *evicted) == pytest.approx(512)
    far = [_tile(512, step=32), _tile(512, write=True)]
    assert _vector_work(TRN1, "tensor_copy", *far) == pytest.approx(1024)


def test_two_tiles_take_two_cycles_on_trn1_unless_one_is_in_psum_or_types_are_short() -> None:
    wide = [_tile(512), _tile(512), _tile(512, write=True)]
    assert _vector_work(TRN1, "tensor_tensor", *wide, op="add") == pytest.approx(1024)
    assert _vector_work(TRN2, "tensor_tensor", *wide, op="add") == pytest.approx(512)
    psum = [_tile(512, buffer=PSUM), *wide[1:]]
    assert _vector_work(TRN1, "tensor_tensor", *psum, op="add") == pytest.approx(512)
    assert _vector_work(TRN2, "tensor_tensor", *psum, op="add") == pytest.approx(512)
    short = [_tile(512, "bfloat16")] * 2 + [_tile(512, "bfloat16", write=True)]
    assert _vector_work(TRN2, "tensor_tensor", *short, op="maximum") == pytest.approx(512)
    assert _vector_work(TRN1, "tensor_tensor", *short, op="maximum") == pytest.approx(1024)
    assert _vector_work(TRN1, "tensor_tensor", *short, op="add") == pytest.approx(512)


def test_a_scan_takes_two_cycles_on_trn1() -> None:
    operands = [_tile(512), _tile(512), _tile(512, write=True)]
    assert _vector_work(TRN1, "tensor_tensor_scan", *operands) == pytest.approx(1024)
    assert _vector_work(TRN2, "tensor_tensor_scan", *operands) == pytest.approx(512)


@pytest.mark.parametrize("chip", CHIPS)
def test_matmul_time_follows_the_columns(chip: Hardware) -> None:
    def cycles(dtype: str, m: int, n: int, mode: ProductMode = ProductMode.plain) -> float:
        operands = [_tile(m, dtype), _tile(n, dtype), _tile(n, buffer=PSUM, write=True)]
        cost = _cost(chip, "nc_matmul", Engine.tensor, ProductAttributes(mode), operands)
        assert cost.latency > cost.interval
        return round(cost.interval * chip.pe_clock / 1e12, 2)

    assert cycles("bfloat16", 128, 512) == pytest.approx(512)
    assert cycles("bfloat16", 128, 1) == pytest.approx(64)
    assert cycles("bfloat16", 1, 1) == pytest.approx(1)
    assert cycles("float32", 128, 512) == pytest.approx(2048)
    assert cycles("bfloat16", 256, 1024, ProductMode.double_row) == pytest.approx(512)
    transposed = 4 if chip is TRN1 else 2
    assert cycles("float32", 128, 128, ProductMode.transpose) == pytest.approx(128 * transposed)


@pytest.mark.parametrize("chip", CHIPS)
def test_dma_spreads_rows_over_engines(chip: Hardware) -> None:
    def cost(partitions: int, size: int):  # type: ignore[no-untyped-def]
        hbm = Operand(
            1, HBM, "float32", False, 0, 1, partitions * size, 0, partitions * size * 4,
            AccessPattern(4, partitions * size * 4, 0, 0),
        )  # fmt: skip
        target = _tile(size, write=True, partitions=partitions)
        return _cost(chip, "dma_copy", Engine.dma, NONE, [hbm, target])

    spread = [cost(partitions, 64).dma_engines for partitions in (128, 4, 9)]
    assert spread == ([16, 4, 9] if chip is TRN1 else [16, 1, 2])
    extra = timing(chip).dma_descriptor_extra_ns
    large = cost(128, 8192)
    moved = 8 * 32768 / (chip.dma_engine_rate / 1e12)
    assert large.transfer == pytest.approx(moved + 8000 * extra)
    assert large.hbm_bytes == 128 * 8192 * 4
    # Four bytes a row: descriptors decide, not bytes.
    least = max(timing(chip).dma_descriptor_ns, extra + 4 / (chip.dma_engine_rate / 1e9))
    assert cost(128, 1).transfer == pytest.approx(8000 * least, abs=1)


def test_one_row_takes_the_same_engine_on_trn1() -> None:
    """Rows are dealt from the first engine on: as many loads of one row take as long in all."""
    hbm = Operand(1, HBM, "float16", False, 0, 1, 1280, 0, 2560, AccessPattern(2, 2560, 0, 0))
    target = _tile(1280, dtype="float16", write=True, partitions=1)
    found = _cost(TRN1, "dma_copy", Engine.dma, NONE, [hbm, target])
    assert (found.first_engine, found.dma_engines) == (0, 1)
    # More than 2 KiB: the rate of small rows does not bind.
    taken = 2560 / (TRN1.dma_engine_rate / 1e9) + timing(TRN1).dma_descriptor_extra_ns
    assert found.transfer == pytest.approx(1000 * taken, abs=1)


@pytest.mark.parametrize("chip", CHIPS)
def test_costs_grow_with_elements(chip: Hardware) -> None:
    exp = ActivationAttributes("exp")
    for engine, opcode in product(
        (Engine.vector, Engine.scalar), ("tensor_copy", "activation", "tensor_scalar")
    ):
        times = [
            _cost(chip, opcode, engine, exp, [_tile(n), _tile(n, write=True)])
            for n in (1, 127, 128, 129, 513, 8192)
        ]
        assert all(a.interval < b.interval for a, b in pairwise(times))
        assert all(cost.latency >= cost.interval for cost in times)


def test_every_constant_has_a_kind_and_a_source() -> None:
    fields = dataclasses.fields(Timing)
    assert all(f.metadata["kind"] in ("documented", "measured", "inferred") for f in fields)
    assert all(len(f.metadata["source"]) > 10 for f in fields)
    free = free_constants()
    assert all("documented" not in line for line in free)
    assert any(line.startswith("dma_small_row_rate (trn1): measured") for line in free)


def test_hardware_records_check_themselves() -> None:
    for wrong in ({"pe_clock": 2e9}, {"peak_fp32_flops": 1e12}, {"peak_fp8_flops": 1e12}):
        with pytest.raises(AssertionError, match="trn2"):
            dataclasses.replace(TRN2, **wrong)
    with pytest.raises(AssertionError, match="share of HBM"):
        dataclasses.replace(TRN3, chip_hbm_bytes_per_second=1e12)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize(
    ("dtype", "passes"), [(torch.float32, 4), (torch.int32, 4), (torch.bfloat16, 1)]
)
def test_a_broadcast_over_partitions_is_a_product_with_ones(
    target: str, dtype: torch.dtype, passes: int
) -> None:
    kernels = load_module(Path(__file__).with_name("timing_kernels.py"))
    rows = trace(kernels.spread, [TensorSpec.dense((1, 512), dtype)], target=target).rows
    assert [row.engine for row in rows] == ["dma", "tensor", "dma"]
    chip = hardware(target)
    cost = CostModel(chip, rows).of(1)
    assert cost.interval == pytest.approx(passes * 512 / chip.pe_clock * 1e12, abs=1)
    # Of TensorE's rows the power throttle sees one.
    assert cost.rows == 1
    assert cost.weights == 0


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_sums_by_dma_have_software_descriptors_for_rows_that_an_index_names(target: str) -> None:
    kernels = load_module(Path(__file__).with_name("timing_kernels.py"))
    specs = [TensorSpec.dense((64, 32), torch.float32), TensorSpec.dense((64, 1), torch.int32)]
    rows = trace(kernels.added_rows, specs, target=target).rows
    chip = hardware(target)
    model, constants = CostModel(chip, rows), timing(chip)
    named, plain = [model.of(i) for i, row in enumerate(rows) if row.opcode.endswith("dma_compute")]
    assert (named.queue, plain.queue) == (DMA_GPSIMD, DMA_STORE)
    assert named.interval == constants.dma_software_issue_ns * 1000
    assert plain.interval == constants.dma_static_issue_ns * 1000
