"""What the conformance script does a piece at a time: the same as the suite does as a whole."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "conformance"


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.import_module("nki_library_pieces")
    monkeypatch.setattr(module, "_PIECE", 100)
    return module


def all_close(a: Any, b: Any, rtol: float, atol: float, **_: Any) -> bool:
    """As the suite's: the largest number of all is the range, unless mode is "py"."""
    largest = np.abs(b[np.isfinite(b)]).max(initial=0)
    with np.errstate(invalid="ignore"):
        same = np.isinf(a) & (a == b)
        return bool(np.all(same | (np.abs(a - b) <= atol + rtol * largest)))


@pytest.mark.parametrize("size", [1, 99, 100, 101, 513])
def test_drawn_values_are_those_of_one_draw(pieces: ModuleType, size: int) -> None:
    generator = np.random.default_rng(1)
    made = pieces.drawn((size, 2), lambda count: np.float32(generator.uniform(-1, 1, count)))
    expected = np.random.default_rng(1).uniform(-1, 1, (size, 2)).astype("f4")
    assert np.array_equal(made, expected)
    np.random.seed(3)
    made = pieces.drawn((size,), lambda count: np.random.normal(0, 2, count))
    np.random.seed(3)
    assert np.array_equal(made, np.random.normal(0, 2, size))


def test_large_inputs_are_refused_before_they_are_made(
    pieces: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "MAX_INPUT_BYTES", 4000)
    pieces.refuse_bytes(4000)
    pieces.refuse_large({"a": np.zeros(500, "f4"), "b": np.zeros(500, "f4"), "c": 1})
    with pytest.raises(pytest.skip.Exception, match="inputs too large: 4004 bytes"):
        pieces.refuse_large({"a": np.zeros(500, "f4"), "b": np.zeros(501, "f4")})


@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3])
@pytest.mark.parametrize("at", [None, 0, 99, 100, 512])
@pytest.mark.parametrize("change", [0.02, 0.5, np.inf, np.nan])
def test_pieces_are_judged_as_the_whole(
    pieces: ModuleType, dtype: Any, at: int | None, change: float
) -> None:
    expected = np.random.default_rng(0).normal(0, 1, 513).astype(dtype)
    expected[200] = 16
    actual = expected.copy()
    if at is not None:
        actual[at] = np.float32(actual[at]) + change
    a, b = actual.astype("f4"), expected.astype("f4")
    cosine, close = pieces.compared(actual, expected, all_close, 0.015, 1e-5, 1.0, None)
    assert close == all_close(a, b, 0.015, 1e-5)
    if at is None or np.isfinite(change):
        assert cosine == pytest.approx(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), abs=1e-6)


def test_equal_infinities_are_close(pieces: ModuleType) -> None:
    expected = np.ones(300, "f4")
    expected[150] = np.inf
    assert pieces.compared(expected.copy(), expected, all_close, 0.1, 0.0, 1.0, None)[1]


def test_a_pass_rate_is_of_the_whole(pieces: ModuleType) -> None:
    given = dict[str, Any]()

    def recorded(a: Any, _: Any, **options: Any) -> bool:
        given.update(options, size=a.size)
        return True

    expected = np.ones(300, "f4")
    cosine, close = pieces.compared(expected, expected, recorded, 0.1, 0.2, 0.99, None)
    assert cosine == pytest.approx(1)
    assert close
    assert given["size"] == 300
    assert (given["rtol"], given["atol"], given["min_pass_rate"]) == (0.1, 0.2, 0.99)


@pytest.mark.parametrize("layout", ["rows", "columns", "blocks"])
def test_caches_are_updated_in_their_type(pieces: ModuleType, layout: str) -> None:
    rng = np.random.default_rng(5)
    shape = {"rows": (3, 1, 8, 4), "columns": (3, 1, 4, 8), "blocks": (6, 4, 4)}[layout]
    rows = (6, 4, 4) if layout == "blocks" else (3, 1, 8, 4)
    keys = rng.normal(size=shape).astype(ml_dtypes.bfloat16)
    values = rng.normal(size=rows).astype(ml_dtypes.bfloat16)
    new_keys, new_values = torch.randn(4, 3, 2), torch.randn(3, 2, 4)
    starts = torch.tensor([[1], [6], [-1 if layout == "blocks" else 0]], dtype=torch.int32)
    expected = keys.astype("f4"), values.astype("f4")
    for sequence, start in enumerate(starts[:, 0].tolist()):
        for token in range(2):
            new = new_keys[:, sequence, token].numpy(), new_values[sequence, token].numpy()
            if layout == "blocks" and start >= 0:
                for i in range(2):
                    expected[i].reshape(-1, 4)[start + token] = new[i]
            elif layout != "blocks":
                at = (..., start + token) if layout == "columns" else (start + token,)
                expected[0][sequence, 0][at] = new[0]
                expected[1][sequence, 0, start + token] = new[1]
    found = pieces._updated(
        new_keys, new_values, pieces._Cache(keys), pieces._Cache(values), starts, True,
        layout == "columns", 4 if layout == "blocks" else 0, 4,
    )  # fmt: skip
    for i in range(2):
        assert found[i].dtype == ml_dtypes.bfloat16
        assert np.array_equal(found[i], expected[i].astype(ml_dtypes.bfloat16))
    same = pieces._updated(new_keys, new_values, None, None, starts, False, False, 0, 4)
    assert same[0] is new_keys
    assert same[1] is new_values


def attention(
    q: Any, k: Any, v: Any, keys: Any, values: Any, mask: Any, blocks: None, transposed: bool,
    block: int, context: int, longest: int, scale: float, heads: int,
) -> Any:  # fmt: skip
    """As the reference's for flat caches: new keys and values are the last of the context."""
    assert (blocks, block, q.shape[2]) == (None, 0, heads)
    assert longest == values.shape[2]
    keys = keys[:, 0].transpose(1, 2) if transposed else keys[:, 0]
    keys, values = keys[:, :context].clone(), values[:, 0, :context].clone()
    tokens = q.shape[3]
    keys[:, -tokens:], values[:, -tokens:] = k.permute(1, 2, 0), v
    scores = torch.einsum("bcw,wbhs->bhsc", keys, q) * scale
    scores[mask.permute(1, 2, 3, 0) == 0] = -torch.inf
    return torch.einsum("bhsc,bcw->bhws", torch.softmax(scores, -1), values)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 3, 4])
def test_attention_of_some_sequences_at_a_time(
    pieces: ModuleType, transposed: bool, heads: int
) -> None:
    """The same as of all; four heads of two tokens are more than the context of six."""
    keys = np.random.default_rng(0).normal(size=(5, 1, 7, 8)).astype(ml_dtypes.bfloat16)
    values = keys[::-1].copy()
    given = np.ascontiguousarray(keys.swapaxes(2, 3)) if transposed else keys
    arguments = torch.randn(8, 5, heads, 2), torch.randn(8, 5, 2), torch.randn(5, 2, 8)
    mask = (torch.rand(6, 5, heads, 2) > 0.3).to(torch.uint8)
    mask[-1] = 1
    rest: Any = (mask, None, transposed, 0, 6, 7, 0.5, heads)
    found = pieces._attention(
        attention, 2, *arguments, pieces._Cache(given), pieces._Cache(values), *rest, sink=None
    )
    caches = [torch.from_numpy(cache.astype("f4")) for cache in (given, values)]
    torch.testing.assert_close(found, attention(*arguments, caches[0], caches[1], *rest))


def test_bytes_become_float32(pieces: ModuleType) -> None:
    values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3)
    assert np.array_equal(pieces._float32(values), values.astype("f4"), equal_nan=True)
