"""GELU written out becomes one op: see `trnx.fx_passes.gelu`."""

from __future__ import annotations

from typing import Any

from torch import fx

from trnx.fx_passes.canonicalise._rules import Rule, call_if_same, erase_unused, rule_run
from trnx.fx_passes.gelu import ATEN, find_gelu
from trnx.fx_passes.passes import Pass


def _name(function: fx.Node) -> fx.Node | None:
    """Put the op in the place of the whole; the function itself is dead then."""
    found = find_gelu(ATEN, function)
    if found is not None:
        new = call_if_same(found.root, found.form.target, (found.x,), dict(found.form.kwargs))
        if new is not None:
            found.root.replace_all_uses_with(new)
            erase_unused(found.root)
    return None


_RULES: dict[Any, Rule] = dict.fromkeys(ATEN.functions, _name)

NAME_GELU = Pass(
    "name_gelu",
    rule_run(_RULES),
    requires=("one_overload", "constants_are_numbers"),
    ensures=("gelu_named",),
)
