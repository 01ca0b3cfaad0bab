"""Kernels of a region on buckets that must see the exact sizes of each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trnx.backend.kernel_call import KernelCall, Place
from trnx.backend.shapes import Number, concrete_spec
from trnx.backend.specialisation import KernelFactory
from trnx.fx_passes.numbers import region_symbols
from trnx.fx_passes.region import Region
from trnx.simulator.lru_cache import LruCache

# Of one region.
EXACT_KERNELS = 32


class ExactKernels:
    """A kernel for each set of the sizes that a region reads, the last ones kept. Called with the
    numbers of a call, which begin with those of `symbols`, and the region's values."""

    def __init__(self, region: Region, symbols: Sequence[Any], make_kernel: KernelFactory) -> None:
        assert region.match is not None
        self._region = region
        read = region_symbols(region)
        self._symbols = [(i, symbol) for i, symbol in enumerate(symbols) if symbol in read]
        self._make = make_kernel
        self._known: LruCache[KernelCall] = LruCache(EXACT_KERNELS)

    def __call__(self, numbers: tuple[Number, ...], *values: Any) -> list[torch.Tensor]:
        key = tuple(numbers[place] for place, _ in self._symbols)
        return self._known.get_or_make(key, lambda: self._kernel(key))([], *values)

    def _kernel(self, key: tuple[Number, ...]) -> KernelCall:
        symbols = {s: number for (_, s), number in zip(self._symbols, key, strict=True)}
        assert self._region.match is not None
        places = {
            node: Place(concrete_spec(node.meta["val"], symbols), None)
            for node in self._region.match.results
            if node is not None
        }
        return self._make(self._region, places, symbols)
