"""Functions of single elements as a proof sees them: any function of that name.

What a Program does with the value of a function is proven for whatever function it is (an
uninterpreted one): where Program and operator are evaluated, each takes the value from one table,
by the bits of the argument, and they agree only if they apply it to the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trnx.simulator.language.operators import functions
from trnx.simulator.memory.storage import Step
from trnx.simulator.program.step_effects import parts_of

_aten = torch.ops.aten

# What steps compute them with, and what torch's operators do: the same functions in float32.
_OF_STEPS: Mapping[Any, str] = {
    functions.relu: "relu", functions.gelu: "gelu", _aten.silu.out: "silu",
    torch.sigmoid: "sigmoid", torch.rsqrt: "rsqrt",
}  # fmt: skip
_OF_TORCH: Mapping[Any, str] = {
    _aten.relu.default: "relu", _aten.silu.default: "silu", _aten.sigmoid.default: "sigmoid",
    _aten.rsqrt.default: "rsqrt",
}  # fmt: skip
# Odd factors of the hash of a function's argument.
_FACTORS = {"relu": 0x1E3779B1, "gelu": 0x05EBCA6B, "silu": 0x42B2AE35, "sigmoid": 0x27D4EB2F,
            "rsqrt": 0x165667B1}  # fmt: skip
_SECOND_FACTOR = 0x2C1B3C6D
# The odd values of a factor of products are small: sums stay exact.
_BITS = {"rsqrt": 4}
_MOST_BITS = 16


def value_of(name: str, x: torch.Tensor) -> torch.Tensor:
    """An odd integer for each element of x, float32, by the element's bits; those of 0 and -0 are
    one."""
    mixed = (x + 0.0).contiguous().view(torch.int32)
    # The sum is new memory; products of int32 wrap around.
    mixed.mul_(_FACTORS[name])
    mixed.bitwise_xor_(mixed >> 15).mul_(_SECOND_FACTOR).bitwise_right_shift_(9)
    count = 1 << _BITS.get(name, _MOST_BITS)
    return mixed.bitwise_and_(count - 1).to(torch.float32).mul_(2.0).sub_(count - 1).view(x.shape)


def apply(step: Step) -> bool:
    """Run a step that computes such a function, with the table's values; False for any other."""
    function, args, named = parts_of(step)
    if function is torch.maximum and _is_zero(args[1]):
        name = "relu"
    else:
        name = _OF_STEPS.get(function, "")
    out = named.get("out")
    if not name or out is None or not (args[0].dtype is out.dtype is torch.float32):
        return False
    out.copy_(value_of(name, args[0]))
    return True


def _is_zero(value: Any) -> bool:
    """Whether it is the number 0 of an instruction."""
    return isinstance(value, torch.Tensor) and value.ndim == 0 and float(value) == 0


class AnyFunctions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators of torch compute such functions with the table's values; `used` tells whether one
    did. Batch norm with given statistics is one of them, of the variance."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        name = _OF_TORCH.get(func, "")
        if func is _aten.gelu.default and not (kwargs or {}).get("approximate"):
            name = "gelu"
        if name:
            self.used = True
            return value_of(name, args[0])
        if func is _aten.native_batch_norm.default and not args[5]:
            self.used = True
            return _normalised(args[:5], eps=args[7])
        if func is _aten._native_batch_norm_legit_no_training.default:
            self.used = True
            return _normalised(args[:5], eps=args[6])
        return func(*args, **(kwargs or {}))


def _normalised(given: Sequence[torch.Tensor | None], *, eps: float) -> tuple[torch.Tensor, ...]:
    """Of what batch norm is given: x, weight and bias or None, mean, variance."""
    x, weight, bias, mean, variance = given
    assert x is not None
    assert mean is not None
    assert variance is not None
    column = (-1, *(1 for _ in x.shape[2:]))
    scale = value_of("rsqrt", variance + eps)
    scale = scale if weight is None else scale * weight
    made = (x - mean.view(column)) * scale.view(column)
    nothing = x.new_empty(0)
    return made if bias is None else made + bias.view(column), nothing, nothing
