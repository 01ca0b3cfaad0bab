"""Shared by the tests of the engines: graph modules with metadata from functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

Capture = Callable[..., fx.GraphModule]


@pytest.fixture
def capture() -> Capture:
    """`capture(f, *inputs, symbolic=False)`: f's ATen graph, outputs always a tuple."""

    def trace(function: Callable[..., Any], *inputs: Any, symbolic: bool = False) -> fx.GraphModule:
        def flat(*values: Any) -> tuple[torch.Tensor, ...]:
            out = function(*values)
            return tuple(out) if isinstance(out, (tuple, list)) else (out,)

        return make_fx(flat, tracing_mode="symbolic" if symbolic else "fake")(*inputs)

    return trace
