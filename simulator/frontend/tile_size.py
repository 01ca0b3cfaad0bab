"""`nl.tile_size`."""

from __future__ import annotations

import os

from trnx.simulator.frontend.kernel import chosen_target
from trnx.simulator.hardware import Hardware, hardware
from trnx.simulator.language.recorder import current_or_none


def _hardware() -> Hardware:
    """The running kernel's target; outside of kernels, that of `nki.simulate`."""
    recorder = current_or_none()
    if recorder is not None:
        return recorder.hardware
    return hardware(chosen_target(None))


class TileSize:
    """`nl.tile_size`: sizes of the target that the kernel is traced for."""

    pmax = 128
    gemm_stationary_fmax = 128
    # Of every generation: trn3's nc_matmul takes more columns in one instruction, but the kernels
    # that AWS wrote for trn3 (SDK/nki/deep-dives/src/mxfp-matmul) take this for 512, one PSUM bank.
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_bank_fmax(self) -> int:
        """float32 elements of a PSUM bank per partition."""
        return _hardware().psum_bank_bytes // 4

    psum_fmax = psum_bank_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of a PSUM bank per partition."""
        return _hardware().psum_bank_bytes

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks per partition, less the one that DMA transposes take where they are lowered to
        TensorE (SDK/nki/api/nki.language.tile_size.rst)."""
        chip = _hardware()
        lowered = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "").lower() == "true"
        return chip.psum_banks - (lowered and chip.generation > 2)

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of SBUF per partition."""
        return _hardware().sbuf_partition_bytes

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """float32 elements of SBUF per partition."""
        return _hardware().sbuf_partition_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF, all partitions together."""
        return _hardware().sbuf_partition_bytes * self.pmax
