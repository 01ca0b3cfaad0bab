"""Rewrite composites in Dynamo's graph into `trnx::` ops, before AOTAutograd would decompose them.

`scaled_dot_product_attention` becomes `trnx::sdpa`, `rms_norm` becomes `trnx::rms_norm`, and
`cross_entropy` of logits [N, C] and class labels becomes `trnx::cross_entropy`. A call stays as it
is where the `trnx::` op would not mean the same, or where torch has to raise its own error: dtypes
other than float32, bfloat16 and float16, nested or subclassed tensors, masks that do not broadcast,
heads that differ without `enable_gqa`, a dropout probability that is no number in 0..1, more than
four dimensions; class weights, smoothed labels, and labels that are probabilities.

Dropout takes its keep mask from `aten.bernoulli` on the scores' shape and dtype, which is what
eager draws: the same seed drops the same elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses import FakeTensor

from trnx.fx_passes.metadata import EXAMPLE_VALUE, insert_call
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic, known_equal, same_number
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

# What the kernels of composites compute in.
COMPUTED = frozenset({torch.float32, torch.bfloat16, torch.float16})


def on_each_graph(
    rewrite: Callable[[fx.Graph], None],
) -> Callable[[fx.GraphModule], fx.GraphModule]:
    """What a pass runs that rewrites Dynamo's graph and those of its branches."""

    def run(gm: fx.GraphModule) -> fx.GraphModule:
        for module in gm.modules():
            if isinstance(module, fx.GraphModule) and not is_transformed(module.graph):
                rewrite(module.graph)
                module.recompile()
        return gm

    return run


def is_transformed(graph: fx.Graph) -> bool:
    """True under torch.func: the `trnx::` ops have no rules for vmap and its like."""
    return any(
        "functorch" in (getattr(node.target, "__module__", None) or "")
        for node in graph.nodes
        if node.op == "call_function"
    )


def may_be_autocast(graph: fx.Graph) -> bool:
    """Whether the graph, or a part of it, runs under autocast."""
    values = (node.meta.get(EXAMPLE_VALUE) for node in graph.nodes)
    devices = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    return any(map(torch.is_autocast_enabled, devices)) or any(
        getattr(node.target, "__name__", "") == "_enter_autocast" for node in graph.nodes
    )


def _rewrite_graph(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is not None:
            new = rule(node)
            if new is not None:
                node.replace_all_uses_with(new)
                graph.erase_node(node)


def _insert(before: fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    return insert_call(before, target, args, kwargs, key=EXAMPLE_VALUE)


def plain_tensor(node: Any) -> torch.Tensor | None:
    """The fake tensor behind an argument, or None where it is anything but a plain dense tensor."""
    value = node.meta.get(EXAMPLE_VALUE) if isinstance(node, fx.Node) else None
    plain = type(value) in (FakeTensor, torch.Tensor, torch.nn.Parameter)
    if not plain or value is None or value.is_nested or value.layout != torch.strided:
        return None
    assert isinstance(value, torch.Tensor)
    return value


# ------------------------------------------------------------------------------------ attention


def _sdpa_arguments(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    scale: Any = None,
    enable_gqa: Any = False,
) -> dict[str, Any]:
    return locals()


def _heads_agree(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gqa: bool) -> bool:
    """Batch and head sizes as `trnx::sdpa` needs them."""
    ranks = {q.ndim, k.ndim, v.ndim}
    if len(ranks) != 1 or not 2 <= q.ndim <= 4:
        return False
    if not same_number(k.shape[-2], v.shape[-2]) or not same_number(q.shape[-1], k.shape[-1]):
        return False
    if q.ndim >= 3 and not _all_same(q.shape[0], k.shape[0], v.shape[0]):
        return False
    if q.ndim < 4 or _all_same(q.shape[1], k.shape[1], v.shape[1]):
        return True
    heads, groups = q.shape[1], k.shape[1]
    if not gqa or not same_number(groups, v.shape[1]):
        return False
    return not (is_symbolic(heads) or is_symbolic(groups)) and groups > 0 and heads % groups == 0


def _all_same(*sizes: Any) -> bool:
    return all(same_number(sizes[0], size) for size in sizes[1:])


def _mask_fits(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> bool:
    """True where `mask` broadcasts to the scores and has a dtype that attention takes."""
    if mask.dtype != torch.bool and mask.dtype not in COMPUTED:
        return False
    scores = (*q.shape[:-1], k.shape[-2])
    if not 2 <= mask.ndim <= len(scores):
        return False
    pairs = zip(reversed(mask.shape), reversed(scores), strict=False)
    return all(known_equal(have, 1) or same_number(have, want) for have, want in pairs)


def _is_number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _attention_is_plain(a: dict[str, Any]) -> bool:
    """True where `trnx::sdpa` means what the call means."""
    q, k, v = (plain_tensor(a[name]) for name in ("query", "key", "value"))
    if q is None or k is None or v is None or any(x.dtype not in COMPUTED for x in (q, k, v)):
        return False
    if not isinstance(a["is_causal"], bool) or not isinstance(a["enable_gqa"], bool):
        return False
    if not _is_number(a["dropout_p"], 0.0, 1.0) or known_equal(q.shape[-1], 0):
        return False
    if not _heads_agree(q, k, v, a["enable_gqa"]):
        return False
    if a["attn_mask"] is None:
        return True
    mask = plain_tensor(a["attn_mask"])
    return mask is not None and not a["is_causal"] and _mask_fits(mask, q, k)


def _sizes(node: fx.Node, tensor: fx.Node, dims: tuple[int, ...]) -> list[Any]:
    """Sizes of `tensor` as numbers, or as nodes where they are symbolic."""
    value = tensor.meta[EXAMPLE_VALUE]
    return [
        _insert(node, torch.ops.aten.sym_size.int, tensor, dim % value.ndim)
        if is_symbolic(value.shape[dim])
        else value.shape[dim]
        for dim in dims
    ]


def _scale(node: fx.Node, q: fx.Node, given: Any) -> Any:
    if isinstance(given, fx.Node):
        return given
    if given is not None:
        return float(given)
    (width,) = _sizes(node, q, (-1,))
    if isinstance(width, fx.Node):
        return _insert(node, operator.pow, _insert(node, torch.sym_float, width), -0.5)
    return float(width) ** -0.5


def _keep_mask(node: fx.Node, q: fx.Node, k: fx.Node, p: float) -> fx.Node | None:
    """The elements that dropout keeps, [B, H, L, S] as bool."""
    if p == 0.0:
        return None
    value = q.meta[EXAMPLE_VALUE]
    shape = [*_sizes(node, q, (0, 1, 2)), *_sizes(node, k, (2,))]
    scores = _insert(node, torch.zeros, shape, dtype=value.dtype, device=value.device)
    drawn = _insert(node, torch.bernoulli, scores, 1.0 - p)
    return _insert(node, torch.ne, drawn, 0)


def _four_dimensional(node: fx.Node, tensor: fx.Node, rank: int) -> fx.Node:
    """[L, D] or [B, L, D] as [B, 1, L, D]."""
    for dim in {2: (0, 0), 3: (1,), 4: ()}[rank]:
        tensor = _insert(node, torch.unsqueeze, tensor, dim)
    return tensor


def _mask_rank(node: fx.Node, mask: fx.Node | None, rank: int) -> fx.Node | None:
    """The mask with the head dimension of a call of rank 3, and with 2 or 4 dimensions."""
    if mask is None or mask.meta[EXAMPLE_VALUE].ndim != 3:
        return mask
    return _insert(node, torch.unsqueeze, mask, 1 if rank == 3 else 0)


def _cast(node: fx.Node, tensor: Any, dtype: torch.dtype) -> Any:
    """What autocast would do: `tensor` in the dtype in which the call computes."""
    if tensor is None or tensor.meta[EXAMPLE_VALUE].dtype in (dtype, torch.bool):
        return tensor
    return _insert(node, torch.Tensor.to, tensor, dtype)


def _rewrite_attention(node: fx.Node) -> fx.Node | None:
    a = _sdpa_arguments(*node.args, **node.kwargs)
    before = plain_tensor(node)
    if before is None or before.dtype not in COMPUTED or not _attention_is_plain(a):
        return None
    rank = a["query"].meta[EXAMPLE_VALUE].ndim
    q, k, v = (
        _four_dimensional(node, _cast(node, a[name], before.dtype), rank)
        for name in ("query", "key", "value")
    )
    mask = _mask_rank(node, a["attn_mask"], rank)
    p = float(a["dropout_p"])
    keep = _keep_mask(node, q, k, p)
    scale = _scale(node, q, a["scale"])
    both = _insert(node, torch.ops.trnx.sdpa.default, q, k, v, mask, keep, p, a["is_causal"], scale)
    out = _insert(node, operator.getitem, both, 0)
    if rank < 4 or (mask is not None and mask.meta[EXAMPLE_VALUE].requires_grad):
        # Eager takes its unfused path here, whose result is dense.
        out = _insert(node, torch.Tensor.contiguous, out)
    for dim in {2: (0, 0), 3: (1,), 4: ()}[rank]:
        out = _insert(node, torch.squeeze, out, dim)
    return out


# ------------------------------------------------------------------------------------ rms_norm


def _rms_norm_arguments(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    eps: Any = None,
) -> dict[str, Any]:
    return locals()


def _rewrite_rms_norm(node: fx.Node) -> fx.Node | None:
    a = _rms_norm_arguments(*node.args, **node.kwargs)
    x, before = plain_tensor(a["input"]), plain_tensor(node)
    if x is None or before is None or x.dtype not in COMPUTED or before.dtype != x.dtype:
        return None
    shape = a["normalized_shape"]
    if not isinstance(shape, (list, tuple)) or len(shape) != 1 or x.ndim < 1:
        return None
    if a["weight"] is not None:
        weight = plain_tensor(a["weight"])
        if weight is None or weight.ndim != 1 or weight.dtype != x.dtype:
            return None
        if not same_number(weight.shape[0], x.shape[-1]):
            return None
    # Torch computes in float32, whose epsilon is its default for the narrower dtypes too.
    eps = torch.finfo(torch.float32).eps if a["eps"] is None else a["eps"]
    if isinstance(eps, fx.Node):
        return None
    return _insert(node, torch.ops.trnx.rms_norm.default, a["input"], a["weight"], float(eps))


# ------------------------------------------------------------------------------- cross_entropy

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _cross_entropy_arguments(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: Any = -100,
    reduce: Any = None,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> dict[str, Any]:
    return locals()


def _rewrite_cross_entropy(node: fx.Node) -> fx.Node | None:
    a = _cross_entropy_arguments(*node.args, **node.kwargs)
    x, target, before = plain_tensor(a["input"]), plain_tensor(a["target"]), plain_tensor(node)
    if x is None or target is None or before is None:
        return None
    if x.dtype not in COMPUTED or before.dtype != x.dtype or target.dtype != torch.int64:
        return None
    if x.ndim != 2 or target.ndim != 1 or not same_number(x.shape[0], target.shape[0]):
        return None
    if is_symbolic(x.shape[1]) or x.shape[1] == 0 or known_equal(x.shape[0], 0):
        return None
    if any(a[name] is not None for name in ("weight", "size_average", "reduce")):
        return None
    if a["label_smoothing"] != 0.0 or a["reduction"] not in _REDUCTIONS:
        return None
    if not isinstance(a["ignore_index"], int):
        return None
    how = _REDUCTIONS[a["reduction"]]
    op = torch.ops.trnx.cross_entropy.default
    results = _insert(node, op, a["input"], a["target"], how, a["ignore_index"])
    loss = _insert(node, operator.getitem, results, 0)
    return loss if how == 0 else _insert(node, torch.squeeze, loss, 0)


# ------------------------------------------------------------------------------------ dropout


def _dropout_arguments(
    input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False
) -> dict[str, Any]:
    return locals()


def _rewrite_dropout(node: fx.Node) -> fx.Node | None:
    """Outside of training it gives its argument itself."""
    a = _dropout_arguments(*node.args, **node.kwargs)
    is_known = isinstance(a["p"], (int, float)) and 0 <= a["p"] <= 1
    source = a["input"]
    is_plain = plain_tensor(source) is not None and plain_tensor(node) is not None
    return source if a["training"] is False and is_known and is_plain else None


_RULES: dict[Any, Callable[[fx.Node], fx.Node | None]] = {
    F.dropout: _rewrite_dropout,
    F.scaled_dot_product_attention: _rewrite_attention,
    torch.rms_norm: _rewrite_rms_norm,
    F.rms_norm: _rewrite_rms_norm,
    F.cross_entropy: _rewrite_cross_entropy,
}

REWRITE_COMPOSITES = Pass(
    "rewrite_composites", on_each_graph(_rewrite_graph), ensures=("composites_whole",)
)
