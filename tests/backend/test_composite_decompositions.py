"""Ops that are decomposed into others: eager's values, dtypes and strides, on NKI."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.backend.composite_decompositions import COMPOSITE_DECOMPOSITIONS
from trnx.backend.indexing_decompositions import INDEXING_DECOMPOSITIONS

aten = torch.ops.aten
NAN, INF = math.nan, math.inf
RULES: Mapping[Any, Callable[..., Any]] = {**COMPOSITE_DECOMPOSITIONS, **INDEXING_DECOMPOSITIONS}


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def whole(*shape: int, by: int = 1) -> torch.Tensor:
    """Integers with many ties, also beyond 32 bits."""
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(-4, 5, shape, generator=generator) * by


def special() -> torch.Tensor:
    x = draw(5, 7)
    x[0, 0], x[1, 2], x[3, 3], x[2, 2], x[4, 1] = INF, NAN, -INF, -0.0, 3e38
    return x


def check(op: Any, *args: Any, **kwargs: Any) -> None:
    """The rule gives what eager gives."""
    found, expected = RULES[op](*args, **kwargs), op(*args, **kwargs)
    if isinstance(expected, torch.Tensor):
        found, expected = (found,), (expected,)
    for result, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(result, eager, equal_nan=True, check_stride=True)


EDGES = torch.tensor([-1.0, 0.0, 0.0, 0.5, INF])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("out_int32", [False, True])
def test_places_in_boundaries(right: bool, out_int32: bool) -> None:
    for x in (special(), special().t(), torch.tensor(0.5)):
        check(aten.bucketize.Tensor, x, EDGES, right=right, out_int32=out_int32)
        check(aten.searchsorted.Tensor, EDGES, x.contiguous(), right=right, out_int32=out_int32)
    rows = draw(5, 9).sort(-1).values
    check(aten.searchsorted.Tensor, rows, special(), right=right)
    check(aten.searchsorted.Tensor, torch.arange(9) * 2**40, whole(3, 3, by=2**40), right=right)


@pytest.mark.parametrize("decimals", [0, 1, 3, -1, -3, 40, -40])
def test_decimals_are_rounded_as_in_eager(decimals: int) -> None:
    x = torch.cat([draw(999) * 100, torch.tensor([INF, -INF, NAN, 0.5, 1.5, 2.5, -0.0, 3e38])])
    check(aten.round.decimals, x, decimals=decimals)


@pytest.mark.parametrize("factors", [(0.5, 2.0), (0, 1), (0, 3.0), (2, 1)])
def test_products_with_factors(factors: tuple[float, float]) -> None:
    beta, alpha = factors
    given = {"beta": beta, "alpha": alpha}
    for added in (draw(4, 5), draw(5), special()[:4, :5]):
        check(aten.addmm.default, added, draw(4, 3), draw(3, 5), **given)
        check(aten.addbmm.default, added, draw(2, 4, 3), draw(2, 3, 5), **given)
    check(aten.addmv.default, draw(4), draw(4, 3), draw(3), **given)
    assert RULES[aten.addmm.default](*(draw(2, 2).bfloat16(),) * 3, **given) is NotImplemented


@pytest.mark.parametrize("p", [0, 1, 2, 3.5, INF])
def test_distances(p: float) -> None:
    check(aten.dist.default, draw(3, 4), draw(4), p)
    for rows in (6, 30):
        check(aten._cdist_forward.default, draw(2, 5, 3), draw(2, rows, 3), p, None)
        check(aten._cdist_forward.default, draw(5, 3), draw(rows, 3), p, 2)


@pytest.mark.parametrize("x", [whole(4, 5, 9), whole(4, 5, 9).int(), whole(4, 5, 9, by=2**40)])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_extreme_integers_and_their_first_places(x: torch.Tensor, dim: int, keepdim: bool) -> None:
    for op in (aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim):
        check(op, x, dim, keepdim)
        check(op, x.transpose(0, 2), dim, keepdim)
    check(aten.argmax.default, x, None, keepdim)


def test_indices_of_flat_tensors() -> None:
    x, places = draw(4, 6), torch.tensor([[0, -1], [5, 5]])
    check(aten.take.default, x.t(), places)
    for accumulate in (True, False):
        check(aten.put.default, x, places, draw(2, 2), accumulate)
    for rule, given in ((aten.take.default, ()), (aten.put.default, (torch.tensor([1.0]),))):
        with pytest.raises(IndexError):
            RULES[rule](x, torch.tensor([24]), *given)
    check(aten.index_fill.int_Scalar, x, 0, torch.tensor([1, -1]), 3.0)
    check(aten.index_fill.int_Tensor, x.t(), 1, torch.tensor(2), torch.tensor(7))
    check(aten.index_add.default, x, 0, torch.tensor([0, 2, 2]), draw(3, 6), alpha=0.5)


@pytest.mark.parametrize("x", [draw(4, 6), draw(4, 6).bfloat16(), draw(3, 1, 4).transpose(0, 2)])
def test_means_with_variances(x: torch.Tensor) -> None:
    for dim in (None, [0], [-1]):
        if x.shape[-1] > 1 or dim != [-1]:
            check(aten.var_mean.correction, x, dim, correction=0, keepdim=True)
            check(aten.std_mean.correction, x, dim, correction=0, keepdim=True)
    check(aten.var_mean.correction, special(), [1])


def _triangle(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.tril_indices(7, 7, -1)
    return x[:, rows, columns] + x[:, *torch.triu_indices(7, 7, 1)]


def _sampled(x: torch.Tensor) -> torch.Tensor:
    grid = (x[:4, :6] / 3).reshape(1, 4, 3, 2)
    return F.grid_sample(x[None, None], grid, align_corners=False)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_bags_in_bfloat16(mode: str, weighted: bool) -> None:
    if weighted and mode == "mean":
        pytest.skip("PyTorch weights sums alone")
    table = draw(50, 12).bfloat16().requires_grad_()
    indices, offsets = torch.arange(25) * 7 % 50, torch.tensor([0, 3, 7, 7, 15, 20])
    factors = draw(25).bfloat16().requires_grad_() if weighted else None
    leaves = [table, *([factors] if weighted else [])]

    def bags(table: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
        return F.embedding_bag(indices, table, offsets, mode=mode, per_sample_weights=factors)

    found = torch.compile(bags, backend="trnx")(table, factors)
    wanted = bags(table, factors)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    tangent = draw(6, 12).bfloat16()
    for one, other in zip(
        torch.autograd.grad(found, leaves, tangent),
        torch.autograd.grad(wanted, leaves, tangent),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("function", [F.hardswish, F.hardsigmoid, F.softplus, F.logsigmoid])
def test_gradients_of_activations(function: Any) -> None:
    edges = [math.nan, math.inf, -math.inf, -3.0, 3.0, 0.0, 1.0, -2.9, 3.1]
    # Whole vectors: of what is left behind them eager passes the gradient on where x is NaN.
    x = torch.tensor(edges).repeat(64).requires_grad_()
    compiled = torch.compile(function, backend="trnx", options={"select": "legal"})
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    (wanted,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(found, wanted, equal_nan=True)


COMPILED = {
    "softplus": lambda: (
        lambda x: (F.softplus(x), F.softplus(x, 2.0, 3.0), F.mish(x), F.logsigmoid(x)), special()
    ),
    "logaddexp": lambda: (
        lambda x: (torch.logaddexp(x, x.flip(0)), torch.logaddexp(x, x), torch.logit(x)), special()
    ),
    "places in a triangle": lambda: (_triangle, draw(3, 7, 7)),
    "hardswish": lambda: (lambda x: (F.hardswish(x), F.hardsigmoid(x)), special()),
    "std_mean": lambda: (lambda x: torch.std_mean(x, 1), draw(129, 37)),
    "std_mean of the largest numbers": lambda: (
        lambda x: torch.std_mean(x, 1),
        draw(129, 37).abs().clamp(max=3.0) * 1e38,
    ),
    "var_mean": lambda: (lambda x: torch.var_mean(x, 1), draw(129, 37)),
    "round_decimals": lambda: (lambda x: x.round(decimals=2), draw(129, 3) * 9),
    "bucketize": lambda: (lambda x: torch.bucketize(x, EDGES), special()),
    "searchsorted": lambda: (lambda x: torch.searchsorted(EDGES, x, right=True), special()),
    "addmm": lambda: (lambda x: torch.addmm(x, x, x, beta=0.5, alpha=2.0), draw(33, 33)),
    "cdist": lambda: (lambda x: torch.cdist(x, x[:5] + 1.0), draw(9, 7)),
    "argmax": lambda: (lambda x: (x.argmax(1), x.min(0)), whole(5, 33, by=2**33)),
    "take": lambda: (lambda x: x.take(torch.tensor([[0, -1], [5, 5]])), draw(4, 6)),
    "median": lambda: (lambda x: torch.median(x), draw(4, 6)),
    "median_of_nan": lambda: (lambda x: torch.median(x), special()),
    "permute_copy": lambda: (lambda x: torch.permute_copy(x, (1, 0)), draw(5, 129)),
    "adaptive_avg_pool": lambda: (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), draw(1, 2, 7, 8)),
    "grid_sample": lambda: (_sampled, draw(5, 7)),
    "ldexp": lambda: (lambda x: torch.ldexp(x, torch.arange(7)), special()),
    "gamma": lambda: (lambda x: (torch.erfc(x), torch.lgamma(x.abs())), special()),
    "batch_norm": lambda: (
        lambda x: aten._batch_norm_with_update_functional.default(
            x, x[0, :, 0], x[1, :, 0], x[2, :, 0], x[3, :, 0].abs(), 0.1, 1e-5
        ),
        draw(4, 3, 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_ops_are_kernels(name: str) -> None:
    function, x = COMPILED[name]()
    options = {"select": "legal", "fallback": "eager"}
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(function, backend="trnx", options=options)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True, check_stride=True)
    engines = [region.engine for report in reports for region in report.regions]
    assert set(engines) == {"nki"}, [str(entry) for r in reports for entry in r.fallbacks]
