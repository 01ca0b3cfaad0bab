"""Functions that no engine has, as polynomials on intervals.

A polynomial takes the function's values, which torch computes in float64, at Chebyshev's nodes of
the interval (L. Trefethen, "Approximation Theory and Approximation Practice", chapters 4 and 18).
Its sum is formed by Horner's rule in float32, one instruction a degree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from trnx.nki_kernels.generator.ir import Builder, Value

Function = Callable[[torch.Tensor], torch.Tensor]  # of float64


@dataclass(frozen=True)
class Series:
    """A `function` on [low, high] as a polynomial of this degree."""

    function: Function
    low: float
    high: float
    degree: int

    @functools.cached_property
    def coefficients(self) -> tuple[float, ...]:
        """Those of 1, t, t^2 and so on, where t goes from -1 to 1 over the interval."""
        # A graph is compiled under a mode in which tensors have no values.
        with unset_fake_temporarily(), torch.no_grad():
            return self._interpolate()

    def _interpolate(self) -> tuple[float, ...]:
        count = self.degree + 1
        angles = (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) * math.pi / count
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        values = self.function(middle + half * angles.cos())
        orders = torch.arange(count, dtype=torch.float64, device="cpu")
        chebyshev = 2.0 / count * (orders[:, None] * angles).cos() @ values
        chebyshev[0] /= 2.0
        return tuple(_powers(chebyshev).tolist())

    def of(self, b: Builder, x: Value) -> Value:
        """The function of x, which lies on the interval; anything elsewhere."""
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        t = b.mul(b.sub(x, middle), 1.0 / half)
        first, *others = reversed(self.coefficients)
        total = b.mul(t, first)
        for coefficient in others[:-1]:
            total = b.mul(b.add(total, coefficient), t)
        return b.add(total, others[-1])


def _powers(chebyshev: torch.Tensor) -> torch.Tensor:
    """The coefficients of powers of t, of a sum of Chebyshev's polynomials."""
    count = len(chebyshev)
    before = torch.zeros(count, dtype=torch.float64, device="cpu")
    here = before.clone()
    before[0], here[1] = 1.0, 1.0  # T0 and T1; T(n + 1) = 2 t T(n) - T(n - 1)
    total = chebyshev[0] * before + chebyshev[1] * here
    for coefficient in chebyshev[2:]:
        before, here = here, 2.0 * here.roll(1) - before
        total = total + coefficient * here
    return total


def first_of(b: Builder, x: Value, *pieces: tuple[float, Value], last: Value) -> Value:
    """The first piece whose bound x is not above; else, and where x is NaN, the last one."""
    for bound, piece in reversed(pieces):
        last = b.select(b.compare("less_equal", x, bound), piece, last, torch.float32)
    return last
