"""Regions do not depend on the user's settings of JAX, and leave them as they are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from trnx.fallback import XlaEngine

pytest.importorskip("jax")

import jax  # after the check

from trnx.fallback.program import Program

SETTINGS = {
    "jax_disable_jit": True,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_enable_x64": False,
    "jax_default_matmul_precision": "BF16_BF16_F32",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_check_tracer_leaks": True,
    "jax_transfer_guard": "disallow_explicit",
    "jax_no_tracing": True,
    "jax_no_execution": True,
    "jax_log_compiles": False,
}
MANAGERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "jax_transfer_guard": lambda: jax.transfer_guard("disallow_explicit"),
    "jax_disable_jit": lambda: jax.disable_jit(),
}


def function(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = torch.cat([x, x]) * 2 + x[0]
    return (
        x @ w,
        x.double() @ w.double(),
        torch.div(i + 2**40, 3, rounding_mode="floor"),
        torch.sqrt(-x.abs() - 1),
        x / 0.0,
        rows.softmax(-1),
        rows[i],
    )


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 3), torch.randn(3, 5), torch.arange(5)]


def make(capture: Any) -> Callable[..., Any]:
    """The region, which XLA must take as a whole."""
    graph_module = capture(function, *inputs())
    engine = XlaEngine()
    rejected = [engine.supports(n) for n in graph_module.graph.nodes if n.op == "call_function"]
    assert rejected == [None] * len(rejected)
    run = engine.compile(graph_module)
    assert isinstance(getattr(run, "__self__", None), Program)
    return run


def check(run: Callable[..., Any]) -> None:
    given = inputs()
    for _ in range(3):  # new tensors, then known ones
        for a, e in zip(run(given), function(*given), strict=True):
            torch.testing.assert_close(a, e, equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("is_set_before", [True, False])
def test_a_global_setting(capture: Any, name: str, is_set_before: bool) -> None:
    run = make(capture)
    old, value = getattr(jax.config, name), SETTINGS[name]
    jax.config.update(name, value)
    try:
        if is_set_before:
            run = make(capture)
        check(run)
        assert getattr(jax.config, name) == value
    finally:
        jax.config.update(name, old)
        if name == "jax_transfer_guard":  # sets three more, which have defaults of their own
            for direction in ("host_to_device", "device_to_device", "device_to_host"):
                jax.config.update(f"{name}_{direction}", None)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("is_set_before", [True, False])
def test_a_setting_of_a_block(capture: Any, name: str, is_set_before: bool) -> None:
    run = make(capture)
    old, value = getattr(jax.config, name), SETTINGS[name]
    setting = getattr(jax, name.removeprefix("jax_"))
    with MANAGERS[name]() if name in MANAGERS else setting(value):
        inside = getattr(jax.config, name)
        if is_set_before:
            run = make(capture)
        check(run)
        assert getattr(jax.config, name) == inside
    assert getattr(jax.config, name) == old


@pytest.mark.parametrize("is_set_before", [True, False])
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_mesh(capture: Any, is_set_before: bool, kind: str) -> None:
    run = make(capture)
    kinds = (getattr(jax.sharding.AxisType, kind),)
    mesh = jax.sharding.AbstractMesh((2,), ("d",), axis_types=kinds)
    with jax.sharding.use_abstract_mesh(mesh):
        if is_set_before:
            run = make(capture)
        check(run)
        assert jax.sharding.get_abstract_mesh() == mesh


@pytest.mark.parametrize("flush", [True, False])
def test_the_flush_of_denormals_stays_as_it_was_set(capture: Any, flush: bool) -> None:
    run = make(capture)
    torch.set_flush_denormal(flush)
    try:
        run(inputs())
        assert ((torch.tensor([1e-40]) * 2).item() == 0) is flush
    finally:
        torch.set_flush_denormal(False)
