"""Rounding in float32 to integers, from the operators that engines have."""

from __future__ import annotations

import torch

from trnx.nki_kernels.generator.ir import Builder, Operand, Value

_NO_FRACTION = 2.0**23  # a float32 of this size has no fraction bits


def rounded(b: Builder, x: Operand) -> Value:
    """`x` to the nearest integer, ties to even: adding 2^23 leaves no fraction bits."""
    magnitude = b.unary("abs", x)
    nearest = b.with_sign(b.sub(b.add(magnitude, _NO_FRACTION), _NO_FRACTION), x)
    return b.select(b.compare("less", magnitude, _NO_FRACTION), nearest, x, torch.float32)


def truncated(b: Builder, x: Operand) -> Value:
    """`x` without its fraction."""
    magnitude = b.unary("abs", x)
    nearest = rounded(b, magnitude)
    return b.with_sign(b.sub(nearest, b.compare("greater", nearest, magnitude)), x)
