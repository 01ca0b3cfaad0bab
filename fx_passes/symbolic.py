"""Sizes that may be symbolic: hints and specs without adding a guard.

The only file of this room that reads the internals of symbolic shapes. A hint is the size seen when
the graph was captured; sizes that depend on data have none, and get `UNKNOWN_SIZE`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, optimization_hint

from trnx.simulator.memory.tensor_spec import TensorSpec

# What a size that depends on data is taken for when work is predicted.
UNKNOWN_SIZE = 128


def hint_int(value: int | torch.SymInt) -> int:
    """The number that `value` had at capture."""
    if isinstance(value, torch.SymInt):
        return int(optimization_hint(value, UNKNOWN_SIZE))
    return int(value)


def hint(value: Any) -> Any:
    """`value` with symbolic numbers replaced by their hints; anything else as it is."""
    if isinstance(value, torch.SymInt):
        return hint_int(value)
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        known = value.node.hint
        return (1.0 if isinstance(value, torch.SymFloat) else True) if known is None else known
    if isinstance(value, (list, tuple)):
        return type(value)(hint(item) for item in value)
    return value


def hinted_spec(value: torch.Tensor) -> TensorSpec:
    """The spec of a fake tensor, symbolic sizes replaced by their hints."""
    shape = tuple(hint_int(size) for size in value.shape)
    strides = tuple(hint_int(step) for step in value.stride())
    return TensorSpec(shape, value.dtype, strides)


def is_symbolic(value: Any) -> bool:
    """True for a symbolic number, not for a plain one."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def symbols_of(value: Any) -> frozenset[Any]:
    """The symbols that a symbolic number is made of; none for a plain number."""
    return frozenset(value.node.expr.free_symbols) if is_symbolic(value) else frozenset()


def depends_on_data(value: Any) -> bool:
    """True for a number, or a tensor with a size or stride, that is known only once data is."""
    if isinstance(value, (list, tuple)):
        return any(depends_on_data(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return is_symbolic(value) and bool(free_unbacked_symbols(value))
    return any(depends_on_data(number) for number in value.shape)


def same_number(a: Any, b: Any) -> bool:
    """True where two sizes are equal by expression; never asks the shape environment, so no
    guard.
    """
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return bool(_expression(a) == _expression(b))
    return bool(a == b)


def same_numbers(a: Any, b: Any) -> bool:
    """`same_number` over two sequences of the same length."""
    return len(a) == len(b) and all(same_number(x, y) for x, y in zip(a, b, strict=True))


def known_equal(a: Any, number: int) -> bool:
    """True where the size `a` is the plain number, or a symbolic one that is certain to be it."""
    if isinstance(a, torch.SymInt):
        return bool(_expression(a) == number)
    return bool(a == number)


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else value


def product(sizes: Any) -> int:
    """Number of elements, by hints."""
    total = 1
    for size in sizes:
        total *= hint_int(size)
    return total
