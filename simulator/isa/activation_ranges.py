"""Ranges of input outside of which activation functions are documented to give invalid results.

ScalarE approximates by polynomials. The simulator computes these functions for any input, so that a
result may be right here and wrong on the device: a warning. For `log`, `sqrt`, `rsqrt` and
`reciprocal` it comes on request: kernels look at what these give and repair it. Zeros, infinities,
NaN and what a function is not defined for show by themselves, or are what kernels mask out; nothing
is said of them. Source: SDK/nki/api/nki.api.shared.rst, "Supported Activation Functions".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trnx.simulator.errors import FindingWarning, IllegalInstructionError, Location
from trnx.simulator.findings import ACTIVATION_RANGE
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.program.step_effects import looks

# What float32 makes of an angle may lie one rounding beyond its limit.
_ROUNDING = 1 + 1e-6


@dataclass(frozen=True)
class ValidRange:
    """Valid inputs are `low` to `high`; with `has_sign` their magnitudes are. `is_on_request`: the
    warning is.
    """

    low: float
    high: float
    text: str
    has_sign: bool = False
    is_on_request: bool = True


VALID_RANGES: Mapping[str, ValidRange] = {
    "log": ValidRange(2.0**-64, 2.0**64, "[2^-64, 2^64]"),
    "sqrt": ValidRange(2.0**-116, 2.0**118, "[2^-116, 2^118]"),
    "rsqrt": ValidRange(2.0**-87, 2.0**97, "[2^-87, 2^97]"),
    "reciprocal": ValidRange(2.0**-42, 2.0**42, "+-[2^-42, 2^42]", has_sign=True),
    "sin": ValidRange(0.0, math.pi * _ROUNDING, "[-pi, pi]", True, False),
    "arctan": ValidRange(0.0, math.pi / 2 * _ROUNDING, "[-pi/2, pi/2]", True, False),
}


def look_at_inputs(emit: Emit, function: str, x: torch.Tensor) -> None:
    """Append a step that warns where inputs of an activation function are out of its range; none
    where the operand has elements that nothing has written.
    """
    valid = VALID_RANGES.get(function)
    if valid is None or emit.missing or emit.skipped:
        return
    if not valid.is_on_request or emit.is_requested(ACTIVATION_RANGE):
        emit.step(_warn_outside, x, function, emit.location)


@looks
def _warn_outside(x: torch.Tensor, function: str, where: Location) -> None:
    valid = VALID_RANGES[function]
    size = x.abs() if valid.has_sign else x
    low, high = torch.aminmax(size)
    if valid.low <= float(low) and float(high) <= valid.high:
        return
    is_outside = (size > valid.high) & (size < math.inf) | (size > 0) & (size < valid.low)
    if bool(is_outside.any()):
        finding = IllegalInstructionError(
            ACTIVATION_RANGE,
            f"op={function} gets inputs outside of {valid.text}, for which ScalarE gives invalid "
            "results (SDK/nki/api/nki.api.shared.rst, Supported Activation Functions); "
            + _ADVICE.get(function, "scale the inputs, or limit them before"),
            where,
        )
        warnings.warn(FindingWarning(str(finding), finding), stacklevel=2)


_ADVICE: Mapping[str, str] = {
    "sin": "nl.sin reduces the range first",
    "reciprocal": "nisa.reciprocal, on VectorE, has no such range",
}
