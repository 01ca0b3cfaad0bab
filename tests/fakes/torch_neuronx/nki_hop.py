"""`nki_op` and `wrap_nki` (nki/get-started/about/index.rst, vllm-neuron/docs/model-dev)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class _Caller:
    """What `wrap_nki` returns: `caller[grid](*args, **kwargs)`."""

    def __init__(self, kernel: Any, grid: tuple[int, ...] = ()) -> None:
        self._kernel = kernel
        self._grid = grid

    def __getitem__(self, grid: Any) -> _Caller:
        return _Caller(self._kernel, tuple(grid) if isinstance(grid, (tuple, list)) else (grid,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = self._kernel[self._grid[0]] if self._grid else self._kernel
        return kernel(*args, **kwargs)


def wrap_nki(nki_kernel: Any, **kwargs: Any) -> Any:
    """A kernel as a callable that tracing sees."""
    del kwargs
    return _Caller(nki_kernel)


def nki_op(
    name: str, fn: Callable[..., Any] | None = None, mutates_args: str | Iterable[str] = {}
) -> Callable[..., Any]:
    """A custom operator whose implementation calls NKI kernels."""

    def registered(function: Callable[..., Any]) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=mutates_args)
        made = torch.library.custom_op(name, function, mutates_args=mutates_args, schema=schema)
        made.register_fake(function)  # as in 2.11: tracing compiles the kernel to learn shapes
        return made

    return registered if fn is None else registered(fn)
