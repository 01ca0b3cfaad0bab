"""Every pointwise entry of the table, reductions and scans against eager on special values.

The calls come from the schemas: the pairs of special values for two tensors, a seeded draw for
more, and special numbers for number arguments. All calls of a dtype form one program. What is
exact in eager is compared bit by bit, the rest within torch.testing's tolerances.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

pytest.importorskip("jax")

from trnx.fallback import XlaEngine
from trnx.fallback.aten_to_jax import TABLE

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
INF, NAN = math.inf, math.nan
aten = torch.ops.aten
FAMILIES = ("pointwise", "activations", "dtypes")
FLOATS = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3, -3, -7, 7, 0.49999997, -0.49999997,
          0.7, -0.3, 1e-3, 20.5, 80, -80, 255, 256, -129, 1e5, 8388609, -8388607.5, 3e9, -3e9,
          math.pi, -math.pi / 2, INF, -INF, NAN, 0.1, 0.9, 6, -6, -20]  # fmt: skip
FLOAT_NUMBERS = [0.0, -0.0, 0.5, -0.5, 0.1, -1.5, 2.0, 3.0, INF, -INF, -1, -2]
INTEGER_NUMBERS = [1, 2, 3, 7, -3, 0.5, -1.5, INF, NAN]
# Exact in eager: arithmetic, rounding, logic, selection.
EXACT = re.compile(
    r"(abs|neg|sign|sgn|floor|ceil|trunc|fix|round|square|relu|bitwise|logical|is|signbit|add|sub|"
    r"rsub|mul|div|floor_divide|remainder|fmod|maximum|minimum|copysign|heaviside|gcd|lcm|eq|ne|lt|"
    r"le|gt|ge|where|masked|clamp|nan_to_num|__|_to_copy|nextafter|threshold|hardtanh|reciprocal|"
    r"max|min|amax|amin|arg|any|all|count|sort|cummax|cummin|bucketize|searchsorted|isin)(\.|_|\b)"
)
# Their zeros have the sign that the order of eager's vectors gives; fmax and fmin, any; gelu of
# -80 is -0.0 in eager for a tensor of one element and 0.0 for one of two.
ANY_ZERO = re.compile(r"fmax|fmin|amax|amin|max\.default|min\.default|log_sigmoid_forward|gelu")
# Not made from schemas: gelu of infinity is NaN in some of eager's vectors; arguments that depend
# on one another are written by hand.
BY_HAND = re.compile(r"aten\.(gelu|gelu_backward|log_sigmoid_backward)\.default")


def values_of(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor(FLOATS, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    near = [
        -128,
        -127,
        -100,
        *range(-4, 5),
        7,
        31,
        63,
        64,
        65,
        100,
        127,
        128,
        255,
        2**31,
        2**53 + 1,
    ]
    limits = [info.min, info.min + 1, info.max - 1, info.max]
    return torch.tensor(
        sorted({v for v in (*near, *limits) if info.min <= v <= info.max}), dtype=dtype
    )


def draw(x: torch.Tensor, *shape: int) -> torch.Tensor:
    count = math.prod(shape)
    return x[torch.randint(0, len(x), (count,), generator=torch.Generator().manual_seed(count))
             ].reshape(shape)  # fmt: skip


def _numbers(kind: str, dtype: torch.dtype) -> list[Any]:
    if kind == "bool":
        return [False, True]
    if kind == "float":
        return [0.5, 0.1]
    return FLOAT_NUMBERS if dtype.is_floating_point else INTEGER_NUMBERS


def _tensors(op: Any, count: int, x: torch.Tensor) -> list[torch.Tensor]:
    if count == 1:
        return [x[x != 0] if "remainder.Scalar_Tensor" in str(op) else x]
    pair = [x.repeat_interleave(len(x)), x.repeat(len(x))]
    if re.search(r"remainder|fmod|divide|gcd|lcm", str(op)) and not x.is_floating_point():
        least = pair[0] == (torch.iinfo(x.dtype).min if x.dtype.is_signed else -1)
        least |= pair[1] == (torch.iinfo(x.dtype).min if x.dtype.is_signed else -1)
        keep = (pair[1] != 0) & ~least  # the least integer by -1 ends the process in eager
        pair = [v[keep] for v in pair]
    return pair if count == 2 else [draw(v, 200) for v in (x, x.flip(0), x.roll(3))][:count]


def schema_calls(dtype: torch.dtype, limit: int) -> Iterator[Call]:
    """Calls of the pointwise entries, made from their schemas."""
    x = values_of(dtype)
    for op, entry in TABLE.items():
        family = entry.function.__module__.rpartition(".")[2]
        if family not in FAMILIES or BY_HAND.fullmatch(str(op)):
            continue
        needed = [a for a in op._schema.arguments if not a.has_default_value()]
        kinds = [str(a.type) for a in needed]
        if any(a.kwarg_only for a in needed) or set(kinds) - {"Tensor", "number", "float", "bool"}:
            continue
        tensors = _tensors(op, kinds.count("Tensor"), x)
        choices = [[None] if k == "Tensor" else _numbers(k, dtype) for k in kinds]
        found = list(itertools.product(*choices))
        for choice in random.Random(0).sample(found, min(limit, len(found))):
            feed = iter(tensors)
            yield op, tuple(next(feed) if v is None else v for v in choice), {}


def written_calls(dtype: torch.dtype) -> Iterator[Call]:
    """Optional arguments of pointwise entries, and mixed dtypes."""
    x = values_of(dtype)
    a, b, c = draw(x, 300), draw(x.flip(0), 300), draw(x.roll(5), 300)
    small = x[x.double().abs() < 200]  # no quotient overflows, which is NaN in eager's vectors
    for mode in ("floor", "trunc"):
        mixed = (draw(small, 99), draw(small[small > 0], 99))
        yield aten.div.Tensor_mode, mixed, {"rounding_mode": mode}
        yield aten.div.Scalar_mode, (small, 0.1), {"rounding_mode": mode}
    for alpha in (2, -1, 0, *((0.5, INF) if dtype.is_floating_point else ())):
        yield aten.add.Tensor, (a, b), {"alpha": alpha}
        yield aten.sub.Tensor, (a, b), {"alpha": alpha}
    for low, high in [(None, 1), (-1, 1), (2, -2), (0, 0), (NAN, 1.0), (-INF, INF), (None, -0.0)]:
        yield aten.clamp.default, (x, low, high), {}
    yield aten.clamp.Tensor, (a, b, c), {}
    if dtype.is_floating_point:
        finite = torch.tensor([0.0, 0.5, -0.5, 1, -1, 2.5, -2.5, 6, -4, 80, -80, NAN], dtype=dtype)
        grads = torch.tensor([1.0, -1, 0.5, NAN], dtype=dtype)
        grad, at = grads.repeat_interleave(len(finite)), finite.repeat(len(grads))
        yield aten.log_sigmoid_backward.default, (grad, at, torch.exp(-at.abs())), {}
        for approximate in ("none", "tanh"):
            yield aten.gelu.default, (finite,), {"approximate": approximate}
            yield aten.gelu_backward.default, (grad, at), {"approximate": approximate}
    for decimals in (1, 3, -1):
        yield aten.round.decimals, (x,), {"decimals": decimals}
    for bounds in [(), (1.0, 2.0, 3.0), (None, 1e39, None)]:
        yield aten.nan_to_num.default, (x, *bounds), {}
    for eps in (None, 0.1, 0.0):
        yield aten.logit.default, (x, eps), {}
    for target in (
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.int64,
        torch.bool,
    ):
        yield aten._to_copy.default, (x,), {"dtype": target}
        if target != dtype:
            other = draw(values_of(target), 300)
            for op in (aten.add.Tensor, aten.mul.Tensor, aten.eq.Tensor, aten.maximum.default,
                       aten.copysign.Tensor):  # fmt: skip
                yield op, (a, other), {}


def reduction_calls(dtype: torch.dtype) -> Iterator[Call]:
    """Reductions, scans, sorts and searches on ties, zeros of both signs, infinities and NaN."""
    special = [0, 1, 1, 2, 3]
    if dtype.is_floating_point:
        special = [0.0, -0.0, 1, 1, -1, 2.5, -1.5, INF, -INF, NAN]  # type: ignore[list-item]
    x = draw(torch.tensor(special, dtype=dtype), 9, 7)
    for name in ("max", "min", "any", "all", "amax", "amin", "argmax", "argmin", "sum"):
        yield getattr(aten, name).default, (x,), {}
    scans = ("max.dim", "min.dim", "cummax", "cummin", "cumsum", "cumprod", "argmax", "argmin")
    for dim, name in itertools.product((0, -1), (*scans, "any.dim")):
        packet, _, which = name.partition(".")
        yield getattr(getattr(aten, packet), which or "default"), (x, dim), {}
    for descending in (False, True):
        yield aten.sort.stable, (x,), {"stable": True, "dim": 0, "descending": descending}
    for correction, name in itertools.product((0, 1, 9, 12, 0.5), ("var", "std")):
        yield getattr(aten, name).correction, (x, [0]), {"correction": correction}
    edges, values = torch.sort(draw(values_of(dtype), 11))[0], values_of(dtype)
    for table, right in itertools.product((edges, edges[:0], edges[:1]), (False, True)):
        yield aten.bucketize.Tensor, (values, table), {"right": right}
    yield aten.isin.Tensor_Tensor, (values, edges), {}
    for start, end, steps in [(0, 1, 1), (-3, 7, 11), (0, 100, 6)]:
        yield aten.linspace.default, (start, end, steps), {"dtype": dtype}
        yield aten.logspace.default, (0, 2, steps), {"dtype": dtype}
    for number in (0, 1.7, NAN):
        yield aten.full.default, ([3], number), {"dtype": dtype}


def outcome(call: Call) -> list[torch.Tensor] | None:
    """What eager gives, None where it refuses."""
    op, args, kwargs = call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [t for t in tree_leaves(op(*args, **kwargs)) if isinstance(t, torch.Tensor)]
        except (RuntimeError, TypeError, ValueError, ArithmeticError):
            return None


def differs(op: Any, actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    name = str(op).removeprefix("aten.")
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype} {actual.shape} for {expected.dtype} {expected.shape}"
    if not expected.dtype.is_floating_point or EXACT.match(name):
        same = (actual == expected) | ((actual != actual) & (expected != expected))
    else:
        tolerance = torch.testing._comparison.get_tolerances(actual, expected, rtol=None, atol=None)
        rtol, atol = tolerance
        same = torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    if expected.dtype.is_floating_point:
        flushed = torch.finfo(expected.dtype).tiny  # XLA has no denormals
        same |= (actual.abs() <= flushed) & (expected.abs() <= flushed) & (expected != 0)
        if not ANY_ZERO.search(name):
            zeros = (actual == 0) & (expected == 0)
            same &= ~zeros | (torch.signbit(actual) == torch.signbit(expected))
    wrong = (~same).flatten().nonzero().flatten()[:4]
    if not len(wrong):
        return None
    return f"at {wrong.tolist()}: {actual.flatten()[wrong]}, eager {expected.flatten()[wrong]}"


def sweep(capture: Any, calls: list[Call]) -> list[str]:
    """What differs: one program of all calls that the engine takes."""
    engine, taken, wrong = XlaEngine(), [], []
    for call in calls:
        op, args, kwargs = call
        tensors = [v for v in args if isinstance(v, torch.Tensor)]
        expected = outcome(call)
        try:
            graph = capture(lambda *ts, c=call: tuple(tree_leaves(_replay(c, ts))), *tensors).graph
        except (RuntimeError, TypeError, ValueError, ArithmeticError):
            continue  # refused while it is captured
        nodes = [n for n in graph.nodes if n.op == "call_function"]
        if any(engine.supports(n) is not None for n in nodes):
            continue
        if expected is None:
            tag = torch.Tag.pointwise in op.tags
            wrong += [f"{op} {[str(v)[:20] for v in args]}: eager refuses"] if tag else []
        else:
            taken.append((call, expected, tensors))
    inputs = [t for _, _, tensors in taken for t in tensors]

    def function(*given: torch.Tensor) -> tuple[Any, ...]:
        feed = iter(given)
        return tuple(
            leaf for call, _, tensors in taken
            for leaf in tree_leaves(_replay(call, [next(feed) for _ in tensors]))
        )  # fmt: skip

    assert len({call[0] for call, _, _ in taken}) > 40
    results = iter(engine.compile(capture(function, *inputs))(inputs))
    for (op, args, kwargs), expected, _ in taken:
        for value in expected:
            message = differs(op, next(results), value)
            if message is not None:
                shown = [v if not isinstance(v, torch.Tensor) else v.dtype for v in args]
                wrong.append(f"{op} {shown} {kwargs} {message}")
    return wrong


def _replay(call: Call, tensors: Any) -> Any:
    op, args, kwargs = call
    feed = iter(tensors)
    return op(*tree_map_only(torch.Tensor, lambda _: next(feed), args), **kwargs)


SLOW = [torch.float64, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
ALL = [
    *(pytest.param(dtype, 2) for dtype in (torch.float32, torch.bfloat16, torch.int64)),
    *(pytest.param(d, 16, marks=pytest.mark.slow)
      for d in (torch.float32, torch.bfloat16, torch.int64, *SLOW)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "limit"), ALL)
def test_entries_agree_with_eager_on_special_values(capture: Any, dtype: Any, limit: int) -> None:
    calls = [*schema_calls(dtype, limit), *written_calls(dtype), *reduction_calls(dtype)]
    wrong = sweep(capture, calls)
    assert not wrong, "\n".join(wrong)
