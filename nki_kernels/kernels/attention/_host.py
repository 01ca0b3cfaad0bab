"""Host side of both attention kernels: what they support, their cost, their samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels import canonical_ops
from trnx.nki_kernels.dtypes import FLOAT_DTYPES
from trnx.nki_kernels.spec import Bindings, Cost, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

_MASK_DTYPES = (torch.bool, *FLOAT_DTYPES)
# The kernels of long attention are for at least so many queries and keys; `direct_kernel`, where
# there is no mask, for fewer.
_LONG, _DIRECT = 512, 256
_WIDEST = 256  # two cuts of the contraction, and a half of a PSUM bank
# Scaled by no less than this, what stands for the score of a hidden key has no weight.
LEAST_SCALE = 1.0e-30


def has_bool_mask(b: Bindings) -> bool:
    """True where attn_mask selects keys; a float one is added to the scores."""
    return b.attn_mask is not None and b.attn_mask.dtype == torch.bool


def dropout_factor(b: Bindings) -> float:
    """The factor of the weights that dropout keeps."""
    if b.dropout_mask is None:
        return 1.0
    return 0.0 if b.dropout_p >= 1.0 else 1.0 / (1.0 - b.dropout_p)


def _masks_keys(b: Bindings) -> bool:
    """Whether the mask, if there is one, is a bool for each key, the same for all heads and
    queries."""
    mask = b.attn_mask
    if mask is None:
        return True
    sizes = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    strides = (0,) * (4 - mask.ndim) + tuple(mask.strides)
    shared = all(sizes[dim] == 1 or strides[dim] == 0 for dim in (1, 2))
    return bool(mask.dtype == torch.bool and shared and sizes[3] == b.k.shape[2])


def is_long(b: Bindings, hw: Hardware, least: int = _LONG) -> bool:
    """Whether the kernels of long attention take these operands, where they fit SBUF: whole blocks
    of 128 queries and keys of 2 bytes, at least `least`, with a mask of keys at most."""
    if b.dropout_mask is not None or not _masks_keys(b):
        return False
    if hw.generation < 3 or b.q.dtype.itemsize != 2:
        return False
    length, depth = b.q.shape[2], b.k.shape[2]
    return bool(length % 128 == 0 and depth % 128 == 0 and min(length, depth) >= least)


def is_direct(b: Bindings, hw: Hardware) -> bool:
    """Whether long attention may weigh the scores as they are: weights that have the range of
    float32, and a scale that keeps those of hidden keys from any."""
    plain = b.attn_mask is None and b.window == 0 and b.q.dtype == torch.bfloat16
    return bool(plain and is_long(b, hw, _DIRECT) and b.scale >= LEAST_SCALE)


def _broadcasts(mask: TensorSpec, target: tuple[int, ...]) -> bool:
    padded = (1,) * (len(target) - mask.ndim) + mask.shape
    return len(padded) == len(target) and all(
        size in (1, want) for size, want in zip(padded, target, strict=True)
    )


def _wrong_shape(b: Bindings) -> Reject | None:
    q, k, v = b.q, b.k, b.v
    if any(x.ndim != 4 for x in (q, k, v)):
        return Reject(f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions; 4 are needed")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        return Reject(f"q{q.shape}, k{k.shape} and v{v.shape} do not fit together")
    if 0 in (*q.shape, *k.shape, *v.shape):
        return Reject(f"empty attention: q{q.shape}, k{k.shape}, v{v.shape}")
    if q.shape[1] % k.shape[1] != 0:
        return Reject(f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads")
    for name, width in (("q", q.shape[3]), ("v", v.shape[3])):
        if width > _WIDEST:
            return Reject(f"heads of {name} have {width} elements; at most {_WIDEST} fit")
        if width > 128 and width % 2:
            return Reject(f"heads of {name} have {width} elements; above 128 it must be even")
    return None


def _wrong_mask(b: Bindings) -> Reject | None:
    target = (*b.q.shape[:3], b.k.shape[2])
    mask, dropout = b.attn_mask, b.dropout_mask
    if mask is not None and mask.dtype not in _MASK_DTYPES:
        return Reject(f"attn_mask is {mask.dtype}, not bool, float32, bfloat16 or float16")
    if mask is not None and not _broadcasts(mask, target):
        return Reject(f"attn_mask{mask.shape} does not broadcast to {target}")
    if dropout is not None and dropout.dtype != torch.bool:
        return Reject(f"dropout_mask is {dropout.dtype}, not bool")
    if dropout is not None and dropout.shape != target:
        return Reject(f"dropout_mask has shape {dropout.shape}, not {target}")
    return None


def _wrong_window(b: Bindings) -> Reject | None:
    """Every query is to see a key, where it has a window."""
    if b.window == 0:
        return None
    if b.window < 0 or not b.is_causal:
        return Reject(f"a window of {b.window} keys needs to be positive, and causal attention")
    if b.attn_mask is not None and b.attn_mask.dtype != torch.bool:
        return Reject(f"a window and a mask of {b.attn_mask.dtype}; only a bool one is taken")
    if b.q.shape[2] >= b.k.shape[2] + b.window:
        return Reject(
            f"{b.q.shape[2]} queries of {b.k.shape[2]} keys in a window of {b.window}: the last "
            "queries see none"
        )
    return None


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """None where the kernels take these operands; all generations take the same."""
    del hw
    dtypes = {x.dtype for x in (b.q, b.k, b.v)}
    if len(dtypes) > 1 or b.q.dtype not in FLOAT_DTYPES:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        return Reject(f"q, k and v are {names}; one of float32, bfloat16, float16 is needed")
    if not (math.isfinite(b.scale) and b.scale >= 0.0):
        return Reject(f"scale {b.scale} is not a finite number of at least 0")
    return _wrong_shape(b) or _wrong_mask(b) or _wrong_window(b)


def attention_cost(b: Bindings, *, forward: bool) -> Cost:
    """FLOPs of all pairs of query and key (about half if causal and square), and HBM traffic.

    Backward does five products where forward does two: q k, grad v, and those of dq, dk, dv.
    """
    batch, heads, length, width = b.q.shape
    depth, values = b.k.shape[2], b.v.shape[3]
    seen = min(depth, length)
    pairs = length * depth - (seen * (seen - 1) // 2 if b.is_causal else 0)
    if b.window > 0:
        pairs = sum(min(i + 1, depth) - max(0, i + 1 - b.window) for i in range(length))
    pairs *= batch * heads
    columns = width + values if forward else 3 * width + 2 * values
    masks = sum(m.nbytes for m in (b.attn_mask, b.dropout_mask) if m is not None)
    tensors = b.q.nbytes + b.k.nbytes + b.v.nbytes
    results = batch * heads * length * (values * b.q.dtype.itemsize + 4)
    traffic = tensors + results if forward else 2 * tensors + 2 * results
    return Cost(
        matmul_flops=2 * pairs * columns,
        vector_flops=pairs * (4 if forward else 6),
        hbm_bytes=traffic + masks,
    )


def _heads(
    generator: torch.Generator,
    batch: int,
    heads: int,
    rows: int,
    width: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`[B, H, N, D]` in the storage that models have it in, `[B, N, H, D]`."""
    shape = (batch, rows, heads, width)
    return torch.randn(shape, generator=generator).to(dtype).transpose(1, 2)


def make_inputs(
    generator: torch.Generator,
    batch: int,
    heads: int,
    length: int,
    depth: int,
    width: int,
    *,
    sources: int = 0,
    values: int = 0,
    dtype: torch.dtype = torch.float32,
    mask: str = "",
    dropout_p: float = 0.0,
    causal: bool = False,
    window: int = 0,
) -> dict[str, Any]:
    """The bindings of `sdpa`; `mask` is "bool", "hidden" (whole rows False), "keys" (the same for
    all queries, the first keys False), "bias" or ""."""
    sources, values = sources or heads, values or width
    full = (batch, heads, length, depth)
    attn_mask, dropout_mask = None, None
    if mask in ("bool", "hidden"):
        attn_mask = torch.rand((batch, 1, length, depth), generator=generator) > 0.3
        attn_mask[..., 0] = True
        if mask == "hidden":
            attn_mask[:, :, :: max(2, length // 3)] = False
    elif mask == "keys":
        attn_mask = torch.rand((batch, 1, 1, depth), generator=generator) > 0.3
        attn_mask[0, ..., : depth // 4] = False
    elif mask == "bias":
        attn_mask = torch.randn((heads, length, depth), generator=generator).to(dtype)
    if dropout_p:
        dropout_mask = torch.rand(full, generator=generator) >= dropout_p
    return {
        "q": _heads(generator, batch, heads, length, width, dtype),
        "k": _heads(generator, batch, sources, depth, width, dtype),
        "v": _heads(generator, batch, sources, depth, values, dtype),
        "attn_mask": attn_mask,
        "dropout_mask": dropout_mask,
        "dropout_p": dropout_p,
        "is_causal": causal,
        "scale": 1.0 / math.sqrt(width),
        "window": window,
    }


def input_samples(generator: torch.Generator) -> Iterator[tuple[dict[str, Any], str]]:
    """Bindings of `sdpa` with edge shapes, each with a note of the edge."""
    for size in (1, 2, 127, 128, 129, 513):
        yield make_inputs(generator, 1, 2, size, 65, 16), f"{size} queries"
        yield make_inputs(generator, 1, 2, 9, size, 16), f"{size} keys"
    for width in (1, 32, 33, 64, 65, 128, 192, 256):
        yield make_inputs(generator, 1, 3, 20, 20, width), f"heads of {width}"
    block = (8, 12, 32, 32, 32)
    yield make_inputs(generator, *block), "a sentence-embedding block"
    yield make_inputs(generator, *block, mask="bool"), "padded sentences"
    yield make_inputs(generator, 2, 6, 40, 40, 32, sources=2, causal=True), "grouped, causal"
    yield make_inputs(generator, 1, 10, 140, 140, 32, sources=1, causal=True), "multi-query"
    yield make_inputs(generator, 1, 1, 300, 700, 64, causal=True), "causal, keys after all queries"
    yield make_inputs(generator, 1, 2, 600, 600, 32, causal=True), "causal, several tiles"
    yield make_inputs(generator, 2, 3, 150, 140, 24, values=40, mask="bool"), "Dv != D"
    yield make_inputs(generator, 2, 3, 33, 50, 32, mask="hidden"), "rows that see nothing"
    yield make_inputs(generator, 1, 2, 40, 600, 32, mask="hidden"), "the same, several tiles"
    yield make_inputs(generator, 2, 3, 33, 50, 32, mask="bias", causal=True), "bias, causal"
    yield make_inputs(generator, 2, 2, 33, 50, 32, dropout_p=0.3, mask="bias"), "dropout, bias"
    yield make_inputs(generator, 1, 2, 33, 530, 32, dropout_p=0.3), "dropout, several tiles"
    yield make_inputs(generator, 2, 2, 129, 129, 16, causal=True, window=5), "window"
    wide = make_inputs(generator, 1, 2, 700, 600, 16, causal=True, window=150, mask="hidden")
    yield wide, "window, several tiles, rows that see nothing"
    yield make_inputs(generator, 2, 9, 100, 100, 40, mask="bool"), "several chunks of heads"
    many = make_inputs(generator, 1, 12, 65, 70, 128, values=160, dropout_p=0.3, mask="bias")
    yield many, "more heads than are loaded together"
    many = make_inputs(generator, 2, 10, 127, 128, 64, dtype=torch.bfloat16, causal=True)
    yield many, "several chunks of heads, causal"
    long = make_inputs(generator, 1, 4, 640, 512, 64, sources=2, dtype=torch.bfloat16, causal=True)
    yield long, "long, grouped, causal"
    sizes = (2, 2, 512, 640, 32)
    long = make_inputs(
        generator, *sizes, dtype=torch.bfloat16, causal=True, mask="keys", window=200
    )
    yield long, "long, padding, window"
    yield make_inputs(generator, 2, 8, 1, 1100, 32, sources=2), "decoding"
    yield make_inputs(generator, 1, 4, 3, 1024, 40, sources=2, mask="hidden"), "decoding, masked"
    for dtype in (torch.bfloat16, torch.float16):
        for mask in ("", "bool", "bias"):
            inputs = make_inputs(generator, 2, 4, 40, 40, 64, dtype=dtype, mask=mask)
            yield inputs, f"{dtype} {mask}"


# Of each kernel one sample whose logarithms nobody reads.
_ALONE = ("long, grouped, causal", "long, padding, window", "decoding", "rows that see nothing")


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Samples of the forward kernel; it rounds weights to the dtype of v, as torch's does."""
    for values, note in input_samples(generator):
        error = torch.finfo(values["q"].dtype).eps * values["v"].abs().max().item()
        yield Sample({**values, "gives_logs": True}, note, error)
        if note in _ALONE:
            yield Sample({**values, "gives_logs": False}, f"{note}, no logarithms", error)


def backward_samples(generator: torch.Generator) -> Iterator[Sample]:
    """Samples of the backward kernel."""
    for values, note in input_samples(generator):
        mask = values["attn_mask"]
        mask_grad = mask is not None and mask.is_floating_point()
        out, lse = canonical_ops.sdpa(**values)
        grad_out = torch.randn(out.shape, generator=generator).to(out.dtype)
        more = {"grad_out": grad_out, "out": out, "lse": lse, "mask_grad": mask_grad}
        yield Sample({**values, **more}, note, _gradient_error(values, grad_out, out))


def _gradient_error(values: dict[str, Any], grad_out: torch.Tensor, out: torch.Tensor) -> float:
    """The rounding of weights and score gradients, carried through the last products.

    The gradient of a score is a difference, so its error is measured by the terms, not the result.
    """
    group = values["q"].shape[1] // values["k"].shape[1]
    q, k, v = (values[name].float() for name in ("q", "k", "v"))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    unit = torch.eye(k.shape[2]).expand(*k.shape[:2], -1, -1)
    plain = {**values, "q": q, "k": k, "v": unit, "dropout_mask": None}
    if values["attn_mask"] is not None and values["attn_mask"].is_floating_point():
        plain["attn_mask"] = values["attn_mask"].float()
    weights = canonical_ops.sdpa(**plain)[0] / (1.0 - values["dropout_p"])
    grad, result = grad_out.float().abs(), out.float().abs()
    terms = grad @ v.abs().mT + (grad * result).sum(-1, keepdim=True)
    scores = weights * terms
    largest = max(
        (scores @ k.abs()).max().item() * values["scale"],
        (scores.mT @ q.abs()).max().item() * values["scale"] * group,
        (weights.mT @ grad).max().item() * group,
        scores.sum(0).max().item(),
    )
    return float(torch.finfo(values["q"].dtype).eps * largest)
