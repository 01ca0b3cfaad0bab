"""One rule for each op: where the padding of its results lies, if good elements stay good.

A rule proves that the good elements of the results depend on good elements of the operands alone,
whatever the padding holds (NaN included), or says what the padding of an operand has to hold:

* an elementwise op, and one that works along dimensions without padding, has nothing to fear;
* a sum over padding, as in a matrix product, needs zeros there, in both factors of a product;
* an index has to be valid in the padding too;
* attention needs a mask that is False (or -inf) there, and keys and values of zero, because a
  probability of zero times NaN is NaN.

A size that is an argument of an op enters its values, unless the op is a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx

from trnx.fx_passes.metadata import real_values
from trnx.fx_passes.nodes import aten, has_tensor, is_pointwise, is_random, op_name, val
from trnx.fx_passes.padding.layouts import (
    Axis,
    Fill,
    Layout,
    RefusedError,
    axis_of,
    no_padding,
    padded_with_zeros,
    reshaped,
    same_sizes,
    size_of,
)
from trnx.fx_passes.symbolic import same_number, symbols_of
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops


class Operands(Protocol):
    """What a rule asks of the analysis."""

    @property
    def padded(self) -> frozenset[Any]:
        """The symbols that are padded."""

    def layout(self, node: Any) -> Layout:
        """The layout of an operand. Raises RefusedError where it has none."""

    def need_zeros(self, node: fx.Node, dim: int) -> None:
        """The padding along `dim` has to hold zeros. Raises RefusedError where it cannot."""

    def need_valid(self, node: fx.Node) -> None:
        """All padding has to hold a copy of good elements, or zeros."""


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
    return any(symbols_of(value) & operands.padded for value in values)


# ---- elementwise


def _pointwise(node: fx.Node, operands: Operands) -> Layout:
    given = [operands.layout(arg) for arg in node.all_input_nodes if has_tensor(arg)]
    return tuple(
        replace(axis, fill=_folded(node, operands, dim)) if axis.is_padded else axis
        for dim, axis in enumerate(_broadcast(given, val(node).ndim))
    )


def _broadcast(layouts: Sequence[Layout], ndim: int) -> Layout:
    """The axes of the result of an elementwise op. Raises RefusedError where operands differ."""
    axes = []
    for dim in range(-ndim, 0):
        found = [layout[dim] for layout in layouts if len(layout) >= -dim and layout[dim].sizes]
        if any(not same_sizes(found[0], one) for one in found):
            raise RefusedError("operands have their padding at different places")
        axes.append(replace(found[0], fill=None) if found else Axis(()))
    return tuple(axes)


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
        return None if chosen is _Good else chosen
    if node.target is aten.clone.default:
        return None if values[0] is _Good else values[0]
    # Arithmetic of kernels may round another way; comparisons and conversions do not.
    is_exact = is_bool or node.target is aten._to_copy.default
    if any(value is _Good for value in values) or not is_exact:
        return None
    with real_values():
        tensors = [
            torch.tensor(value, dtype=val(arg).dtype) if has_tensor(arg) else value
            for arg, value in zip(node.args, values, strict=True)
        ]
        assert callable(node.target)
        known: Fill = node.target(*tensors, **node.kwargs).item()
        return known


# ---- views


def _view(node: fx.Node, operands: Operands) -> Layout:
    return reshaped(operands.layout(node.args[0]), val(node).shape)


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
    source = [*[1] * (result.ndim - len(given)), *val(node.all_input_nodes[0]).shape]  # type: ignore[arg-type]
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
    return axis_of((size_of(value.shape[dim], operands.padded),))


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


# ---- along dimensions without padding


def _cat(node: fx.Node, operands: Operands) -> Layout:
    dim = int(node.args[1]) if len(node.args) > 1 else 0  # type: ignore[arg-type]
    given = [operands.layout(arg) for arg in node.args[0]]  # type: ignore[union-attr]
    for layout in given:
        if len(layout) != len(given[0]):
            raise RefusedError("operands have different numbers of dimensions")
        no_padding(layout, [dim], op_name(node))
        rest = zip(layout, given[0], strict=True)
        if any(not same_sizes(a, b) for d, (a, b) in enumerate(rest) if d != dim):
            raise RefusedError("operands have their padding at different places")
    axes = [replace(axis, fill=None) for axis in given[0]]
    axes[dim] = _axis(val(node), dim, operands)
    return tuple(axes)


def _rows(node: fx.Node, operands: Operands) -> Layout:
    """Row by row along the dimension that is the second argument."""
    layout = operands.layout(node.args[0])
    no_padding(layout, [node.args[1]], op_name(node))  # type: ignore[list-item]
    return tuple(replace(axis, fill=None) for axis in layout)


def _last_rows(node: fx.Node, operands: Operands) -> Layout:
    """Row by row along the last dimension, with a weight of its size."""
    layout = operands.layout(node.args[0])
    no_padding(layout, [-1], op_name(node))
    _no_padding_in(node.args[1:], operands, node)
    return tuple(replace(axis, fill=None) for axis in layout)


def _no_padding_in(arguments: Any, operands: Operands, node: fx.Node) -> None:
    for arg in arguments:
        if has_tensor(arg) and any(axis.is_padded for axis in operands.layout(arg)):
            raise RefusedError(f"a padded tensor is a parameter of {op_name(node)}")


def _layer_norm(node: fx.Node, operands: Operands) -> tuple[Layout, ...]:
    layout = operands.layout(node.args[0])
    count = len(node.args[1])  # type: ignore[arg-type]
    no_padding(layout, range(-count, 0), op_name(node))
    _no_padding_in(node.args[2:], operands, node)
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
            if node.target is not aten.sum.dim_IntList:
                raise RefusedError(f"{op_name(node)} goes along a padded dimension")
            operands.need_zeros(node.args[0], dim)  # type: ignore[arg-type]
    kept = [Axis(()) if d in reduced else replace(a, fill=None) for d, a in enumerate(layout)]
    return tuple(axis for d, axis in enumerate(kept) if keep or d not in reduced)


# ---- products


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


def _linear(node: fx.Node, operands: Operands) -> Layout:
    x, weight = node.args[:2]
    bias = node.args[2] if len(node.args) > 2 else None
    _contracted((x, -1), (weight, -1), operands)
    column = operands.layout(weight)[0]
    if has_tensor(bias) and not same_sizes(operands.layout(bias)[0], column):
        raise RefusedError("operands have their padding at different places")
    rows = (*operands.layout(x)[:-1], column)
    return tuple(replace(axis, fill=None) for axis in rows)


def _bmm(node: fx.Node, operands: Operands) -> Layout:
    a, b = node.args[:2]
    _contracted((a, 2), (b, 1), operands)
    first, second = operands.layout(a), operands.layout(b)
    if not same_sizes(first[0], second[0]):
        raise RefusedError("operands have their padding at different places")
    return tuple(replace(axis, fill=None) for axis in (first[0], first[1], second[2]))


def _embedding(node: fx.Node, operands: Operands) -> Layout:
    table, index = node.args[:2]
    _no_padding_in([table], operands, node)
    layout = operands.layout(index)
    if any(axis.is_padded for axis in layout):
        operands.need_valid(index)  # type: ignore[arg-type]
    width = operands.layout(table)[1]
    return (*(replace(axis, fill=None) for axis in layout), width)


def _sdpa(node: fx.Node, operands: Operands) -> tuple[Layout, ...]:
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
    if mask is not None:
        _check_mask(operands.layout(mask), queries, keys)
    if keys[2].is_padded:
        _check_keys(operands, mask, is_causal, queries[2], keys[2])
        operands.need_zeros(k, 2)  # type: ignore[arg-type]
        operands.need_zeros(v, 2)  # type: ignore[arg-type]
    out = (queries[0], queries[1], queries[2], values[3])
    plain = tuple(replace(axis, fill=None) for axis in out)
    return plain, plain[:3]


def _check_mask(mask: Layout, queries: Layout, keys: Layout) -> None:
    wanted = (queries[0], queries[1], queries[2], keys[2])
    for axis, other in zip(mask, wanted[len(wanted) - len(mask) :], strict=True):
        if axis.is_padded and not same_sizes(axis, other):
            raise RefusedError("the mask has its padding at another place")


def _check_keys(
    operands: Operands, mask: Any, is_causal: Any, queries: Axis, keys: Axis
) -> None:  # fmt: skip
    """A good query must not see the keys in the padding."""
    if is_causal and queries.is_one_size and same_sizes(queries, keys):
        return  # a query sees the keys up to its own place; a window hides some of them
    if mask is None:
        raise RefusedError("attention has neither a mask over its padded keys nor as many queries")
    axis = operands.layout(mask)[-1]
    hides = -torch.inf if val(mask).dtype.is_floating_point else False
    if not axis.is_padded or axis.fill is None or axis.fill != hides:
        raise RefusedError("nothing proves that the mask of attention hides the padding")


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
    aten.cat.default: _cat,
    aten._softmax.default: _rows,
    aten._log_softmax.default: _rows,
    trnx_ops.rms_norm.default: _last_rows,
    aten.native_layer_norm.default: _layer_norm,
    aten.sum.dim_IntList: _reduction,
    aten.mean.dim: _reduction,
    aten.amax.default: _reduction,
    aten.amin.default: _reduction,
    aten.linear.default: _linear,
    aten.bmm.default: _bmm,
    aten.embedding.default: _embedding,
    trnx_ops.sdpa.default: _sdpa,
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
    }
)
