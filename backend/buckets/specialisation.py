"""A plan for one set of buckets: padded regions prepared once for all sizes of these buckets.

NKI regions that must see exact sizes are prepared for those of a call, and kept; those that no
padded size enters serve all calls.
"""

from __future__ import annotations

from typing import Any

from trnx.backend.buckets.function import BucketFunction
from trnx.backend.inputs import Inputs, InputSpecs
from trnx.backend.shapes import Number, Symbols
from trnx.backend.specialisation import KernelFactory, PreparedPlan, Result
from trnx.backend.torch_internals import is_profiling
from trnx.simulator.lru_cache import LruCache

# Sets of exact sizes that a specialisation remembers, each with some numbers and specs.
KNOWN_SIZES = 256


class BucketSpecialisation(PreparedPlan):
    """Callable with the list of the graph's inputs, which it empties, and the exact symbols.

    `symbols` are the sizes of the buckets. Raises CannotPadError, UnknownSizeError.
    """

    def __init__(
        self,
        function: BucketFunction,
        results: tuple[Result, ...],
        symbols: Symbols,
        make_kernel: KernelFactory,
        specs: InputSpecs,
    ) -> None:
        self._specs = specs
        self._prepare(results, function.regions, symbols, make_kernel)
        self._numbers = function.numbers
        self._module = function.module
        forward, self._sizes = function.bound(symbols, self.kernels)
        self._set_function(forward)
        self._known: LruCache[tuple[tuple[Number, ...], Inputs]] = LruCache(KNOWN_SIZES)

    def __call__(self, args: list[Any], exact: tuple[Number, ...], symbols: Symbols) -> list[Any]:
        numbers, inputs = self._known.get_or_make(exact, lambda: self._of(symbols))
        inputs.admit(args)
        frame = self._frames.take()
        try:
            run = self._named if is_profiling() else self._direct
            outputs: list[Any] = run(frame, args, numbers, self._sizes)
        finally:
            self._frames.give_back(frame)
        return outputs

    def _of(self, symbols: Symbols) -> tuple[tuple[Number, ...], Inputs]:
        return self._numbers.evaluate(symbols), Inputs(self._specs, symbols)
