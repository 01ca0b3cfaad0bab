"""A kernel of the documentation in both modes of tracing: equal Programs, which replay alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from trnx.simulator import TensorSpec, simulate, trace
from trnx.simulator.memory.arrays import from_numpy, kind_of
from trnx.simulator.program.listing import listing

# Kernels whose Programs were compared.
compared: list[str] = []


def simulated(kernel: Any, target: str = "trn2", grid: int | None = None) -> Callable[..., Any]:
    """`simulate(kernel, target, grid)`, which compares the two modes of tracing besides.

    Arguments are positional. Raises AssertionError where Programs, or what they compute, differ.
    """

    def call(*arguments: Any) -> Any:
        kept = [_copy(argument) for argument in arguments]
        result = simulate(kernel, target, grid)(*arguments)
        if any(isinstance(a, np.ndarray) and kind_of(a) is not None for a in arguments):
            return result  # a type that torch has not: there is no TensorSpec of it
        with_values = trace(kernel, [_copy(a) for a in kept], target=target, grid=grid, values=True)
        without = trace(kernel, [_spec(a) for a in kept], target=target, grid=grid)
        assert listing(with_values) == listing(without), "the modes of tracing differ"
        tensors = [_tensor(a) for a in kept if isinstance(a, np.ndarray | torch.Tensor)]
        expected = result if isinstance(result, tuple) else (result,)
        for program in (with_values, without):
            replayed = program.run([tensor.clone() for tensor in tensors])
            for one, other in zip(replayed, expected, strict=True):
                torch.testing.assert_close(one, _tensor(other), rtol=0, atol=0, equal_nan=True)
        compared.append(with_values.name)
        return result

    return call


def _tensor(value: Any) -> torch.Tensor:
    return from_numpy(value) if isinstance(value, np.ndarray) else value


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _spec(value: Any) -> Any:
    if isinstance(value, np.ndarray | torch.Tensor):
        return TensorSpec.of(_tensor(value))
    return value
