"""A mask of attention that is provably causal, a sliding window or full is named as such.

What the ops that make a mask say of it (`_mask_values.py`) goes to `is_causal` and `window`; what
is left of the conjunction, such as the keys that are padding, stays the mask, which is then no
larger than it needs to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.canonicalise._mask_values import MaskReader, Terms
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import insert_call
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic, same_number
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

# Where q, the mask, is_causal and window stand among the arguments.
_PLACES: dict[Any, tuple[int, int, int, int]] = {
    torch.ops.trnx.sdpa.default: (0, 3, 6, 8),
    torch.ops.trnx.sdpa_backward.default: (1, 6, 9, 12),
}


def _window(terms: Terms, queries: Any, keys: Any) -> int | None:
    """The window of a causal band, 0 where it is as long as the keys; None where the band is none
    that `trnx::sdpa` names, or may leave a query without keys."""
    if terms.last != 0:
        return None
    if terms.first is None:
        return 0
    window = 1 - terms.first
    if window < 1:
        return None
    if not is_symbolic(queries) and window >= queries:
        return 0
    plain = not is_symbolic(queries) and not is_symbolic(keys)
    seen = same_number(queries, keys) or (plain and queries < keys + window)
    return window if seen else None


def _unsqueezed(node: fx.Node, source: fx.Node, sizes: Sequence[Any]) -> fx.Node:
    """`source` with dims of size 1 where `sizes` have them, inserted before `node`."""
    have = list(val(source).shape)
    missing: list[int] = []
    for dim in range(len(sizes) - 1, -1, -1):
        if have and same_number(have[-1], sizes[dim]):
            have.pop()
        else:
            missing.append(dim)
    for dim in reversed(missing):
        source = insert_call(node, aten.unsqueeze.default, (source, dim))
    return source


def _remaining(node: fx.Node, terms: Terms, reader: MaskReader) -> fx.Node | None:
    """The conjunction of the masks that are left, inserted before `node`."""
    mask: fx.Node | None = None
    for term in terms.others:
        source = reader.identity(term)
        if source is not None:
            term = _unsqueezed(node, source, val(term).shape)
        while val(term).ndim not in (2, 4):
            term = insert_call(node, aten.unsqueeze.default, (term, 0))
        if mask is not None:
            term = insert_call(node, aten.bitwise_and.Tensor, (mask, term))
        mask = term
    return mask


def _name(node: fx.Node, reader: MaskReader) -> None:
    q, place, causal, window = _PLACES[node.target]
    arguments = list(call_arguments(node))
    mask = arguments[place]
    if mask is None or arguments[window] or _needs_gradient(node, arguments):
        return
    terms = reader.terms(mask)
    if terms.others == (mask,) and reader.identity(mask) is None:
        return
    if any(val(other).dtype != torch.bool for other in terms.others):
        return
    if terms.last is not None or terms.first is not None:
        if arguments[causal]:
            terms = terms.both(Terms(None, 0))
        found = _window(terms, val(arguments[q]).shape[-2], val(arguments[q + 1]).shape[-2])
        if found is None:
            return
        arguments[causal], arguments[window] = True, found
    arguments[place] = _remaining(node, terms, reader)
    node.args = tuple(arguments)


def _needs_gradient(node: fx.Node, arguments: list[Any]) -> bool:
    return node.target is torch.ops.trnx.sdpa_backward.default and arguments[11] is not False


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    reader = MaskReader()
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in _PLACES:
            _name(node, reader)
    return gm


NAME_MASKS = Pass("name_masks", _run, requires=("attention_named",), ensures=("masks_named",))
