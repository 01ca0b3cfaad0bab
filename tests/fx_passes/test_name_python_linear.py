"""Linear layers as one op before AOTAutograd, and the same canonical graph behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd

import trnx
from trnx.backend.pipeline import BEFORE_AUTOGRAD
from trnx.fx_passes.canonicalise import canonicalise
from trnx.fx_passes.name_python_linear import NAME_PYTHON_LINEAR
from trnx.fx_passes.passes import Pass, run_passes

aten = torch.ops.aten
ONE = torch.ops.trnx.linear.default
Function = Callable[..., torch.Tensor]


def values(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def before_autograd(function: Function, *args: torch.Tensor, dynamic: bool = False) -> list[object]:
    """What Dynamo's graph calls after the passes before AOTAutograd; its values are eager's."""
    seen: list[object] = []

    def backend(gm: fx.GraphModule, _: object) -> Callable[..., object]:
        gm = run_passes(gm, BEFORE_AUTOGRAD)
        seen.extend(n.target for n in gm.graph.nodes if n.op.startswith("call"))
        return gm

    torch._dynamo.reset()
    expected = function(*args)
    got = torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    return seen


def canonical(function: Function, *args: torch.Tensor, passes: tuple[Pass, ...]) -> str:
    """The canonical graph behind AOTAutograd."""
    found: list[str] = []

    def compile_graph(gm: fx.GraphModule, _: object) -> Callable[..., object]:
        found.append(str(canonicalise(gm).graph))
        return gm

    def backend(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        result: Callable[..., object] = aot_autograd(fw_compiler=compile_graph)(
            run_passes(gm, passes), inputs
        )
        return result

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=False)(*args)
    return found[0]


def conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As transformers' Conv1D."""
    size = (*x.size()[:-1], weight.shape[1])
    return torch.addmm(bias, x.view(-1, x.size(-1)), weight).view(size)


@pytest.mark.parametrize("rows", [(1,), (127,), (0,), (2, 1), (3, 129), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_linear_layer_is_one_op(rows: tuple[int, ...], dtype: torch.dtype) -> None:
    x, w, b = values((*rows, 5), (7, 5), (7,), dtype=dtype)

    assert before_autograd(F.linear, x, w, b) == [ONE]
    assert before_autograd(lambda x, w: F.linear(x, weight=w), x, w) == [ONE]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_transposed_one_is_one_op(dynamic: bool) -> None:
    x, w, b = values((2, 9, 5), (5, 7), (7,))

    seen = before_autograd(conv1d, x, w, b, dynamic=dynamic)
    assert ONE in seen
    assert torch.addmm not in seen
    assert "view" not in seen


@pytest.mark.parametrize("function", [F.linear, conv1d])
def test_the_canonical_graph_is_the_same(function: Function) -> None:
    def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return function(F.gelu(function(x, w, b)), w, b) + x

    given = values((2, 9, 6), (6, 6), (6,))
    without = tuple(one for one in BEFORE_AUTOGRAD if one is not NAME_PYTHON_LINEAR)

    named = canonical(layers, *given, passes=BEFORE_AUTOGRAD)
    assert named.count("aten.linear.default") == 2
    assert _shape_of(named) == _shape_of(canonical(layers, *given, passes=without))


def _shape_of(graph: str) -> list[str]:
    """The ops in order, whatever their nodes are called."""
    return [line.split("call_function[")[-1].split("]")[0] for line in graph.splitlines()]


def test_what_autograd_follows_stays() -> None:
    x, w, b = values((2, 9, 5), (7, 5), (7,))
    w.requires_grad_()

    assert before_autograd(F.linear, x, w, b) == [F.linear]
    with torch.no_grad():
        assert before_autograd(F.linear, x, w, b) == [ONE]


def test_gradients_reach_a_layer_behind_a_frozen_one() -> None:
    first, second = nn.Linear(5, 6), nn.Linear(6, 3)
    first.requires_grad_(False)
    (x,) = values((4, 5))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return second(first(x)).square().sum()

    torch._dynamo.reset()
    loss(x).backward()
    expected = [p.grad for p in second.parameters()]
    second.zero_grad()
    torch.compile(loss, backend="trnx")(x).backward()
    torch.testing.assert_close([p.grad for p in second.parameters()], expected)


@pytest.mark.parametrize(
    ("name", "function", "shapes"),
    [
        ("one dimension", F.linear, [(5,), (7, 5), (7,)]),
        ("a bias of one element", conv1d, [(2, 3, 5), (5, 7), (1, 7)]),
        (
            "a factor",
            lambda x, w, b: torch.addmm(b, x.view(-1, 5), w, beta=2).view(2, 3, 7),
            [(2, 3, 5), (5, 7), (7,)],
        ),
        (
            "another view of the result",
            lambda x, w, b: torch.addmm(b, x.view(-1, 5), w).view(3, 2, 7),
            [(2, 3, 5), (5, 7), (7,)],
        ),
    ],
)
def test_what_is_no_linear_layer_stays(
    name: str, function: Function, shapes: list[tuple[int, ...]]
) -> None:
    del name
    assert ONE not in before_autograd(function, *values(*shapes))


def test_a_product_that_is_read_flat_stays() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(b, x.view(-1, 5), w)
        return flat.view(2, 3, 7) + flat.sum()

    assert ONE not in before_autograd(function, *values((2, 3, 5), (5, 7), (7,)))


def test_x_is_not_written_to_in_between() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x + 0
        flat = torch.addmm(b, y.view(-1, 5), w)
        y.mul_(2.0)
        return flat.view(2, 3, 7) + y.sum()

    assert ONE not in before_autograd(function, *values((2, 3, 5), (5, 7), (7,)))


def test_a_result_that_does_not_lie_dense_stays() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w)

    (x, w) = values((6, 2, 5), (7, 5))
    turned = x.permute(1, 0, 2)
    seen = before_autograd(function, turned, w)
    assert (ONE in seen) == F.linear(turned, w).is_contiguous()


def test_autocast_computes_in_its_dtype() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, w)

    x, w = values((2, 3, 5), (7, 5))
    torch._dynamo.reset()
    got = torch.compile(function, backend="trnx")(x, w)
    torch.testing.assert_close(got, function(x, w))


def test_under_vmap_it_stays() -> None:
    x, w = values((4, 2, 3, 5), (4, 7, 5))
    function = torch.func.vmap(F.linear)
    assert ONE not in before_autograd(lambda x, w: function(x, w), x, w)


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_op_itself(is_turned: bool) -> None:
    x, w, b = values((2, 3, 5), (5, 7) if is_turned else (7, 5), (7,))

    torch.library.opcheck(ONE, (x, w, b, is_turned))
    expected = F.linear(x, w.t() if is_turned else w, b)
    torch.testing.assert_close(ONE(x, w, b, is_turned), expected)


@pytest.mark.parametrize("function", [F.linear, conv1d])
def test_the_op_counts_the_flops_of_the_product(function: Function) -> None:
    x, w, b = values((2, 9, 5), (7, 5) if function is F.linear else (5, 7), (7,))

    torch._dynamo.reset()
    with trnx.collect_reports() as reports, torch.no_grad():
        torch.compile(function, backend="trnx")(x, w, b)
    assert reports[0].flops_total == 2 * 18 * 5 * 7
