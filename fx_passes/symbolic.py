"""Sizes that may be symbolic, compared without adding a guard.

The only file of this room that reads the internals of symbolic shapes; `nki_kernels/hints.py` has
the numbers that stand for them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from trnx.nki_kernels.keys import key_of


def is_symbolic(value: Any) -> bool:
    """True for a symbolic number, not for a plain one."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def has_symbolic_layout(tensor: torch.Tensor) -> bool:
    """Whether a size, a stride or the storage offset of `tensor` is a symbol; asks no number."""
    return bool(tensor._has_symbolic_sizes_strides)


def symbols_of(value: Any) -> frozenset[Any]:
    """The symbols that a symbolic number is made of; none for a plain number."""
    return frozenset(value.node.expr.free_symbols) if is_symbolic(value) else frozenset()


def depends_on_data(value: Any) -> bool:
    """True for a number, or a tensor with a size or stride, that is known only once data is."""
    if isinstance(value, (list, tuple)):
        return any(depends_on_data(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return is_symbolic(value) and bool(free_unbacked_symbols(value))
    return has_symbolic_layout(value) and any(map(depends_on_data, value.shape))


def same_number(a: Any, b: Any) -> bool:
    """True where two sizes are equal by expression; never asks the shape environment, so no
    guard.
    """
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return bool(number_key(a) == number_key(b))
    return bool(a == b)


def same_numbers(a: Any, b: Any) -> bool:
    """`same_number` over two sequences of the same length."""
    return len(a) == len(b) and all(same_number(x, y) for x, y in zip(a, b, strict=True))


def known_equal(a: Any, number: int) -> bool:
    """True where the size `a` is the plain number, or a symbolic one that is certain to be it."""
    if isinstance(a, torch.SymInt):
        return bool(number_key(a) == number)
    return bool(a == number)


def number_key(value: Any) -> Any:
    """Equal for numbers that are equal by expression; what is no symbolic number is itself."""
    return value.node.expr if is_symbolic(value) else value


def argument_key(value: Any) -> Hashable:
    """Equal for arguments of calls that are equal, symbolic numbers by expression: 0.0 and -0.0
    differ, and 1 and True."""
    return (type(value), value.node.expr) if is_symbolic(value) else key_of(value)
