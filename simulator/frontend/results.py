"""What a call of a kernel returns: as tensors or arrays, like its first tensor argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trnx.simulator.frontend.arguments import Arguments
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.arrays import to_numpy
from trnx.simulator.memory.dtypes import DType


@dataclass(frozen=True)
class Result:
    """One of them: the argument that it is, or -1; `is_copied` where it is a part of a tensor, or
    other results lie in the same one.
    """

    argument: int
    dtype: DType
    is_copied: bool


@dataclass(frozen=True)
class Results:
    """All of them."""

    results: tuple[Result, ...]
    is_single: bool
    is_numpy: bool

    def of(self, values: Sequence[torch.Tensor], argument: Callable[[int], Any]) -> Any:
        """The results of a run that left `values`; `argument` gives what the caller passed."""
        found = [
            argument(result.argument) if result.argument >= 0 else self._own(result, value)
            for result, value in zip(self.results, values, strict=True)
        ]
        return found[0] if self.is_single else tuple(found)

    def _own(self, result: Result, value: torch.Tensor) -> Any:
        if result.is_copied:
            value = value.clone(memory_format=torch.contiguous_format)
        return to_numpy(value, result.dtype) if self.is_numpy else value


def results_of(
    returned: tuple[NkiTensor, ...], arguments: Arguments, is_single: bool, makes_numpy: bool
) -> Results:
    """What the tensors that a kernel returned are for its caller; `makes_numpy` is for one that
    passed none.
    """
    storages = [tensor.storage for tensor in (*arguments.tensors, *returned)]
    found = []
    for tensor in returned:
        same = (i for i, view in enumerate(arguments.tensors) if tensor.same_elements(view))
        is_whole = tensor.is_contiguous() and tensor.size == tensor.storage.pitch
        is_copied = not is_whole or storages.count(tensor.storage) > 1
        found.append(Result(next(same, -1), tensor.dtype, is_copied))
    is_numpy = arguments.is_first_numpy or (makes_numpy and not arguments.passed)
    return Results(tuple(found), is_single, is_numpy)
