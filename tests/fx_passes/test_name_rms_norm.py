"""RMS norm written out: the spellings of Hugging Face's models, what is not one, and values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.canonicalise import canonicalise

RMS_NORM = torch.ops.trnx.rms_norm.default
EPS = 1e-6
Spelling = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _normal(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def llama(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.to(torch.float32)
    variance = h.pow(2).mean(-1, keepdim=True)
    h = h * torch.rsqrt(variance + EPS)
    return w * h.to(x.dtype)


def t5(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    h = x * torch.rsqrt(variance + EPS)
    if w.dtype in (torch.float16, torch.bfloat16):
        h = h.to(w.dtype)
    return w * h


def gemma3n(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide.pow(2).mean(-1, keepdim=True) + EPS
    return (wide * torch.pow(mean, -0.5) * w.float()).type_as(x)


def by_division(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (w * (wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + EPS))).to(x.dtype)


# Name -> spelling, and the offset and `rounds` of its op in half precision.
SPELLINGS: dict[str, tuple[Spelling, float, bool]] = {
    "llama": (llama, 0.0, True),
    "llama 4": (lambda x, w: _normal(x.float()).type_as(x) * w, 0.0, True),
    "olmo 2": (lambda x, w: (w * _normal(x.to(torch.float32))).to(x.dtype), 0.0, False),
    "gemma": (lambda x, w: (_normal(x.float()) * (1.0 + w.float())).type_as(x), 1.0, False),
    "t5": (t5, 0.0, True),
    "gemma 3n": (gemma3n, 0.0, False),
    "division": (by_division, 0.0, False),
    "no weight": (lambda x, _: _normal(x.float()).type_as(x), 0.0, False),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _canonical(function: Spelling, *args: torch.Tensor) -> fx.GraphModule:
    return canonicalise(make_fx(function, tracing_mode="fake")(*args))


def _calls(function: Spelling, *args: torch.Tensor) -> list[fx.Node]:
    return [n for n in _canonical(function, *args).graph.nodes if n.op == "call_function"]


def _draw(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype)
    return x, (torch.rand(shape[-1], generator=generator) + 0.5).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_op(name: str, dtype: torch.dtype) -> None:
    function, offset, rounds = SPELLINGS[name]
    x, w = _draw(2, 3, 40, dtype=dtype)
    (call,) = _calls(function, x, w)

    assert call.target is RMS_NORM
    given = call.args[1] is not None
    assert given is (name != "no weight")
    assert call.args[2:] == (EPS, offset, rounds and dtype is not torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 127), (2, 5, 128), (129, 600), (7,)])
def test_values_are_those_of_the_ops(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    function = SPELLINGS[name][0]
    x, w = _draw(*shape, dtype=dtype)
    gm = _canonical(function, x, w)
    assert RMS_NORM in [n.target for n in gm.graph.nodes]

    have, want = gm(x, w), function(x, w)
    assert have.dtype is want.dtype
    assert have.stride() == want.stride()
    # What is rounded may round to either neighbour; in float32 a division by the root rounds
    # otherwise than a product with its inverse.
    units = 4 if dtype is torch.float32 else 2
    torch.testing.assert_close(have, want, rtol=units * torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize("name", SPELLINGS)
def test_odd_rows_are_those_of_the_ops(name: str) -> None:
    function = SPELLINGS[name][0]
    x, w = _draw(6, 50, dtype=torch.bfloat16)
    x[0, 3], x[1, 7], x[2], x[3] = math.nan, math.inf, 3e19, 0.0
    x[4] = 1e-30

    torch.testing.assert_close(
        _canonical(function, x, w)(x, w), function(x, w), rtol=2**-7, atol=0.0, equal_nan=True
    )


def test_a_weight_in_float32_of_narrower_rows() -> None:
    x, _ = _draw(3, 40, dtype=torch.bfloat16)
    w = _draw(1, 40)[1]
    # OLMo rounds to the dtype of x at the end; Llama's product would be float32.
    assert [n.target for n in _calls(SPELLINGS["olmo 2"][0], x, w)] == [RMS_NORM]
    gm = _canonical(llama, x, w)
    assert gm(x, w).dtype is torch.float32
    torch.testing.assert_close(gm(x, w), llama(x, w), rtol=2**-7, atol=0.0)


@pytest.mark.parametrize(
    ("name", "function", "dtype"),
    [
        ("squares in half precision", lambda x, w: _normal(x) * w, torch.float16),
        ("float64", lambda x, w: _normal(x) * w, torch.float64),
        (
            "another dimension",
            lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + EPS) * w,
            torch.float32,
        ),
        (
            "two dimensions",
            lambda x, w: x * torch.rsqrt(x.pow(2).mean((0, 1), keepdim=True) + EPS) * w,
            torch.float32,
        ),
        (
            "cubes",
            lambda x, w: x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + EPS) * w,
            torch.float32,
        ),
        (
            "another tensor",
            lambda x, w: x.flip(0) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w,
            torch.float32,
        ),
        (
            "a root of a sum",
            lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPS) * w,
            torch.float32,
        ),
        (
            "root over x",
            lambda x, w: torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS) / x * w,
            torch.float32,
        ),
        (
            "no small number",
            lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * w,
            torch.float32,
        ),
    ],
)
def test_what_is_no_rms_norm_stays(name: str, function: Spelling, dtype: torch.dtype) -> None:
    del name
    x, w = _draw(3, 3, dtype=dtype)
    gm = _canonical(function, x, w)

    assert RMS_NORM not in [n.target for n in gm.graph.nodes]
    torch.testing.assert_close(gm(x, w), function(x, w), rtol=0.0, atol=0.0, equal_nan=True)


def test_strides_that_the_op_would_change_keep_the_ops() -> None:
    x, w = _draw(4, 5)
    gm = _canonical(lambda x, w: _normal(x.t()) * w[:4], x, w)

    assert RMS_NORM not in [n.target for n in gm.graph.nodes]
    assert gm(x, w).stride() == (1, 5)


def test_a_value_that_backward_saved_keeps_the_ops() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        return x * root * w, root

    x, w = _draw(3, 5)
    gm = canonicalise(make_fx(function, tracing_mode="fake")(x, w))

    assert RMS_NORM not in [n.target for n in gm.graph.nodes]
    torch.testing.assert_close(gm(x, w), function(x, w))


def test_no_elements() -> None:
    x, w = _draw(0, 4)
    assert [n.target for n in _calls(llama, x, w)] == [RMS_NORM]
