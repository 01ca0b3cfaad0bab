"""Gradients of scaled dot product attention, `trnx::sdpa_backward`; `sdpa` says what is supported.

The weights are recomputed from lse. A mask's gradient is summed over batch entries and heads that
share the mask; one that is shared along queries or keys is rejected. Scores are computed in tiles
of 128 queries and up to 512 keys. Long sequences in 2 bytes with a mask of keys at most have a
kernel of their own, which keeps nothing but sums of `dq` in SBUF.
"""

from __future__ import annotations

from functools import partial

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.kernels._cores import is_first
from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels.attention import _host as host
from trnx.nki_kernels.kernels.attention._backward import (
    BackwardProblem,
    Gradients,
    backward_chunk,
    backward_pack,
    empty_backward_pipeline,
    finish_backward,
)
from trnx.nki_kernels.kernels.attention._backward_spans import backward_spans
from trnx.nki_kernels.kernels.attention._layout import (
    Chunk,
    chunks_of,
    has_heads,
    head_layout,
    own_heads,
    packs_of,
    part_of,
    part_of_any,
    spans_of,
)
from trnx.nki_kernels.kernels.attention._long_backward import long_gradients
from trnx.nki_kernels.kernels.attention._long_backward_schedule import differentiate
from trnx.nki_kernels.kernels.attention._masks import Masks, as_four
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch, Pattern
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_LONG_TENSORS = ("grad_out", "q", "k", "v", "out", "lse", "attn_mask")
# A mask of keys is added before the scale, and must hide them after it.
_LEAST_SCALE = 1.0e-20
# For the sums of a head in SBUF, bytes per partition: leaves 64 KiB of trn2's to the rest.
_SUMS_BYTES = 163840
_TENSORS = ("grad_out", "q", "k", "v", "out", "lse", "attn_mask", "dropout_mask")


def _no_mask_gradient(dtype: type) -> nl.NkiTensor:
    """What stands for it where there is none: one zero."""
    dmask = nl.ndarray((1,), dtype=dtype, buffer=nl.shared_hbm)
    if is_first():
        zero = nl.ndarray((1, 1), dtype=dtype, buffer=nl.sbuf)
        nisa.memset(dst=zero, value=0)
        nisa.dma_copy(dst=dmask.reshape((1, 1)), src=zero)
    return dmask


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
    window: int,
    scale: float,
    mask_grad: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """`(dq, dk, dv, dmask)`; the constants are those of `sdpa_kernel`. `cores` share the heads,
    of which there is a sum in a gradient of the mask: then one core has the work."""
    group = q.shape[1] // k.shape[1]
    dq = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    dk = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm)
    dv = nl.ndarray(v.shape, dtype=v.dtype, buffer=nl.shared_hbm)
    total = None
    if mask_grad and attn_mask is not None:
        dmask = nl.ndarray(attn_mask.shape, dtype=attn_mask.dtype, buffer=nl.shared_hbm)
        total = dmask
        if attn_mask.dtype != nl.float32:
            total = nl.ndarray(attn_mask.shape, dtype=nl.float32, buffer=nl.private_hbm)
    else:
        dmask = _no_mask_gradient(q.dtype)
    part = own_heads(k.shape[0], k.shape[1], cores)
    if has_heads(part):
        mask = None if attn_mask is None else as_four(attn_mask)
        problem = BackwardProblem(
            part_of(grad_out, part, group),
            part_of(q, part, group),
            part_of(k, part, 1),
            part_of(v, part, 1),
            part_of(out, part, group),
            part_of(lse, part, group),
            Masks(part_of_any(mask, part, group), boolean, causal, window),
            part_of_any(dropout_mask, part, group),
            factor,
            scale,
            group,
            head_layout(q.shape[3], group == 1, True),
            head_layout(v.shape[3], group == 1, True),
            head_layout(k.shape[2], group == 1 and k.shape[2] <= nl.tile_size.pmax // 2, False),
            _key_tile(q, v, k.shape[2]),
        )
        gradients = Gradients(
            part_of(dq, part, group),
            part_of(dk, part, 1),
            part_of(dv, part, 1),
            None,
            None if total is None else as_four(total),
        )
        _differentiate(problem, gradients)
        if total is not None and dmask.dtype != nl.float32:
            nisa.dma_copy(dst=dmask, src=total)
    return dq, dk, dv, dmask


def _key_tile(q: nl.NkiTensor, v: nl.NkiTensor, depth: int) -> int:
    """Keys that are computed together: the sums of as many blocks of 128 share a bank as fit."""
    bank = nl.tile_size.psum_bank_fmax  # type: int
    fitting = bank // max(q.shape[3], v.shape[3])  # type: int
    most = nl.tile_size.pmax * fitting  # type: int
    return min(bank, most, depth)


def _differentiate(p: BackwardProblem, results: Gradients) -> None:
    """The gradients of all heads of the problem."""
    load_table(nl.exp)  # while the first operands are on their way
    depth = p.k.shape[2]
    gradients = results
    if depth > p.tile:
        dq_sum = nl.ndarray(p.q.shape, dtype=nl.float32, buffer=nl.private_hbm)
        gradients = Gradients(results.dq, results.dk, results.dv, dq_sum, results.dmask)
    most = 1
    if depth <= p.tile:
        bank = nl.tile_size.psum_bank_fmax
        pmax = nl.tile_size.pmax
        fitting = bank // max(p.q.shape[3], p.v.shape[3])
        most = max(1, min(bank // depth, fitting // ((depth + pmax - 1) // pmax)))
    slots = max(p.features.slots, p.values.slots, p.keys.slots)
    batches = p.q.shape[0]
    head_chunks = chunks_of(batches, p.q.shape[1], p.group, most, slots)
    packs = packs_of(head_chunks, batches, p.q.shape[2], depth, p.group)
    pipeline = empty_backward_pipeline()
    for pack in packs:
        pipeline = backward_pack(p, gradients, pack, pipeline)
    spans: list[list[Chunk]] = []
    if len(packs) == 0 and p.group == 1 and p.keys.slots == 1:
        width = max(p.features.pitch * p.features.cuts, p.values.pitch * p.values.cuts)
        spans = spans_of(head_chunks, p.q.shape[2], depth, width)
    backward_spans(p, gradients, spans)
    if len(packs) == 0 and len(spans) == 0:
        for pair in head_chunks:
            pipeline = backward_chunk(p, gradients, pair[0], pair[1], pipeline)
    finish_backward(p, gradients, pipeline)


@nki.jit
def long_backward_kernel(
    grad_out: nl.NkiTensor,
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    out: nl.NkiTensor,
    lse: nl.NkiTensor,
    attn_mask: nl.NkiTensor | None,
    causal: bool,
    window: int,
    scale: float,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """`(dq, dk, dv, dmask)` of whole blocks of 128 queries and keys of a 2-byte dtype; a mask is
    the same for all heads and queries. `cores` share the heads."""
    dq = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    dk = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm)
    dv = nl.ndarray(v.shape, dtype=v.dtype, buffer=nl.shared_hbm)
    mask = None if attn_mask is None else as_four(attn_mask)
    gradients = long_gradients(dq, dk, dv, causal, window, scale, mask)
    differentiate(gradients, (q, grad_out, out, lse), (k, v), cores)
    return dq, dk, dv, _no_mask_gradient(q.dtype)


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
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    result = torch.ops.trnx.sdpa_backward.default(
        grad_out, q, k, v, out, lse, attn_mask, dropout_mask, dropout_p, is_causal, scale,
        mask_grad, window,
    )  # fmt: skip
    return result


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """What forward supports, in its dtypes; no mask gradient summed over queries or keys."""
    for name in ("grad_out", "out"):
        if b[name].dtype != b.q.dtype:
            return Reject(f"{name} is {b[name].dtype} but q is {b.q.dtype}; one dtype is needed")
    if b.lse.dtype != torch.float32:
        return Reject(f"lse is {b.lse.dtype}, not float32")
    reason = host.supports(b, hw)
    if reason is None and b.mask_grad:
        padded = (1,) * (4 - b.attn_mask.ndim) + b.attn_mask.shape
        if padded[2:] != (b.q.shape[2], b.k.shape[2]):
            return Reject(
                f"the gradient of attn_mask{b.attn_mask.shape} would be summed over queries or keys"
            )
    return reason


def _fits(b: Bindings) -> bool:
    """Whether there is room for what `long_backward_kernel` keeps of a head: sums of `dq`, and the
    logarithms and `delta` of this one and the next."""
    return bool(b.q.shape[2] // 128 * (4 * b.q.shape[3] + 16) <= _SUMS_BYTES)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The kind of mask and the numbers are constants of the kernel."""
    hides = b.attn_mask is None or b.scale >= _LEAST_SCALE
    if hides and host.is_long(b, hw) and max(b.q.shape[3], b.v.shape[3]) <= 128 and _fits(b):
        numbers = (b.is_causal, b.window, b.scale)
        return Launch.of(long_backward_kernel, b, _LONG_TENSORS, *numbers)
    kind = (host.has_bool_mask(b), host.dropout_factor(b), b.is_causal, b.window)
    constants = (*kind, b.scale, b.mask_grad)
    launch = Launch.of(sdpa_backward_kernel, b, _TENSORS, *constants)
    return launch.on(hw.cores, 1) if b.mask_grad else launch


register(
    KernelSpec(
        name="sdpa_backward",
        patterns=(Pattern(_sdpa_backward),),
        supports=supports,
        reference=_sdpa_backward,
        cost=partial(host.attention_cost, forward=False),
        samples=host.backward_samples,
        kernel=sdpa_backward_kernel,
        launch=launch,
        strided=frozenset(_TENSORS),
    )
)
