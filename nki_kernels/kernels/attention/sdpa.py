"""Scaled dot product attention, `trnx::sdpa`, as flash attention: scores never leave the chip.

Supported: float32, bfloat16 and float16 (one dtype for q, k and v); any B, H, L and S; grouped
query heads; D and Dv up to 256 (above 128 even); bool and float masks that broadcast to
[B, H, L, S]; a dropout mask; causal; all of them together. Scores, softmax and sums are float32;
weights are rounded to the dtype of v for the product with v.

Keys and values of a head are loaded once and kept in SBUF (up to a budget) while its queries stream
by. Up to 512 keys, as many heads as fit a PSUM bank go through each instruction together. Where
there is one query a head (decoding), the heads of a group are the rows of a tile. Few queries of
many keys have a kernel of their own, `decode_kernel`, and so have long sequences in 2 bytes
with a mask of keys at most, `long_kernel`; in bfloat16 and without a mask `direct_kernel`, which
looks for no maxima, and does all again as `long_kernel` does where scores are out of its range;
`streamed_kernel` is the same of more keys than SBUF holds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels.attention._decode import DecodeProblem, load_queries, runs_of
from trnx.nki_kernels.kernels.attention._decode_softmax import (
    DecodeOutputs,
    DecodePipeline,
    decode_step,
    join_decoded,
    store_decode_logs,
)
from trnx.nki_kernels.kernels.attention._direct_schedule import attend_directly
from trnx.nki_kernels.kernels.attention._fit import SPAN, fits, keeps_rows, streams
from trnx.nki_kernels.kernels.attention._forward import (
    STAGES,
    Biases,
    Outputs,
    Problem,
    empty_pipeline,
    forward_chunk,
    forward_pack,
    step,
)
from trnx.nki_kernels.kernels.attention._forward_spans import forward_span
from trnx.nki_kernels.kernels.attention._host import (
    attention_cost,
    dropout_factor,
    has_bool_mask,
    is_direct,
    is_long,
    samples,
    supports,
)
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
from trnx.nki_kernels.kernels.attention._long import LongOutputs, long_problem
from trnx.nki_kernels.kernels.attention._long_schedule import attend
from trnx.nki_kernels.kernels.attention._masks import Masks, as_four, heads_as_rows
from trnx.nki_kernels.kernels.attention._maxima import is_power_of_two
from trnx.nki_kernels.kernels.attention._row_logs import RowLogs, store_logs
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch, Pattern
from trnx.simulator.hardware import Hardware

_TENSORS = ("q", "k", "v", "attn_mask", "dropout_mask")
# Keys and values of a head in SBUF, bytes per partition: leaves two thirds of trn1's to the rest.
_RESIDENT_BYTES = 65536
# `decode_kernel` is for at most so many queries a head, and from so many keys on: it deals with one
# key head at a time, with fewer keys instructions over several heads are worth more.
_FEW_QUERIES = 8
_LONG_KEYS = 1024


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
    window: int,
    scale: float,
    gives_logs: bool = True,
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, nl.NkiTensor]:
    """`(out, lse)`; `boolean`: attn_mask is 0 or 1, not added; `factor`: of the weights that
    dropout keeps; `window`: of the keys that `causal` leaves, or 0. `cores` share the heads."""
    group = q.shape[1] // k.shape[1]
    out = nl.ndarray(q.shape[:-1] + (v.shape[3],), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = _logs_of(q, gives_logs)
    mask = None if attn_mask is None else as_four(attn_mask)
    part = own_heads(k.shape[0], k.shape[1], cores)
    if has_heads(part):
        tensors = (part_of(q, part, group), part_of(k, part, 1), part_of(v, part, 1))
        masks = Masks(part_of_any(mask, part, group), boolean, causal, window)
        dropped = Dropout(part_of_any(dropout_mask, part, group), factor)
        logs = RowLogs(part_of_any(lse, part, group), mask is not None, [])
        outputs = Outputs(part_of(out, part, group), logs)
        _attend(tensors, masks, dropped, scale, outputs)
    if lse is None:
        return out
    return out, lse


def _logs_of(q: nl.NkiTensor, gives_logs: bool) -> nl.NkiTensor | None:
    """`lse[B, H, L]` in HBM, for the backward pass alone."""
    if gives_logs:
        return nl.ndarray(q.shape[:-1], dtype=nl.float32, buffer=nl.shared_hbm)
    return None


def _by_blocks(lse: nl.NkiTensor | None) -> nl.NkiTensor | None:
    """`lse[B, H, L]` as `[blocks, 128]`."""
    if lse is None:
        return None
    pmax = nl.tile_size.pmax
    return lse.reshape((lse.shape[0] * lse.shape[1] * lse.shape[2] // pmax, pmax))


class Dropout(NamedTuple):
    """A mask `[B, H, L, S]`, and the factor of what it keeps."""

    mask: nl.NkiTensor | None
    factor: float


def _attend(
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    masks: Masks,
    dropout: Dropout,
    scale: float,
    outputs: Outputs,
) -> None:
    """All heads of q, k and v."""
    load_table(nl.exp)  # while the first operands are on their way
    q, k, v = tensors
    mask = masks.mask
    dropout_mask = dropout.mask
    causal = masks.causal
    heads = q.shape[1]
    depth = k.shape[2]
    group = heads // k.shape[1]
    if group > 1 and q.shape[2] == 1 and not causal:
        q = heads_as_rows(q, group)
        logs = RowLogs(heads_as_rows(outputs.logs.lse, group), outputs.logs.masked, [])
        outputs = Outputs(heads_as_rows(outputs.out, group), logs)
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
    head_chunks = chunks_of(q.shape[0], heads, group, most, max(features.slots, keys.slots))
    packs = packs_of(head_chunks, q.shape[0], q.shape[2], depth, group)
    spans: list[list[Chunk]] = []
    if len(packs) == 0 and group == 1 and keys.slots == 1:
        width = max(features.pitch * features.cuts, v.shape[3])
        spans = spans_of(head_chunks, q.shape[2], depth, width)
    if len(spans) > 0:
        # ScalarE has enough to do.
        keys = head_layout(depth, False, False)
    itemsize = 4 if q.dtype == nl.float32 else 2
    stored = depth * features.cuts + (depth + pmax - 1) // pmax * v.shape[3]
    tile = min(bank, depth)
    problem = Problem(
        Masks(mask, masks.boolean, causal, masks.window),
        dropout_mask,
        dropout.factor,
        scale,
        group,
        features,
        keys,
        tile,
        stored * itemsize <= _RESIDENT_BYTES,
        is_power_of_two(scale),
        _is_static(tensors),
    )
    biases = Biases([])
    tensors = (q, k, v)
    pipeline = empty_pipeline()
    for pack in packs:
        pipeline = forward_pack(problem, tensors, outputs, pack, biases, pipeline)
    for span in spans:
        pipeline = forward_span(problem, tensors, outputs, span, biases, pipeline)
    if len(packs) == 0 and len(spans) == 0:
        for pair in head_chunks:
            pipeline = forward_chunk(problem, tensors, outputs, pair[0], pair[1], biases, pipeline)
    for _ in range(STAGES):
        pipeline = step(problem, outputs, pipeline, None)
    store_logs(outputs.logs, True)


def _is_static(tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]) -> bool:
    """Whether the rows of q, k, v and the result, each of which is a descriptor, are few even if
    each 128 queries load the keys and values again."""
    q, k, v = tensors
    entries = q.shape[0]
    blocks = (q.shape[2] + nl.tile_size.pmax - 1) // nl.tile_size.pmax
    rows = 2 * q.shape[1] * q.shape[2] + k.shape[1] * blocks * (k.shape[2] + v.shape[2])
    return bool(entries * rows <= MOST_DESCRIPTORS)


@nki.jit
def decode_kernel(
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    attn_mask: nl.NkiTensor | None,
    boolean: bool,
    scale: float,
    shares_keys: bool,
    gives_logs: bool = True,
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, nl.NkiTensor]:
    """`(out, lse)` of a few queries, at most 128 for a key head; `boolean` as in `sdpa_kernel`.
    `cores` share the key heads, or where it `shares_keys`, the keys of each."""
    group = q.shape[1] // k.shape[1]
    out = nl.ndarray(q.shape[:-1] + (v.shape[3],), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = _logs_of(q, gives_logs)
    mask = None if attn_mask is None else as_four(attn_mask)
    if shares_keys:
        _decode((q, k, v), mask, boolean, scale, (out, lse), cores)
    else:
        part = own_heads(k.shape[0], k.shape[1], cores)
        if has_heads(part):
            tensors = (part_of(q, part, group), part_of(k, part, 1), part_of(v, part, 1))
            results = (part_of(out, part, group), part_of_any(lse, part, group))
            _decode(tensors, part_of_any(mask, part, group), boolean, scale, results, 1)
    if lse is None:
        return out
    return out, lse


def _decode(
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    mask: nl.NkiTensor | None,
    boolean: bool,
    scale: float,
    results: tuple[nl.NkiTensor, nl.NkiTensor | None],
    cores: int,
) -> None:
    """All heads of q, k and v, whose keys `cores` share."""
    q, k, v = tensors
    out, lse = results
    sources = k.shape[1]
    group = q.shape[1] // sources
    rows = group * q.shape[2]
    pmax = nl.tile_size.pmax
    ones = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    cuts = (q.shape[3] + pmax - 1) // pmax
    value_cuts = (v.shape[3] + pmax - 1) // pmax
    problem = DecodeProblem(mask, boolean, scale, rows, group, cuts, value_cuts, ones)
    heads = q.shape[0] * sources
    totals = nl.ndarray((1, heads, rows), dtype=nl.float32, buffer=nl.sbuf)
    negmaxes = nl.ndarray((1, heads, rows), dtype=nl.float32, buffer=nl.sbuf)
    shared: list[nl.NkiTensor] = []
    if cores > 1:
        shape = (cores, heads, pmax, value_cuts + 2, rows)
        shared.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm))
    outputs = DecodeOutputs(out.reshape_dim(1, (sources, group)), totals, negmaxes, shared)
    queries = load_queries(q, cuts)
    pipeline = DecodePipeline(None, None, None, None, None)
    keys = (0, k.shape[2])
    if cores > 1:
        keys = share_of(k.shape[2], cores, pmax)
    runs = runs_of(q.shape[0], sources, keys, rows)
    for run in runs:
        pipeline = decode_step(problem, (k, v), queries, outputs, pipeline, run)
    for turn in range(4):
        if turn == 2 and lse is not None and cores == 1:
            load_table(nl.log, ones[0:1, 0:1])  # after the last exponentials, while others work
        pipeline = decode_step(problem, (k, v), queries, outputs, pipeline, None)
    if cores > 1:
        join_decoded(problem, outputs, runs, lse)
    elif lse is not None:
        store_decode_logs(problem, outputs, lse)


@nki.jit
def long_kernel(
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    attn_mask: nl.NkiTensor | None,
    causal: bool,
    window: int,
    scale: float,
    gives_logs: bool = True,
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, nl.NkiTensor]:
    """`(out, lse)` of whole blocks of 128 queries and keys of a 2-byte dtype; a mask is the same
    for all heads and queries. `cores` share the queries."""
    pmax = nl.tile_size.pmax
    out = nl.ndarray(q.shape[:-1] + (v.shape[3],), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = _logs_of(q, gives_logs)
    blocks = q.shape[0] * q.shape[1] * q.shape[2] // pmax
    inverses = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    negmaxes = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    mask = None if attn_mask is None else as_four(attn_mask)
    problem = long_problem(causal, window, mask is not None, scale, q.shape[3])
    outputs = LongOutputs(out, inverses, negmaxes)
    attend(problem, (q, k, v, mask), outputs, _by_blocks(lse), cores)
    if lse is None:
        return out
    return out, lse


@nki.jit
def direct_kernel(
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    causal: bool,
    scale: float,
    gives_logs: bool = True,
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, nl.NkiTensor]:
    """`(out, lse)` as `long_kernel` gives them, in bfloat16 and without mask or window, in half of
    its time where the scores of each row end in a range around zero, and else in more."""
    out = nl.ndarray(q.shape[:-1] + (v.shape[3],), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = _logs_of(q, gives_logs)
    attend_directly(causal, scale, (q, k, v), out, _by_blocks(lse), 0, cores)
    if lse is None:
        return out
    return out, lse


@nki.jit
def streamed_kernel(
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    causal: bool,
    scale: float,
    span: int,
    gives_logs: bool = True,
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, nl.NkiTensor]:
    """As `direct_kernel`, of any number of keys: each 512 queries load `span` of them at a time, a
    multiple of 512. Where scores are out of range, `sdpa_kernel`'s way gives the results."""
    out = nl.ndarray(q.shape[:-1] + (v.shape[3],), dtype=q.dtype, buffer=nl.shared_hbm)
    lse = _logs_of(q, gives_logs)
    attend_directly(causal, scale, (q, k, v), out, _by_blocks(lse), span, cores)
    if lse is None:
        return out
    return out, lse


def _is_decoding(b: Bindings, hw: Hardware) -> bool:
    """Whether `decode_kernel` takes these operands."""
    if b.dropout_mask is not None or b.is_causal:
        return False
    if hw.generation < 3 and b.attn_mask is not None:
        return False  # transposes are products there, which make NaN of a mask's -inf
    length, group = b.q.shape[2], b.q.shape[1] // b.k.shape[1]
    return bool(length <= _FEW_QUERIES and group * length <= 128 and b.k.shape[2] >= _LONG_KEYS)


def _sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor]
    result = torch.ops.trnx.sdpa.default(
        q, k, v, attn_mask, dropout_mask, dropout_p, is_causal, scale, window
    )
    return result


@wraps(_sdpa, assigned=("__annotations__",))  # a pattern is read by them
def _sdpa_alone(*args: Any) -> torch.Tensor:
    """Without the logarithms of the sums, which the backward pass alone reads."""
    return _sdpa(*args)[0]


def reference(gives_logs: bool = True, **values: Any) -> Any:
    """trnx::sdpa"""
    results = _sdpa(**values)
    return results if gives_logs else results[0]


def _decoding(b: Bindings, shares_keys: bool) -> Launch:
    few = (has_bool_mask(b), b.scale, shares_keys, b.get("gives_logs", True))
    return Launch.of(decode_kernel, b, ("q", "k", "v", "attn_mask"), *few)


def other_shares(b: Bindings, hw: Hardware) -> list[Launch]:
    """Where few queries have an odd number of key heads, cores may share the keys of each."""
    heads = b.k.shape[0] * b.k.shape[1]
    if hw.cores != 2 or heads % 2 == 0 or not _is_decoding(b, hw):
        return []
    return [_decoding(b, True)]


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The kind of mask and the numbers are constants of the kernel."""
    logs = b.get("gives_logs", True)
    if _is_decoding(b, hw):
        return _decoding(b, False)
    if is_direct(b, hw) and fits(b) and keeps_rows(b):
        launch = Launch.of(direct_kernel, b, ("q", "k", "v"), b.is_causal, b.scale, logs)
        return replace(launch, unknown_trips=0)
    if is_direct(b, hw) and streams(b):
        plain = (b.is_causal, b.scale, SPAN, logs)
        launch = Launch.of(streamed_kernel, b, ("q", "k", "v"), *plain)
        return replace(launch, unknown_trips=0)
    if is_long(b, hw) and fits(b):
        names = ("q", "k", "v", "attn_mask")
        return Launch.of(long_kernel, b, names, b.is_causal, b.window, b.scale, logs)
    constants = (has_bool_mask(b), dropout_factor(b), b.is_causal, b.window, b.scale, logs)
    return Launch.of(sdpa_kernel, b, _TENSORS, *constants)


register(
    KernelSpec(
        name="sdpa",
        patterns=(
            Pattern(_sdpa, {"gives_logs": True}),
            Pattern(_sdpa_alone, {"gives_logs": False}),
        ),
        supports=supports,
        reference=reference,
        cost=partial(attention_cost, forward=True),
        samples=samples,
        kernel=sdpa_kernel,
        launch=launch,
        other_shares=other_shares,
        strided=frozenset(_TENSORS),
    )
)
