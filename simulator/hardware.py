"""Hardware facts: one frozen, self-checking record per Trainium generation, each field with its
source.

`SDK/` below is the public documentation repository aws-neuron/aws-neuron-sdk. Numbers are per
physical NeuronCore. Values that AWS did not publish in words are marked "inferred".
"""

from __future__ import annotations

from dataclasses import dataclass

from trnx.simulator.errors import UnknownTargetError


@dataclass(frozen=True)
class Hardware:
    """One NeuronCore generation. Sizes in bytes, clocks in Hz, rates in FLOP/s or bytes/s.

    Sources: SDK/nki/guides/architecture/{trainium_inferentia2,trainium2,trainium3}_arch.rst, and
    for `dma_engine_rate` SDK/nki/deep-dives/nki-dma-bandwidth-guide.rst.
    """

    target: str
    generation: int  # nc_version: 2, 3, 4
    pe_clock: float
    vector_clock: float
    scalar_clock: float
    gpsimd_clock: float
    peak_bf16_flops: float
    fp32_cycles_per_column: int
    sbuf_partition_bytes: int
    hbm_bytes_per_second: float  # share of one core (inferred from the chip's)
    dma_engine_rate: float  # achievable bytes/s of one of the 16 DMA engines
    gemm_moving_fmax: int  # moving columns of one nc_matmul with a float32 destination
    partitions: int = 128
    psum_banks: int = 8
    psum_bank_bytes: int = 2048
    dma_engines: int = 16
    # A launch of a compiled graph, measured in the field on trn2 (95-100 us); assumed for the
    # others.
    launch_seconds: float = 100e-6
    # A region inside a launched graph: first load and last store, each with the fixed latency of a
    # DMA, "~1300 ns" (SDK/nki/deep-dives/nki-dma-bandwidth-guide.rst); assumed for trn1 and trn3.
    region_seconds: float = 2.6e-6

    def __post_init__(self) -> None:
        computed = 2 * self.partitions * self.partitions * self.pe_clock
        if abs(computed - self.peak_bf16_flops) > 0.02 * self.peak_bf16_flops:
            raise AssertionError(f"{self.target}: peak FLOP/s do not follow from the PE clock")

    @property
    def psum_partition_bytes(self) -> int:
        """Bytes of PSUM per partition."""
        return self.psum_banks * self.psum_bank_bytes

    @property
    def dma_bytes_per_second(self) -> float:
        """Achievable DMA rate of one core, all engines together."""
        return self.dma_engines * self.dma_engine_rate

    def roofline_seconds(self, matmul_flops: float, vector_flops: float, hbm_bytes: float) -> float:
        """Lower bound of the time of one region: the slowest of PE, VectorE and HBM traffic."""
        vector_rate = self.partitions * self.vector_clock
        return max(
            matmul_flops / self.peak_bf16_flops,
            vector_flops / vector_rate,
            hbm_bytes / min(self.hbm_bytes_per_second, self.dma_bytes_per_second),
        )


TRN1 = Hardware(
    target="trn1",
    generation=2,
    pe_clock=2.8e9,
    vector_clock=1.12e9,
    scalar_clock=1.4e9,
    gpsimd_clock=1.4e9,
    peak_bf16_flops=92e12,
    fp32_cycles_per_column=4,
    sbuf_partition_bytes=192 * 1024,
    hbm_bytes_per_second=410e9,
    dma_engine_rate=17e9,
    gemm_moving_fmax=512,
)
TRN2 = Hardware(
    target="trn2",
    generation=3,
    pe_clock=2.4e9,
    vector_clock=0.96e9,
    scalar_clock=1.2e9,
    gpsimd_clock=1.2e9,
    peak_bf16_flops=79e12,
    fp32_cycles_per_column=4,
    sbuf_partition_bytes=224 * 1024,
    hbm_bytes_per_second=362e9,
    dma_engine_rate=23e9,
    gemm_moving_fmax=512,
)
TRN3 = Hardware(
    target="trn3",
    generation=4,
    pe_clock=2.4e9,
    vector_clock=1.2e9,
    scalar_clock=1.2e9,
    gpsimd_clock=1.2e9,
    peak_bf16_flops=79e12,
    fp32_cycles_per_column=4,
    sbuf_partition_bytes=256 * 1024,
    hbm_bytes_per_second=600e9,
    dma_engine_rate=33e9,
    gemm_moving_fmax=4096,
)

_ALIASES = {
    "trn1": TRN1,
    "inf2": TRN1,
    "gen2": TRN1,
    "trn2": TRN2,
    "gen3": TRN2,
    "trn3": TRN3,
    "gen4": TRN3,
}


def hardware(target: str) -> Hardware:
    """The record of `target`: trn1, trn2, trn3 or an alias (inf2, gen2, gen3, gen4).

    Raises UnknownTargetError, which lists the targets.
    """
    try:
        return _ALIASES[target]
    except KeyError:
        raise UnknownTargetError(
            f"unknown target {target!r}; choose one of {', '.join(_ALIASES)}"
        ) from None
