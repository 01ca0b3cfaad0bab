"""ResNet-18 in plain torch.nn, for `models.py`: He et al., Deep Residual Learning, table 1."""

from __future__ import annotations

import torch
from torch import nn

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            projection = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """Random weights, 1000 classes; takes [N, 3, H, W]."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for outside, stride in STAGES:
        layers += [Block(width, outside, stride), Block(outside, outside, 1)]
        width = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
