"""What nki-library's suite computes for large cases, in parts: the same values in less memory.

The suite makes golden values of all heads or rows at once, and compares whole arrays in float64,
which takes ten times the memory of a case's inputs. By patches in `nki_library_memory.py` it calls
these for large cases.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch

Array = np.ndarray[Any, Any]

# Elements of a part.
_PART = 1 << 24


def as_torch(array: Array) -> torch.Tensor:
    """A tensor over the array's memory, also of bfloat16."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_numpy(tensor: torch.Tensor) -> Array:
    """An array over the tensor's memory, also of bfloat16."""
    if tensor.dtype is torch.bfloat16:
        held: Array = tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return held
    return tensor.numpy()


# ---- rows of logits ----


def by_rows(
    function: Callable[..., torch.Tensor], *tensors: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`function`, which treats every row alone, of some rows after the other."""
    rows = max(1, _PART // max(1, *(tensor[0].numel() for tensor in tensors)))
    parts = zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)
    if out is None:
        return torch.cat([function(*part) for part in parts])
    for held, part in zip(torch.split(out, rows), parts, strict=True):
        held.copy_(function(*part))
    return out


def cross_entropy_gradient(
    logits: torch.Tensor, targets: torch.Tensor, reduction: str
) -> torch.Tensor:
    """The gradient of `F.cross_entropy(logits, targets, reduction=reduction)`."""
    one = torch.ones((), dtype=logits.dtype)
    scale = one / logits.shape[0] if reduction == "mean" else one

    def gradient(some: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        held = some.detach().clone().requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(held, wanted, reduction="sum")
        loss.backward(scale)  # type: ignore[no-untyped-call]
        assert held.grad is not None
        return held.grad

    return by_rows(gradient, logits, targets, out=torch.empty_like(logits))


# ---- heads of attention ----


def forward_by_heads(function: Callable[..., Any]) -> Callable[..., Any]:
    """`compute_o_lse`; the scores of all heads, which the callers do not use, are None."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        if given["q"].shape[1] == 1:
            return function(**given)
        found = [function(**one)[:2] for one in _heads(given, "q", "k")]
        return (*(torch.cat(parts, dim=1) for parts in zip(*found, strict=True)), None)

    return run


def backward_by_heads(
    function: Callable[..., dict[str, torch.Tensor]], reduce: Callable[..., torch.Tensor]
) -> Callable[..., dict[str, torch.Tensor]]:
    """`attention_bwd_torch_ref`; `reduce` sums the gradients of heads that share keys."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        if given["q_ref"].shape[1] == 1:
            return function(**given)
        found = [function(**one) for one in _heads(given, "q_ref", "k_ref")]
        whole = {name: torch.cat([one[name] for one in found], dim=1) for name in found[0]}
        for name in ("out_dk_ref", "out_dv_ref"):
            is_mixed = given.get("mixed_precision", False)
            whole[name] = reduce(whole[name], given["k_ref"].shape[1], is_mixed)
        return whole

    return run


def _heads(given: dict[str, Any], query: str, key: str) -> Iterator[dict[str, Any]]:
    """The arguments of one head of queries after the other, with its keys and values."""
    heads, shared = given[query].shape[1], given[key].shape[1]
    for head in range(heads):
        one = {}
        for name, value in given.items():
            if name.startswith("bound") or not isinstance(value, torch.Tensor):
                one[name] = value
                continue
            at = head if value.shape[1] == heads else head * shared // heads
            one[name] = value[:, at : at + 1]
        yield one


def forward_by_queries(function: Callable[..., Any]) -> Callable[..., Any]:
    """`attention_cte_torch_ref`: some queries of one head after the other."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        rows = 1 if given["tp_q"] else 2
        heads, count = given["q"].shape[0], given["q"].shape[rows]
        keys = given["k"].shape[1 if given["tp_k"] else 2]
        if given["k_prior"] is not None:
            keys += int(given["prior_used_len"])
        step = max(1, _PART // (128 * keys)) * 128
        if heads == 1 and count <= step:
            return function(**given)
        along = (2 if given["tp_out"] else 1, 2, 2)
        found = []
        for head in range(heads):
            parts = [
                function(**_queries(given, head, slice(start, min(start + step, count)), rows))
                for start in range(0, count, step)
            ]
            found.append(_joined(parts, along))
        return _joined(found, (0, 0, 0))

    return run


def _queries(given: dict[str, Any], head: int, some: slice, rows: int) -> dict[str, Any]:
    """The arguments for some queries of a head."""
    one = dict(given)
    heads = given["q"].shape[0]
    for name in ("q", "k", "v", "k_prior", "v_prior", "sink"):
        value = given[name]
        if value is not None:
            at = head * value.shape[0] // heads
            one[name] = value[at : at + 1]
    one["q"] = one["q"][:, some] if rows == 1 else one["q"][:, :, some]
    is_strided = given["cp_offset"] is not None and given["cp_strided_q_slicing"]
    distance = given["global_cp_deg"] if is_strided else 1
    offset = 0 if given["cp_offset"] is None else int(given["cp_offset"])
    one["cp_offset"] = torch.tensor(offset + some.start * distance)
    one["cp_strided_q_slicing"] = is_strided
    for name in ("bound_min", "bound_max"):
        if given[name] is not None:
            one[name] = given[name].reshape(-1)[some]
    return one


def _joined(parts: list[Any], along: tuple[int, ...]) -> Any:
    """Tensors, or tuples of them, one after the other along a dimension of each."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts, dim=along[0])
    columns = zip(*parts, strict=True)
    return tuple(torch.cat(one, dim=dim) for one, dim in zip(columns, along, strict=True))


# ---- quantised rows ----


def by_sequence(function: Callable[..., Any]) -> Callable[..., Any]:
    """`rmsnorm_quant_ref`, which treats every row of [batch, sequence, columns] alone: some rows
    after the other.
    """

    @functools.wraps(function)
    def run(rows: Array, *rest: Any) -> Any:
        step = max(1, _PART // (rows.shape[0] * rows.shape[2]))
        if rows.shape[1] <= step:
            return function(rows, *rest)
        starts = range(0, rows.shape[1], step)
        found = zip(*(function(rows[:, at : at + step], *rest) for at in starts), strict=True)
        return tuple(None if one[0] is None else np.concatenate(one, axis=1) for one in found)

    return run


# ---- comparison ----


def is_large(array: Array) -> bool:
    """True where the suite's own comparison would take much memory."""
    return array.size > _PART


def comparable(array: Array) -> Array:
    """`array.astype(np.float32)`, or a large array itself, whose parts `largest_error` and
    `all_close` convert. Raises what `astype` raises where there is no conversion.
    """
    if not is_large(array):
        return array.astype(np.float32)
    array.reshape(-1)[:1].astype(np.float32)
    return array


def _parts(a: Array, b: Array) -> Iterator[tuple[Array, Array, Array]]:
    """float32 parts of both, and what they differ by in float64."""
    first, second = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, _PART):
        x = first[start : start + _PART].astype(np.float32)
        y = second[start : start + _PART].astype(np.float32)
        with np.errstate(invalid="ignore"):
            difference = abs(x.astype(float) - y.astype(float))
        same = np.isinf(x) & np.isinf(y) & (np.sign(x) == np.sign(y))
        difference[same] = 0.0
        yield x, y, difference


def largest_error(a: Array, b: Array, atol: float) -> float:
    """`get_largest_abs_diff`."""
    largest, span, is_nan = -math.inf, -math.inf, True
    for _, y, difference in _parts(a, b):
        largest = float(np.maximum(largest, np.amax(difference)))
        known = y[~np.isnan(y)]
        if known.size:
            is_nan, span = False, max(span, float(np.amax(np.abs(known))))
    if is_nan or largest < atol or span == 0:
        return 0.0
    return (largest - atol) / span


def all_close(
    a: Array, b: Array, rtol: float, atol: float = 1e-8, verbose: int = 1, logfile: Any = None
) -> bool:
    """`maxAllClose` in its mode "max"."""
    span = np.float32(-np.inf)
    for start in range(0, b.size, _PART):
        part = abs(b.reshape(-1)[start : start + _PART].astype(np.float32))
        span = np.amax(part[np.isfinite(part)], initial=span)
    largest, is_close = -math.inf, True
    for x, y, difference in _parts(a, b):
        is_close &= bool(np.all(difference <= atol + rtol * span))
        is_close &= bool((np.isfinite(x) == np.isfinite(y)).all())
        largest = float(np.maximum(largest, np.amax(difference)))
    if verbose:
        text = f"INFO: allclose comparison summary: largest abs diff = {largest:g}\n"
        print(text)
        if logfile is not None:
            print(text, file=logfile)
    return is_close
