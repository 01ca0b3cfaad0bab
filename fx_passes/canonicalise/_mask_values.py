"""What the elements of a mask are, by their places: read from the ops that make it.

Two kinds of tensors are known: `Index`, integers that grow evenly with the place, as `arange` and
what is added to it; and `Terms`, bools that say by the distance from query to key, and by masks
that are not known, who sees whom. Constants of up to `MAX_ELEMENTS` are computed, and compared with
both.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.canonicalise.evaluate_constants import MAX_ELEMENTS
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import real_values
from trnx.fx_passes.nodes import UNFILLED, aten, has_effect, has_tensor, is_factory, is_random, val
from trnx.fx_passes.symbolic import is_symbolic, known_equal, same_number

# A finite number that hides a key as -inf does, where the query sees another one.
_HIDING = -1.0e30


@dataclass(frozen=True)
class Index:
    """An integer at each place: `offset` plus `steps` times the place, by dim."""

    steps: tuple[int, ...]
    offset: int

    def over(self, ndim: int) -> tuple[int, ...]:
        """The steps of as many dims, as broadcasting aligns them."""
        return (0,) * (ndim - len(self.steps)) + self.steps


@dataclass(frozen=True)
class Terms:
    """True where `first <= key - query <= last` (None: no bound) and all of `others` are true; key
    and query are the last two dims."""

    first: int | None = None
    last: int | None = None
    others: tuple[fx.Node, ...] = ()

    def both(self, other: Terms) -> Terms:
        """The conjunction."""
        lows = [n for n in (self.first, other.first) if n is not None]
        highs = [n for n in (self.last, other.last) if n is not None]
        others = dict.fromkeys(self.others + other.others)
        return Terms(max(lows, default=None), min(highs, default=None), tuple(others))


Value = Index | Terms | None

_AND = frozenset({aten.bitwise_and.Tensor, aten.logical_and.default})
_COMPARISONS: dict[Any, str] = {
    overload: name
    for name in ("le", "lt", "ge", "gt", "eq")
    for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}
_SUMS: dict[Any, int] = {
    aten.add.Tensor: 1,
    aten.add.Scalar: 1,
    aten.sub.Tensor: -1,
    aten.sub.Scalar: -1,
}
_TRUE = frozenset({aten.ones.default, aten.new_ones.default, aten.ones_like.default})
# Places do not wrap around in these.
_WIDE = (torch.int64, torch.int32)
_COPIES = frozenset({aten._to_copy.default, aten.clone.default, aten.alias.default})


class MaskReader:
    """Values of the nodes of one graph."""

    def __init__(self) -> None:
        self._values: dict[fx.Node, Value] = {}
        self._tensors: dict[fx.Node, torch.Tensor | None] = {}

    def terms(self, mask: fx.Node) -> Terms:
        """What is known of a bool mask, or of a float one that hides what is not 0."""
        value = self._value(mask)
        return value if isinstance(value, Terms) else Terms(others=(mask,))

    def identity(self, node: fx.Node) -> fx.Node | None:
        """The tensor that an `index` node copies as it is, but for dims of size 1."""
        if node.target is not aten.index.Tensor:
            return None
        source, indices = call_arguments(node)
        if not has_tensor(source) or len(indices) != val(source).ndim:
            return None
        places = [self._value(i) if has_tensor(i) else None for i in indices]
        ndim, lowest = val(node).ndim, -1
        for dim, place in enumerate(places):
            if not isinstance(place, Index) or place.offset != 0:
                return None
            moving = [d for d, step in enumerate(place.over(ndim)) if step]
            if known_equal(val(source).shape[dim], 1) and not moving:
                continue
            if len(moving) != 1 or place.over(ndim)[moving[0]] != 1 or moving[0] <= lowest:
                return None
            lowest = moving[0]
            if not same_number(val(source).shape[dim], val(node).shape[lowest]):
                return None
        sizes = [s for s in val(source).shape if not known_equal(s, 1)]
        kept = [s for s in val(node).shape if not known_equal(s, 1)]
        same = len(sizes) == len(kept) and all(map(same_number, sizes, kept))
        return source if same else None

    def _value(self, node: Any) -> Value:
        if not has_tensor(node):
            return None
        if node not in self._values:
            self._values[node] = None
            value = self._read(node)
            if isinstance(value, Index):
                value = _without_single(value, node)
            self._values[node] = value
        return self._values[node]

    def _read(self, node: fx.Node) -> Value:
        tensor = self._tensor(node)
        if tensor is not None:
            return _fitted(tensor)
        if node.op != "call_function":
            return None
        dtype = val(node).dtype
        if dtype == torch.bool:
            return self._bool(node)
        return self._integer(node) if dtype in _WIDE else None

    # ------------------------------------------------------------------------------- integers

    def _integer(self, node: fx.Node) -> Value:
        target, arguments = node.target, call_arguments(node)
        ndim = val(node).ndim
        if target in (aten.arange.default, aten.arange.start, aten.arange.start_step):
            start = 0 if target is aten.arange.default else arguments[0]
            step = arguments[2] if target is aten.arange.start_step else 1
            return Index((step,), start) if _plain(start, step) else None
        if target in _SUMS:
            a, b = (self._operand(x) for x in arguments[:2])
            if a is None or b is None or arguments[2] != 1:
                return None
            return _sum(a, b, _SUMS[target], ndim)
        source = self._value(arguments[0]) if arguments else None
        if not isinstance(source, Index):
            return None
        if target in _COPIES:
            return source
        if target is aten.unsqueeze.default:
            place = arguments[1] % ndim
            return Index((*source.steps[:place], 0, *source.steps[place:]), source.offset)
        if target is aten.expand.default:
            return Index(source.over(ndim), source.offset)
        if target is aten.slice.Tensor:
            return _sliced(source, *arguments[1:])
        if target in (aten.view.default, aten._unsafe_view.default):
            return _viewed(source, arguments[0], node)
        return None

    def _operand(self, x: Any) -> Index | None:
        if isinstance(x, fx.Node):
            value = self._value(x)
            return value if isinstance(value, Index) else None
        return Index((), x) if _plain(x) else None

    # ---------------------------------------------------------------------------------- bools

    def _bool(self, node: fx.Node) -> Value:
        target, arguments = node.target, call_arguments(node)
        if target in _AND:
            return self._member(arguments[0]).both(self._member(arguments[1]))
        if target in _COMPARISONS:
            a, b = (self._operand(x) for x in arguments[:2])
            if a is None or b is None:
                return None
            return _compared(_sum(a, b, -1, val(node).ndim), _COMPARISONS[target])
        if target in _TRUE or (target is aten.full.default and arguments[1] is True):
            return Terms()
        source = self._value(arguments[0]) if arguments else None
        if not isinstance(source, Terms):
            return None
        if target in _COPIES:
            return source
        if target in (aten.bitwise_not.default, aten.logical_not.default):
            return _negated(source)
        if target in (aten.tril.default, aten.triu.default) and _plain(arguments[1]):
            below = target is aten.tril.default
            return source.both(Terms(None, arguments[1]) if below else Terms(arguments[1]))
        if target is aten.expand.default and all(val(o).ndim in (2, 4) for o in source.others):
            return source
        leading = target is aten.unsqueeze.default and arguments[1] % val(node).ndim < 2
        return source if leading and val(node).ndim >= 4 and not source.others else None

    def _member(self, node: Any) -> Terms:
        value = self._value(node)
        return value if isinstance(value, Terms) else Terms(others=(node,))

    # ------------------------------------------------------------------------------ constants

    def _tensor(self, node: fx.Node) -> torch.Tensor | None:
        """The value of a node that depends on constants alone and is not too large."""
        if node not in self._tensors:
            self._tensors[node] = None
            self._tensors[node] = self._computed(node)
        return self._tensors[node]

    def _computed(self, node: fx.Node) -> torch.Tensor | None:
        if not _is_small(node):
            return None
        if node.op == "get_attr":
            stored = operator.attrgetter(str(node.target))(node.graph.owning_module)
            return stored if type(stored) is torch.Tensor else None
        inputs = node.all_input_nodes
        if has_effect(node) or is_random(node) or node.target in UNFILLED:
            return None
        if node.op != "call_function" or not (is_factory(node) or inputs):
            return None
        if any(not has_tensor(n) or self._tensor(n) is None for n in inputs):
            return None
        with real_values():
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._tensors.__getitem__)
            value = node.target(*args, **kwargs)  # type: ignore[operator]
        return value if type(value) is torch.Tensor else None


def _plain(*numbers: Any) -> bool:
    return all(type(number) is int for number in numbers)


def _is_small(node: fx.Node) -> bool:
    if not has_tensor(node):
        return False
    value = val(node)
    if any(is_symbolic(size) for size in value.shape) or value.device.type != "cpu":
        return False
    return bool(value.numel() <= MAX_ELEMENTS)


def _without_single(index: Index, node: fx.Node) -> Index:
    """No steps along dims of size 1, which may be broadcast."""
    pairs = zip(index.steps, val(node).shape, strict=True)
    return Index(tuple(0 if known_equal(n, 1) else step for step, n in pairs), index.offset)


def _sum(a: Index, b: Index, sign: int, ndim: int) -> Index:
    pairs = zip(a.over(ndim), b.over(ndim), strict=True)
    return Index(tuple(x + sign * y for x, y in pairs), a.offset + sign * b.offset)


def _sliced(source: Index, dim: int, start: Any, _: Any, step: Any) -> Index | None:
    start = start or 0
    if not _plain(start, step) or start < 0:
        return None
    steps = list(source.steps)
    offset = source.offset + start * steps[dim]
    steps[dim] *= step
    return Index(tuple(steps), offset)


def _viewed(source: Index, inner: fx.Node, node: fx.Node) -> Index | None:
    """The index where a view adds or takes away dims of size 1."""
    steps = [
        s for s, n in zip(source.steps, val(inner).shape, strict=True) if not known_equal(n, 1)
    ]
    before = [n for n in val(inner).shape if not known_equal(n, 1)]
    after = [n for n in val(node).shape if not known_equal(n, 1)]
    if len(before) != len(after) or not all(map(same_number, before, after)):
        return None
    rest = iter(steps)
    return Index(
        tuple(0 if known_equal(n, 1) else next(rest) for n in val(node).shape), source.offset
    )


def _compared(difference: Index, name: str) -> Terms | None:
    """Where the difference compares with 0."""
    *rest, query, key = difference.over(max(2, len(difference.steps)))
    offset = difference.offset
    if any(rest) or key != -query or key not in (-1, 0, 1):
        return None
    if key == 0:
        return Terms() if getattr(operator, name)(offset, 0) else None
    if key < 0:  # query - key + offset: the comparison from the other side
        name = {"le": "ge", "ge": "le", "lt": "gt", "gt": "lt", "eq": "eq"}[name]
        offset = -offset
    bound = -offset
    return {
        "le": Terms(None, bound),
        "lt": Terms(None, bound - 1),
        "ge": Terms(bound, None),
        "gt": Terms(bound + 1, None),
        "eq": Terms(bound, bound),
    }[name]


def _negated(terms: Terms) -> Terms | None:
    if terms.others or (terms.first is None) == (terms.last is None):
        return None
    if terms.last is not None:
        return Terms(terms.last + 1, None)
    assert terms.first is not None
    return Terms(None, terms.first - 1)


def _fitted(tensor: torch.Tensor) -> Value:
    with real_values():
        if tensor.dtype == torch.bool:
            return _band(tensor)
        if tensor.dtype.is_floating_point:
            seen = tensor == 0
            hides = bool((seen | (tensor <= _HIDING)).all())
            safe = hides and bool((seen.any(-1, keepdim=True) | (tensor == -torch.inf)).all())
            return _band(seen) if safe else None
        return _evenly(tensor) if tensor.dtype in _WIDE else None


def _band(tensor: torch.Tensor) -> Terms | None:
    """The band of a mask that is the same for all heads and batch entries."""
    if tensor.numel() == 0:
        return None
    if tensor.all():
        return Terms()
    if tensor.ndim < 2 or 1 in tensor.shape[-2:]:
        return None
    plane = tensor.reshape(-1, *tensor.shape[-2:])[0]
    queries, keys = plane.shape
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    if not plane.any() or not (tensor == plane).all():
        return None
    first, last = int(distance[plane].min()), int(distance[plane].max())
    if not torch.equal(plane, (distance >= first) & (distance <= last)):
        return None
    return Terms(first if first > 1 - queries else None, last if last < keys - 1 else None)


def _evenly(tensor: torch.Tensor) -> Index | None:
    """The index that gives the same integers."""
    if tensor.numel() == 0:
        return None
    origin = (0,) * tensor.ndim
    offset = int(tensor[origin])
    steps: list[int] = []
    wanted = torch.full((), offset)
    for dim, size in enumerate(tensor.shape):
        place = (*origin[:dim], 1, *origin[dim + 1 :])
        steps.append(int(tensor[place]) - offset if size > 1 else 0)
        shape = [1] * tensor.ndim
        shape[dim] = size
        wanted = wanted + (torch.arange(size) * steps[-1]).reshape(shape)
    return Index(tuple(steps), offset) if bool((tensor == wanted).all()) else None
