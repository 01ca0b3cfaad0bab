"""Activation functions of ScalarE: what `nl.exp`, `nl.gelu`... mean in `nisa.activation`.

Every function computes in float32 from `x` into `out`, which may be the same tensor, and writes
`out` in place whatever its strides. The hardware approximates them by piece-wise polynomials; here
they are as exact as torch or, where that is several times faster (exp, log, tanh), numpy. Outside
the documented input range (SDK/nki/api/nki.api.shared.rst, "Supported Activation Functions") the
hardware's result is invalid: only `sin` is specified there, as a cubic about +-pi (sin(9.0) =
27.65), and that is what `sin` computes; the others go on as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from trnx.simulator.isa.alu import relu, token_name
from trnx.simulator.isa.instruction import Emit

Activation = Callable[..., Any]

_aten = torch.ops.aten
_GELU_SIGMOID = 1.702  # x * sigmoid(1.702 x)
_GELU_TANH = math.sqrt(2 / math.pi)  # x / 2 * (1 + tanh(_GELU_TANH * (x + 0.044715 x**3)))


def _copy(x: torch.Tensor, *, out: torch.Tensor) -> None:
    if x is not out:
        out.copy_(x)


def _gelu(x: torch.Tensor, *, out: torch.Tensor) -> None:
    # gelu's oneDNN path does not write an `out` with gaps (seen on torch 2.13).
    if out.is_contiguous():
        _aten.gelu.out(x, out=out)
    else:
        out.copy_(torch.nn.functional.gelu(x))


def _gelu_tanh(x: torch.Tensor, *, out: torch.Tensor) -> None:
    # 0.5 * (1 + tanh(u)) is sigmoid(2 u), which is faster.
    inner = torch.mul(x, x)
    inner.mul_(2 * _GELU_TANH * 0.044715).add_(2 * _GELU_TANH).mul_(x).sigmoid_()
    torch.mul(x, inner, out=out)


def _gelu_sigmoid(x: torch.Tensor, *, out: torch.Tensor) -> None:
    torch.mul(x, torch.sigmoid(x * _GELU_SIGMOID), out=out)


def _gelu_sigmoid_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    gate = torch.sigmoid(x * _GELU_SIGMOID)
    torch.mul(gate, 1 + _GELU_SIGMOID * x * (1 - gate), out=out)


_ONE = torch.ones((), dtype=torch.float32, device="cpu")


def _gelu_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    # The backward formula with a gradient of 1; its oneDNN path has the same defect as gelu's.
    if out.is_contiguous() and x.is_contiguous():
        _aten.gelu_backward.grad_input(_ONE.expand_as(x), x, grad_input=out)
    else:
        out.copy_(_aten.gelu_backward(_ONE.expand_as(x), x))


def _silu_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    _aten.silu_backward.grad_input(_ONE.expand_as(x), x, grad_input=out)


def _erf_dx(x: torch.Tensor, *, out: torch.Tensor) -> None:
    torch.mul(torch.exp(-x * x), 2 / math.sqrt(math.pi), out=out)


def _sin(x: torch.Tensor, *, out: torch.Tensor) -> None:
    beyond = x - torch.copysign(torch.full((), math.pi), x)
    cubic = beyond * (beyond * beyond * (1 / 6) - 1)
    out.copy_(torch.where(x.abs() <= math.pi, torch.sin(x), cubic))


def prelu(slope: float | torch.Tensor) -> Activation:
    """x where x > 0, else slope * x; `slope` is a number or one value per partition."""

    def apply(x: torch.Tensor, *, out: torch.Tensor) -> None:
        out.copy_(torch.where(x > 0, x, x * slope))

    return apply


ACTIVATIONS: dict[str, Activation] = {
    "copy": _copy,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "relu": relu,
    "prelu": prelu(0.0),
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": _gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": _aten.silu.out,
    "silu_dx": _silu_dx,
    "tanh": torch.tanh,
    "softplus": _aten.softplus.out,
    "mish": _aten.mish.out,
    "erf": torch.erf,
    "erf_dx": _erf_dx,
    "exp": torch.exp,
    "log": torch.log,
    "sin": _sin,
    "arctan": torch.arctan,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sign": torch.sign,
    "abs": torch.abs,
}

# numpy's vectorised forms: errors of up to 3 units in the last place, as against torch's 1.
_UFUNCS: dict[str, np.ufunc] = {"exp": np.exp, "log": np.log, "tanh": np.tanh}


def _quietly(ufunc: np.ufunc, x: Any, out: Any) -> None:
    with np.errstate(all="ignore"):
        ufunc(x, out=out)


def emit_activation(emit: Emit, name: str, x: torch.Tensor, out: torch.Tensor) -> None:
    """Append the step that computes the activation function `name` of `x` into `out`."""
    ufunc = _UFUNCS.get(name)
    if ufunc is not None:
        array = torch.Tensor.numpy
        emit.step(_quietly, ufunc, emit.derived(array, x), emit.derived(array, out))
    elif name != "copy" or x is not out:
        emit.step(ACTIVATIONS[name], x, out=out)


_ALIASES = {"identity": "copy", "absolute": "abs"}


def activation_name(emit: Emit, token: Any) -> str:
    """The name of an activation function token; raises IllegalInstructionError for others."""
    name = token_name(token)
    name = _ALIASES.get(name, name)
    if name not in ACTIVATIONS:
        emit.illegal(f"op={name} is not an activation function; there are {', '.join(ACTIVATIONS)}")
    return name
