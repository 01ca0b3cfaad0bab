"""GELU written out: what is recognised, what is not, and how large the error is in each dtype."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.backend.pipeline import BEFORE_AUTOGRAD
from trnx.fx_passes.canonicalise import canonicalise
from trnx.fx_passes.passes import run_passes

aten = torch.ops.aten
Spelling = Callable[[torch.Tensor], torch.Tensor]

TANH: dict[str, Spelling] = {
    "gelu_new": lambda x: (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    ),
    "fast": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "bloom": lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
    "cube as products": lambda x: (
        (1 + torch.tanh((0.044715 * x * x * x + x) * 0.7978845608028654)) * x / 2
    ),
    "distributed": lambda x: (
        0.5 * x + 0.5 * x * torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
    ),
}
ERF: dict[str, Spelling] = {
    "python": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "product": lambda x: 0.5 * (x * (torch.erf(x * math.sqrt(0.5)) + 1)),
}
QUICK: dict[str, Spelling] = {
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
    "quick, swapped": lambda x: torch.sigmoid(x * 1.702) * x,
}
EXACT: dict[str, Spelling] = {
    **dict.fromkeys(TANH, lambda x: F.gelu(x, approximate="tanh")),
    **dict.fromkeys(QUICK, QUICK["quick"]),
}
ALL = TANH | QUICK


def _targets(function: Spelling, *args: torch.Tensor) -> list[object]:
    return [n.target for n in _canonical(function, *args).graph.nodes if n.op == "call_function"]


def _canonical(function: Spelling, *args: torch.Tensor) -> fx.GraphModule:
    return canonicalise(make_fx(function, tracing_mode="fake")(*args))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RECOGNISED = [(name, dtype) for name in ALL for dtype in DTYPES]


@pytest.mark.parametrize(("name", "dtype"), RECOGNISED)
def test_every_spelling_is_one_op(name: str, dtype: torch.dtype) -> None:
    wanted = torch.ops.trnx.quick_gelu.default if name in QUICK else aten.gelu.default
    x = torch.randn(3, 5).to(dtype)

    assert _targets(ALL[name], x) == [wanted]
    # What comes before is no part of it, though it is arithmetic, too.
    assert _targets(lambda x: ALL[name](x + x * 2.0), x)[-1] == wanted
    assert _targets(lambda x: ALL[name](x.t()), x)[-1] == wanted


def _error(have: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of the last place of `exact`, those below 2^-8 being equal."""
    unit = torch.finfo(have.dtype).eps * torch.clamp(exact.abs(), min=2.0**-8)
    return float(((have.double() - exact).abs() / unit).max())


@pytest.mark.parametrize(("name", "dtype"), RECOGNISED)
def test_its_error_is_not_larger_than_that_of_the_ops(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-6, 6, 20_001).to(dtype)
    exact = EXACT[name](x.double())
    one = _error(_canonical(ALL[name], x)(x), exact)
    many = _error(ALL[name](x), exact)

    assert one <= many * (2.0 if dtype is torch.float32 else 1.0)
    if dtype is not torch.float32:
        # One rounding, and what float32's tanh of this machine adds where 1 + tanh(x) cancels.
        assert one <= 0.6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL | ERF)
def test_special_values_are_those_of_the_ops(name: str, dtype: torch.dtype) -> None:
    function = (ALL | ERF)[name]
    x = torch.tensor([0.0, math.inf, -math.inf, math.nan, 100.0, -100.0, 1e-30, -1e-30]).to(dtype)

    torch.testing.assert_close(_canonical(function, x)(x), function(x), equal_nan=True)


@pytest.mark.parametrize(
    ("name", "function", "dtype"),
    [
        ("another constant", lambda x: x * torch.sigmoid(1.7 * x), torch.float32),
        ("float64", QUICK["quick"], torch.float64),
        ("erf, where torch's gelu is less exact", ERF["python"], torch.float32),
        ("erf, where torch's gelu of infinity is NaN", ERF["python"], torch.bfloat16),
        ("erf as a product", ERF["product"], torch.float16),
        ("the function is used", lambda x: (y := torch.sigmoid(1.702 * x)) * x + y, torch.float32),
        ("a factor is missing", lambda x: x * (1.0 + torch.erf(x * 0.5**0.5)), torch.float32),
        ("two inputs", lambda x: x.flip(0) * torch.sigmoid(1.702 * x), torch.float32),
        (
            "broadcast",
            lambda x: x * torch.sigmoid(1.702 * x[:1]),
            torch.float32,
        ),
        (
            "another dtype inside",
            lambda x: x * torch.sigmoid(1.702 * x.float()).to(x.dtype),
            torch.bfloat16,
        ),
    ],
)
def test_what_is_no_gelu_stays(name: str, function: Spelling, dtype: torch.dtype) -> None:
    del name
    targets = _targets(function, torch.randn(3, 5).to(dtype))

    assert not {aten.gelu.default, torch.ops.trnx.quick_gelu.default} & {*targets}


def test_a_value_that_backward_saved_keeps_the_ops() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate = torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))
        return 0.5 * x * (1.0 + gate), gate

    x = torch.randn(3, 5)
    gm = canonicalise(make_fx(function, tracing_mode="fake")(x))

    assert aten.tanh.default in [n.target for n in gm.graph.nodes]
    torch.testing.assert_close(gm(x), function(x))


def test_no_elements() -> None:
    assert _targets(QUICK["quick"], torch.empty(0, 4)) == [torch.ops.trnx.quick_gelu.default]


# ---------------------------------------------------------------------------- in Dynamo's graph


def _before_autograd(function: Callable[..., object], *args: torch.Tensor) -> list[object]:
    """What Dynamo's graph calls after the passes before AOTAutograd."""
    seen: list[object] = []

    def backend(gm: fx.GraphModule, _: object) -> Callable[..., object]:
        gm = run_passes(gm, BEFORE_AUTOGRAD)
        seen.extend(n.target for n in gm.graph.nodes if n.op == "call_function")
        return gm

    torch._dynamo.reset()
    got = torch.compile(function, backend=backend, dynamic=False)(*args)
    # The one op rounds once: it is nearer to float32 than eager in half precision.
    expected = function(*(arg.float() for arg in args))
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-3, check_dtype=False)
    return seen


@pytest.mark.parametrize(("name", "dtype"), RECOGNISED)
@pytest.mark.parametrize("is_turned", [False, True])
def test_every_spelling_is_one_op_in_inference(
    name: str, dtype: torch.dtype, is_turned: bool
) -> None:
    wanted = torch.ops.trnx.quick_gelu.default if name in QUICK else aten.gelu.default
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = x.t() if is_turned else x
    assert _before_autograd(ALL[name], x) == [wanted]


def test_what_autograd_follows_stays() -> None:
    """The gradients of the ops are theirs, not those of GELU."""
    x = torch.randn(3, 5, requires_grad=True)
    assert torch.tanh in _before_autograd(TANH["gelu_new"], x)
    with torch.no_grad():
        assert _before_autograd(TANH["gelu_new"], x) == [aten.gelu.default]


def test_x_is_not_written_to_in_between() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 0
        inner = torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0)))
        y.mul_(2.0)
        return 0.5 * y * (1.0 + inner)

    assert torch.tanh in _before_autograd(function, torch.randn(3, 5))


def test_a_value_in_between_that_is_read_stays() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))
        return 0.5 * x * (1.0 + inner), inner

    assert torch.tanh in _before_autograd(function, torch.randn(3, 5))
