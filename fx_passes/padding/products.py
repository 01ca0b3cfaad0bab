"""The rules of ops that sum over a dimension of two operands, and of look-ups in a table.

A sum over padding needs zeros in both factors, because zero times NaN is NaN. Attention needs a
mask besides that hides the keys in the padding, or to be causal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.nodes import has_tensor, val
from trnx.fx_passes.padding.layouts import (
    Axis,
    Layout,
    Operands,
    RefusedError,
    no_padding_in,
    same_sizes,
)


def _contracted(
    a: tuple[Any, int], b: tuple[Any, int], operands: Operands
) -> None:  # fmt: skip
    """The dimension over which a product sums: its padding needs zeros in both factors."""
    for node, dim in (a, b):
        axis = operands.layout(node)[dim]
        if axis.is_padded:
            operands.need_zeros(node, dim % val(node).ndim)
    if not same_sizes(operands.layout(a[0])[a[1]], operands.layout(b[0])[b[1]]):
        raise RefusedError("the factors of a product have their padding at different places")


def linear(node: fx.Node, operands: Operands) -> Layout:
    """Rows of `x` times rows of the weight."""
    x, weight = node.args[:2]
    bias = node.args[2] if len(node.args) > 2 else None
    _contracted((x, -1), (weight, -1), operands)
    column = operands.layout(weight)[0]
    if has_tensor(bias) and not same_sizes(operands.layout(bias)[0], column):
        raise RefusedError("operands have their padding at different places")
    rows = (*operands.layout(x)[:-1], column)
    return tuple(replace(axis, fill=None) for axis in rows)


def bmm(node: fx.Node, operands: Operands) -> Layout:
    """One product for each place of the first dimension."""
    a, b = node.args[:2]
    _contracted((a, 2), (b, 1), operands)
    first, second = operands.layout(a), operands.layout(b)
    if not same_sizes(first[0], second[0]):
        raise RefusedError("operands have their padding at different places")
    return tuple(replace(axis, fill=None) for axis in (first[0], first[1], second[2]))


def embedding(node: fx.Node, operands: Operands) -> Layout:
    """Rows of a table by their index."""
    table, index = node.args[:2]
    no_padding_in([table], operands, node)
    layout = operands.layout(index)
    if any(axis.is_padded for axis in layout):
        operands.need_valid(index)  # type: ignore[arg-type]
    width = operands.layout(table)[1]
    return (*(replace(axis, fill=None) for axis in layout), width)


def sdpa(node: fx.Node, operands: Operands) -> tuple[Layout, ...]:
    """Attention: the padding of keys is hidden, and holds zeros; see the module's docstring."""
    q, k, v, mask, dropout_mask, dropout, is_causal = node.args[:7]
    if dropout or dropout_mask is not None:
        raise RefusedError("attention with dropout draws random numbers")
    layouts = queries, keys, values = tuple(operands.layout(one) for one in (q, k, v))
    if any(layout[d].is_padded for layout in layouts for d in (1, 3)):
        raise RefusedError("attention has a padded dimension of heads")
    if not (same_sizes(queries[0], keys[0]) and same_sizes(keys[0], values[0])):
        raise RefusedError("operands have their padding at different places")
    if not same_sizes(keys[2], values[2]):
        raise RefusedError("keys and values have their padding at different places")
    if is_causal and (queries[2].has_parts or keys[2].has_parts):
        raise RefusedError("causal attention goes by places, which lie apart in the padded keys")
    if mask is not None:
        _check_mask(operands, mask, queries, keys)
    if keys[2].is_padded:
        _check_keys(operands, mask, is_causal, queries[2], keys[2])
        operands.need_zeros(k, 2)  # type: ignore[arg-type]
        operands.need_zeros(v, 2)  # type: ignore[arg-type]
    out = (queries[0], queries[1], queries[2], values[3])
    plain = tuple(replace(axis, fill=None) for axis in out)
    return plain, plain[:3]


def _check_mask(operands: Operands, mask: Any, queries: Layout, keys: Layout) -> None:
    wanted = (queries[0], queries[1], queries[2], keys[2])[4 - val(mask).ndim :]
    for dim, other in enumerate(wanted):
        if operands.layout(mask)[dim].is_padded:
            operands.need_like(mask, dim, other)


def _check_keys(
    operands: Operands, mask: Any, is_causal: Any, queries: Axis, keys: Axis
) -> None:  # fmt: skip
    """A good query must not see the keys in the padding."""
    if is_causal and queries.is_one_size and same_sizes(queries, keys):
        return  # a query sees the keys up to its own place; a window hides some of them
    if mask is None:
        raise RefusedError("attention has neither a mask over its padded keys nor as many queries")
    if not operands.layout(mask)[-1].is_padded:
        raise RefusedError("the mask of attention is one for all of its padded keys")
    hides = -torch.inf if val(mask).dtype.is_floating_point else False
    operands.need_fill(mask, val(mask).ndim - 1, hides)
