"""A program of ops on lists of tensors as one op, of which AOTAutograd sees no more than its name.

    trnx::lists(program, inputs) -> results

Traced op by op, an optimizer's step takes AOTAutograd a millisecond or two for each of its
thousands of elements. `program` is the number that `register` gave to a `ListProgram`; it holds
while somebody refers to the program. `fx_passes/group_lists.py` makes programs, and
`fx_passes/expand_lists.py` puts their ops into the functional graph; the op has no gradients.
Importing this module registers the op and does nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch.utils._pytree import tree_map_only


@dataclass(frozen=True)
class Place:
    """A value of a program: an input, or what one of the elements of its steps gives."""

    is_input: bool
    index: int


class Step(NamedTuple):
    """`single`, which gives one tensor, called for each element: arguments, in which a `Place`
    stands for a tensor, and keyword arguments."""

    single: Callable[..., torch.Tensor]
    elements: Sequence[tuple[Any, Any]]


class Layout(NamedTuple):
    """What a result looks like."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False)
class ListProgram:
    """Steps, in order; the values that are the results, and their layouts."""

    steps: Sequence[Step]
    results: Sequence[Place]
    layouts: Sequence[Layout]

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results of these inputs, none of which is an input."""
        made: list[torch.Tensor] = []

        def value(place: Place) -> torch.Tensor:
            return (inputs if place.is_input else made)[place.index]

        for single, elements in self.steps:
            for args, kwargs in elements:
                args, kwargs = tree_map_only(Place, value, (args, kwargs))
                made.append(single(*args, **kwargs))
        return [value(place) for place in self.results]


_programs: WeakValueDictionary[int, ListProgram] = WeakValueDictionary()
_numbers = itertools.count()


def register(program: ListProgram) -> int:
    """The number of `program`, by which the op knows it."""
    number = next(_numbers)
    _programs[number] = program
    return number


def registered(number: int) -> ListProgram:
    """The program of that number. Raises KeyError where nobody refers to it any more."""
    return _programs[number]


@torch.library.custom_op(
    "trnx::lists", mutates_args=(), schema="(int program, Tensor[] inputs) -> Tensor[]"
)
def lists(program: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """See the module's docstring."""
    return registered(program).run(inputs)


@lists.register_fake
def _(program: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:  # noqa: ARG001
    return [
        torch.empty_strided(shape, strides, dtype=dtype, device=device)
        for shape, strides, dtype, device in registered(program).layouts
    ]
