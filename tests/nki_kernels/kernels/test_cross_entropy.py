"""What is special to cross-entropy: accuracy, memory traffic, labels, training steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import OutOfBoundsError, Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

FORWARD = registry.kernels()["cross_entropy"]
BACKWARD = registry.kernels()["cross_entropy_backward"]
NONE, MEAN, SUM = range(3)
CHIP = hardware("trn2")


def draw(rows: int, classes: int, seed: int = 0, shift: float = 0.0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, classes, generator=generator) * 3 + shift
    return x, torch.randint(0, classes, (rows,), generator=generator)


def bindings(**values: Any) -> Bindings:
    return Bindings(
        {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    )


def program(spec: Any, **values: Any) -> Program:
    launch = spec.launch(bindings(**values), CHIP)
    return simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)


def run(x: torch.Tensor, target: torch.Tensor, reduction: int, ignore_index: int = -100) -> Any:
    values = {"x": x, "target": target, "reduction": reduction, "ignore_index": ignore_index}
    return program(FORWARD, **values).run([x, target])


def gradient(x: torch.Tensor, target: torch.Tensor, grad: torch.Tensor, reduction: int) -> Any:
    _, *saved = run(x, target, reduction)
    tensors = dict(zip(("weight", "top", "total"), saved, strict=True))
    values = {"grad": grad, "x": x, "target": target, **tensors, "reduction": reduction}
    return program(BACKWARD, **values, ignore_index=-100).run([grad, x, target, *saved])[0]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).abs().max())


@pytest.mark.parametrize("rows", [127, 300, 1024])
@pytest.mark.parametrize("reduction", [MEAN, SUM])
def test_equal_losses_do_not_round_in_one_direction(rows: int, reduction: int) -> None:
    worst = 0.0
    for seed in range(4):
        x, target = draw(1, 50, seed)
        x, target = x.expand(rows, 50).contiguous(), target.expand(rows).contiguous()
        name = "mean" if reduction == MEAN else "sum"
        exact = F.cross_entropy(x.double(), target, reduction=name)
        worst = max(worst, error(run(x, target, reduction)[0] / exact, torch.ones(())))

    assert worst <= 5 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_errors_are_at_most_twice_those_of_eager(dtype: torch.dtype, shift: float) -> None:
    x, target = draw(130, 9000, shift=shift)
    x = x.to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    eager = F.cross_entropy(x, target, reduction="none")
    exact = F.cross_entropy(wide, target, reduction="none")
    eager.sum().backward()
    exact.sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    found = run(x.detach(), target, NONE)[0]
    assert error(found, exact.detach()) <= 2 * error(eager.detach(), exact.detach())
    dx = gradient(x.detach(), target, torch.ones(130, dtype=dtype), NONE)
    assert error(dx, wide.grad) <= 2 * error(x.grad, wide.grad)


def test_the_logits_are_read_once_and_their_gradient_is_written_once() -> None:
    x, target = draw(300, 10_000)
    small = 40 * x.shape[0] + 100
    values = {"x": x, "target": target, "reduction": MEAN, "ignore_index": -100}
    assert x.nbytes <= program(FORWARD, **values).hbm_bytes <= x.nbytes + small
    _, weight, top, total = run(x, target, MEAN)
    values = {**values, "weight": weight, "top": top, "total": total, "grad": torch.ones(1)}
    assert 2 * x.nbytes <= program(BACKWARD, **values).hbm_bytes <= 2 * x.nbytes + small


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_ignored_rows_add_nothing_whatever_they_hold(reduction: int) -> None:
    x, target = draw(200, 70)
    target[::2] = -100
    x[::2] = math.nan
    x[2::4] = -math.inf
    how = ("none", "mean", "sum")[reduction]
    expected = F.cross_entropy(x, target, reduction=how).reshape(-1)
    torch.testing.assert_close(run(x, target, reduction)[0], expected)


def test_the_mean_of_no_rows_is_nan() -> None:
    x, _ = draw(5, 7)
    assert run(x, torch.full((5,), -100), MEAN)[0].isnan().all()


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_do_not_count_have_no_gradient(reduction: int, dtype: torch.dtype) -> None:
    """Where none counts the slope of the mean is infinite; else the given gradient is."""
    x, target = draw(130, 70)
    x = x.to(dtype)
    wide = x.float().requires_grad_()
    target[::2] = -100
    if reduction == MEAN:
        target[:] = -100
    loss = F.cross_entropy(wide, target, reduction=("none", "mean", "sum")[reduction])
    grad = torch.ones_like(loss)
    if reduction == NONE:
        grad[::4], grad[2::4] = math.inf, math.nan
    expected = torch.autograd.grad(loss, wide, grad)[0].to(dtype)
    assert not expected[::2].any()
    grad = grad.reshape(-1).to(dtype)
    torch.testing.assert_close(gradient(x, target, grad, reduction), expected)
    saved = torch.ops.trnx.cross_entropy(x, target, reduction, -100)[1:]
    given = (grad, x, target, *saved)
    found = torch.ops.trnx.cross_entropy_backward(*given, reduction, -100)
    torch.testing.assert_close(found, expected)


def test_infinite_logits() -> None:
    x, _ = draw(4, 9000)
    target = torch.tensor([7, 8999, 5, 3])
    x[0, :5000] = -math.inf  # the label's, too
    x[1, :8000] = -math.inf
    x[2] = -math.inf
    x[3, 9] = math.inf
    expected = F.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(run(x, target, NONE)[0], expected, equal_nan=True)


@pytest.mark.parametrize("label", [70, -1, 2**31 - 1, -(2**31)])
def test_a_label_that_is_no_class_is_an_error(label: int) -> None:
    x, target = draw(130, 70)
    target[128] = label
    with pytest.raises(OutOfBoundsError):
        run(x, target, MEAN)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [1, 128, 129])
def test_a_training_step_equals_eager_and_is_all_on_nki(reduction: str, rows: int) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, ignore_index=3, reduction=reduction)

    torch._dynamo.reset()
    x, target = draw(rows, 500)
    pair = [x.t().contiguous().t().requires_grad_(), x.clone().requires_grad_()]
    compiled = torch.compile(loss, backend="trnx", options={"select": "legal"})
    with trnx.collect_reports() as reports:
        results = [compiled(pair[0], target), loss(pair[1], target)]
        for result in results:
            result.sum().backward()
    torch.testing.assert_close(*results)
    assert results[0].shape == results[1].shape
    torch.testing.assert_close(pair[0].grad, pair[1].grad)
    assert not reports.fallbacks


@pytest.mark.parametrize(
    ("x", "target", "reason"),
    [
        (torch.empty(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.int64), "float64"),
        (torch.empty(3, 4), torch.zeros(3), "int64"),
        (torch.empty(3, 4, 5), torch.zeros(3, 5, dtype=torch.int64), "[N, C]"),
        (torch.empty(0, 4), torch.zeros(0, dtype=torch.int64), "no logits"),
        (torch.empty(2, 2**24, device="meta"), torch.zeros(2, dtype=torch.int64), "int32"),
    ],
)
def test_refusals(x: torch.Tensor, target: torch.Tensor, reason: str) -> None:
    b = bindings(x=x, target=target, reduction=MEAN, ignore_index=-100)
    refusal = FORWARD.supports(b, CHIP)
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
