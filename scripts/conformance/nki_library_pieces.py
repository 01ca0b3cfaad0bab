"""Random inputs, golden values and comparison of nki-library's attention block, a piece at a time.

The suite makes and compares caches as a whole, in float64 and float32, with a copy of all keys for
each head: ten times the memory of a case's inputs, and most of its time. Here a case needs its
inputs, its golden values and a few pieces. Inputs and golden caches are the suite's, bit by bit;
sums of float32 in another order change the rounding of one in a thousand golden outputs. Verdicts
are the suite's. Patches in `nki_library_memory.py` make the suite call this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from nki_library_workers import MAX_INPUT_BYTES, TOO_LARGE

Array = np.ndarray[Any, Any]
# Elements of a piece.
_PIECE = 1 << 20


def drawn(shape: tuple[int, ...], draw: Callable[[int], Array]) -> Array:
    """An array of `shape`. `draw(count)` gives so many values, and goes on where it stopped."""
    size = int(np.prod(shape))
    first = draw(min(size, _PIECE))
    made = np.empty(size, first.dtype)
    made[: first.size] = first
    for start in range(first.size, size, _PIECE):
        made[start : start + _PIECE] = draw(min(size - start, _PIECE))
    return made.reshape(shape)


def refuse_large(inputs: Mapping[str, Any]) -> None:
    """Skip the case before its golden values are made, if its inputs are over the limit."""
    refuse_bytes(sum(value.nbytes for value in inputs.values() if isinstance(value, np.ndarray)))


def refuse_bytes(size: int) -> None:
    """Skip the case if so many bytes of its inputs are over the limit."""
    if size > MAX_INPUT_BYTES:
        pytest.skip(f"{TOO_LARGE}: {size} bytes")


# ---- golden values ----


class _Cache:
    """Stands for a float32 tensor of keys or values, which is made for some sequences at a time."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.shape = values.shape

    def float(self) -> _Cache:
        """The reference wants float32."""
        return self

    def some(self, index: Any, shape: tuple[int, ...]) -> torch.Tensor:
        """`self[index]` in `shape`."""
        return torch.from_numpy(_float32(self.values[index]).reshape(shape))


def _float32(values: Array) -> Array:
    if values.dtype.itemsize > 1:
        return values.astype(np.float32)
    table = np.arange(256, dtype=np.uint8).view(values.dtype).astype(np.float32)
    return np.take(table, values.view(np.uint8))


def golden_values(wrap: Callable[[Any], Any], reference: Any, inputs: Mapping[str, Any]) -> Any:
    """`wrap(reference)(**inputs)`, where `reference` is an AttentionBlockTkgTorchRef."""
    attention = reference._run_attention
    reference._run_attention = lambda *args, **options: _attention(
        attention, reference.lnc, *args, **options
    )
    reference._update_kv_cache = _updated
    caches = {name: _Cache(inputs[name]) for name in ("K_cache", "V_cache")}
    return wrap(reference)(**{**inputs, **caches})


def _attention(
    attention: Callable[..., torch.Tensor],
    cores: int,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_cache: _Cache,
    value_cache: _Cache,
    mask: torch.Tensor,
    blocks: torch.Tensor | None,
    transposed: bool,
    block: int,
    context: int,
    longest: int,
    scale: float | None,
    heads: int,
    sink: None = None,
) -> torch.Tensor:
    """The reference's attention, for some sequences at a time. Blocks come as flat caches, and so
    does their mask; heads come as further tokens of one head, for one product with all of them.
    """
    width, batch, _, tokens = queries.shape
    assert sink is None
    if blocks is not None:
        mask = _flat_mask(mask, cores, block, longest)
    step = max(1, _PIECE // (longest * width))
    found = []
    for start in range(0, batch, step):
        some = slice(start, min(start + step, batch))
        count = some.stop - start
        index: Any = some if blocks is None else blocks[some].numpy()
        flat = (count, 1, longest, width)
        k = key_cache.some(index, (count, 1, width, longest) if transposed else flat)
        v = value_cache.some(index, flat)
        new = keys[:, some], values[some]
        shape = (width, count, heads, tokens)
        if heads * tokens <= context:
            # The reference puts as many new keys and values at the end as there are tokens.
            old = slice(context - heads * tokens, context - tokens)
            rows = k[:, 0, :, old].transpose(0, 1) if transposed else k[:, 0, old].permute(2, 0, 1)
            new = torch.cat([rows, new[0]], 2), torch.cat([v[:, 0, old], new[1]], 1)
            shape = (width, count, 1, heads * tokens)
        out = attention(
            queries[:, some].reshape(shape), *new, k, v,
            mask[:, some].reshape(context, *shape[1:]), None, transposed, 0, context, longest,
            scale, shape[2],
        )  # fmt: skip
        if shape[2] != heads:
            out = out.reshape(count, width, heads, tokens).transpose(1, 2)
        found.append(out)
    return torch.cat(found)


def _flat_mask(mask: torch.Tensor, cores: int, block: int, longest: int) -> torch.Tensor:
    """A mask for blocks, [context, batch, heads, tokens], by positions. It lies as the kernel
    loads it: part after part of each of 128 blocks, which may be cut for the purpose.
    """
    from nkilib_src.nkilib.core.attention import attention_tkg_utils as utils

    context, batch, heads, tokens = mask.shape
    cut, _ = utils.resize_cache_block_len_for_attention_tkg_kernel(
        context // block, block, cores, 128, batch, heads, tokens, full_sprior=longest
    )
    folds = mask.reshape(-1, cut, 128, batch, heads, tokens)
    return folds.transpose(1, 2).reshape(mask.shape)


def _updated(
    keys: torch.Tensor,
    values: torch.Tensor,
    key_cache: _Cache,
    value_cache: _Cache,
    starts: torch.Tensor,
    is_updated: bool,
    transposed: bool,
    block: int,
    width: int,
) -> tuple[Any, Any]:
    """The caches with new keys [width, batch, tokens] and values [batch, tokens, width], in the
    caches' own types; without an update, what is new.
    """
    if not is_updated:
        return keys, values
    results = key_cache.values.copy(), value_cache.values.copy()
    new = keys.permute(1, 2, 0).numpy(), values.numpy()
    for i in range(2):
        rows = new[i].astype(results[i].dtype)
        flat = results[i].reshape(-1, width) if block else results[i]
        for sequence, start in enumerate(starts[:, 0].tolist()):
            place = slice(start, start + rows.shape[1])
            if block and start >= 0:
                flat[place] = rows[sequence]
            elif not block and transposed and i == 0:
                flat[sequence, 0, :, place] = rows[sequence].T
            elif not block:
                flat[sequence, 0, place] = rows[sequence]
    return results


# ---- comparison ----


def compared(
    actual: Array,
    expected: Array,
    all_close: Callable[..., bool],
    rtol: float,
    atol: float,
    min_pass_rate: float,
    logfile: Any,
) -> tuple[float, bool]:
    """The cosine of the two, and whether they are close, as the suite's `all_close` judges it."""
    if expected.size <= _PIECE or min_pass_rate < 1:
        a, b = actual.astype(np.float32), expected.astype(np.float32)
        close = all_close(
            a, b, rtol=rtol, atol=atol, verbose=1, logfile=logfile, min_pass_rate=min_pass_rate
        )
        return _cosine(_products(a.reshape(-1), b.reshape(-1))), close
    products, largest = np.zeros(3), np.float32(0)
    for a, b in _pieces(actual, expected):
        products += _products(a, b)
        largest = np.max(np.abs(b), initial=largest, where=np.isfinite(b))
    # The suite takes the largest number of all for the range: each piece gets the limit of all.
    limit = atol + rtol * largest
    close = all(
        all_close(a[differ], b[differ], rtol=0.0, atol=limit, mode="py", logfile=logfile)
        for a, b in _pieces(actual, expected)
        if (differ := a != b).any()
    )
    return _cosine(products), close


def _pieces(actual: Array, expected: Array) -> Iterable[tuple[Array, Array]]:
    given, wanted = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, wanted.size, _PIECE):
        part = slice(start, start + _PIECE)
        yield _float32(given[part]), _float32(wanted[part])


def _products(a: Array, b: Array) -> Array:
    return np.array([a @ b, a @ a, b @ b], np.float64)


def _cosine(products: Array) -> float:
    dot, first, second = products
    with np.errstate(invalid="ignore"):
        return float(dot / (np.sqrt(first) * np.sqrt(second) + 1e-12))
