"""Scaled dot product attention, `trnx::sdpa`, as flash attention: scores never leave the chip.

Supported: float32, bfloat16 and float16 (one dtype for q, k and v); any B, H, L and S; grouped
query heads; D and Dv up to 256 (above 128 even); bool and float masks that broadcast to
[B, H, L, S]; a dropout mask; causal; all of them together. Scores, softmax and sums are float32;
weights are rounded to the dtype of v for the product with v.

Keys and values of a head are loaded once and kept in SBUF (up to a budget) while its queries stream
by. Up to 512 keys, as many heads as fit a PSUM bank go through each instruction together. Where
there is one query a head (decoding), the heads of a group are the rows of a tile.
"""

from __future__ import annotations

from functools import partial

import nki
import nki.language as nl
import torch

from trnx.nki_kernels.kernels.attention._forward import (
    Biases,
    Outputs,
    Pipeline,
    Problem,
    forward_chunk,
    forward_pack,
    step,
    store_logs,
)
from trnx.nki_kernels.kernels.attention._host import (
    attention_cost,
    dropout_factor,
    has_bool_mask,
    samples,
    supports,
)
from trnx.nki_kernels.kernels.attention._layout import chunks_of, head_layout, packs_of
from trnx.nki_kernels.kernels.attention._masks import Masks, as_four, heads_as_rows
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch, Pattern
from trnx.simulator.hardware import Hardware

_TENSORS = ("q", "k", "v", "attn_mask", "dropout_mask")
# Keys and values of a head in SBUF, bytes per partition: leaves two thirds of trn1's to the rest.
_RESIDENT_BYTES = 65536


@nki.jit
def sdpa_kernel(
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    attn_mask: nl.NkiTensor | None,
    dropout_mask: nl.NkiTensor | None,
    boolean: bool,
    factor: float,
    causal: bool,
    scale: float,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """`(out, lse)`; `boolean`: attn_mask is 0 or 1, not added; `factor`: of the weights that
    dropout keeps."""
    heads = q.shape[1]
    depth = k.shape[2]
    out = nl.ndarray(q.shape[:-1] + (v.shape[3],), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = nl.ndarray(q.shape[:-1], dtype=nl.float32, buffer=nl.shared_hbm)
    outputs = Outputs(out, lse, [])
    mask = None if attn_mask is None else as_four(attn_mask)
    group = heads // k.shape[1]
    if group > 1 and q.shape[2] == 1 and not causal:
        q = heads_as_rows(q, group)
        outputs = Outputs(heads_as_rows(out, group), heads_as_rows(lse, group), [])
        mask = heads_as_rows(mask, group)
        dropout_mask = heads_as_rows(dropout_mask, group)
        heads = k.shape[1]
        group = 1
    bank = nl.tile_size.psum_bank_fmax
    pmax = nl.tile_size.pmax
    short = depth <= pmax
    features = head_layout(q.shape[3], group == 1, short)
    keys = head_layout(depth, group == 1 and depth <= pmax // 2, short)
    most = 1
    if depth <= bank:
        most = min(bank // depth, bank // v.shape[3])
    itemsize = 4 if q.dtype == nl.float32 else 2
    stored = depth * features.cuts + (depth + pmax - 1) // pmax * v.shape[3]
    tile = min(bank, depth)
    problem = Problem(
        Masks(mask, boolean, causal),
        dropout_mask,
        factor,
        scale,
        group,
        features,
        keys,
        tile,
        stored * itemsize <= _RESIDENT_BYTES,
    )
    biases = Biases([])
    head_chunks = chunks_of(q.shape[0], heads, group, most, max(features.slots, keys.slots))
    packs = packs_of(head_chunks, q.shape[0], q.shape[2], depth, group)
    tensors = (q, k, v)
    pipeline = Pipeline(None, None, None)
    for pack in packs:
        pipeline = forward_pack(problem, tensors, outputs, pack, biases, pipeline)
    if len(packs) == 0:
        for pair in head_chunks:
            pipeline = forward_chunk(problem, tensors, outputs, pair[0], pair[1], biases, pipeline)
    pipeline = step(problem, outputs, pipeline, None)
    step(problem, outputs, pipeline, None)
    store_logs(problem, outputs)
    return out, lse


def _sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor]
    result = torch.ops.trnx.sdpa.default(
        q, k, v, attn_mask, dropout_mask, dropout_p, is_causal, scale
    )
    return result


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The kind of mask and the numbers are constants of the kernel."""
    del hw
    constants = (has_bool_mask(b), dropout_factor(b), b.is_causal, b.scale)
    return Launch.of(sdpa_kernel, b, _TENSORS, *constants)


register(
    KernelSpec(
        name="sdpa",
        patterns=(Pattern(_sdpa),),
        supports=supports,
        reference=_sdpa,
        cost=partial(attention_cost, forward=True),
        samples=samples,
        kernel=sdpa_kernel,
        launch=launch,
        strided=frozenset(_TENSORS),
    )
)
