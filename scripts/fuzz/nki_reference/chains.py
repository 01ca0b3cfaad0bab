"""Views of views: some of the methods of `NkiTensor` after each other.

A chain is drawn from its end. Each link knows the free dimensions that it has to give and chooses
those that it takes, so that the last link gives the dimensions asked for and the first one takes a
whole tensor. numpy's views of `arange` then say which elements the chain has. In the text `@` is
the tensor's name and `#` its partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_reference.choices import Choices
from nki_reference.numbers import Array

# Elements of a partition, and free dimensions, that the tensor under a chain has at most.
MOST, MOST_DIMS = 4096, 5


@dataclass(frozen=True)
class Link:
    """One method: the free dimensions it takes, its text, and what numpy makes of the indices."""

    sizes: tuple[int, ...]
    text: str
    apply: Callable[[Array], Array]


Sizes = tuple[int, ...]
Draw = Callable[[Choices, Sizes], Link | None]


def chain(c: Choices, room: int, sizes: Sizes, dst: bool) -> tuple[Sizes, str, Array]:
    """(shape of the tensor, text, indices [room, *sizes]) of one to four links."""
    links: list[Link] = []
    wanted = sizes
    for _ in range(c.integer(1, 4)):
        link = c.pick(DRAWS if dst else (*DRAWS, _broadcast))(c, wanted)
        if link is not None and math.prod(link.sizes) <= MOST and len(link.sizes) <= MOST_DIMS:
            links.insert(0, link)
            wanted = link.sizes
    if c.flag(30):
        links.insert(0, _merge(c, wanted))
        wanted = links[0].sizes
    index = np.arange(room * math.prod(wanted)).reshape(room, *wanted)
    text = "@"
    for link in links:
        index, text = link.apply(index), text + link.text
    if links and c.flag(25):
        text += _pattern(index)
    elif c.flag(25) and index.strides[-1] == index.itemsize:
        text += ".view(nl.uint8).view(@.dtype)"
    return (room, *wanted), text, index


def _pattern(index: Array) -> str:
    """The same elements by an access pattern, whose offset is the view's own."""
    steps = [stride // index.itemsize for stride in index.strides]
    free = "".join(f", [{s}, {n}]" for n, s in zip(index.shape[1:], steps[1:], strict=True))
    return f".ap(pattern=[[{steps[0]}, #]{free}])"


def _key(dim: int, ndim: int, item: str, c: Choices) -> str:
    """Brackets that index free dimension `dim` of `ndim` dimensions."""
    if dim == ndim - 1 and c.flag():
        return f"[..., {item}]"
    return f"[{':, ' * dim}{item}]"


def _slice(c: Choices, sizes: Sizes) -> Link:
    dim = c.integer(0, len(sizes) - 1)
    count, step, start = sizes[dim], c.integer(1, 2), c.integer(0, 2)
    stop = start + step * (count - 1) + 1
    taken = (*sizes[:dim], stop + c.integer(0, 2), *sizes[dim + 1 :])
    cut = (slice(None),) * (dim + 1) + (slice(start, stop, step),)
    form = c.pick(("method", "brackets", "ds" if step == 1 else "brackets", "negative"))
    if form == "method":
        text = f".slice({dim + 1}, {start}, {stop}, {step})"
    elif form == "ds":
        text = _key(dim + 1, len(sizes) + 1, f"nl.ds({start}, {count})", c)
    else:
        last = str(stop - taken[dim]) if form == "negative" and stop < taken[dim] else str(stop)
        text = _key(dim + 1, len(sizes) + 1, f"{start}:{last}:{step}", c)
    return Link(taken, text, lambda index: index[cut])


def _select(c: Choices, sizes: Sizes) -> Link:
    dim, count = c.integer(0, len(sizes)), c.integer(1, 3)
    at = c.integer(0, count - 1)
    taken = (*sizes[:dim], count, *sizes[dim:])
    text = f".select({dim + 1}, {at})"
    if c.flag():
        text = _key(dim + 1, len(taken) + 1, str(c.pick((at, at - count))), c)
    key: tuple[Any, ...] = (*(slice(None),) * (dim + 1), at)
    return Link(taken, text, lambda index: index[key])


def _squeeze(c: Choices, sizes: Sizes) -> Link:
    dim = c.integer(0, len(sizes))
    taken = (*sizes[:dim], 1, *sizes[dim:])
    return Link(taken, f".squeeze_dim({dim + 1})", lambda index: index.squeeze(dim + 1))


def _expand(c: Choices, sizes: Sizes) -> Link | None:
    ones = [dim for dim, size in enumerate(sizes) if size == 1]
    if not ones or len(sizes) == 1:
        return None
    dim = c.pick(ones)
    taken = (*sizes[:dim], *sizes[dim + 1 :])
    return Link(taken, f".expand_dim({dim + 1})", lambda index: np.expand_dims(index, dim + 1))


def _split(c: Choices, sizes: Sizes) -> Link | None:
    """Two dimensions that were one."""
    if len(sizes) == 1:
        return None
    dim = c.integer(0, len(sizes) - 2)
    pair = sizes[dim : dim + 2]
    taken = (*sizes[:dim], math.prod(pair), *sizes[dim + 2 :])
    parts = c.pick((pair, (pair[0], -1), (-1, pair[1])))
    names = ("a", "b", "c", "d", "e", "f")[: len(taken)]
    text = f".reshape_dim({dim + 1}, {parts})"
    if c.flag(40):
        before: list[object] = ["p", *names]
        before[dim + 1] = ("x", "y")
        after = ("p", *names[:dim], "x", "y", *names[dim + 1 :])
        text = f".rearrange({tuple(before)}, {after}, {{'x': {pair[0]}}})"
    return Link(taken, text, lambda index: index.reshape(len(index), *sizes))


def _permute(c: Choices, sizes: Sizes) -> Link | None:
    if len(sizes) == 1:
        return None
    order = list(range(len(sizes)))
    shift = c.integer(1, len(order) - 1)
    order = order[shift:] + order[:shift]
    taken: list[int] = [0] * len(sizes)
    for new, old in enumerate(order):
        taken[old] = sizes[new]
    axes = (0, *(axis + 1 for axis in order))
    text = f".permute({axes})"
    if c.flag(40):
        names = ("p", "a", "b", "c", "d", "e", "f")[: len(axes)]
        text = f".rearrange({names}, {tuple(names[axis] for axis in axes)})"
    return Link(tuple(taken), text, lambda index: index.transpose(axes))


def _broadcast(c: Choices, sizes: Sizes) -> Link | None:
    dim = c.integer(0, len(sizes) - 1)
    if sizes[dim] == 1:
        return None
    taken = (*sizes[:dim], 1, *sizes[dim + 1 :])
    return Link(
        taken,
        f".broadcast({dim + 1}, {sizes[dim]})",
        lambda index: np.broadcast_to(index, (len(index), *sizes)),
    )


def _merge(c: Choices, sizes: Sizes) -> Link:
    """One dimension that was two; only of a whole tensor, whose dimensions lie close."""
    dim = c.integer(0, len(sizes) - 1)
    count = sizes[dim]
    first = c.pick([d for d in range(1, min(count, 16) + 1) if count % d == 0])
    taken = (*sizes[:dim], first, count // first, *sizes[dim + 1 :])
    text = f".flatten_dims({dim + 1}, {dim + 2})"
    if c.flag(40):
        text = f".reshape((#{''.join(f', {size}' for size in sizes)}))"
    return Link(taken, text, lambda index: index.reshape(len(index), *sizes))


DRAWS: Sequence[Draw] = (_slice, _slice, _select, _select, _squeeze, _expand, _split, _permute)
