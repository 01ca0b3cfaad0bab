"""Kernels around those of nki-library that want a memory manager of theirs."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl

# What their own tests leave to the compiler.
_RESERVED = 16 * 1024


def attention_of_decode(
    q: Any, k_active: Any, v_active: Any, k_prior: Any, v_prior: Any, mask: Any,
    positions: Any, config: Any, kernel: Any, manager: Any,
) -> Any:  # fmt: skip
    """attention_tkg over a cache whose last row is the token of this step: q [d, B * heads] and
    k_active [d, B] are loaded for it.
    """
    memory = manager(0, nl.tile_size.total_available_sbuf_size - _RESERVED)
    memory.open_scope()
    loaded = []
    for source in (q, k_active):
        tile = memory.alloc_stack(source.shape, dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=source)
        loaded.append(tile)
    shape = (config.bs, config.q_head, config.d_head, 1)
    out = nl.ndarray(shape, dtype=v_prior.dtype, buffer=nl.shared_hbm)
    kernel(
        loaded[0],
        loaded[1],
        v_active,
        k_prior,
        v_prior,
        mask,
        out,
        config,
        memory,
        rope_pos_ids=positions,
    )
    memory.close_scope()
    return out
