"""`nl.tile_size` by generation."""

from __future__ import annotations

import pytest

from trnx.simulator.frontend.nki_modules import nki_modules

nl = nki_modules()["nki.language"]


@pytest.mark.parametrize(
    ("target", "sbuf_bytes"), [("trn1", 192 * 1024), ("trn2", 224 * 1024), ("trn3", 256 * 1024)]
)
def test_constants(target: str, sbuf_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    sizes = nl.tile_size
    assert (sizes.pmax, sizes.gemm_stationary_fmax, sizes.gemm_moving_fmax) == (128, 128, 512)
    assert (sizes.psum_bank_fmax, sizes.psum_bank_fmax_bytes, sizes.psum_fmax) == (512, 2048, 512)
    assert sizes.sbuf_fmax_bytes == sizes.total_available_sbuf_size == sbuf_bytes
    assert (sizes.sbuf_fmax, sizes.sbuf_size_bytes) == (sbuf_bytes // 4, 128 * sbuf_bytes)
    assert sizes.bn_stats_fmax == 512


@pytest.mark.parametrize(
    ("target", "lowered", "banks"),
    [("trn1", "true", 8), ("trn2", "true", 7), ("trn3", "true", 7), ("trn2", "false", 8)],
)
def test_a_psum_bank_is_reserved_for_transposes(
    target: str, lowered: str, banks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", lowered)
    assert nl.tile_size.psum_num_banks == banks
