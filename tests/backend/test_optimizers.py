"""Optimizer steps: kernels that read and write each tensor once, as accurate as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trnx

# Dynamo imports Inductor where it meets an optimizer, which uses what torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

SIZE = 128 * 9 + 5
Parameters = list[torch.nn.Parameter]
OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


def gradients(dtype: torch.dtype) -> list[torch.Tensor]:
    """Two steps: usual sizes, zeros, and the smallest whose squares are not zero."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(SIZE, generator=generator) for _ in range(2)]
    drawn[0][:9] = 0.0
    drawn[1][4:20] = 1e-22
    return [g.to(dtype) for g in drawn]


def stepped(
    make: Callable[[Parameters], torch.optim.Optimizer],
    dtype: torch.dtype,
    step: Callable[[torch.optim.Optimizer], Any],
) -> torch.Tensor:
    """The parameter, which begins at zero where its update has the most bits, after two steps."""
    start = torch.linspace(-1, 1, SIZE).to(dtype)
    start[::3] = 0.0
    parameter = torch.nn.Parameter(start)
    optimizer = make([parameter])
    for gradient in gradients(dtype):
        parameter.grad = gradient
        step(optimizer)
    return parameter.detach()


def with_backend(backend: str, **options: Any) -> Callable[[torch.optim.Optimizer], None]:
    def step(optimizer: torch.optim.Optimizer) -> None:
        torch.compile(optimizer.step, backend=backend, **options)()

    torch._dynamo.reset()
    return step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_as_accurate_as_in_eager(name: str) -> None:
    # What Dynamo captures takes the bias corrections in float32; eager itself in float64.
    make = OPTIMIZERS[name]
    exact = stepped(make, torch.float64, with_backend("eager"))
    eager = stepped(make, torch.float32, with_backend("eager"))
    ours = stepped(make, torch.float32, with_backend("trnx", options={"select": "legal"}))
    errors = [(result.double() - exact).abs() for result in (eager, ours)]
    assert errors[1].max() <= 2 * errors[0].max()
    assert errors[1].mean() <= 2 * errors[0].mean()


def test_an_adamw_step_is_one_kernel() -> None:
    torch._dynamo.reset()
    parameter = torch.nn.Parameter(torch.ones(SIZE))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(SIZE)
    optimizer.step()
    with trnx.collect_reports() as reports:
        torch.compile(optimizer.step, backend="trnx", options={"select": "legal"})()
    (graph,) = reports
    assert len(graph.regions) == 1
    assert not graph.fallbacks


MANY: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
}


def many_steps(
    make: Callable[[Parameters], torch.optim.Optimizer],
    step: Callable[[torch.optim.Optimizer], Any],
) -> Parameters:
    """Twelve parameters of three shapes after five steps with clipped gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(129, 3), (1,), (64,)] * 4
    parameters = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
    optimizer = make(parameters)
    for _ in range(5):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        step(optimizer)
    return parameters


@pytest.mark.parametrize("name", MANY)
def test_a_step_over_many_parameters_is_one_kernel(name: str) -> None:
    torch._dynamo.reset()

    def clip_and_step(optimizer: torch.optim.Optimizer) -> None:
        grads = [p.grad for p in optimizer.param_groups[0]["params"]]
        torch._foreach_mul_(grads, 0.5)
        optimizer.step()

    with trnx.collect_reports() as reports:
        ours = many_steps(MANY[name], torch.compile(clip_and_step, backend="trnx"))
    eager = many_steps(MANY[name], clip_and_step)
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    last = reports[-1]
    assert [region.engine for region in last.regions] == ["nki"]
    assert last.regions[0].kernel is not None
    assert last.regions[0].kernel.endswith("_x12")
    assert not last.fallbacks


def test_a_rate_in_a_tensor_is_one_more_kernel() -> None:
    """Steps are counted in tensors, and the factor of the weight decay is read by every parameter.
    Eager has no such step on the CPU: its numbers are the same, in Python."""
    torch._dynamo.reset()

    def capturable(p: Parameters) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=True, capturable=True)

    def step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    with trnx.collect_reports() as reports:
        ours = many_steps(capturable, torch.compile(step, backend="trnx"))
    eager = many_steps(MANY["AdamW"], step)
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    regions = reports[-1].regions
    assert [region.engine for region in regions] == ["nki", "nki"]
    assert sum((region.kernel or "").endswith("_x12") for region in regions) == 1
    assert not reports[-1].fallbacks


def test_clipping_has_all_of_its_norms_on_nki() -> None:
    torch._dynamo.reset()

    def clip_and_step(optimizer: torch.optim.Optimizer) -> None:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0, foreach=True)
        optimizer.step()

    with trnx.collect_reports() as reports:
        ours = many_steps(MANY["AdamW"], torch.compile(clip_and_step, backend="trnx"))
    eager = many_steps(MANY["AdamW"], clip_and_step)
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    kernels = [region.kernel for report in reports for region in report.regions]
    assert "cat" in kernels
    assert not any(report.fallbacks for report in reports)


OTHERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.9, foreach=True),
    "SGD, Nesterov": lambda p: torch.optim.SGD(
        p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True
    ),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, foreach=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_lists_are_written_in_place_and_the_state_is_that_of_eager(name: str) -> None:
    torch._dynamo.reset()
    made: list[torch.optim.Optimizer] = []
    places: list[list[int]] = []

    def make(parameters: Parameters) -> torch.optim.Optimizer:
        made.append(OTHERS[name](parameters))
        places.append([parameter.data_ptr() for parameter in parameters])
        return made[-1]

    def step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    with trnx.collect_reports() as reports:
        ours = many_steps(make, torch.compile(step, backend="trnx"))
    eager = many_steps(make, step)
    assert [parameter.data_ptr() for parameter in ours] == places[0]
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        states = [dict(o.state[p]) for o, p in zip(made, (mine, theirs), strict=True)]
        # Five steps of up to 10 (RMSprop divides by 0.1 at first) cancel in a momentum buffer: each
        # is rounded by up to 2 ** -24 of it, in eager and here.
        torch.testing.assert_close(*states, rtol=1e-5, atol=2 * 5 * 10 * 2**-24)
    assert len(reports[-1].regions) <= 2
    assert not any(report.fallbacks for report in reports)
