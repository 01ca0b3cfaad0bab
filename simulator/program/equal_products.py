"""Whether a matrix product gives the same bits where its factors lie otherwise.

BLAS packs large factors, and then adds the terms of a sum in one order however they lay. For small
ones it has other means, which differ by layout, and by where memory begins (oneMKL: fewer than
eight rows or four columns, as tried). No document says where the border is. So products of few rows
or columns are never taken for equal, and others are computed: with random terms, another order of
additions differs in some of a few thousand sums.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from trnx.simulator.memory.views import Shape, last_element
from trnx.simulator.precision import FullPrecision
from trnx.simulator.program.regions import Region, is_gapless
from trnx.simulator.program.step_effects import Effects

_DTYPES = (torch.float32, torch.float64)
# Sums that are compared for each layout, and draws for them at the most.
_SUMS, _MOST_DRAWS = 4096, 64
# Rows and columns that a product has at least.
_LEAST = 16
# A caller's memory may begin anywhere: elements before the first of each factor.
_SHIFTS = ((0, 0), (0, 1), (1, 0), (2, 3), (3, 8), (8, 2))


class _Layout(NamedTuple):
    shape: Shape
    strides: Shape


# Of the first factor and of the second: as recorded, and where it may be read instead.
_Layouts = tuple[tuple[_Layout, ...], ...]


def are_equal(effects: Effects, places: Mapping[int, Region]) -> bool:
    """True where the product whose `effects` these are gives the same bits with any of its factors
    at these places: by the number of the argument.
    """
    (out,) = effects.writes
    factors = [(effects.reads[at], places.get(at)) for at in effects.factors]
    regions = [one for parts in factors for one in parts if one is not None]
    if out.dtype not in _DTYPES or any(one.dtype is not out.dtype for one in regions):
        return False
    if min(out.shape) < _LEAST or not all(map(is_gapless, regions)):
        return False
    layouts = tuple(
        tuple(dict.fromkeys(_Layout(one.shape, one.strides) for one in parts if one is not None))
        for parts in factors
    )
    is_added = effects.factors[0] != 0
    return _are_equal(out.dtype, is_added, layouts, torch.get_num_threads())


@functools.lru_cache(maxsize=512)
def _are_equal(dtype: torch.dtype, is_added: bool, layouts: _Layouts, threads: int) -> bool:
    """Of all layouts of the first factor with all of the second. BLAS may share the terms of a sum
    out among its threads.
    """
    del threads
    shapes = [parts[0].shape for parts in layouts]
    out = (shapes[0][0], shapes[1][1])
    generator = torch.Generator(device="cpu").manual_seed(0)
    with torch.inference_mode(False), torch.no_grad(), FullPrecision():
        for _ in range(min(_MOST_DRAWS, math.ceil(_SUMS / max(1, math.prod(out))))):
            *factors, start = (
                torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
                for shape in (*shapes, out)
            )
            made = [_product(start, is_added, *pair) for pair in _pairs(factors, layouts)]
            if not all(torch.equal(made[0], other) for other in made):
                return False
    return True


def _product(
    start: torch.Tensor, is_added: bool, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    out = start.clone()
    if is_added:
        return torch.addmm(out, first, second, out=out)
    return torch.mm(first, second, out=out)


def _pairs(
    factors: Sequence[torch.Tensor], layouts: _Layouts
) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same two factors in all layouts, as recorded first."""
    for shifts, chosen in itertools.product(_SHIFTS, itertools.product(*layouts)):
        yield tuple(map(_laid, factors, chosen, shifts))


def _laid(factor: torch.Tensor, layout: _Layout, shift: int) -> torch.Tensor:
    elements = shift + last_element(*layout) + 1
    memory = torch.zeros(elements, dtype=factor.dtype, device="cpu")
    return memory.as_strided(*layout, shift).copy_(factor)
