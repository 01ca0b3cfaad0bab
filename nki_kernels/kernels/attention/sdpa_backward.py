"""Gradients of scaled dot product attention, `trnx::sdpa_backward`; `sdpa` says what is supported.

The weights are recomputed from lse. A mask's gradient is summed over batch entries and heads that
share the mask; one that is shared along queries or keys is rejected. Of the scores, a tile of 128
queries and up to 512 keys at a time is on the chip.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.kernels.attention._backward import (
    BackwardProblem,
    Gradients,
    backward_chunk,
    backward_pack,
    finish,
)
from trnx.nki_kernels.kernels.attention._host import (
    attention_work,
    backward_samples,
    dropout_factor,
    why_not,
)
from trnx.nki_kernels.kernels.attention._layout import chunks_of, layout_of, packs_of
from trnx.nki_kernels.kernels.attention._masks import Masks, as_four
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware


@nki.jit
def sdpa_backward_kernel(
    grad_out: nl.NkiTensor,
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    out: nl.NkiTensor,
    lse: nl.NkiTensor,
    attn_mask: nl.NkiTensor | None,
    dropout_mask: nl.NkiTensor | None,
    boolean: bool,
    factor: float,
    causal: bool,
    scale: float,
    mask_grad: bool,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """`(dq, dk, dv, dmask)`; the constants are those of `sdpa_kernel`."""
    batches = q.shape[0]
    heads = q.shape[1]
    width = q.shape[3]
    depth = k.shape[2]
    group = heads // k.shape[1]
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    fitting = bank // max(width, v.shape[3])  # blocks of 128 keys whose sums share a bank
    tile = min(bank, pmax * fitting, depth)
    most = 1
    if depth <= tile:
        most = max(1, min(bank // depth, fitting // ((depth + pmax - 1) // pmax)))
    features = layout_of(width, group == 1, True)
    values = layout_of(v.shape[3], group == 1, True)
    keys = layout_of(depth, group == 1 and depth <= pmax // 2, True)
    problem = BackwardProblem(
        grad_out,
        q,
        k,
        v,
        out,
        lse,
        Masks(None if attn_mask is None else as_four(attn_mask), boolean, causal),
        dropout_mask,
        factor,
        scale,
        group,
        features,
        values,
        keys,
        tile,
    )
    dq = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    dk = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm)
    dv = nl.ndarray(v.shape, dtype=v.dtype, buffer=nl.shared_hbm)
    dq_sum = None
    if depth > tile:
        dq_sum = nl.ndarray(q.shape, dtype=nl.float32, buffer=nl.private_hbm)
    if mask_grad and attn_mask is not None:
        dmask = nl.ndarray(attn_mask.shape, dtype=attn_mask.dtype, buffer=nl.shared_hbm)
        total = dmask
        if attn_mask.dtype != nl.float32:
            total = nl.ndarray(attn_mask.shape, dtype=nl.float32, buffer=nl.private_hbm)
        gradients = Gradients(dq, dk, dv, dq_sum, as_four(total))
    else:
        dmask = nl.ndarray((1,), dtype=q.dtype, buffer=nl.shared_hbm)
        zero = nl.ndarray((1, 1), dtype=q.dtype, buffer=nl.sbuf)
        nisa.memset(dst=zero, value=0)
        nisa.dma_copy(dst=dmask.reshape((1, 1)), src=zero)
        gradients = Gradients(dq, dk, dv, dq_sum, None)
    slots = max(features.slots, values.slots, keys.slots)
    plan = chunks_of(batches, heads, group, most, slots)
    packs = packs_of(plan, batches, q.shape[2], depth, group)
    waiting = None
    for pack in packs:
        waiting = backward_pack(problem, gradients, pack, waiting)
    if len(packs) == 0:
        for pair in plan:
            waiting = backward_chunk(problem, gradients, pair[0], pair[1], waiting)
    if waiting is not None:
        finish(problem, gradients, waiting)
    if gradients.dmask is not None and dmask.dtype != nl.float32:
        nisa.dma_copy(dst=dmask, src=total)
    return dq, dk, dv, dmask


def _sdpa_backward(
    grad_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    mask_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    result = torch.ops.trnx.sdpa_backward.default(
        grad_out, q, k, v, out, lse, attn_mask, dropout_mask, dropout_p, is_causal, scale, mask_grad
    )
    return result


def _guard(b: Bindings, hw: Hardware) -> Reject | None:
    del hw
    for name in ("grad_out", "out"):
        if b[name].dtype != b.q.dtype:
            return Reject(f"{name} is {b[name].dtype} but q is {b.q.dtype}; one dtype is needed")
    if b.lse.dtype != torch.float32:
        return Reject(f"lse is {b.lse.dtype}, not float32")
    reason = why_not(b)
    if reason is None and b.mask_grad:
        padded = (1,) * (4 - b.attn_mask.ndim) + b.attn_mask.shape
        if padded[2:] != (b.q.shape[2], b.k.shape[2]):
            return Reject(
                f"the gradient of attn_mask{b.attn_mask.shape} would be summed over queries or keys"
            )
    return reason


def _work(b: Bindings) -> Cost:
    return attention_work(b, forward=False)


def _plan(b: Bindings, hw: Hardware) -> Launch:
    del hw
    boolean = b.attn_mask is not None and b.attn_mask.dtype == torch.bool
    tensors = (b.grad_out, b.q, b.k, b.v, b.out, b.lse, b.attn_mask, b.dropout_mask)
    constants = (boolean, dropout_factor(b), b.is_causal, b.scale, b.mask_grad)
    names = ["grad_out", "q", "k", "v", "out", "lse"]
    names += [name for name in ("attn_mask", "dropout_mask") if b[name] is not None]
    return Launch(sdpa_backward_kernel, (*tensors, *constants), tuple(names))


register(
    KernelSpec(
        name="sdpa_backward",
        patterns=(Pattern(_sdpa_backward),),
        guard=_guard,
        torch_reference=_sdpa_backward,
        work=_work,
        samples=backward_samples,
        kernel=sdpa_backward_kernel,
        plan=_plan,
        strided=frozenset({"grad_out", "q", "k", "v", "out", "lse", "attn_mask", "dropout_mask"}),
    )
)
