"""A generation that trnx does not have, in a file of its own: twice trn3's clocks and DMA rate."""

from __future__ import annotations

import dataclasses

from trnx.simulator.costs.constants import Timing, add_timing
from trnx.simulator.hardware import TRN3, add_hardware

NEXT = dataclasses.replace(
    TRN3,
    target="trn9",
    generation=5,
    pe_clock=2 * TRN3.pe_clock,
    vector_clock=2 * TRN3.vector_clock,
    scalar_clock=2 * TRN3.scalar_clock,
    gpsimd_clock=2 * TRN3.gpsimd_clock,
    peak_bf16_flops=2 * TRN3.peak_bf16_flops,
    peak_fp32_flops=2 * TRN3.peak_fp32_flops,
    peak_fp8_flops=2 * TRN3.peak_fp8_flops,
    dma_engine_rate=2 * TRN3.dma_engine_rate,
    hbm_bytes_per_second=2 * TRN3.hbm_bytes_per_second,
    chip_hbm_bytes_per_second=2 * TRN3.chip_hbm_bytes_per_second,
    sbuf_partition_bytes=2 * TRN3.sbuf_partition_bytes,
)
add_hardware(NEXT, "gen5")
add_timing("trn9", Timing(dma_issue_ns=100))
