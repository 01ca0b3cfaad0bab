"""Tensors that have more in them than a graph knows: batches, tangents, ragged sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import trnx
from trnx.fx_passes.advice import TRANSFORM

NKI = {"select": "legal"}
XLA = {"select": "none", "fallback": "xla"}
EAGER = {"select": "none", "fallback": "eager"}
ENGINES = [
    pytest.param(NKI, id="nki"),
    pytest.param(XLA, id="xla"),
    pytest.param(EAGER, id="eager"),
]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def of_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * x


class Mixed(torch.nn.Module):
    """One of each composite that has an operator of trnx's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 5)
        self.rms, self.norm = torch.nn.RMSNorm(8), torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.rms(self.norm(x) + F.gelu(self.inner(x))).view(2, 2, 3, 8)
        mixed = F.scaled_dot_product_attention(q, q, q, is_causal=True).reshape(12, 8)
        return F.cross_entropy(self.outer(mixed), torch.arange(12) % 5, reduction="none")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "make", [lambda: torch.randn(3, 9, 6), lambda: torch._efficientzerotensor((3, 9, 6))]
)
def test_batches_of_gradients(make: Callable[[], torch.Tensor], engine: dict[str, str]) -> None:
    x, gradients = torch.randn(9, 6, requires_grad=True), make()
    for _ in range(2):
        y = torch.compile(of_tanh, backend="trnx", options=engine)(x)
        (found,) = torch.autograd.grad(y, x, gradients, is_grads_batched=True)
        (expected,) = torch.autograd.grad(of_tanh(x), x, gradients, is_grads_batched=True)
        torch.testing.assert_close(found, expected)


def test_batches_of_gradients_of_composites() -> None:
    torch.manual_seed(0)
    model, x, gradients = Mixed(), torch.randn(12, 8, requires_grad=True), torch.randn(4, 12)
    y = torch.compile(model, backend="trnx", options=NKI)(x)
    (found,) = torch.autograd.grad(y, x, gradients, is_grads_batched=True)
    (expected,) = torch.autograd.grad(model(x), x, gradients, is_grads_batched=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
@pytest.mark.parametrize("engine", ENGINES)
def test_tangents_go_through_and_the_ledger_says_so(engine: dict[str, str]) -> None:
    run = torch.compile(of_tanh, backend="trnx", options=engine)
    x, tangent = torch.randn(9, 6), torch.randn(9, 6)
    with trnx.collect_reports() as reports:
        torch.testing.assert_close(run(x), of_tanh(x))
    assert TRANSFORM not in [entry.advice for entry in reports[0].fallbacks]
    for _ in range(2):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            with trnx.collect_reports() as reports:
                found = forward_ad.unpack_dual(run(dual))
            expected = forward_ad.unpack_dual(of_tanh(dual))
            torch.testing.assert_close(found.primal, expected.primal)
            torch.testing.assert_close(found.tangent, expected.tangent)
            torch.testing.assert_close(run(x), of_tanh(x))  # a plain tensor at a dual level
        assert [entry.advice for entry in reports[0].fallbacks].count(TRANSFORM) == 1


COMPOSITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(9) % 6, reduction="none"),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", COMPOSITES)
def test_tangents_go_through_composites(name: str, engine: dict[str, str]) -> None:
    function, x, tangent = COMPOSITES[name], torch.randn(9, 6), torch.randn(9, 6)
    run = torch.compile(function, backend="trnx", options=engine)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        expected = forward_ad.unpack_dual(function(dual))
        found = forward_ad.unpack_dual(run(dual))
        torch.testing.assert_close(found.primal, expected.primal)
        torch.testing.assert_close(found.tangent, expected.tangent)
    torch.testing.assert_close(run(x), function(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
def test_attention_has_no_tangents_as_in_eager() -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    run = torch.compile(attention, backend="trnx", options=NKI)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.randn(1, 1, 9, 6), torch.randn(1, 1, 9, 6))
        for function in (attention, run):
            with pytest.raises(NotImplementedError, match="forward AD"):
                function(dual)


@pytest.mark.parametrize("engine", ENGINES)
def test_nested_tensors_of_the_jagged_layout(engine: dict[str, str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.ReLU())
    run = torch.compile(model, backend="trnx", options=engine)
    for lengths in ((3, 5), (4, 1, 6)):
        rows = [torch.randn(length, 4) for length in lengths]
        nested = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        found, expected = run(nested), model(nested)
        torch.testing.assert_close(found.values(), expected.values())
        torch.testing.assert_close(found.offsets(), expected.offsets())
        (gradient,) = torch.autograd.grad(found.values().square().sum(), nested)
        (wanted,) = torch.autograd.grad(expected.values().square().sum(), nested)
        torch.testing.assert_close(gradient.values(), wanted.values())
