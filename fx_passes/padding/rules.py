"""One rule for each op: where the padding of its results lies, if good elements stay good.

A rule proves that the good elements of the results depend on good elements of the operands alone,
whatever the padding holds (NaN included), or says what the padding of an operand has to hold:

* an elementwise op, and one that works along dimensions without padding, has nothing to fear;
* a sum over padding, as in a matrix product, needs zeros there, in both factors of a product; a
  softmax or another reduction needs what adds nothing to it, as -inf to a maximum;
* an index has to be valid in the padding too;
* attention needs a mask that is False (or -inf) there, and keys and values of zero, because a
  probability of zero times NaN is NaN.

A size that is an argument of an op enters its values, unless the op is a view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.metadata import real_values
from trnx.fx_passes.nodes import aten, has_tensor, is_pointwise, is_random, op_name, val
from trnx.fx_passes.padding.images import IMAGE_OPS, by_image
from trnx.fx_passes.padding.indexing import index
from trnx.fx_passes.padding.joined import cat
from trnx.fx_passes.padding.layouts import (
    Axis,
    Fill,
    Layout,
    Operands,
    RefusedError,
    axis_of,
    broadcast,
    no_padding,
    no_padding_in,
    padded_with_zeros,
    reshaped,
)
from trnx.fx_passes.padding.products import bmm, embedding, linear, sdpa
from trnx.fx_passes.symbolic import same_number
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

Result = Layout | tuple[Layout, ...]
Rule = Callable[[fx.Node, Operands], Result]

trnx_ops = torch.ops.trnx


def apply_rule(node: fx.Node, operands: Operands) -> Result:
    """The layout of the result, or those of all results. Raises RefusedError."""
    if is_random(node):
        raise RefusedError(f"{op_name(node)} draws random numbers, whose places a size changes")
    rule = _RULES.get(node.target)
    if rule is None and is_pointwise(node):
        rule = _pointwise
    if rule is None:
        raise RefusedError(f"there is no rule for {op_name(node)} yet")
    if node.target not in _TAKE_SIZES and _has_padded((node.args, node.kwargs), operands):
        raise RefusedError(f"a size enters the values of {op_name(node)}")
    return rule(node, operands)


def _has_padded(arguments: Any, operands: Operands) -> bool:
    found: list[Any] = []
    fx.node.map_aggregate(arguments, found.append)
    values = [one.meta.get("val") if isinstance(one, fx.Node) else one for one in found]
    return any(operands.padded.enter(value) for value in values)


# ---- elementwise


def _pointwise(node: fx.Node, operands: Operands) -> Layout:
    given = [operands.layout(arg) for arg in node.all_input_nodes if has_tensor(arg)]
    return tuple(
        replace(axis, fill=_folded(node, operands, dim)) if axis.is_padded else axis
        for dim, axis in enumerate(broadcast(given, val(node).ndim))
    )


_AND = frozenset({aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.logical_and.default})
_WHERE = frozenset(
    {aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar}
)


class _Good:
    """Stands for good elements, of which nothing is known."""


def _folded(node: fx.Node, operands: Operands, dim: int) -> Fill | None:
    """What the padding along `dim` of an elementwise result holds, where that follows exactly."""
    ndim = val(node).ndim

    def fill(arg: Any) -> Any:
        if not has_tensor(arg):
            return arg
        place = dim - ndim + val(arg).ndim
        axis = operands.layout(arg)[place] if place >= 0 else Axis(())
        return axis.fill if axis.is_padded and axis.fill is not None else _Good

    values = [fill(arg) for arg in node.args]
    is_bool = val(node).dtype is torch.bool
    if node.target in _AND and is_bool and any(value is False or value == 0 for value in values):
        return False
    if node.target in _WHERE:
        condition, yes, no = values
        chosen = None if condition is _Good else (yes if condition else no)
        return chosen if isinstance(chosen, (bool, int, float)) else None
    if node.target is aten.clone.default:
        return None if values[0] is _Good else values[0]
    # Arithmetic of kernels may round another way; comparisons and conversions do not.
    is_exact = is_bool or node.target is aten._to_copy.default
    if not is_exact or not all(isinstance(value, (bool, int, float)) for value in values):
        return None
    with real_values():
        tensors = [
            torch.tensor(value, dtype=arg.meta["val"].dtype) if isinstance(arg, fx.Node) else value
            for arg, value in zip(node.args, values, strict=True)
        ]
        assert callable(node.target)
        known: Fill = node.target(*tensors, **node.kwargs).item()
        return known


def _full_like(node: fx.Node, operands: Operands) -> Layout:
    """One number everywhere, as far as the operand reaches."""
    value = node.args[1]
    fill = value if isinstance(value, (bool, int, float)) else None
    layout = operands.layout(node.args[0])
    return tuple(replace(axis, fill=fill if axis.is_padded else None) for axis in layout)


# ---- views


def _view(node: fx.Node, operands: Operands) -> Layout:
    return reshaped(operands.layout(node.args[0]), val(node).shape, operands.padded)


def _transpose(node: fx.Node, operands: Operands) -> Layout:
    layout = list(operands.layout(node.args[0]))
    _, a, b = (*node.args,)
    layout[a], layout[b] = layout[b], layout[a]  # type: ignore[index]
    return tuple(layout)


def _permute(node: fx.Node, operands: Operands) -> Layout:
    layout = operands.layout(node.args[0])
    return tuple(layout[dim] for dim in node.args[1])  # type: ignore[union-attr,index]


def _expand(node: fx.Node, operands: Operands) -> Layout:
    """New places repeat the elements, good ones and padding."""
    given, result = operands.layout(node.args[0]), val(node)
    layout = [*[Axis(())] * (result.ndim - len(given)), *given]
    source = [*[1] * (result.ndim - len(given)), *val(node.all_input_nodes[0]).shape]
    repeated = padded_with_zeros(result, operands.padded)
    return tuple(
        axis if same_number(size, new) else replace(repeated[dim], fill=None)
        for dim, (axis, size, new) in enumerate(zip(layout, source, result.shape, strict=True))
    )


def _slice(node: fx.Node, operands: Operands) -> Layout:
    """A slice of a dimension without padding, or all of one."""
    layout = operands.layout(node.args[0])
    dim = int(node.args[1]) if len(node.args) > 1 else 0  # type: ignore[arg-type]
    result, given = val(node), val(node.args[0])  # type: ignore[arg-type]
    if same_number(result.shape[dim], given.shape[dim]):
        return layout
    no_padding(layout, [dim], op_name(node))
    if _has_padded(node.args[2:], operands):
        raise RefusedError("a size is a bound of a slice")
    return (*layout[:dim], _axis(result, dim, operands), *layout[dim + 1 :])


def _axis(value: torch.Tensor, dim: int, operands: Operands) -> Axis:
    return axis_of((operands.padded.size(value.shape[dim]),))


def _select(node: fx.Node, operands: Operands) -> Layout:
    """One place of a dimension; counted from the front it is a good one, because it is one of the
    exact value."""
    layout = operands.layout(node.args[0])
    _, dim, index = (*node.args,)
    axis = layout[dim]  # type: ignore[index]
    is_good = isinstance(index, int) and index >= 0 and axis.is_one_size
    if axis.is_padded and not is_good:
        raise RefusedError("a place of a padded dimension is taken that is counted from its end")
    if _has_padded(index, operands):
        raise RefusedError("a size is the place that is taken")
    return (*layout[:dim], *layout[dim + 1 :])  # type: ignore[index,operator]


def _same(node: fx.Node, operands: Operands) -> Layout:
    return operands.layout(node.args[0])


# ---- along dimensions


def _softmax(node: fx.Node, operands: Operands) -> Layout:
    """Row by row along the dimension that is the second argument, in which -inf weighs nothing.

    Nothing is known of its results there: they are zeros, or NaN in a row that is all -inf.
    """
    operand: Any = node.args[0]
    dim: Any = node.args[1]
    layout = operands.layout(operand)
    if layout[dim].is_padded:
        operands.need_fill(operand, dim % len(layout), -torch.inf)
    return tuple(replace(axis, fill=None) for axis in layout)


def _last_rows(node: fx.Node, operands: Operands) -> Layout:
    """Row by row along the last dimension, with a weight of its size."""
    layout = operands.layout(node.args[0])
    no_padding(layout, [-1], op_name(node))
    no_padding_in(node.args[1:], operands, node)
    return tuple(replace(axis, fill=None) for axis in layout)


def _layer_norm(node: fx.Node, operands: Operands) -> tuple[Layout, ...]:
    layout = operands.layout(node.args[0])
    count = len(node.args[1])  # type: ignore[arg-type]
    no_padding(layout, range(-count, 0), op_name(node))
    no_padding_in(node.args[2:], operands, node)
    plain = tuple(replace(axis, fill=None) for axis in layout)
    statistics = (*plain[:-count], *[Axis(())] * count)
    return plain, statistics, statistics


def _reduction(node: fx.Node, operands: Operands) -> Layout:
    layout = operands.layout(node.args[0])
    dims = node.args[1] if len(node.args) > 1 else None
    keep = bool(node.args[2]) if len(node.args) > 2 else False
    if isinstance(dims, int):
        dims = [dims]
    reduced = set(dims) if dims else set(range(len(layout)))  # type: ignore[arg-type]
    for dim in reduced:
        if layout[dim].is_padded:
            _need_neutral(node, dim % len(layout), operands)
    kept = [Axis(()) if d in reduced else replace(a, fill=None) for d, a in enumerate(layout)]
    return tuple(axis for d, axis in enumerate(kept) if keep or d not in reduced)


def _need_neutral(node: fx.Node, dim: int, operands: Operands) -> None:
    """The padding along a reduced dimension has to hold what changes no result.

    Extrema of integers stay exact: kernels take 64 bits as 32 where all values fit.
    """
    operand: Any = node.args[0]
    neutral = _NEUTRAL.get(node.target)
    is_infinite = neutral is not None and neutral in (-torch.inf, torch.inf)
    if node.target is aten.sum.dim_IntList:
        operands.need_zeros(operand, dim)
    elif neutral is not None and (val(operand).is_floating_point() or not is_infinite):
        operands.need_fill(operand, dim, neutral)
    else:
        raise RefusedError(f"{op_name(node)} goes along a padded dimension")


_NEUTRAL: dict[Any, Fill] = {
    aten.amax.default: -torch.inf,
    aten.amin.default: torch.inf,
    aten.any.dim: False,
    aten.any.dims: False,
}


def _cumsum(node: fx.Node, operands: Operands) -> Layout:
    """Good elements come first, and kernels add products with zero of those that come later."""
    operand, dim = node.args[:2]
    layout = operands.layout(operand)
    axis = layout[dim]  # type: ignore[index]
    if axis.is_padded:
        if not axis.is_one_size:
            raise RefusedError(f"{op_name(node)} goes by places, and its padding lies between them")
        operands.need_zeros(operand, dim % len(layout))  # type: ignore[arg-type,operator]
    return tuple(replace(axis, fill=None) for axis in layout)


# The rules; every other elementwise op has `_pointwise`.
_RULES: dict[Any, Rule] = {
    aten._to_copy.default: _pointwise,
    aten.clone.default: _pointwise,
    trnx_ops.quick_gelu.default: _pointwise,
    **dict.fromkeys(_WHERE, _pointwise),
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
    aten.unsqueeze.default: _view,
    aten.squeeze.dim: _view,
    aten.squeeze.dims: _view,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.full_like.default: _full_like,
    aten.cumsum.default: _cumsum,
    aten.cat.default: cat,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    trnx_ops.rms_norm.default: _last_rows,
    aten.native_layer_norm.default: _layer_norm,
    aten.sum.dim_IntList: _reduction,
    aten.mean.dim: _reduction,
    aten.amax.default: _reduction,
    aten.amin.default: _reduction,
    aten.any.dim: _reduction,
    aten.any.dims: _reduction,
    aten.linear.default: linear,
    aten.bmm.default: bmm,
    aten.embedding.default: embedding,
    aten.index.Tensor: index,
    trnx_ops.sdpa.default: sdpa,
    **dict.fromkeys(IMAGE_OPS, by_image),
}
# Their arguments that are sizes say how the result is laid out, or the rule looks at them itself.
_TAKE_SIZES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.native_group_norm.default,
    }
)
