"""Proof that a Program computes an operator of torch: its steps are evaluated at integer points.

Where all that its steps do with the inputs is to move them, add and multiply them, and to blank
them by constant masks, each element of the results is a polynomial in the elements of the inputs.
One that is not the operator's differs from it at nearly all points: of points drawn from n values
for each element at most a share of (degree / n) is in common (Schwartz, Zippel). At small integers
every sum of float32 is exact, in whatever order its terms are added, so that both have to be equal
to the bit. Where a sum is too large for that they are not, and nothing is proven.

What is proven holds for finite numbers: infinity times the zero of a padding is NaN for who
multiplies them, and nothing for who leaves them out.

Functions of single elements (an activation, the root of a norm) may be anywhere in between: see
`any_functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType

import numpy as np
import torch

from trnx.simulator.language.operators import functions
from trnx.simulator.memory.storage import Step
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program import any_functions
from trnx.simulator.program.any_functions import AnyFunctions
from trnx.simulator.program.step_effects import EffectReader, Effects, parts_of

# Bits of a coordinate, and points. Two polynomials of degree 2 are taken for one in less than one
# of 4,000 cases, if a single element of the result is all in which they differ.
_BITS, _POINTS = 8, 2
# Where functions make factors of more products: integers of fewer bits, at more points.
_SMALL_BITS, _MORE_POINTS = 4, 4

_SUMS_AND_PRODUCTS = frozenset({
    torch.mm, torch.addmm, torch.add, torch.sub, torch.mul, torch.sum, functions.copy,
})  # fmt: skip
_NAMED = {"out", "dim", "keepdim"}
_METHODS = ("add_", "sub_", "mul_")

# Gives results in the form of the Program's from tensors like its inputs.
Operator = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Claim:
    """That a Program computes `operator`; `key` tells it from other claims."""

    key: str
    operator: Operator


def is_proven(
    claim: Claim,
    steps: Sequence[Step],
    reader: EffectReader,
    inputs: Sequence[TensorSpec],
    bind: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> bool:
    """True where the steps compute what is claimed. `bind` points them at inputs, and gives the
    tensors where they leave the results.
    """
    if any(spec.dtype is not torch.float32 for spec in inputs):
        return False
    effects = [reader.effects(step) for step in steps]
    known = [one for one in effects if one is not None]
    if len(known) < len(steps):
        return False
    kept = _Points()
    for point, expected in _points(claim, inputs):
        results = bind(point)
        kept.begin()
        for step, one in zip(steps, known, strict=True):
            if not _run(step, one, kept):
                return False
        if not _are_equal(results, expected):
            return False
    return True


def _points(
    claim: Claim, inputs: Sequence[TensorSpec]
) -> Iterator[tuple[list[torch.Tensor], Sequence[torch.Tensor]]]:
    """Points, and what the operator gives there."""
    generator = np.random.default_rng(0)

    def at_a_point(bits: int) -> tuple[list[torch.Tensor], Sequence[torch.Tensor]]:
        point = [_integers(spec, bits, generator) for spec in inputs]
        return point, claim.operator(point)

    with AnyFunctions() as functions:
        first = at_a_point(_BITS)
    if not functions.used:
        yield first
    count, bits = (_MORE_POINTS, _SMALL_BITS) if functions.used else (_POINTS - 1, _BITS)
    for _ in range(count):
        with AnyFunctions():
            found = at_a_point(bits)
        yield found


def _integers(spec: TensorSpec, bits: int, generator: np.random.Generator) -> torch.Tensor:
    """Odd integers of so many bits, signed: no product of them hides a term."""
    made = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="cpu")
    drawn = np.frombuffer(generator.bytes(made.numel()), np.int8) >> (8 - bits) | 1
    return made.copy_(torch.from_numpy(drawn).view(spec.shape))


def _are_equal(results: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> bool:
    return len(results) == len(found) and all(
        one.dtype is other.dtype is torch.float32 and torch.equal(one, other)
        for one, other in zip(results, found, strict=True)
    )


class _Points:
    """What has to hold at all points, in the order in which the steps come to it."""

    def __init__(self) -> None:
        self._known: list[tuple[torch.Tensor, ...]] = []
        self._at = 0
        self._is_first = False

    def begin(self) -> None:
        """A new point."""
        self._is_first, self._at = not self._known, 0

    def _before(self, found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The same at the points before; itself at the first."""
        if self._is_first:
            self._known.append(found)
            return found
        self._at += 1
        return self._known[self._at - 1]

    def has(self, found: torch.Tensor) -> bool:
        """Whether it has the same bits at each point."""
        bits = found.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
        return torch.equal(self._before((bits,))[0], bits)

    def are_apart(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether an element of one of them is zero at all points, if not both are."""
        used = (one != 0, other != 0)
        ever = [now | before for now, before in zip(used, self._before(used), strict=True)]
        return not bool((ever[0] & ever[1]).any())


def _run(step: Step, effects: Effects, kept: _Points) -> bool:
    """Run a step; False where its results may be no polynomials of the inputs."""
    if not effects.writes or any_functions.apply(step):
        return True  # a step that writes nothing only looks
    function, args, _ = parts_of(step)
    if function is torch.bitwise_and:
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        masks = [one for one in tensors if bool(((one == 0) | (one == -1)).all())]
        # The smaller one, where the other has nothing but zeros at this point.
        is_known = bool(masks) and kept.has(min(masks, key=torch.numel))
        step()
        return is_known
    if getattr(function, "__name__", "") == "bitwise_or_":
        # Of parts that masks have left of one tile: their sum.
        is_known = kept.are_apart(function.__self__, args[0])
        step()
        return is_known
    if _is_polynomial(step, effects):
        step()
        return True
    # Others may have to do with constants alone: what they read, and what they make of it.
    is_known = all(kept.has(one) for one in _tensors(step, effects.reads))
    step()
    return is_known and all(kept.has(one) for one in _tensors(step))


def _is_polynomial(step: Step, effects: Effects) -> bool:
    """True for moves, sums and products, which are exact for integers that are not too large."""
    if effects.move is not None:
        return True
    function, _, named = parts_of(step)
    if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, torch.Tensor):
        name = function.__name__
        if name in ("fill_", "zero_"):
            return True
        is_known = name in _METHODS and not named
    else:
        is_sum = function in _SUMS_AND_PRODUCTS
        is_known = is_sum and "out" in named and named.keys() <= _NAMED
    regions = (*effects.reads.values(), *effects.writes)
    return is_known and all(region.dtype is torch.float32 for region in regions)


def _tensors(step: Step, numbers: Collection[int] | None = None) -> Iterator[torch.Tensor]:
    """What a step is given, of which only the arguments with these numbers."""
    function, args, named = parts_of(step)
    given = (getattr(function, "__self__", None), *args, *named.values())
    for number, one in enumerate(given, -1):
        if numbers is not None and number not in numbers:
            continue
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, np.ndarray):
            yield torch.from_numpy(np.ascontiguousarray(one))
