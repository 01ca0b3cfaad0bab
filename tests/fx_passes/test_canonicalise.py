"""Each canonical form of docs/architecture.md, and what must not be canonicalised away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.backend.torch_internals import copy_graph_module
from trnx.fx_passes.canonicalise import CANONICALISE, REMOVE_DEAD, canonicalise
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.verify import verify_graph

aten = torch.ops.aten


def _graph(function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """The canonical ATen graph of `function`; its results are compared with eager's."""
    gm = canonicalise(make_fx(function, tracing_mode="fake")(*args))
    verify_graph(gm, "canonicalise")
    want, have = function(*args), gm(*args)
    torch.testing.assert_close(have, want, check_stride=True)
    return gm


def _calls(gm: fx.GraphModule) -> list[tuple[Any, ...]]:
    """Operators with their arguments that are no nodes."""
    return [
        (node.target, *(a for a in node.args if not isinstance(a, fx.Node)))
        for node in gm.graph.nodes
        if node.op == "call_function"
    ]


X, Y = torch.randn(4, 6), torch.randn(4, 6)
W, B = torch.randn(5, 6), torch.randn(5)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[tuple[Any, ...]]]] = {
    "mm": (lambda x, w: aten.mm(x, aten.t(w)), (X, W), [(aten.linear.default, None)]),
    "mm of [K, N]": (
        lambda x, w: aten.mm(x, w),
        (X, torch.randn(6, 5)),
        [(aten.transpose.int, 0, 1), (aten.linear.default, None)],
    ),
    "addmm": (lambda b, x, w: aten.addmm(b, x, w.t()), (B, X, W), [(aten.linear.default,)]),
    "addmm of a matrix": (
        lambda b, x, w: aten.addmm(b, x, w.t()),
        (torch.randn(4, 5), X, W),
        [(aten.linear.default, None), (aten.add.Tensor,)],
    ),
    "flattened linear": (
        lambda x, w, b: F.linear(x, w, b),
        (torch.randn(2, 3, 6), W, B),
        [(aten.linear.default,)],
    ),
    "flattened heads": (
        lambda x, w, b, r: F.linear(x.transpose(1, 2).reshape(12, 6), w, b).view(4, 3, 5) + r,
        (torch.randn(4, 3, 2, 3).transpose(1, 2), W, B, torch.randn(4, 3, 5)),
        [
            (aten.transpose.int, 1, 2),
            (aten.view.default, [4, 3, 6]),
            (aten.linear.default,),
            (aten.add.Tensor,),
        ],
    ),
    "one matrix for a batch": (
        torch.matmul,
        (torch.randn(2, 6, 3).mT, torch.randn(6, 5)),
        [(aten.transpose.int, 0, 1), (aten.linear.default, None)],
    ),
    "baddbmm": (
        torch.baddbmm,
        (torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
        [(aten.bmm.default,), (aten.add.Tensor,)],
    ),
    "scalar overload": (lambda x: aten.mul.Scalar(x, 2.0), (X,), [(aten.mul.Tensor, 2.0)]),
    "alpha": (
        lambda x, y: torch.add(x, y, alpha=2),
        (X, Y),
        [(aten.mul.Tensor, 2), (aten.add.Tensor,)],
    ),
    "alpha of a number": (lambda x: torch.add(x, 3, alpha=2), (X,), [(aten.add.Tensor, 6)]),
    "negative alpha": (lambda x, y: torch.add(x, y, alpha=-1), (X, Y), [(aten.sub.Tensor,)]),
    "rsub": (lambda x: torch.rsub(x, 2.0), (X,), [(aten.sub.Tensor, 2.0)]),
    "constant tensor": (
        lambda x: x * torch.full((), 0.5),
        (X,),
        [(aten.mul.Tensor, 0.5)],
    ),
    "float64 constant": (
        lambda x: x.double() * torch.full((), 1.7, dtype=torch.float64),
        (X,),
        [(aten._to_copy.default,), (aten.mul.Tensor, 1.7)],
    ),
    "wide constant": (lambda x: x + torch.ones(4, 6), (X,), [(aten.add.Tensor, 1.0)]),
    "masked_fill": (
        lambda x, m: x.masked_fill(m, 2.0),
        (X, X > 0),
        [(aten.where.ScalarSelf, 2.0)],
    ),
    "where of constants": (
        lambda m: torch.where(m, torch.tensor(0.0), torch.tensor(-1.0)),
        (X > 0,),
        [(aten.where.Scalar, 0.0, -1.0)],
    ),
    "negative dims": (
        lambda x: torch.softmax(x, -1),
        (X,),
        [(aten._softmax.default, 1, False)],
    ),
    "sum": (lambda x: x.sum(), (X,), [(aten.sum.dim_IntList, [0, 1])]),
    "mean": (lambda x: x.mean(-1, True), (X,), [(aten.mean.dim, [1], True)]),
    "round trip": (
        lambda x: x.to(torch.float64).to(torch.float32) + 1,
        (X,),
        [(aten.add.Tensor, 1)],
    ),
    "lossy round trip": (
        lambda x: x.to(torch.bfloat16).to(torch.float32) + 1,
        (X,),
        [(aten._to_copy.default,), (aten._to_copy.default,), (aten.add.Tensor, 1)],
    ),
    "two transposes": (lambda x: x.t().transpose(-1, -2) + 1, (X,), [(aten.add.Tensor, 1)]),
    "view of view": (
        lambda x: (x * 2).view(2, 12).view(24),
        (X,),
        [(aten.mul.Tensor, 2), (aten.view.default, [24])],
    ),
    "epilogue behind a view": (
        lambda x, w: F.gelu((x @ w.t()).view(2, 2, 5)),
        (X, W),
        [(aten.linear.default, None), (aten.gelu.default,), (aten.view.default, [2, 2, 5])],
    ),
    "common subexpressions": (
        lambda x, y: (x + y) * torch.relu(x + y),
        (X, Y),
        [(aten.add.Tensor,), (aten.relu.default,), (aten.mul.Tensor,)],
    ),
    "a copy into a slice": (
        lambda x, y: torch.slice_scatter(x, aten.copy(x[:, 1:3], y), 1, 1, 3),
        (X, torch.ones(4, 2)),
        [(aten.slice_scatter.default, 1, 1, 3)],
    ),
    "clone": (lambda x: x.clone().detach() * 2, (X,), [(aten.mul.Tensor, 2)]),
    "clone to another layout": (
        lambda x: x.t().contiguous() * 2,
        (X,),
        [(aten.transpose.int, 0, 1), (aten.clone.default,), (aten.mul.Tensor, 2)],
    ),
    "ones_like": (lambda x: torch.ones_like(x) * x, (X,), [(aten.mul.Tensor, 1.0)]),
}


@pytest.mark.parametrize("name", CASES)
def test_form(name: str) -> None:
    function, args, wanted = CASES[name]

    assert _calls(_graph(function, *args)) == wanted


def test_constants_are_computed_once() -> None:
    gm = _graph(lambda x: torch.where(torch.arange(6) >= torch.arange(4)[:, None], x, 0.0), X)

    assert _calls(gm) == [(aten.where.ScalarOther, 0.0)]
    assert [node.op for node in gm.graph.nodes].count("get_attr") == 1


def test_alpha_of_narrow_dtypes_rounds_once() -> None:
    x, y = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    gm = canonicalise(make_fx(lambda x, y: torch.add(x, y, alpha=0.3), tracing_mode="fake")(x, y))

    assert torch.equal(gm(x, y), torch.add(x, y, alpha=0.3))


def test_a_returned_copy_stays_a_copy() -> None:
    gm = _graph(lambda x: x.clone(), X)
    result = gm(X)

    assert result.untyped_storage().data_ptr() != X.untyped_storage().data_ptr()


def test_two_results_stay_two() -> None:
    gm = _graph(lambda x: (x + 1, x + 1), X)
    first, second = gm(X)

    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_a_returned_constant_is_fresh_on_every_call() -> None:
    gm = _graph(lambda x: (x + 1, torch.arange(6) * 2), X)
    gm(X)[1].fill_(7)

    assert torch.equal(gm(X)[1], torch.arange(6) * 2)


def test_what_follows_from_a_returned_constant_is_computed_too() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.arange(6) * 2
        return x + table.view(1, 6).cumsum(1), table

    gm = _graph(function, X)

    assert _calls(gm)[-1] == (aten.add.Tensor,)
    assert aten.cumsum.default not in [node.target for node in gm.graph.nodes]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.int32])
def test_a_running_sum_with_a_dtype_casts_first(source: torch.dtype, dtype: torch.dtype) -> None:
    x = (torch.arange(-30, 30).view(4, 15) * 1.75).to(source)
    gm = _graph(lambda x: x.cumsum(1, dtype=dtype), x)

    assert all("dtype" not in n.kwargs for n in gm.graph.nodes if n.target is aten.cumsum.default)
    assert torch.equal(gm(x), x.cumsum(1, dtype=dtype))


def test_a_copy_from_before_a_write_stays() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        old = state.clone()
        state.copy_(x)
        return old * 2

    gm = canonicalise(make_fx(function, tracing_mode="fake")(X, Y))
    state = Y.clone()

    assert torch.equal(gm(X, state), Y * 2)
    assert torch.equal(state, X)


def test_random_ops_are_not_merged() -> None:
    gm = canonicalise(
        make_fx(lambda x: torch.bernoulli(x, 0.5) - torch.bernoulli(x, 0.5), tracing_mode="fake")(X)
    )
    torch.manual_seed(0)

    assert gm(X).abs().sum() > 0


def test_twice_is_once() -> None:
    gm = make_fx(lambda x, w, b: F.gelu(F.linear(x, w, b)), tracing_mode="fake")(
        torch.randn(2, 3, 6), W, B
    )
    once = _calls(canonicalise(gm))

    assert _calls(canonicalise(gm)) == once


def test_every_pass_leaves_a_sound_graph() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(F.linear(x, w, b), (5,))
        return torch.softmax(F.gelu(y).transpose(1, 2) * 2, -1).sum()

    gm = make_fx(function, tracing_mode="fake")(torch.randn(2, 3, 6), W, B)
    for one in CANONICALISE:
        gm = one.run(gm)
        gm.graph.lint()
        assert all("val" in n.meta for n in gm.graph.nodes if n.op == "call_function"), one.name


def _bf16_and_back(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x.float()).view(2, 12).to(torch.bfloat16).view(4, 6).float().t().bfloat16() + 1


DIFFICULT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "casts around views": (_bf16_and_back, (torch.randn(4, 6).bfloat16(),)),
    "transposes that hoisting brings together": (
        lambda x: F.gelu((x * 2).view(2, 12).t()).t().view(4, 6) + 1,
        (X,),
    ),
    "a copy between views": (lambda x: (x * 2).view(2, 12).clone().view(24).exp(), (X,)),
    "a product of a cast there and back": (
        lambda x, w: torch.mm(x, w.double().float().t()).double().float().view(2, 2, 5),
        (X, W),
    ),
    "a constant of one element": (
        lambda x: torch.where(x > 0, x, torch.arange(1).reshape(()) * 0.5),
        (X,),
    ),
    "dims from the back": (lambda x: x.transpose(-1, -2).sum(-1).unsqueeze(-1), (X,)),
    "no dims": (lambda x: x.transpose(0, -1) + 1, (torch.tensor(2.0),)),
    "no elements": (lambda x: x.t().reshape(-1).exp(), (torch.empty(0, 3),)),
}


def _live(gm: fx.GraphModule) -> list[tuple[str, ...]]:
    """All calls that something uses, with their arguments by place."""
    gm = copy_graph_module(gm)
    REMOVE_DEAD.run(gm)
    place = {node: f"%{i}" for i, node in enumerate(gm.graph.nodes)}
    return [
        (str(n.target), str(fx.map_arg((n.args, dict(n.kwargs)), place.__getitem__)))
        for n in gm.graph.nodes
        if n.op in ("call_function", "output")
    ]


@pytest.mark.parametrize("name", [*CASES, *DIFFICULT])
def test_a_property_holds_until_a_pass_that_may_break_it(name: str) -> None:
    """Where it holds, the pass that ensures it finds nothing to do."""
    function, args = (DIFFICULT.get(name) or CASES[name])[:2]
    gm = make_fx(function, tracing_mode="fake")(*args)
    want = function(*args)
    holds: frozenset[str] = frozenset()
    makers: dict[str, Pass] = {}
    for one in CANONICALISE:
        gm = one.run(gm)
        holds = one.after(holds)
        makers.update(dict.fromkeys(one.ensures, one))
        live = _live(gm)
        for maker in dict.fromkeys(makers[held] for held in sorted(holds)):
            if set(maker.ensures) <= holds:
                assert _live(maker.run(copy_graph_module(gm))) == live, (one.name, maker.name)
    gm.recompile()
    torch.testing.assert_close(gm(*args), want, check_stride=True)


def test_no_guards_are_added() -> None:
    gm = make_fx(
        lambda x, w, b: F.gelu(F.linear(x, w, b)).transpose(1, 2) + 1, tracing_mode="symbolic"
    )(torch.randn(2, 3, 6), W, B)
    mode = next(
        n.meta["val"].fake_mode
        for n in gm.graph.nodes
        if "val" in n.meta and hasattr(n.meta["val"], "fake_mode")
    )
    before = len(mode.shape_env.guards)
    canonicalise(gm)

    assert len(mode.shape_env.guards) == before
    x = torch.randn(4, 9, 6)
    torch.testing.assert_close(gm(x, W, B), F.gelu(F.linear(x, W, B)).transpose(1, 2) + 1)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("last", [("x",), ("g",), ("x", "g"), ("x", "w"), ()])
def test_gradients_of_a_convolution_are_apart_in_any_layout(
    last: tuple[str, ...], dims: int
) -> None:
    """`last`: what has its channels last."""
    tensors = {
        "g": torch.randn(2, 6, *(3,) * dims),
        "x": torch.randn(2, 4, *(6,) * dims),
        "w": torch.randn(6, 4, *(2,) * dims),
    }
    for name in last:
        tensors[name] = tensors[name].movedim(1, -1).contiguous().movedim(-1, 1)

    def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        how = ([2] * dims, [0] * dims, [1] * dims, False, [0] * dims, 1, [True] * 3)
        return aten.convolution_backward(g, x, w, [6], *how)

    gm = _graph(gradients, *tensors.values())
    targets = [node.target for node in gm.graph.nodes if node.op == "call_function"]
    assert targets.count(aten.convolution.default) == 1
    masks = [n.args[10] for n in gm.graph.nodes if n.target is aten.convolution_backward.default]
    assert masks == [[False, True, False]]
