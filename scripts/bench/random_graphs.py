"""Random graphs of pointwise ops and reductions, for `generated.py`: a seed gives the same ones.

A graph computes on one tensor of 1 to 4 axes in any order in memory, with up to two more operands
that lack some of its axes or lie in another order. It is a chain, a copy, or a reduction over any
axes, alone or between two chains, whose result may be broadcast back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

# Sizes that axes of models have, and ragged ones.
_SIZES = (2, 3, 4, 7, 8, 12, 16, 28, 32, 50, 56, 64, 96, 112, 127, 128, 129, 197, 256, 512, 1000)
_DTYPES = (torch.float32, torch.bfloat16)
_MEGABYTE = 2**20


class Step(NamedTuple):
    """`function(x, y, dims)`; the least passes of VectorE and ScalarE over x, and the `functions`
    that ScalarE alone has. `operand`: y is another input."""

    function: Callable[[Any, Any, Any], torch.Tensor]
    vector: float = 0.0
    scalar: float = 0.0
    operand: bool = False
    reduces: bool = False
    functions: tuple[str, ...] = ()


def _rms(x: torch.Tensor, _: Any, dims: Any) -> torch.Tensor:
    return x / (x.pow(2).mean(dims, keepdim=True) + 1e-5).sqrt()


def _logsumexp(x: torch.Tensor, _: Any, dims: Any) -> torch.Tensor:
    most = x.amax(dims, keepdim=True)
    return (x - most).exp().sum(dims, keepdim=True).log() + most


def _softmax(x: torch.Tensor, _: Any, dims: Any) -> torch.Tensor:
    weights = (x - x.amax(dims, keepdim=True)).exp()
    return weights / weights.sum(dims, keepdim=True)


# Two ops with numbers are one instruction of VectorE.
_POINTWISE = {
    "relu": Step(lambda x, _, __: x.relu(), 0.5),
    "abs": Step(lambda x, _, __: x.abs(), 0.5),
    "add number": Step(lambda x, _, __: x + 0.5, 0.5),
    "mul number": Step(lambda x, _, __: x * 1.25, 0.5),
    "sigmoid": Step(lambda x, _, __: x.sigmoid(), 0, 1, functions=("sigmoid",)),
    "tanh": Step(lambda x, _, __: x.tanh(), 0, 1, functions=("tanh",)),
    "silu": Step(lambda x, _, __: torch.nn.functional.silu(x), 0, 1, functions=("silu",)),
}
_WITH_OPERAND = {
    "add": Step(lambda x, y, _: x + y, 1, operand=True),
    "sub": Step(lambda x, y, _: x - y, 1, operand=True),
    "mul": Step(lambda x, y, _: x * y, 1, operand=True),
    "maximum": Step(lambda x, y, _: torch.maximum(x, y), 1, operand=True),
}
_REDUCTIONS = {
    "sum": Step(lambda x, _, dims: x.sum(dims, keepdim=True), 1, reduces=True),
    "mean": Step(lambda x, _, dims: x.mean(dims, keepdim=True), 1, reduces=True),
    "amax": Step(lambda x, _, dims: x.amax(dims, keepdim=True), 1, reduces=True),
    "mean without its axes": Step(lambda x, _, dims: x.mean(dims), 1, reduces=True),
    "logsumexp": Step(_logsumexp, 1, 1, reduces=True, functions=("exp", "log")),
}
_BACK = {
    "centre": Step(lambda x, _, dims: x - x.mean(dims, keepdim=True), 2),
    # One product with the reciprocal root, of a sum that no engine adds up in eager's order.
    "rms": Step(_rms, 1, 1),
    "softmax": Step(_softmax, 2, 1, functions=("exp",)),
}
_COPY = {"copy": Step(lambda x, _, __: x.clone(memory_format=torch.contiguous_format))}
_STEPS = {**_POINTWISE, **_WITH_OPERAND, **_REDUCTIONS, **_BACK, **_COPY}


class Operand(NamedTuple):
    """A tensor: its shape, with 1 where it is broadcast; `order` are its axes in memory."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    def make(self, dtype: torch.dtype, generator: torch.Generator | None) -> torch.Tensor:
        """A tensor of random values; under a fake mode one without."""
        lies = torch.randn([self.shape[i] for i in self.order], generator=generator)
        return lies.to(dtype).permute([self.order.index(i) for i in range(len(self.order))])


@dataclass(frozen=True)
class Graph:
    """`steps`, names and the index of the operand, are applied in order to the first operand."""

    operands: tuple[Operand, ...]
    dtype: torch.dtype
    steps: tuple[tuple[str, int], ...]
    dims: tuple[int, ...]

    def __str__(self) -> str:
        lies = "; ".join(f"{list(o.shape)} in order {list(o.order)}" for o in self.operands)
        names = ", ".join(f"{name} x{at}" if at else name for name, at in self.steps)
        over = f" over {list(self.dims)}" if any(_over(name) for name, _ in self.steps) else ""
        return f"{names}{over} of {str(self.dtype)[6:]} {lies}"

    @property
    def kind(self) -> str:
        """The class that the graph belongs to in tables."""
        names = [name for name, _ in self.steps]
        found = next((n for n in names if n in _BACK or n in _REDUCTIONS or n in _COPY), "chain")
        return found.partition(" ")[0]

    def inputs(self, generator: torch.Generator | None = None) -> list[torch.Tensor]:
        """Tensors for a call."""
        return [operand.make(self.dtype, generator) for operand in self.operands]

    def small(self, size: int) -> Graph:
        """The same graph with axes of at most `size` elements."""
        cut = (o._replace(shape=tuple(min(n, size) for n in o.shape)) for o in self.operands)
        return replace(self, operands=tuple(cut))

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The result in eager."""
        x = inputs[0]
        for name, at in self.steps:
            x = _STEPS[name].function(x, inputs[at], list(self.dims))
        return x

    @property
    def functions(self) -> frozenset[str]:
        """Those that ScalarE alone has. A root is none of them: VectorE has powers."""
        return frozenset(f for name, _ in self.steps for f in _STEPS[name].functions)

    def passes(self) -> tuple[float, float]:
        """Least passes of VectorE and ScalarE over the first operand."""
        vector = scalar = 0.0
        whole = shape = self.operands[0].shape
        for name, at in self.steps:
            step = _STEPS[name]
            if step.operand:  # one that lacks axes brings back those that it has
                shape = tuple(map(max, shape, self.operands[at].shape))
            share = math.prod(shape) / math.prod(whole)
            vector += share * step.vector
            scalar += share * step.scalar
            if step.reduces:
                shape = tuple(1 if i in self.dims else n for i, n in enumerate(shape))
        return vector, scalar


def _over(name: str) -> bool:
    return name in _REDUCTIONS or name in _BACK


def _draw(source: random.Random) -> Graph:
    dtype = source.choice(_DTYPES)
    shape = _shape(source, dtype)
    rank = len(shape)
    dims = tuple(sorted(source.sample(range(rank), source.randint(1, rank))))
    steps = _steps(source)
    others = max(at for _, at in steps)
    operands = [Operand(shape, _order(source, rank))]
    operands += [_other(source, shape, operands[0].order) for _ in range(others)]
    return Graph(tuple(operands), dtype, steps, dims)


def _shape(source: random.Random, dtype: torch.dtype) -> tuple[int, ...]:
    """1 to 4 axes, of 0.5 to 24 MB: with a result and operands 1 to 64 MB or a little more."""
    elements = int(2 ** source.uniform(-1, 4.6) * _MEGABYTE) // dtype.itemsize
    sizes: list[int] = []
    for _ in range(source.randint(1, 4) - 1):
        fitting = [s for s in _SIZES if s * math.prod(sizes) * 2 <= elements]
        if fitting:
            sizes.append(source.choice(fitting))
    sizes.append(elements // math.prod(sizes))
    source.shuffle(sizes)
    return tuple(sizes)


def _order(source: random.Random, rank: int) -> tuple[int, ...]:
    """Half of all tensors lie row-major."""
    axes = list(range(rank))
    if source.random() < 0.5:
        source.shuffle(axes)
    return tuple(axes)


def _other(source: random.Random, shape: tuple[int, ...], order: tuple[int, ...]) -> Operand:
    """An operand of all axes in the same order or another one, or of some axes."""
    if source.random() < 0.4:
        return Operand(shape, source.choice((order, _order(source, len(shape)))))
    cut = tuple(size if source.random() < 0.5 else 1 for size in shape)
    return Operand(cut, tuple(range(len(shape))))


def _steps(source: random.Random) -> tuple[tuple[str, int], ...]:
    kind = source.choice(("chain", "copy", "reduce", "reduce", "back", "both"))
    if kind == "copy":
        return (("copy", 0),)
    names = _chain(source, 1 if kind == "chain" else 0)
    if kind in ("reduce", "both"):
        names.append(source.choice(list(_REDUCTIONS)[: 3 if kind == "both" else None]))
        if kind == "both":
            names += _chain(source, 1)
    if kind == "back":
        names += [source.choice(list(_BACK)), *_chain(source, 0)]
    steps: list[tuple[str, int]] = []
    others = 0
    for name in names:
        others += _STEPS[name].operand
        steps.append((name, min(2, others) if _STEPS[name].operand else 0))
    return tuple(steps)


def _chain(source: random.Random, least: int) -> list[str]:
    """Up to three pointwise ops, every other one with an operand."""
    tables = (_POINTWISE, _WITH_OPERAND)
    return [source.choice(list(source.choice(tables))) for _ in range(source.randint(least, 3))]


def graphs(seed: int, count: int) -> Iterator[Graph]:
    """`count` graphs; those of a smaller count are the first ones of a larger one."""
    source = random.Random(seed)
    for _ in range(count):
        yield _draw(source)
