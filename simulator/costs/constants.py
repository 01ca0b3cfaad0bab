"""The numbers of the timing model that are not in the hardware table, each with its source.

`kind` of a constant: "documented" by AWS; "measured", taken from one named published measurement
and judged by predicting others; "inferred", an assumption. Rows such as B3-12 and C5 are those of
the calibration table (`scripts/calibrate/points.py`, `docs/timing.md`). Times are nanoseconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from trnx.simulator.errors import TrnxError
from trnx.simulator.hardware import Hardware


def _constant(default: float, kind: str, source: str) -> Any:
    return field(default=default, metadata={"kind": kind, "source": source})


@dataclass(frozen=True)
class Timing:
    """Constants of one generation; cycles are those of the engine that the name begins with."""

    vector_issue_cycles: float = _constant(
        73, "measured", "row B3-12: 343 ns from one copy to the next, 267 ns of them work"
    )
    vector_latency_cycles: float = _constant(
        147, "measured", "row B3-12: a copy takes 420 ns, 267 ns of them work"
    )
    vector_extra_cycles: float = _constant(
        64, "documented", "second ISA instruction of tensor_scalar_reduce, SDK 2.26 nki.isa"
    )
    scalar_issue_cycles: float = _constant(
        64, "inferred", "MIN_II of SDK 2.26 nki.isa, added as on VectorE; 53 ns to 0.3 us possible"
    )
    scalar_latency_cycles: float = _constant(
        350, "measured", "row B3-17, 128 elements: 397 ns, 107 ns of them work"
    )
    scalar_extra_cycles: float = _constant(
        64, "documented", "ActReadAccumulator after a reduction, SDK 2.26 nki.isa"
    )
    scalar_table_ns: float = _constant(1280, "measured", "row B3-19, ACT_TABLE_LOAD")
    gpsimd_start_cycles: float = _constant(
        150, "documented", "GPSIMD_START, SDK 2.26 nki.isa; published for iota and affine_select"
    )
    matmul_min_columns: float = _constant(
        64, "documented", "MM_INIT_LATENCY, trainium_inferentia2_arch.rst"
    )
    matmul_latency_cycles: float = _constant(
        397, "measured", "row B3-5: 188 ns for 128 moving columns and 1 stationary column"
    )
    matmul_column_cycles: float = _constant(
        1, "inferred", "results leave the array a column a cycle; judged by B3-6 and B3-9"
    )
    weights_latency_cycles: float = _constant(187, "measured", "row B3-7: 67 ns for one column")
    weights_cycles: float = _constant(
        0.25,
        "documented",
        "per column: LoadStationary 'up to 4x' faster, trainium_inferentia2_arch",
    )
    weights_fp32_cycles: float = _constant(
        2, "inferred", "per column and pass: the fast load is one of 2-byte types; judged by B3-10"
    )
    throttle_ns: float = _constant(
        3000,
        "documented",
        "dI/dt: half rate for the first ~3 us, overview-summary-page.rst; 0 = no",
    )
    handoff_ns: float = _constant(
        30, "measured", "row B3-3: dependent ACTIVATEs start 189 ns apart, each takes 159 ns"
    )
    dma_start_ns: float = _constant(
        1000, "documented", "of the ~1300 ns of nki-dma-bandwidth-guide.rst, split as in C12"
    )
    dma_done_ns: float = _constant(
        300, "documented", "the rest of the ~1300 ns of nki-dma-bandwidth-guide.rst"
    )
    dma_issue_ns: float = _constant(
        600, "documented", "HWDGE: ~600 ns per DMA instruction, trainium2_arch.rst, nki-dge.rst"
    )
    dma_static_issue_ns: float = _constant(
        8, "measured", "DMA_DIRECT2D on the queue, nki-dma-intro-5.png"
    )
    dma_software_issue_ns: float = _constant(
        870, "measured", "SWDGE descriptors of a store by GpSimd, nki-dma-intro-5.png"
    )
    dma_stagger_ns: float = _constant(
        25, "measured", "C12: engines of one transfer start ~25 ns apart, nki-dma-intro-6.png"
    )
    dma_descriptor_ns: float = _constant(
        7, "measured", "a 4-byte transfer on its engine, nki_perf_guide fig29"
    )
    dma_descriptor_extra_ns: float = _constant(
        0, "measured", "on top of a descriptor's bytes; C12b on trn2: 97 ns for 8 of 256 bytes"
    )
    dma_small_row_bytes: float = _constant(
        0, "measured", "C12 on trn2: rows of 256 bytes run at 21 of 23 bytes a ns; 0 = no slow rows"
    )
    dma_small_row_rate: float = _constant(
        0, "documented", "bytes a ns and engine of rows up to dma_small_row_bytes; unused where 0"
    )
    dma_transpose_factor: float = _constant(
        0.9, "documented", "HBM to SBUF: up to 90 % of the DMA rate, trainium2_arch.rst"
    )
    dma_chip_transpose_factor: float = _constant(
        0.5, "documented", "SBUF to SBUF: up to 50 % of the DMA rate, trainium2_arch.rst"
    )
    dma_compute_factor: float = _constant(
        0.5, "documented", "accumulating DMA: half rate before trn3, trainium3_arch.rst"
    )
    dynamic_cycles: float = _constant(
        600, "documented", "MIN_II_DYNAMIC, least of tensor_copy_dynamic_src, SDK 2.26 nki.isa"
    )
    semaphore_ns: float = _constant(
        9, "measured", "row B3-8, EVENT_SEMAPHORE; any instruction of SyncE"
    )
    gpsimd_dma_rate: float = _constant(
        153, "documented", "GB/s of GpSimd's own DMA in each direction, trainium2_arch.rst"
    )
    hop_ns: float = _constant(
        1500, "documented", "1-2 us a hop within an instance, intranode-collective-comm.rst; middle"
    )
    far_hop_ns: float = _constant(
        15000, "documented", "~15 us between instances, internode-collective-comm.rst"
    )
    meeting_ns: float = _constant(1500, "inferred", "two cores meet: '1-2 us per hop' of the links")
    stride_limit_bytes: float = _constant(
        16, "documented", "above, SBUF access at half rate, trainium_inferentia2_arch; all chips"
    )

    @property
    def least_descriptor_ns(self) -> float:
        """What a descriptor costs an engine however few bytes it has."""
        return max(self.dma_descriptor_ns, self.dma_descriptor_extra_ns)


# What differs between generations: name -> (value, kind, source).
_Own = dict[str, tuple[float, str, str]]
_TRN1_OWN: _Own = {
    "vector_latency_cycles": (
        401, "measured", "row B3-1: 14987 ns, 14629 of them work; judged by B3-2 and C-II pool"
    ),
    "scalar_latency_cycles": (222, "measured", "row B3-3: 159 ns for one element"),
    "throttle_ns": (0, "documented", "the guides describe the throttle from trn2 on"),
    "dma_issue_ns": (8, "inferred", "descriptors are written ahead; HWDGE came with trn2"),
    "dma_descriptor_extra_ns": (
        20.9, "measured", "C5-tiled less C5-hoisted: 30,720 loads of 128 rows of 256 bytes in 8.84 "
        "ms, 36 ns a row and engine, 15.1 of them bytes; judged by C-II pool",
    ),
    "dma_small_row_bytes": (
        2048, "measured", "C5-blocked: its rows of 2 KiB move at the rate of C5-tiled, too; those "
        "of 2560 bytes in C-II resize_nearest do not",
    ),
    "dma_small_row_rate": (6.48, "measured", "C5-tiled alone: 5.37 GB in 51.80 ms, 16 engines"),
    "dma_transpose_factor": (
        0.25, "inferred", "'much lower bandwidth' (nki_perf_guide.rst): a quarter is assumed"
    ),
    "dma_chip_transpose_factor": (0.25, "inferred", "as dma_transpose_factor"),
}  # fmt: skip
_TRN3_OWN: _Own = {
    "dma_compute_factor": (1.0, "documented", "full rate on trn3, trainium3_arch.rst"),
}


def _timing(own: _Own) -> Timing:
    return Timing(**{name: value for name, (value, _, _) in own.items()})


_TRN1 = _timing(_TRN1_OWN)
_TRN2 = Timing()
_TRN3 = _timing(_TRN3_OWN)
TIMINGS = {"trn1": _TRN1, "trn2": _TRN2, "trn3": _TRN3}


def add_timing(target: str, constants: Timing) -> None:
    """The constants of a generation that was added with `add_hardware`.

    Raises TrnxError where the target has others.
    """
    if TIMINGS.setdefault(target, constants) != constants:
        raise TrnxError(f"{target} has constants; `schedule` takes others as an argument")


def timing(hardware: Hardware) -> Timing:
    """The constants of a generation; those of trn3 where it has none of its own."""
    return TIMINGS.get(hardware.target, _TRN3)


def free_constants() -> list[str]:
    """The constants that AWS did not document: measured or inferred, with their sources."""
    every = {
        field.name: (field.metadata["kind"], field.metadata["source"])
        for field in dataclasses.fields(Timing)
    }
    for chip, own in (("trn1", _TRN1_OWN), ("trn3", _TRN3_OWN)):
        for name, (_, kind, source) in own.items():
            every[f"{name} ({chip})"] = (kind, source)
    return [
        f"{name}: {kind}, {source}"
        for name, (kind, source) in every.items()
        if kind != "documented"
    ]
