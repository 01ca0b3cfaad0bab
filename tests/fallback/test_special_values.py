"""Entries of the table against eager on special values: wrap-around, limits, NaN, zeros' signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.fallback import XlaEngine

pytest.importorskip("jax")

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INF, NAN = float("inf"), float("nan")
FLOAT_VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 100.0, 255.0, -129.0,
                1e5, 3e9, -3e9, 1e19, -1e19, INF, -INF, NAN, 0.49999997, -0.7]  # fmt: skip


def integers(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    near = [-128, -127, -100, *range(-4, 5), 7, 31, 63, 64, 65, 100, 127, 128, 255]
    limits = [info.min, info.min + 1, info.max - 1, info.max]
    found = {v for v in (*near, *limits) if info.min <= v <= info.max}
    return torch.tensor(sorted(found), dtype=dtype)


def pairs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.repeat_interleave(len(y)), y.repeat(len(x))


def check(
    capture: Any, function: Callable[..., Any], *inputs: torch.Tensor, zeros: bool = True
) -> None:
    """XLA takes every op of `function`, and what it gives is exactly what eager gives; with `zeros`
    their signs too (which of two equal zeros is the greater one is nowhere said)."""
    graph_module = capture(function, *inputs)
    engine = XlaEngine()
    for node in graph_module.graph.nodes:
        if node.op == "call_function":
            assert engine.supports(node) is None, engine.supports(node)
    actual, expected = engine.compile(graph_module)(list(inputs)), function(*inputs)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.dtype == e.dtype
        same = (a == e) | ((a != a) & (e != e))
        if e.dtype.is_floating_point and zeros:
            same &= torch.signbit(a) == torch.signbit(e).where(e == e, torch.signbit(a))
        wrong = (~same).nonzero().flatten()[:5].tolist()
        given = [[x.flatten()[w].item() for x in inputs if x.numel() == e.numel()] for w in wrong]
        assert not wrong, f"output {i}: {given} -> {a[wrong]}, eager {e[wrong]}"


@pytest.mark.parametrize("dtype", INTEGERS)
def test_powers_of_integers(capture: Any, dtype: torch.dtype) -> None:
    x = integers(dtype)
    check(
        capture,
        lambda a, b, v: (
            a**b,
            *(v**n for n in (0, 1, 2, 3, 31, 63, 64, 65, 100, 127)),
            *(n**v for n in (0, 1, 2, 3, 64)),
        ),
        *pairs(x, x),
        x,
    )


def test_powers_of_integers_with_negative_bases_and_mixed_types(capture: Any) -> None:
    x, y = pairs(integers(torch.int64), integers(torch.int8))
    z, w = pairs(integers(torch.uint8), integers(torch.int8))
    check(capture, lambda a, b, c, d, v: (a**b, c**d, (-1) ** v, (-2) ** v), x, y, z, w,
          integers(torch.int32))  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS)
def test_arithmetic_of_integers_wraps(capture: Any, dtype: torch.dtype) -> None:
    x = integers(dtype)
    a, b = pairs(x, x)
    # The least integer by -1 ends the process in eager.
    keep = (b != 0) & ~((a == torch.iinfo(dtype).min) & (b == -1) if dtype.is_signed else b == 0)
    check(
        capture,
        lambda a, b, c, d: (
            a + b, a - b, a * b, torch.add(a, b, alpha=3), torch.rsub(a, 3), -a, a.abs(),
            a.sign(), ~a, a & b, a | b, a ^ b, torch.maximum(a, b), torch.minimum(a, b),
            torch.heaviside(a, b), a << b, a >> b, a << 3, a >> 3, a / b, torch.square(a),
            torch.clamp(a, 5, 2), torch.clamp(a, 3, 100), torch.gcd(a, b),
            a == b, a < b, a.logical_xor(b),
            torch.div(c, d, rounding_mode="floor"), torch.div(c, d, rounding_mode="trunc"),
            c // d, c % d, torch.fmod(c, d), c % 3, torch.fmod(c, 3), c // 3,
        ),
        a, b, a[keep], b[keep],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_to_other_types(capture: Any, dtype: torch.dtype) -> None:
    x = torch.tensor(FLOAT_VALUES, dtype=torch.float64).to(dtype)
    check(
        capture,
        lambda v: tuple(v.to(t) for t in (*INTEGERS, *FLOATS, torch.bool) if t != dtype),
        x,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pointwise_floats(capture: Any, dtype: torch.dtype) -> None:
    x = torch.tensor(FLOAT_VALUES, dtype=torch.float64).to(dtype)
    a, b = pairs(x, x)
    check(
        capture,
        lambda a, b: (
            a.abs(), a.neg(), a.floor(), a.ceil(), a.trunc(), a.round(), a.isnan(), a.isinf(),
            a.isposinf(), a.signbit(), a.nan_to_num(), a.nan_to_num(1.0, 2.0, 3.0), a + b, a - b,
            a * b, a / b, torch.fmod(a, b), torch.copysign(a, b), torch.heaviside(a, b), a == b,
            a < b, a >= b, a.logical_and(b), torch.nextafter(a, b), torch.where(a > b, a, b),
        ),
        a, b,
    )  # fmt: skip
    check(
        capture,
        lambda a, b: (
            a.sign(), a.relu(), a.clamp(-1, 1), a.clamp(2, -2), a.clamp(NAN, 1.0),
            a.clamp(-1.0, NAN), torch.clamp(a, b, b.flip(0)), torch.maximum(a, b),
            torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b),
        ),
        a, b, zeros=False,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *INTEGERS])
def test_reductions_of_special_values(capture: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values = (
        torch.tensor([0.0, -0.0, 1.0, 1.0, -1.0, INF, -INF, NAN], dtype=dtype)
        if dtype.is_floating_point
        else integers(dtype)
    )
    x = values[torch.randint(0, len(values), (9, 7), generator=generator)]

    def function(v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        exact: tuple[torch.Tensor, ...] = ()
        if not v.is_floating_point():
            exact = (v.sum(0), v.prod(1), v.cumsum(0), v.cumprod(1))
            exact += (v.sum(0, dtype=torch.int32), v.cumsum(1, dtype=torch.int32))
        return (
            *exact, v.any(0), v.all(1), v.amax(0), v.amin(1), v.max(), v.min(),
            *v.max(0), *v.min(1), v.argmax(), v.argmin(), v.argmax(0), v.argmin(1),
            *torch.sort(v, dim=0, stable=True), *torch.sort(v, dim=1, stable=True, descending=True),
            v.count_nonzero(0), *v.cummax(0), *v.cummin(1),
        )  # fmt: skip

    check(capture, function, x, zeros=False)
