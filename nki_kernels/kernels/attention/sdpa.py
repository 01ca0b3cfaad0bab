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

import nki
import nki.language as nl
import torch

from trnx.nki_kernels.kernels.attention._forward import (
    Biases,
    Line,
    Outputs,
    Problem,
    advance,
    forward_chunk,
    forward_pack,
    store_logs,
)
from trnx.nki_kernels.kernels.attention._host import (
    attention_work,
    dropout_factor,
    samples,
    why_not,
)
from trnx.nki_kernels.kernels.attention._layout import chunks_of, layout_of, packs_of
from trnx.nki_kernels.kernels.attention._masks import Masks, as_four, heads_as_rows
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

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
    """`(out, lse)`; `boolean`: attn_mask is 0 or 1, not added; `factor`: what kept weights are
    multiplied by under dropout."""
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
    features = layout_of(q.shape[3], group == 1, short)
    keys = layout_of(depth, group == 1 and depth <= pmax // 2, short)
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
    plan = chunks_of(q.shape[0], heads, group, most, max(features.slots, keys.slots))
    packs = packs_of(plan, q.shape[0], q.shape[2], depth, group)
    tensors = (q, k, v)
    line = Line(None, None, None)
    for pack in packs:
        line = forward_pack(problem, tensors, outputs, pack, biases, line)
    if len(packs) == 0:
        for pair in plan:
            line = forward_chunk(problem, tensors, outputs, pair[0], pair[1], biases, line)
    line = advance(problem, outputs, line, None)
    advance(problem, outputs, line, None)
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


def _guard(b: Bindings, hw: Hardware) -> Reject | None:
    del hw
    return why_not(b)


def _work(b: Bindings) -> Cost:
    return attention_work(b, forward=True)


def _plan(b: Bindings, hw: Hardware) -> Launch:
    del hw
    boolean = b.attn_mask is not None and b.attn_mask.dtype == torch.bool
    factor = dropout_factor(b)
    arguments = (
        b.q, b.k, b.v, b.attn_mask, b.dropout_mask, boolean, factor, b.is_causal, b.scale,
    )  # fmt: skip
    names = ["q", "k", "v"]
    names += [name for name in ("attn_mask", "dropout_mask") if b[name] is not None]
    return Launch(sdpa_kernel, arguments, tuple(names))


register(
    KernelSpec(
        name="sdpa",
        patterns=(Pattern(_sdpa),),
        guard=_guard,
        torch_reference=_sdpa,
        work=_work,
        samples=samples,
        kernel=sdpa_kernel,
        plan=_plan,
        strided=frozenset({"q", "k", "v", "attn_mask", "dropout_mask"}),
    )
)
