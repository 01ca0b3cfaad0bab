"""Activation functions of ScalarE: what `nl.exp`, `nl.gelu`... mean in `nisa.activation`.

Every function computes in float32 from `x` into `out`, which may be the same tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trnx.simulator.isa.alu import token_name
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.language.operators.table import OPERATORS, Operator, find
from trnx.simulator.program.step_effects import computes


@computes(result=2)
def _quietly(ufunc: np.ufunc, x: Any, out: Any) -> None:
    with np.errstate(all="ignore"):
        ufunc(x, out=out)


def emit_activation(emit: Emit, function: Operator, x: torch.Tensor, out: torch.Tensor) -> None:
    """Append the step that computes an activation function of `x` into `out`."""
    if function.ufunc is not None:
        array = torch.Tensor.numpy
        emit.step(_quietly, function.ufunc, emit.derived(array, x), emit.derived(array, out))
    elif function.name != "copy" or x is not out:
        assert function.activation is not None
        emit.step(function.activation, x, out=out)


def activation_function(emit: Emit, token: Any) -> Operator:
    """The operator of an activation function token; raises IllegalInstructionError for others."""
    name = token_name(token)
    found = find(name)
    if found is None or found.activation is None:
        known = ", ".join(op.name for op in OPERATORS.values() if op.activation is not None)
        emit.illegal(f"op={name} is not an activation function; there are {known}")
    return found
