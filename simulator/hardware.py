"""Hardware facts: one frozen, self-checking record per Trainium generation, each field with its
source.

`SDK/` below is the public documentation repository aws-neuron/aws-neuron-sdk. Numbers are per
physical NeuronCore. Values that AWS did not publish in words are marked "inferred".
"""

from __future__ import annotations

from dataclasses import dataclass

from trnx.simulator.errors import TrnxError, UnknownTargetError


@dataclass(frozen=True)
class Hardware:
    """One NeuronCore generation. Sizes in bytes, clocks in Hz, rates in FLOP/s or bytes/s.

    Sources: SDK/nki/guides/architecture/{trainium_inferentia2,trainium2,trainium3}_arch.rst, and
    for `dma_engine_rate` SDK/nki/deep-dives/nki-dma-bandwidth-guide.rst.
    """

    target: str
    generation: int  # nc_version: 2, 3, 4; what has no rule of its own follows the last known one
    pe_clock: float
    vector_clock: float
    scalar_clock: float
    gpsimd_clock: float
    peak_bf16_flops: float
    fp32_cycles_per_column: int
    sbuf_partition_bytes: int
    hbm_bytes_per_second: float  # share of one core (inferred from the chip's)
    dma_engine_rate: float  # achievable bytes/s of one of the 16 DMA engines
    matmul_moving_columns: int  # most of one nc_matmul with a float32 destination
    partitions: int = 128
    psum_banks: int = 8
    psum_bank_bytes: int = 2048
    dma_engines: int = 16
    # Of the chip: SDK/about-neuron/arch/neuron-hardware/{trainium,trainium2,trainium3}.rst.
    cores_per_chip: int = 8
    chip_hbm_bytes: int = 96 * 2**30
    chip_hbm_bytes_per_second: float = 2.9e12
    # What HBM gives of that to cores that stream together: 655 of 725 GB/s on trn2, the slopes of
    # nki-library's mlp_tkg and qkv_tkg on two cores (652 and 658 GB/s); assumed for the others.
    hbm_efficiency: float = 0.903
    # Physical cores that share one HBM stack: SDK/.../logical-neuroncore-config.rst for trn2; the
    # chip's rate divided evenly elsewhere (inferred).
    cores_per_hbm_stack: int = 2
    lnc: tuple[int, ...] = (1, 2)  # physical cores that a logical core may have
    cores: int = 1  # and that the one has for which kernels are launched
    neuronlink_bytes_per_second: float = 1280e9  # of one chip, all its links
    peak_fp32_flops: float = 20e12
    # float8 with double_row on trn2, MXFP8 on trn3; where 0, float8 runs at the rate of bfloat16.
    peak_fp8_flops: float = 0.0
    # VectorE elements a cycle and partition: bfloat16/float16 copies, other types (SDK trainium2_
    # arch.rst, "512 BF16/FP16, 256 other" over 128 partitions).
    vector_half_width: int = 4
    vector_other_width: int = 2
    scalar_half_width: int = 1  # ScalarE, tensor_copy and tensor_scalar alone
    sync_clock: float = 1.2e9  # not published (inferred: as ScalarE)
    # A launch of a compiled graph, measured in the field on trn2 (95-100 us); assumed for the
    # others.
    launch_seconds: float = 100e-6
    # A region inside a launched graph: first load and last store, each with the fixed latency of a
    # DMA, "~1300 ns" (SDK/nki/deep-dives/nki-dma-bandwidth-guide.rst); assumed for trn1 and trn3.
    region_seconds: float = 2.6e-6

    def __post_init__(self) -> None:
        if self.cores not in self.lnc:
            raise AssertionError(f"{self.target}: no logical core has {self.cores} physical ones")
        computed = 2 * self.partitions * self.partitions * self.pe_clock
        if abs(computed - self.peak_bf16_flops) > 0.02 * self.peak_bf16_flops:
            raise AssertionError(f"{self.target}: peak FLOP/s do not follow from the PE clock")
        fp32 = computed / self.fp32_cycles_per_column
        if abs(fp32 - self.peak_fp32_flops) > 0.02 * self.peak_fp32_flops:
            raise AssertionError(f"{self.target}: float32 FLOP/s do not follow from the PE clock")
        # Double rows contract 256 rows, MX 512, in the time of 128.
        factor = {2: 0, 3: 2}.get(self.generation, 4)
        if abs(computed * factor - self.peak_fp8_flops) > 0.02 * self.peak_fp8_flops:
            raise AssertionError(f"{self.target}: float8 FLOP/s do not follow from the PE clock")
        share = self.chip_hbm_bytes_per_second / self.cores_per_chip
        if abs(share - self.hbm_bytes_per_second) > 0.02 * self.hbm_bytes_per_second:
            raise AssertionError(f"{self.target}: the core's share of HBM is not the chip's")

    @property
    def psum_partition_bytes(self) -> int:
        """Bytes of PSUM per partition."""
        return self.psum_banks * self.psum_bank_bytes

    @property
    def hbm_stack_bytes_per_second(self) -> float:
        """What one HBM stack gives the cores that share it."""
        share = self.cores_per_hbm_stack / self.cores_per_chip
        return share * self.hbm_efficiency * self.chip_hbm_bytes_per_second

    @property
    def dma_bytes_per_second(self) -> float:
        """Achievable DMA rate of one core, all engines together."""
        return self.dma_engines * self.dma_engine_rate

    @property
    def stream_bytes_per_second(self) -> float:
        """What the logical core reads and writes: the DMA engines of its physical cores, as far as
        their HBM stack feeds them."""
        rate = self.cores * self.dma_bytes_per_second
        return rate if self.cores == 1 else min(rate, self.hbm_stack_bytes_per_second)

    @property
    def region_bytes_per_second(self) -> float:
        """The same with the share of the chip's HBM that the physical cores have at the least."""
        return min(self.cores * self.hbm_bytes_per_second, self.stream_bytes_per_second)

    def roofline_seconds(self, matmul_flops: float, vector_flops: float, hbm_bytes: float) -> float:
        """Lower bound of the time of one region: the slowest of PE, VectorE and HBM traffic."""
        vector_rate = self.partitions * self.vector_clock
        return max(
            matmul_flops / self.peak_bf16_flops / self.cores,
            vector_flops / vector_rate / self.cores,
            hbm_bytes / self.region_bytes_per_second,
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
    matmul_moving_columns=512,
    cores_per_chip=2,
    chip_hbm_bytes=32 * 2**30,
    chip_hbm_bytes_per_second=820e9,
    lnc=(1,),
    neuronlink_bytes_per_second=384e9,
    peak_fp32_flops=23e12,
    vector_half_width=1,
    vector_other_width=1,
    sync_clock=1.4e9,
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
    # 385 GB/s of a core: the slope of nki-library's mlp_tkg on one. "23 B/ns" is documented.
    dma_engine_rate=24.06e9,
    matmul_moving_columns=512,
    peak_fp8_flops=158e12,
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
    matmul_moving_columns=4096,
    chip_hbm_bytes=144 * 2**30,
    chip_hbm_bytes_per_second=4.8e12,  # "4.7" and "4.9 TB/s" are both published
    neuronlink_bytes_per_second=2560e9,
    peak_fp8_flops=315e12,
    scalar_half_width=2,
)

# What a kernel, a model or a script is run for where nothing names a target.
DEFAULT_TARGET = TRN2.target

_ALIASES = {
    "trn1": TRN1,
    "inf2": TRN1,
    "gen2": TRN1,
    "trn2": TRN2,
    "gen3": TRN2,
    "trn3": TRN3,
    "gen4": TRN3,
}


def add_hardware(record: Hardware, *aliases: str) -> None:
    """Make another generation a target, under its own name and aliases; `costs.constants` has
    `add_timing` for its constants.

    Raises TrnxError where a name is taken by another record.
    """
    names = (record.target, *aliases)
    taken = [name for name in names if _ALIASES.get(name, record) != record]
    if taken:
        raise TrnxError(f"{', '.join(taken)}: another generation has that name; choose another")
    _ALIASES.update(dict.fromkeys(names, record))


def targets() -> tuple[str, ...]:
    """The names of the generations, aliases apart."""
    return tuple(dict.fromkeys(record.target for record in _ALIASES.values()))


def hardware(target: str) -> Hardware:
    """The record of `target`: trn1, trn2, trn3, an alias (inf2, gen2, gen3, gen4), or what was
    added.

    Raises UnknownTargetError, which lists the targets.
    """
    try:
        return _ALIASES[target]
    except KeyError:
        raise UnknownTargetError(
            f"unknown target {target!r}; choose one of {', '.join(_ALIASES)}"
        ) from None
