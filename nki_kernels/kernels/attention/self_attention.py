"""`self_attention`: query, key and value of one input, and their attention, as one kernel.

x `[B, L, K]`, L at most 128; three weights `[N, K]` and biases `[N]` or None; N is H heads of 32,
64 or 128 elements, and a multiple of 128; a bool mask of keys `[B or 1, 1, 1, L]` or none.
float32, bfloat16 or float16, one dtype; on trn1 no heads of 32. Nothing lies between the products
and the attention but SBUF. Values are rounded where the ops round them: queries, keys and values,
and weights; sums are float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels import canonical_ops
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import leading_dims_merge, operand_layout
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._operands import (
    MatmulOperand,
    load_broadcast,
    load_turned_bias,
    segments_of,
)
from trnx.nki_kernels.kernels._projections import (
    BIASES,
    WEIGHTS,
    biases_of,
    project,
    reject_projections,
    weights_of,
)
from trnx.nki_kernels.kernels.attention._layout import head_layout
from trnx.nki_kernels.kernels.attention._projected import (
    Pipeline,
    Problem,
    attend_group,
    entries_at_once,
    finish,
    load_hidden,
    load_more_weights,
    load_rows,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_WIDTHS = (32, 64, 128)
# Hidden keys, and rows of nothing but those, have weight 0 with scales between these.
_SCALES = (2.0**-20, 2.0**6)


@nki.jit
def self_attention_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    weight_1: nl.NkiTensor,
    weight_2: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    bias_1: nl.NkiTensor | None,
    bias_2: nl.NkiTensor | None,
    attn_mask: nl.NkiTensor | None,
    width: int,
    scale: float,
    x_layout: str,
    x_merged: bool,
    layouts: tuple[str, ...],
    by_entries: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[B, L, K]`, weights `[N, K]`, biases `[N]`, mask `[B or 1, 1, 1, L]` -> `[B, H, L,
    width]`. `cores` share the batch entries, or groups of heads."""
    pmax = nl.tile_size.pmax
    batches, length, depth = x.shape
    columns = weight.shape[0]
    shape = (batches, columns // width, length, width)
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    entry, end_entry = 0, batches
    group, end_group = 0, columns // pmax
    if by_entries:
        entry, end_entry = share_of(batches, cores)
    else:
        group, end_group = share_of(columns // pmax, cores)
    if entry < end_entry and group < end_group:
        operands = [
            MatmulOperand([weight], layouts[0]),
            MatmulOperand([weight_1], layouts[1]),
            MatmulOperand([weight_2], layouts[2]),
        ]
        ones = nl.ndarray((1, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=ones, value=1.0)
        problem = Problem(
            MatmulOperand(segments_of(x, x_merged), x_layout),
            operands,
            length,
            depth,
            scale,
            head_layout(width, True, True),
            group,
            [],
            None if attn_mask is None else load_hidden(attn_mask),
            ones,
        )
        biases = (bias, bias_1, bias_2)
        _attend(problem, out, biases, (entry, end_entry), (group, end_group))
    return out


def _attend(
    p: Problem,
    out: nl.NkiTensor,
    biases: tuple[nl.NkiTensor | None, ...],
    entries: tuple[int, int],
    groups: tuple[int, int],
) -> None:
    """All groups of all blocks of batch entries, in turn."""
    pmax = nl.tile_size.pmax
    first, last = groups[0] * pmax, groups[1] * pmax
    weights = []  # type: list[nl.NkiTensor]
    pipeline = Pipeline(None, None)
    step = entries_at_once(p.length)
    for entry in range(entries[0], entries[1], step):
        is_first = len(weights) == 0
        block = load_rows(p, entry, min(step, entries[1] - entry), weights)
        if is_first:
            for number in range(2):
                own = biases[number]
                tile = None if own is None else load_turned_bias(own[first:last], last - first)
                p.biases.append(tile)
            own = biases[2]
            tile = None if own is None else load_broadcast(own, first, last - first, p.length)
            p.biases.append(tile)
            load_more_weights(p, weights, groups[1])
        for group in range(groups[0], groups[1]):
            place = (group - groups[0]) * 3
            pipeline = attend_group(p, out, block, group, weights[place : place + 3], pipeline)
    if pipeline.projected is not None:
        finish(p, out, pipeline.projected, pipeline.turned)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Short sequences of one dtype, whole groups of heads, a mask of keys at most."""
    if reject := reject_dtypes(b, "x") or reject_projections(b):
        return reject
    if b.x.ndim != 3 or b.x.shape[1] > hw.partitions:
        return Reject(f"x{b.x.shape} is not [B, L, K] with L of at most {hw.partitions}")
    if len({w.shape for w in weights_of(b)}) > 1:
        return Reject("the weights differ in their sizes")
    return _wrong_heads(b, hw) or _wrong_mask(b)


def _wrong_heads(b: Bindings, hw: Hardware) -> Reject | None:
    columns = b.weight.shape[0]
    heads = tuple(b.heads)
    if len(heads) != 4 or heads[:2] != b.x.shape[:2] or heads[2] * heads[3] != columns:
        return Reject(f"heads of {heads} are not those of x{b.x.shape} and {columns} columns")
    if heads[3] not in _WIDTHS or columns % hw.partitions:
        return Reject(f"{heads[2]} heads of {heads[3]}; 128 columns are 4, 2 or 1 of them")
    if hw.generation < 3 and heads[3] < hw.partitions // 2:
        return Reject(f"heads of {heads[3]}; TensorE of trn1 has no tiles of 32 rows")
    row_bytes = -(-b.x.shape[-1] // hw.partitions) * b.x.dtype.itemsize
    if 3 * columns * row_bytes > hw.sbuf_partition_bytes // 2:
        return Reject(f"three weights{b.weight.shape} do not fit in SBUF")
    return None


def _wrong_mask(b: Bindings) -> Reject | None:
    if b.is_causal:
        return Reject("causal attention")
    if not _SCALES[0] <= b.scale <= _SCALES[1]:
        return Reject(f"scale {b.scale} is not in {_SCALES}")
    mask = b.attn_mask
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[1:3] != (1, 1):
        return Reject(f"attn_mask is {mask.dtype}{mask.shape}, not a bool for each key")
    if mask.shape[3] != b.x.shape[1] or mask.shape[0] not in (1, b.x.shape[0]):
        return Reject(f"attn_mask{mask.shape} is not one of the keys of x{b.x.shape}")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The width of a head and the layouts that the strides allow."""
    layouts = tuple(operand_layout(w, hw) for w in weights_of(b))
    by_entries = b.x.shape[0] % hw.cores == 0 or b.weight.shape[0] // 128 % hw.cores > 0
    given = (operand_layout(b.x, hw), leading_dims_merge(b.x), layouts, by_entries)
    names = ("x", *WEIGHTS, *BIASES, "attn_mask")
    return Launch.of(self_attention_kernel, b, names, b.heads[3], b.scale, *given)


def cost(b: Bindings) -> Cost:
    """Three projections and two products of all pairs of rows of an entry; all operands cross HBM
    once."""
    batches, length, depth = b.x.shape
    columns = b.weight.shape[0]
    pairs = batches * length * length
    tensors = (b.x, *weights_of(b), *biases_of(b), b.attn_mask)
    return Cost(
        matmul_flops=2 * columns * (3 * batches * length * depth + 2 * pairs),
        vector_flops=4 * pairs * b.heads[2],
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None)
        + batches * length * columns * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias: torch.Tensor | None,
    bias_1: torch.Tensor | None,
    bias_2: torch.Tensor | None,
    attn_mask: torch.Tensor | None,
    heads: list[int],
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    """The same, rounded where the ops round."""
    pairs = ((weight, bias), (weight_1, bias_1), (weight_2, bias_2))
    projected = (project(x.float(), w, added).to(x.dtype) for w, added in pairs)
    q, k, v = (one.view(heads).transpose(1, 2) for one in projected)
    out: torch.Tensor
    out, _ = canonical_ops.sdpa(q, k, v, attn_mask, None, 0.0, is_causal, scale)
    return out


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Lengths, depths and widths at their edges, masks, missing biases, both layouts of weights."""

    def sample(
        note: str,
        sizes: tuple[int, int, int],
        heads: tuple[int, int],
        dtype: torch.dtype = torch.float32,
        biases: tuple[str, ...] = BIASES,
        mask: str = "",
        turned: bool = False,
    ) -> Sample:
        def draw(*drawn: int) -> torch.Tensor:
            return torch.randn(drawn, generator=generator)

        batches, length, depth = sizes
        columns = heads[0] * heads[1]
        values: dict[str, Any] = {
            "x": draw(*sizes).to(dtype),
            "attn_mask": None,
            "heads": [batches, length, *heads],
            "is_causal": False,
            "scale": 1.0 / math.sqrt(heads[1]),
        }
        for name in WEIGHTS:
            drawn = (draw(columns, depth) / math.sqrt(depth)).to(dtype)
            values[name] = drawn.mT.contiguous().mT if turned else drawn
        for name in BIASES:
            values[name] = draw(columns).to(dtype) if name in biases else None
        if mask:
            shape = (1 if mask == "shared" else batches, 1, 1, length)
            values["attn_mask"] = torch.rand(shape, generator=generator) > 0.4
            if mask == "hidden":
                values["attn_mask"][-1] = False
        return Sample(values, note, _rounding_error(values))

    for length in (1, 2, 127, 128):
        yield sample(f"{length} rows", (3, length, 130), (4, 64))
    for depth in (1, 129, 700):
        yield sample(f"K = {depth}", (2, 70, depth), (2, 64), turned=depth == 129)
    for heads in ((4, 32), (12, 64), (2, 128)):
        yield sample(f"{heads[0]} heads of {heads[1]}", (5, 100, 64), heads)
        for dtype in (torch.bfloat16, torch.float16):
            yield sample(f"{dtype}, heads of {heads[1]}", (5, 33, 64), heads, dtype)
    for mask in ("own", "shared", "hidden"):
        yield sample(f"mask: {mask}", (3, 60, 96), (4, 32), mask=mask)
        yield sample(f"mask: {mask}, bfloat16", (6, 128, 96), (2, 64), torch.bfloat16, mask=mask)
    yield sample("one entry", (1, 128, 260), (4, 64))
    yield sample("several blocks", (20, 64, 128), (6, 64), mask="own")
    yield sample("no bias", (2, 40, 60), (2, 64), biases=())
    yield sample("bias of values alone", (2, 40, 60), (2, 64), biases=("bias_2",))


def _rounding_error(values: dict[str, Any]) -> float:
    """A query, key or value may round to either neighbour, and so may a weight."""
    names = zip(WEIGHTS, BIASES, strict=True)
    x = values["x"].float()
    largest = [project(x, values[w], _float(values[b])).abs().max().item() for w, b in names]
    change = 4 * values["scale"] * largest[0] * largest[1]
    return float(torch.finfo(values["x"].dtype).eps * largest[2] * (1 + change))


def _float(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.float()


def _pattern(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias: torch.Tensor | None,
    bias_1: torch.Tensor | None,
    bias_2: torch.Tensor | None,
    attn_mask: torch.Tensor | None,
    heads: list[int],
    is_causal: bool,
    scale: float,
) -> Any:
    q = aten.transpose.int(aten.view.default(aten.linear.default(x, weight, bias), heads), 1, 2)
    k = aten.transpose.int(aten.view.default(aten.linear.default(x, weight_1, bias_1), heads), 1, 2)
    v = aten.transpose.int(aten.view.default(aten.linear.default(x, weight_2, bias_2), heads), 1, 2)
    found = torch.ops.trnx.sdpa.default(q, k, v, attn_mask, None, 0.0, is_causal, scale)
    return (found[0],)


register(
    KernelSpec(
        name="self_attention",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=self_attention_kernel,
        launch=launch,
        strided=frozenset({"x", *WEIGHTS}),
        fuses=True,
    )
)
