"""GELU written out becomes one op: see `trnx.fx_passes.gelu`."""

from __future__ import annotations

from typing import Any

from torch import fx

from trnx.fx_passes.canonicalise._rules import Rule, rule_run
from trnx.fx_passes.gelu import ATEN, find_gelu, name_gelu
from trnx.fx_passes.passes import Pass


def _name(function: fx.Node) -> fx.Node | None:
    found = find_gelu(ATEN, function)
    if found is not None:
        name_gelu(ATEN, found)
    return None


_RULES: dict[Any, Rule] = dict.fromkeys(ATEN.functions, _name)

NAME_GELU = Pass(
    "name_gelu",
    rule_run(_RULES),
    requires=("one_overload", "constants_are_numbers"),
    ensures=("gelu_named",),
)
