"""What eager refuses at run time is refused with the same class and the same words.

Not here: what Dynamo refuses while it traces, as `TorchRuntimeError` with eager's text in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx

Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]

MODES: list[Any] = [
    pytest.param({}, False, id="default"),
    pytest.param({"fallback": "xla"}, False, id="xla"),
    pytest.param({"select": "legal"}, True, id="dynamic"),
]

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
PROBABILITIES = X.sigmoid()
NAN = torch.full((3, 3), float("nan"))
BYTES = torch.ones(2, dtype=torch.uint8)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def index(value: int, *shape: int) -> torch.Tensor:
    return torch.full(shape or (2, 5), value)


OUT_OF_RANGE: dict[str, Case] = {
    "index": (lambda x, i: x[i] * 2, (X, ints(0, 9))),
    "index, negative": (lambda x, i: x[i] * 2, (X, ints(0, -9))),
    "index of the last dimension": (lambda x, i: x[:, i] * 2, (X, ints(5))),
    "two indices": (lambda x, i: x[i, i] * 2, (X, ints(0, 4))),
    "index of nothing": (lambda x, i: x[i] * 2, (X[:0], ints(0))),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, (ints(0, 9), X)),
    "embedding, negative": (lambda i, w: F.embedding(i, w) * 2, (ints(0, -1), X)),
    "embedding on NKI": (lambda i, w: F.embedding(i, w) * 2, (index(64, 200), torch.ones(64, 64))),
    "embedding_bag": (lambda i, w, o: F.embedding_bag(i, w, o), (ints(0, 9), X, ints(0, 1))),
    "embedding_bag offsets": (
        lambda i, w, o: F.embedding_bag(i, w, o), (ints(0, 1), X, ints(1, 2)),
    ),
    "gather": (lambda x, i: x.gather(0, i) * 2, (X, index(7))),
    "gather, negative": (lambda x, i: x.gather(1, i) * 2, (X, index(-1))),
    "scatter": (lambda x, i: x.scatter(0, i, X) * 2, (X, index(7))),
    "scatter of a number": (lambda x, i: x.scatter(0, i, 1.0) * 2, (X, index(-1))),
    "scatter with a reduction": (lambda x, i: x.scatter(1, i, X, reduce="add"), (X, index(7))),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, X) * 2, (X, index(7))),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(1, i, X, "amax") * 2, (X, index(7))),
    "index_select of rows": (lambda x, i: x.index_select(0, i) * 2, (X, ints(0, 9))),
    "index_select of columns": (lambda x, i: x.index_select(1, i) * 2, (X, ints(5))),
    "index_put": (lambda x, i: x.index_put((i,), X[0, 0]) * 2, (X, ints(9))),
    "index_put that adds": (lambda x, i: x.index_put((i,), X[0, 0], True) * 2, (X, ints(9))),
    "index_add": (lambda x, i: x.index_add(0, i, X[:2]) * 2, (X, ints(0, 9))),
    "index_add of a vector": (lambda x, i: x.index_add(0, i, x[:2]) * 2, (X[0], ints(0, 9))),
    "index_copy": (lambda x, i: x.index_copy(0, i, X[:2]) * 2, (X, ints(0, 9))),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, X[:2], "amax") * 2, (X, ints(0, 9))),
    "max_unpool2d": (lambda x, i: F.max_unpool2d(x, i, 2), (X[None, :2, :2], index(99, 1, 2, 2))),
}  # fmt: skip

LOSSES: dict[str, Case] = {
    "nll_loss": (lambda x, t: F.nll_loss(x, t) * 2, (X, ints(0, 1, 5, 2))),
    "nll_loss, negative": (lambda x, t: F.nll_loss(x, t) * 2, (X, ints(0, 1, -1, 2))),
    "nll_loss of a row": (lambda x, t: F.nll_loss(x, t) * 2, (X[0], torch.tensor(7))),
    "nll_loss of an image": (
        lambda x, t: F.nll_loss(x, t) * 2, (torch.ones(2, 3, 4, 4), index(3, 2, 4, 4)),
    ),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t) * 2, (X, ints(0, 1, 5, 2))),
    "cross_entropy on NKI": (
        lambda x, t: F.cross_entropy(x, t) * 2, (torch.ones(128, 64), index(64, 128)),
    ),
    "binary_cross_entropy": (lambda x, t: F.binary_cross_entropy(x, t) * 2, (X * 9, X.sigmoid())),
    "binary_cross_entropy of NaN": (
        lambda x, t: F.binary_cross_entropy(x, t) * 2, (NAN, torch.zeros(3, 3)),
    ),
    "binary_cross_entropy, target": (
        lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), (PROBABILITIES, X + 9),
    ),
    "ctc_loss": (
        lambda x, t, n, m: F.ctc_loss(x, t, n, m),
        (torch.ones(6, 2, 5), index(1, 2, 3), ints(9, 6), ints(3, 3)),
    ),
}  # fmt: skip

ARITHMETIC: dict[str, Case] = {
    "floor division": (lambda a, b: a // b + 1, (ints(1, 2), ints(0, 1))),
    "division by the number 0": (lambda a: a // 0 + 1, (ints(1, 2),)),
    "remainder": (lambda a, b: a % b + 1, (ints(1, 2).int(), ints(0, 1).int())),
    "fmod": (lambda a, b: torch.fmod(a, b) + 1, (ints(1, 2), ints(0, 1))),
    "truncated division": (
        lambda a, b: torch.div(a, b, rounding_mode="trunc") + 1, (ints(1, 2), ints(0, 1)),
    ),
    "negative power": (lambda a: a**-1 + 1, (ints(1, 2),)),
    "a number less a bool": (lambda a: 1 - a, (torch.tensor([True]),)),
    "full": (lambda x: x + torch.full((2,), 300, dtype=torch.uint8), (ints(1, 2),)),
    "full of infinity": (lambda x: x + torch.full((2,), 1e39), (torch.ones(2),)),
    "full_like": (lambda x: torch.full_like(x, 300) + 1, (BYTES,)),
    "fill": (lambda x: x.clone().fill_(300) + 1, (BYTES,)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 300) + 1, (BYTES,)),
    "masked_fill of float16": (lambda x: x.masked_fill(x > 0, 1e39) + 1, (torch.ones(2).half(),)),
    "clamp": (lambda x: x.clamp(max=300), (BYTES,)),
}  # fmt: skip

OTHERS: dict[str, Case] = {
    "one_hot": (lambda t: F.one_hot(t, 3) * 2, (ints(0, 3),)),
    "one_hot, negative": (lambda t: F.one_hot(t, 3) * 2, (ints(0, -1),)),
    "bincount": (lambda t: torch.bincount(t) * 2, (ints(0, -1),)),
    "multinomial": (lambda x: torch.multinomial(x, 2), (torch.tensor([0.0, -1.0, 2.0]),)),
    "multinomial of zeros": (lambda x: torch.multinomial(x, 2), (torch.zeros(3),)),
    "bernoulli": (lambda x: torch.bernoulli(x) * 2, (torch.tensor([0.0, 1.5]),)),
    "normal": (lambda x: torch.normal(0.0, x) * 2, (torch.tensor([0.0, -0.5]),)),
    "cholesky": (lambda x: torch.linalg.cholesky(x) * 2, (-torch.eye(3),)),
    "inv": (lambda x: torch.linalg.inv(x) * 2, (torch.zeros(3, 3),)),
    "solve": (lambda x: torch.linalg.solve(x, x) * 2, (torch.zeros(3, 3),)),
    "eigh": (lambda x: torch.linalg.eigh(x)[0] * 2, (NAN,)),
    "assert_async": (lambda x: (torch._assert_async((x > 9).all(), "too small"), x * 2)[1], (X,)),
    "repeat_interleave": (lambda x, n: torch.repeat_interleave(x, n) * 2, (X[0, :2], ints(1, -1))),
    "histc": (lambda x: torch.histc(x, 4) * 2, (torch.tensor([1.0, float("inf")]),)),
    "masked_scatter": (lambda x, m: x.masked_scatter(m, X[0]) * 2, (X, X > -9)),
    "diagonal_scatter": (lambda x: torch.diagonal_scatter(x, torch.zeros(5)) * 2, (NAN,)),
}

CASES = OUT_OF_RANGE | LOSSES | ARITHMETIC | OTHERS
# AOTAutograd has replaced these by other ops, which refuse the same values in their own words:
# `take`, `put` and `index_fill` by indexing.
OTHER_WORDS: dict[str, Case] = {
    "multi_margin_loss": (lambda x, t: F.multi_margin_loss(x, t) * 2, (X, ints(0, 1, 5, 2))),
    "multilabel_margin_loss": (lambda x, t: F.multilabel_margin_loss(x, t), (X, index(7, 4, 5))),
    "quantile": (lambda x, q: torch.quantile(x, q) * 2, (X[0], torch.tensor([1.5]))),
    "take": (lambda x, i: x.take(i) * 2, (X, ints(20))),
    "take, negative": (lambda x, i: x.take(i) * 2, (X, ints(-21))),
    "put": (lambda x, i: x.put(i, X[0, :1]) * 2, (X, ints(20))),
    "index_fill": (lambda x, i: x.index_fill(1, i, 1.0) * 2, (X, ints(-9))),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def error_of(function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Exception:
    torch.manual_seed(0)
    with pytest.raises(Exception) as raised:  # noqa: PT011  any class: it is compared
        function(*given)
    return raised.value


@pytest.mark.parametrize(("options", "dynamic"), MODES)
@pytest.mark.parametrize("name", [*CASES, *OTHER_WORDS])
def test_the_error_is_that_of_eager(name: str, options: dict[str, str], dynamic: bool) -> None:
    function, given = CASES.get(name) or OTHER_WORDS[name]
    run = torch.compile(function, backend="trnx", options=options, dynamic=dynamic or None)
    expected = error_of(function, given)
    for _ in range(2):
        found = error_of(run, given)
        assert type(found) is type(expected)
        if name in CASES:
            assert str(expected) in str(found)


def test_good_values_after_bad_ones() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] * 2

    run = torch.compile(function, backend="trnx")
    with pytest.raises(IndexError):
        run(X, ints(0, 9))
    torch.testing.assert_close(run(X, ints(0, 3)), function(X, ints(0, 3)))


def test_a_bad_target_raises_in_training() -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x, target)

    run = torch.compile(loss, backend="trnx")
    x = PROBABILITIES.clone().requires_grad_()
    (found,) = torch.autograd.grad(run(x, PROBABILITIES), x)
    (expected,) = torch.autograd.grad(loss(x, PROBABILITIES), x)
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="target should be between 0 and 1"):
        run(x, PROBABILITIES + 9)


def test_the_ledger_says_why_a_graph_that_always_raises_is_in_eager() -> None:
    with trnx.collect_reports() as reports:
        error_of(torch.compile(lambda a: a**-1 + 1, backend="trnx"), (ints(1, 2),))
    assert any(
        "eager raises in every call: Integers to negative integer powers" in entry.reason
        for entry in reports.fallbacks
    )
