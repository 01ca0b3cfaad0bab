"""`F.interpolate` of the nearest element by powers of two, in Dynamo's graph, becomes a copy of an
expanded view, of which the gradient is a sum.

AOTAutograd would write it with computed positions: an index forward and an `index_put` backward,
each a descriptor an element. By a power of two the nearest position is exact whatever the rounding
(elsewhere eager's own is not always the quotient), so that eager reads the same elements. Calls
stay where sizes are symbolic, or the result would have other strides.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses import FakeTensor

from trnx.fx_passes.aliasing import same_layout
from trnx.fx_passes.metadata import EXAMPLE_VALUE, insert_call
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic

_MODES = ("nearest", "nearest-exact")


def _arguments(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: Any = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: Any = False,
) -> dict[str, Any]:
    return locals()


def _factors(given: dict[str, Any], result: Any) -> list[int] | None:
    """How often each element is taken, by dimension behind the channels; None where the call is
    another one."""
    image = given["input"]
    source: Any = image.meta.get(EXAMPLE_VALUE) if isinstance(image, fx.Node) else None
    if not all(type(x) is FakeTensor for x in (source, result)) or given["mode"] not in _MODES:
        return None
    if given["align_corners"] is not None or given["antialias"]:
        return None
    sizes, wanted = list(source.shape[2:]), list(result.shape[2:])
    if any(map(is_symbolic, (*sizes, *wanted))) or 0 in sizes or not source.is_floating_point():
        return None
    factors = [big // small for big, small in zip(wanted, sizes, strict=True)]
    whole = all(f * small == big for f, small, big in zip(factors, sizes, wanted, strict=True))
    powers = all(f > 0 and f & (f - 1) == 0 for f in factors)
    return factors if whole and powers and _is_scale(given["scale_factor"], factors) else None


def _is_scale(scale: Any, factors: list[int]) -> bool:
    """Whether the scale that eager divides by is `factors`, not one that is rounded to these."""
    scales = list(scale) if isinstance(scale, (list, tuple)) else [scale] * len(factors)
    return scale is None or scales == factors


def _rewrite(node: fx.Node) -> None:
    given = _arguments(*node.args, **node.kwargs)
    factors = _factors(given, node.meta.get(EXAMPLE_VALUE))
    if factors is None or max(factors) == 1:
        return
    made: list[fx.Node] = [given["input"]]

    def put(target: Any, *args: Any) -> None:
        made.append(insert_call(node, target, (made[-1], *args), key=EXAMPLE_VALUE))

    repeated = [i for i, factor in enumerate(factors, 2) if factor > 1]
    for i in reversed(repeated):
        put(torch.unsqueeze, i + 1)
    counts = [-1, -1] + [n for f in factors for n in ((-1, f) if f > 1 else (-1,))]
    put(torch.Tensor.expand, *counts)
    put(torch.Tensor.contiguous)  # else repeats of a dimension of size 1 would stay a view
    for i in repeated:
        put(torch.flatten, i, i + 1)
    if same_layout(made[-1].meta[EXAMPLE_VALUE], node.meta[EXAMPLE_VALUE]):
        node.replace_all_uses_with(made[-1])
        made.append(node)
    for unused in reversed(made[1:]):
        if not unused.users:
            unused.graph.erase_node(unused)


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.op == "call_function" and node.target is F.interpolate:
                    _rewrite(node)
            module.recompile()
    return gm


EXPAND_INTERPOLATE = Pass("expand_interpolate", _run, ensures=("nearest_expanded",))
