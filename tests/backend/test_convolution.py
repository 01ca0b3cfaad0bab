"""Convolutional networks: values, gradients and the report, whatever runs the convolutions."""

from __future__ import annotations

import copy

import pytest
import torch

import trnx


class Small(torch.nn.Module):
    def __init__(self, input_grad: bool) -> None:
        super().__init__()
        self.input_grad = input_grad
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1, bias=input_grad)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.convolution(x)))
        return self.head(hidden.mean((2, 3)))


@pytest.mark.parametrize("input_grad", [False, True])
@pytest.mark.parametrize("fallback", ["auto", "eager"])
def test_a_training_step_equals_eager(input_grad: bool, fallback: str) -> None:
    torch.manual_seed(0)
    ours = Small(input_grad)
    eager = copy.deepcopy(ours)
    x = torch.randn(2, 3, 9, 9)
    inputs = [x.clone().requires_grad_(input_grad) for _ in range(2)]
    compiled = torch.compile(ours, backend="trnx", options={"fallback": fallback})
    for model, value in ((compiled, inputs[0]), (eager, inputs[1])):
        model(value).square().sum().backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.norm.running_mean, eager.norm.running_mean)


def test_explain_counts_the_flops_of_convolutions() -> None:
    model, x = Small(True), torch.randn(2, 3, 9, 9)
    compiled = torch.compile(model, backend="trnx", options={"select": "none"})
    explanation = trnx.explain(compiled, x).to_dict()
    assert explanation["flops_on_nki"] == 0
    # Two FLOPs a multiply-add: 27 for each output of the convolution, 8 for each of the head.
    counted = sum(region["model_flops"] for region in explanation["graphs"][0]["regions"])
    assert counted == 2 * (2 * 8 * 9 * 9 * 27 + 2 * 4 * 8)
    reasons = {entry["op"]: entry["reason"] for entry in explanation["graphs"][0]["fallbacks"]}
    assert reasons["aten.convolution.default"]


@pytest.mark.parametrize("select", ["legal", "none"])
def test_kernels_train_as_eager_does(select: str) -> None:
    ours = Small(True)
    eager = copy.deepcopy(ours)
    x = torch.randn(2, 3, 9, 9)
    compiled = torch.compile(ours, backend="trnx", options={"select": select})
    for model in (compiled, eager):
        model(x).square().sum().backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        assert mine.grad.stride() == theirs.grad.stride()
