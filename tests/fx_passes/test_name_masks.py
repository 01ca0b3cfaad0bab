# ruff: noqa: ARG005  -- every mask is made from the same arguments
"""Masks of attention that are named by their structure, and those that must stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.canonicalise import canonicalise
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.verify import verify_graph

sdpa = torch.ops.trnx.sdpa.default
BATCH = 2


def q_index(length: int) -> torch.Tensor:
    return torch.arange(length)[None, None, :, None]


def k_index(depth: int) -> torch.Tensor:
    return torch.arange(depth)[None, None, None, :]


def window(length: int, depth: int, size: int) -> torch.Tensor:
    q, k = q_index(length), k_index(depth)
    return torch.ones((), dtype=torch.bool) & (k <= q) & (k > q - size)


def padding(tokens: torch.Tensor) -> torch.Tensor:
    """`[B, S]` integers as `[B, 1, 1, S]`, as indexing by batch entry and place gives it."""
    batch = torch.arange(tokens.shape[0])[:, None, None, None]
    return tokens.to(torch.bool)[batch, k_index(tokens.shape[1])]


def float_mask(seen: torch.Tensor, hidden: float) -> torch.Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, hidden)


LOWEST = torch.finfo(torch.float32).min
Made = Callable[[torch.Tensor, int, int], torch.Tensor]
# Made from tokens and sizes; what is left of the mask; causal; window.
NAMED: dict[str, tuple[Made, tuple[int, ...] | None, bool, int]] = {
    "tril": (lambda t, n, s: torch.ones(n, s, dtype=torch.bool).tril(), None, True, 0),
    "not triu": (lambda t, n, s: ~torch.ones(n, s, dtype=torch.bool).triu(1), None, True, 0),
    "places": (lambda t, n, s: k_index(s) <= q_index(n), None, True, 0),
    "from the other side": (lambda t, n, s: q_index(n) + 1 > k_index(s), None, True, 0),
    "difference": (lambda t, n, s: q_index(n) - k_index(s) >= 0, None, True, 0),
    "expanded": (
        lambda t, n, s: (k_index(s) <= q_index(n)).expand(BATCH, 1, n, s), None, True, 0,
    ),
    "float, -inf": (
        lambda t, n, s: torch.full((n, s), -torch.inf).triu(1)[None, None], None, True, 0,
    ),
    "float, lowest": (
        lambda t, n, s: float_mask(k_index(s) <= q_index(n), LOWEST), None, True, 0,
    ),
    "window": (lambda t, n, s: window(n, s, 7), None, True, 7),
    "window of one": (lambda t, n, s: window(n, s, 1), None, True, 1),
    "window as long as the keys": (lambda t, n, s: window(n, s, n), None, True, 0),
    "everything": (lambda t, n, s: torch.ones(1, 1, n, s, dtype=torch.bool), None, False, 0),
    "padding": (lambda t, n, s: padding(t), (BATCH, 1, 1, 24), False, 0),
    "padding for each query": (
        lambda t, n, s: padding(t) & torch.ones(1, 1, n, 1, dtype=torch.bool),
        (BATCH, 1, 1, 24), False, 0,
    ),
    "causal, padding": (
        lambda t, n, s: (k_index(s) <= q_index(n)) & padding(t), (BATCH, 1, 1, 24), True, 0,
    ),
    "window, padding": (
        lambda t, n, s: padding(t) & window(n, s, 5), (BATCH, 1, 1, 24), True, 5,
    ),
    "causal, two masks": (
        lambda t, n, s: (
            (t > 0)[:, None, None] & (k_index(s) <= q_index(n)) & (t < 9)[:, None, None]
        ),
        (BATCH, 1, 1, 24), True, 0,
    ),
}  # fmt: skip
STAYS: dict[str, Made] = {
    "after the query": lambda t, n, s: k_index(s) <= q_index(n) + 1,
    "on both sides": lambda t, n, s: (q_index(n) - k_index(s)).abs() < 4,
    "band": lambda t, n, s: (k_index(s) <= q_index(n) + 2) & (k_index(s) >= q_index(n) - 2),
    "per batch entry": lambda t, n, s: (
        k_index(s) <= q_index(n) + torch.arange(BATCH)[:, None, None, None]
    ),
    "two steps": lambda t, n, s: 2 * k_index(s) <= q_index(n),
    "half of the keys": lambda t, n, s: (k_index(s) < 12).expand(1, 1, n, s),
    "not finite enough": lambda t, n, s: float_mask(k_index(s) <= q_index(n), -1e4),
    "lowest, rows that see nothing": lambda t, n, s: float_mask(k_index(s) < q_index(n), LOWEST),
    "tokens": lambda t, n, s: (t > 0)[:, None, :, None] & (t > 1)[:, None, None],
}


def operands(length: int = 24, depth: int = 24) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(BATCH, 2, length, 8, generator=generator)
    k, v = (torch.randn(BATCH, 2, depth, 8, generator=generator) for _ in range(2))
    tokens = torch.randint(0, 12, (BATCH, depth), generator=generator)
    return q, k, v, tokens


def attention(made: Made, *, causal: bool = False) -> Callable[..., Any]:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tokens: torch.Tensor) -> Any:
        mask = made(tokens, q.shape[2], k.shape[2])
        return sdpa(q, k, v, mask, None, 0.0, causal, 0.3)

    return function


def named(function: Callable[..., Any], *args: torch.Tensor, mode: str = "fake") -> Any:
    """The arguments of the canonical sdpa; results are compared with eager's."""
    gm = canonicalise(make_fx(function, tracing_mode=mode)(*args))
    verify_graph(gm, "canonicalise")
    torch.testing.assert_close(gm(*args), function(*args), check_stride=True)
    (node,) = (n for n in gm.graph.nodes if n.target is sdpa)
    return call_arguments(node)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", NAMED)
def test_structure_is_named(name: str, mode: str) -> None:
    made, left, causal, size = NAMED[name]
    arguments = named(attention(made), *operands(), mode=mode)
    if mode == "symbolic" and name in NEEDS_SIZES:
        assert isinstance(arguments[3], fx.Node)
        return
    shape = None if arguments[3] is None else tuple(arguments[3].meta["val"].shape)
    if mode == "symbolic":
        assert (shape is None) is (left is None)
        assert shape is None or shape[2] == 1
    else:
        assert shape == left
    assert (arguments[6], arguments[8]) == (causal, size)


# Only known sizes tell these: floats are read as computed constants, and so is a whole window.
NEEDS_SIZES = {"float, -inf", "float, lowest", "window as long as the keys"}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_certain_stays(name: str) -> None:
    arguments = named(attention(STAYS[name]), *operands())
    assert isinstance(arguments[3], fx.Node)
    assert tuple(arguments[3].meta["val"].shape)[-2:] == (24, 24)
    assert (arguments[6], arguments[8]) == (False, 0)


@pytest.mark.parametrize(
    ("length", "depth", "left"), [(24, 40, False), (26, 24, False), (40, 24, True)]
)
def test_a_window_is_named_where_every_query_sees_a_key(
    length: int, depth: int, left: bool
) -> None:
    arguments = named(attention(lambda t, n, s: window(n, s, 7)), *operands(length, depth))
    assert (arguments[3] is not None) is left
    assert arguments[8] == (0 if left else 7)


def test_a_mask_larger_than_constants_may_be() -> None:
    """1,600 x 1,600 elements, of which none is computed."""
    arguments = named(attention(lambda t, n, s: window(n, s, 90)), *operands(1600, 1600))
    assert (arguments[3], arguments[6], arguments[8]) == (None, True, 90)


def test_a_causal_call_keeps_the_rest_of_its_mask() -> None:
    arguments = named(
        attention(lambda t, n, s: padding(t) & window(n, s, 5), causal=True), *operands()
    )
    assert tuple(arguments[3].meta["val"].shape) == (BATCH, 1, 1, 24)
    assert (arguments[6], arguments[8]) == (True, 5)


def test_padding_is_a_view_of_the_tokens() -> None:
    arguments = named(attention(lambda t, n, s: padding(t)), *operands())
    assert arguments[3].target is torch.ops.aten.unsqueeze.default


def test_other_entries_than_all_in_order_are_looked_up() -> None:
    def made(tokens: torch.Tensor, length: int, depth: int) -> torch.Tensor:
        batch = torch.arange(BATCH - 1, -1, -1)[:, None, None, None]
        return (tokens > 0)[batch, k_index(depth)] & (k_index(depth) <= q_index(length))

    arguments = named(attention(made), *operands())
    assert arguments[3].target is torch.ops.aten.index.Tensor
    assert arguments[6] is True


def test_the_backward_pass_knows_what_forward_knows() -> None:
    """Under `torch.compile` no mask is saved, and the gradients are eager's."""
    import trnx

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = window(24, 24, 6).expand(BATCH, 1, 24, 24)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).square().sum()

    q, k, v, _ = operands()
    tensors = [x.requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(loss(*tensors), tensors)
    with trnx.collect_reports() as reports:
        compiled = torch.compile(loss, backend="trnx", options={"runner": "reference"})
        have = torch.autograd.grad(compiled(*tensors), tensors)
    torch.testing.assert_close(have, wanted)
    regions = [r for report in reports for r in report.regions]
    kernels = [r.kernel for r in regions if r.kernel and "sdpa" in r.kernel]
    assert kernels == ["sdpa", "sdpa_backward"]
    assert not [op for r in regions for op in r.ops if "bitwise_and" in op]


def test_places_that_wrap_around_are_none() -> None:
    """After 127 comes -128: the mask is not causal, whatever the sizes are."""

    arguments = named(
        attention(lambda t, n, s: k_index(s).to(torch.int8) <= q_index(n)),
        *operands(150, 150),
        mode="symbolic",
    )
    assert (isinstance(arguments[3], fx.Node), arguments[6]) == (True, False)
