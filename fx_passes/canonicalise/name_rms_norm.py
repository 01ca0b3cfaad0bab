"""RMS norm written out becomes `trnx::rms_norm`, as Llama, OLMo, Gemma, T5 and their kin write it.

With `normal = x * rsqrt(mean(x.float() ** 2, -1) + eps)`, x float32 or narrower, weight `[D]`:

    weight * normal.to(x.dtype)                     Llama, T5: `rounds`
    (weight * normal).to(x.dtype)                   OLMo
    (normal * (1.0 + weight.float())).to(x.dtype)   Gemma: `offset`
    normal.to(x.dtype)                              no weight

Squares and their mean are float32, and nothing else reads a value in between (a backward pass that
saved one does). The op rounds where the ops round. The root may be spelled as `rsqrt`, as a power
of -0.5, or as a division by `sqrt`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import Rule, rule_run
from trnx.fx_passes.metadata import call_if_same, erase_unused
from trnx.fx_passes.nodes import aten, has_tensor, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import same_number
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

_HALVES = (torch.bfloat16, torch.float16)


class _Norm(NamedTuple):
    """A spelling: the last node, and the arguments of the op that it is."""

    root: fx.Node
    x: fx.Node
    weight: fx.Node | None = None
    offset: float = 0.0
    rounds: bool = False


# Nodes are typed as Any here: fx gives their arguments a union that nothing narrows.
def _only_user(node: Any) -> Any:
    """The one user of `node`, else None."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is(value: Any, target: Any) -> bool:
    """True for a call of `target` that gives a tensor."""
    return has_tensor(value) and value.target is target


def _is_cast(value: Any, dtype: torch.dtype) -> bool:
    return _is(value, aten._to_copy.default) and value.kwargs == {"dtype": dtype}


def _narrow(value: Any) -> Any:
    """What a cast from half precision to float32 reads; `value` itself where it is none."""
    if not _is_cast(value, torch.float32) or val(value.args[0]).dtype not in _HALVES:
        return value
    return value.args[0]


def _mean_of_squares(root: Any) -> tuple[Any, float] | None:
    """`(x, eps)` where `root` is of mean(x ** 2, -1) + eps, and nothing else reads these."""
    total = root.args[0]
    if not _is(total, aten.add.Tensor) or not isinstance(total.args[1], int | float):
        return None
    mean = total.args[0]
    if not _is(mean, aten.mean.dim) or mean.kwargs or len(mean.args) != 3 or not mean.args[2]:
        return None
    squares = mean.args[0]
    if list(mean.args[1]) != [val(squares).ndim - 1] or val(squares).dtype is not torch.float32:
        return None
    if total.kwargs or any(_only_user(node) is None for node in (total, mean, squares)):
        return None
    by_product = _is(squares, aten.mul.Tensor) and squares.args[0] is squares.args[1]
    by_power = _is(squares, aten.pow.Tensor_Scalar) and squares.args[1] == 2
    return (squares.args[0], float(total.args[1])) if by_product or by_power else None


def _normal(root: Any, x: Any) -> Any:
    """The node that is x times the inverse root, else None."""
    node = _only_user(root)
    if _is(node, aten.div.Tensor):
        fits = root.target is aten.sqrt.default and node.args[1] is root
        other = node.args[0]
    else:
        fits = _is(node, aten.mul.Tensor) and root.target is not aten.sqrt.default
        other = _other(node, root) if fits else None
    return node if fits and other in (x, _narrow(x)) and not node.kwargs else None


def _other(product: Any, factor: Any) -> Any:
    """What `product` multiplies `factor` with."""
    return product.args[1] if product.args[0] is factor else product.args[0]


def _vector(product: Any, normal: Any) -> Any:
    """What `product` multiplies `normal` with, where that is a vector along the last dimension."""
    if not _is(product, aten.mul.Tensor):
        return None
    other = _other(product, normal)
    if other is normal or not has_tensor(other) or val(other).ndim != 1:
        return None
    fits = same_number(val(other).shape[0], val(normal).shape[-1])
    return other if fits and val(other).dtype in (torch.float32, *_HALVES) else None


def _with_offset(vector: Any) -> tuple[Any, float]:
    """`(weight, offset)` where `vector` is their sum in float32."""
    is_sum = _is(vector, aten.add.Tensor) and not vector.kwargs
    if is_sum and val(vector).dtype is torch.float32 and isinstance(vector.args[1], int | float):
        return _narrow(vector.args[0]), float(vector.args[1])
    return _narrow(vector), 0.0


def _whole(normal: Any, wide: Any) -> _Norm | None:
    """The norm around `normal`, as far as it goes; `wide` is x in float32."""
    x = _narrow(wide)
    dtype = val(x).dtype
    after = _only_user(normal)
    vector = _vector(after, normal)
    if dtype is torch.float32:
        return _Norm(normal, x) if vector is None else _Norm(after, x, *_with_offset(vector))
    if vector is not None:
        rounded = _only_user(after)
        fits = _is_cast(rounded, dtype)
        return _Norm(rounded, x, *_with_offset(vector)) if fits else None
    if not _is_cast(after, dtype):
        return None
    product = _only_user(after)
    weight = _vector(product, after)
    if weight is None or val(weight).dtype is not dtype:
        return _Norm(after, x)
    return _Norm(product, x, weight, rounds=True)


def _name(root: fx.Node) -> fx.Node | None:
    """Put the op in the place of the whole; the inverse root itself is dead then."""
    if root.target is aten.pow.Tensor_Scalar and root.args[1] != -0.5:
        return None
    found = _mean_of_squares(root)
    normal = None if found is None else _normal(root, found[0])
    norm = None if found is None or normal is None else _whole(normal, found[0])
    if found is None or norm is None:
        return None
    args = (norm.x, norm.weight, found[1], norm.offset, norm.rounds)
    new = call_if_same(norm.root, torch.ops.trnx.rms_norm.default, args)
    if new is not None:
        norm.root.replace_all_uses_with(new)
        erase_unused(norm.root)
    return None


_RULES: dict[Any, Rule] = dict.fromkeys(
    (aten.rsqrt.default, aten.pow.Tensor_Scalar, aten.sqrt.default), _name
)

NAME_RMS_NORM = Pass(
    "name_rms_norm",
    rule_run(_RULES),
    requires=("one_overload", "constants_are_numbers"),
    ensures=("rms_norm_named",),
)
