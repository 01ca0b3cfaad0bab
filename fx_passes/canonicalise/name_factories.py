"""Constants like another tensor (`ones_like`, `new_zeros`, ...) are `full` with sizes: they read
nothing.

Where a size is symbolic, or the strides of the other tensor are kept and not row-major, they stay.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from trnx.fx_passes.canonicalise._rules import Rule, rule_run
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic

_FILL: dict[Any, Any] = {
    aten.ones_like.default: 1,
    aten.zeros_like.default: 0,
    aten.new_ones.default: 1,
    aten.new_zeros.default: 0,
}
_GIVEN: dict[Any, Any] = {aten.full_like.default: 1, aten.new_full.default: 2}


def _full(node: fx.Node) -> fx.Node | None:
    known = val(node)
    if any(is_symbolic(size) for size in known.shape):
        return None
    place = _GIVEN.get(node.target)
    fill: Any = _FILL.get(node.target) if place is None else call_arguments(node)[place]
    if isinstance(fill, fx.Node):
        return None
    options = {"dtype": known.dtype, "device": known.device, "pin_memory": False}
    return call_if_same(node, aten.full.default, (list(known.shape), fill), options)


_RULES: dict[Any, Rule] = dict.fromkeys((*_FILL, *_GIVEN), _full)

NAME_FACTORIES = Pass("name_factories", rule_run(_RULES), ensures=("factories_read_nothing",))
