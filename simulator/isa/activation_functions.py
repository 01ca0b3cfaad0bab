"""Activation functions of ScalarE: what `nl.exp`, `nl.gelu`... mean in `nisa.activation`.

Every function computes in float32 from `x` into `out`, which may be the same tensor.
"""

from __future__ import annotations

import contextvars
from typing import Any

import numpy as np
import torch

from trnx.simulator.isa.activation_ranges import look_at_inputs
from trnx.simulator.isa.alu import token_name
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.language.operators.table import OPERATORS, Operator, find
from trnx.simulator.program.step_effects import computes

# Where NumPy reports no overflow. To enter it takes a tenth of what `np.errstate` takes, which is
# as much as a small tile.
_QUIET = contextvars.Context()
_QUIET.run(np.seterr, all="ignore")


@computes(result=2)
def _quietly(ufunc: np.ufunc, x: Any, out: Any) -> None:
    try:
        _QUIET.run(ufunc, x, out=out)
    except RuntimeError:  # another thread is in that context
        with np.errstate(all="ignore"):
            ufunc(x, out=out)


def emit_activation(emit: Emit, function: Operator, x: torch.Tensor, out: torch.Tensor) -> None:
    """Append the step that computes an activation function of `x` into `out`."""
    look_at_inputs(emit, function.name, x)
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
