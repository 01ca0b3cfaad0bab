"""Symbols that are equal to others in every call that does not raise.

Each tensor of a growing cache has a symbol of its own for its length, and the mask may have one
more: Dynamo guards no equality. Attention needs keys, values and mask of one length, and a mask is
looked up at all its places. A tie is that equation, solved for one symbol; the executable compares
both sides in every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from trnx.fx_passes.nodes import aten, has_tensor, val
from trnx.fx_passes.padding.indexing import count_of_places
from trnx.fx_passes.region import Plan
from trnx.fx_passes.symbolic import depends_on_data, is_symbolic
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops
from trnx.nki_kernels.hints import hint_int


def find_ties(plan: Plan) -> dict[Any, Any]:
    """Symbol -> an expression of symbols that are not tied."""
    ties: dict[Any, Any] = {}
    for region in plan.regions:
        for node in region.nodes if region.match is not None else ():
            for one, other in _equal_sizes(node):
                _tie(one, other, ties)
    return ties


def _equal_sizes(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """Pairs of symbolic sizes that the op needs to be equal, or that a mask which is looked up at
    the places 0, 1, ... very likely has as many of."""
    for one, other in _candidates(node):
        if not is_symbolic(one) or not is_symbolic(other) or depends_on_data([one, other]):
            continue
        if hint_int(one) == hint_int(other):  # else a call as at capture would have no buckets
            yield one, other


def _candidates(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    if node.target is torch.ops.trnx.sdpa.default:
        _, k, v, mask = node.args[:4]
        length = val(k).shape[2]  # type: ignore[arg-type]
        yield val(v).shape[2], length  # type: ignore[arg-type]
        if has_tensor(mask):
            yield val(mask).shape[-1], length  # type: ignore[arg-type]
    elif node.target is aten.index.Tensor:
        data, indices = node.args
        for size, one in zip(val(data).shape, indices, strict=False):  # type: ignore[arg-type]
            count = count_of_places(one)
            if count is not None:
                yield size, count


def _tie(one: Any, other: Any, ties: dict[Any, Any]) -> None:
    form = one.node.expr.xreplace(ties)
    rest = sympy.expand(form - other.node.expr.xreplace(ties))
    for symbol in sorted(form.free_symbols, key=str):
        factor = rest.coeff(symbol)
        if factor in (1, -1) and symbol not in (rest - factor * symbol).free_symbols:
            equal = sympy.expand(symbol - factor * rest)
            for known, value in ties.items():
                ties[known] = value.xreplace({symbol: equal})
            ties[symbol] = equal
            return
