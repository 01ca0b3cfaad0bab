"""Random operators that activation checkpointing runs twice become themselves between operators
that read and set the generator's state.

AOTAutograd wraps them in higher-order operators, which have no schema and partly no fake value: the
one in the forward pass gives the state from which it drew, the one in the backward pass draws from
it. Only on the CPU, whose generator `trnx::swap_random_state` is about.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import Rule, rule_run
from trnx.fx_passes.metadata import insert_call, replace
from trnx.fx_passes.nodes import arguments, is_getitem, val
from trnx.fx_passes.passes import Pass
from trnx.nki_kernels import random_states  # noqa: F401  registers the operator

_SWAP = torch.ops.trnx.swap_random_state.default


def _is_on_cpu(node: fx.Node) -> bool:
    values = (val(source) for source in node.all_input_nodes)
    return all(value.device.type == "cpu" for value in values if isinstance(value, torch.Tensor))


def _save(node: fx.Node) -> fx.Node | None:
    """(state, result of the operator)"""
    if not _is_on_cpu(node) or not all(map(is_getitem, node.users)):
        return None
    operator, *args = arguments(node)
    both = (
        insert_call(node, _SWAP, (None,)),
        insert_call(node, operator, tuple(args), node.kwargs),
    )
    for user in list(node.users):
        replace(user, both[cast(int, user.args[1])])
    return both[1]


def _restore(node: fx.Node) -> fx.Node | None:
    """The result of the operator."""
    if not _is_on_cpu(node):
        return None
    state, operator, *args = arguments(node)
    before = insert_call(node, _SWAP, (state,))
    result = insert_call(node, operator, tuple(args), node.kwargs)
    insert_call(node, _SWAP, (before,))
    return result


_RULES: dict[Any, Rule] = {
    torch.ops.higher_order.run_and_save_rng_state: _save,
    torch.ops.higher_order.run_with_rng_state: _restore,
}

NAME_RANDOM_STATES = Pass(
    "name_random_states", rule_run(_RULES), ensures=("random_operators_bare",)
)
