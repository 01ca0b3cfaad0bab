"""Dynamic shapes: one compilation serves many sizes; never more of them than with eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.backend.entry import trnx as backend
from trnx.backend.executable import SPECIALISATIONS


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Encoder(torch.nn.Module):
    """One layer with attention over [batch, length] tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, width)
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, 2, width // 2)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        return F.gelu(x + self.out(mixed)) / length


WIDE = [(3, 7), (2, 5), (4, 9), (5, 5), (2, 2), (7, 3), (6, 11), (3, 16), (8, 2), (2, 17), (9, 4),
        (4, 13)]  # fmt: skip
EDGES = [(3, 7), (1, 7), (3, 1), (1, 1), (5, 5), (2, 9)]


def compiles(
    run: Callable[[Callable[..., Any], tuple[int, int]], None],
    chosen: Callable[..., Any],
    shapes: Sequence[tuple[int, int]],
    **kwargs: Any,
) -> int:
    """How often Dynamo compiled while `run(compiled, shape)` went through the shapes."""
    torch._dynamo.reset()
    graphs = []

    def counted(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        compiled: Callable[..., Any] = chosen(gm, inputs)
        return compiled

    torch.manual_seed(0)
    compiled = torch.compile(Encoder(), backend=counted, **kwargs)
    for shape in shapes:
        run(compiled, shape)
    return len(graphs)


def infer(compiled: Callable[..., Any], shape: tuple[int, int]) -> None:
    tokens = torch.randint(0, 20, shape)
    model = compiled._orig_mod  # type: ignore[attr-defined]
    with torch.no_grad():
        got, want = compiled(tokens), model(tokens)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got.stride() == want.stride()


def train(compiled: Callable[..., Any], shape: tuple[int, int]) -> None:
    tokens = torch.randint(0, 20, shape)
    model = compiled._orig_mod  # type: ignore[attr-defined]
    grads = []
    for function in (compiled, model):
        model.zero_grad()
        function(tokens).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def reference(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    options = {"runner": "reference", "select": "legal", "fallback": "eager"}
    return backend(gm, inputs, options=options)


def eager(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:  # noqa: ARG001
    return gm.forward


@pytest.mark.parametrize("run", [infer, train])
def test_twelve_shapes_compile_once(run: Callable[..., None]) -> None:
    assert compiles(run, reference, WIDE, dynamic=True) == 1


@pytest.mark.parametrize(
    ("run", "dynamic"), [(infer, True), (infer, None), (infer, False), (train, True)]
)
def test_edge_sizes_compile_as_often_as_with_eager(
    run: Callable[..., None], dynamic: bool | None
) -> None:
    ours = compiles(run, reference, EDGES, dynamic=dynamic)
    assert ours == compiles(run, eager, EDGES, dynamic=dynamic)


def test_the_simulator_serves_several_shapes_from_one_compilation() -> None:
    with trnx.collect_reports() as reports:
        assert compiles(infer, backend, WIDE[:3], dynamic=True) == 1
    assert [report.shapes for report in reports] == [3]


def test_a_size_that_comes_back_is_not_specialised_again() -> None:
    compiled = torch.compile(lambda x: (x * 2).relu(), backend="trnx", dynamic=True)
    with trnx.collect_reports() as reports:
        for size in (3, 4, 3, 4, 3):
            assert compiled(torch.ones(size, 8)).shape == (size, 8)
    assert [report.shapes for report in reports] == [2]


def test_specialisations_are_bounded() -> None:
    options = {"runner": "reference", "buckets": "exact"}
    compiled = torch.compile(lambda x: x * 2 + 1, backend="trnx", dynamic=True, options=options)
    with trnx.collect_reports() as reports:
        for size in range(2, SPECIALISATIONS + 8):
            assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 3.0))
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert [report.shapes for report in reports] == [SPECIALISATIONS + 7]


def test_a_symbolic_number_is_an_argument() -> None:
    def function(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
        return x.new_ones(n, 3).cumsum(0) * scale + x.shape[0] + n

    compiled = torch.compile(function, backend="trnx", dynamic=True)
    for n, scale in ((3, 0.5), (5, 2.5), (9, 1.5)):
        x = torch.ones(n + 1)
        torch.testing.assert_close(compiled(x, n, scale), function(x, n, scale))


def test_sizes_that_depend_on_data() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        kept = x[x > 0]
        return (kept * 2).relu() + kept.shape[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(
            function, backend="trnx", fullgraph=True, options={"select": "legal"}
        )
        for values in ([1.0, -1.0, 2.0], [3.0, -1.0, -2.0]):
            assert torch.equal(compiled(torch.tensor(values)), function(torch.tensor(values)))


def test_a_float_attribute_that_changes() -> None:
    class Scaled(torch.nn.Module):
        scale = 2.0
        fill = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale + torch.full((3,), self.fill)

    model = Scaled()
    compiled = torch.compile(model, backend="trnx", dynamic=True)
    for scale, fill in ((2.0, 0.5), (3.0, 0.5), (3.0, 1.5), (2.0, 0.5)):
        model.scale, model.fill = scale, fill
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(x), model(x))


def test_a_graph_with_float_attributes_is_traced_once() -> None:
    """Dynamo makes symbols of them, and AOTAutograd constants of those that enter no tensor."""
    counters = torch._dynamo.utils.counters["aot_autograd"]
    counters.clear()
    model = torch.nn.Sequential(torch.nn.LayerNorm(8, eps=0.25), torch.nn.LeakyReLU(0.3))
    compiled = torch.compile(model, backend="trnx", dynamic=True)
    for slope, traced in ((0.3, 1), (0.6, 2)):
        model[1].negative_slope = slope
        for rows in (3, 127, 128, 129):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), model(x))
        assert counters["total"] == traced


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.interpolate(x, scale_factor=2.0),
        lambda x: F.softmax(x * x.shape[-1] ** -0.5, -1),
        lambda x: F.softmax(x / math.sqrt(x.shape[-1]), -1),
        lambda x: x + torch.linspace(0, 1.0 * x.shape[0], 5).sum(),
        lambda x: x + torch.full((1,), x.shape[0]) * torch.arange(x.shape[-1]),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 5, 7)])
def test_factories_of_symbolic_numbers_are_no_constants(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    compiled = torch.compile(function, backend="trnx", dynamic=True)
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x[:, :, 1:]), function(x[:, :, 1:]))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
def test_interpolation_by_a_factor(mode: str) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.7, mode=mode)

    run = torch.compile(scaled, backend="trnx", dynamic=True)
    for size in (8, 12, 17):
        x = torch.randn(1, 3, size, size + 1)
        torch.testing.assert_close(run(x), scaled(x))


def _split(n: int) -> tuple[Any, ...]:
    return torch.arange(10.0).expand(2, 10), [n, n, 10 - 2 * n]


NUMBERS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "sizes of a split": (lambda x, sizes: [y + 1 for y in torch.split(x * 2, sizes, -1)], _split),
    "sizes of a factory": (lambda n: torch.zeros(n, n) + torch.arange(n) * 2.0, lambda n: (n,)),
    "groups of a convolution": (
        lambda x, weight: F.conv2d(x, weight, groups=weight.shape[0]).sum(),
        lambda n: (torch.ones(2, n, 9, 7), torch.ones(n, 1, 5, 5)),
    ),
    "groups of a norm": (
        lambda x: F.group_norm(x, x.shape[1] // 2),
        lambda n: (torch.arange(30.0 * n).view(1, 2 * n, 3, 5),),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_sizes_are_made_of(name: str) -> None:
    function, inputs = NUMBERS[name]
    compiled = torch.compile(function, backend="trnx", dynamic=True, fullgraph=True)
    for n in (3, 4, 2):
        torch.testing.assert_close(compiled(*inputs(n)), function(*inputs(n)))
