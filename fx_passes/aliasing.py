"""Which values share storage, and when one may stand in for another.

A graph output that is fresh must stay fresh: the caller may write to it. So a pass may replace a
node by an equal value only where that changes neither which outputs share storage, nor which of
them is an input, nor a read that must see the value from before a write.
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.nodes import aten, is_getitem, is_mutation, is_view, is_wait
from trnx.fx_passes.symbolic import same_number, same_numbers

# Not views by their schema, but their result may share the argument's storage.
_MAY_ALIAS = frozenset({aten._unsafe_view.default, aten.reshape.default, aten.contiguous.default})


def storage_root(node: fx.Node) -> fx.Node:
    """The node that made the storage of `node`."""
    while node.op == "call_function":
        base = node.args[0] if node.args else None
        if not isinstance(base, fx.Node):
            break
        through_list = is_getitem(node) and is_view(base)
        through = is_view(node) or is_wait(node) or through_list
        if not through and node.target not in _MAY_ALIAS:
            break
        node = base
    return node


def _output(graph: fx.Graph) -> fx.Node:
    node: fx.Node = next(iter(reversed(graph.nodes)))
    return node


class Aliasing:
    """The sharing of storage in one graph; `replaced` keeps it true while a pass works."""

    def __init__(self, graph: fx.Graph) -> None:
        self._returned = set(_output(graph).all_input_nodes)
        self._escaping = {storage_root(node) for node in self._returned}
        self._written: set[fx.Node] = set()
        for node in graph.nodes:
            if is_mutation(node):
                self._written.update(storage_root(arg) for arg in node.all_input_nodes[:1])

    def can_stand_in(self, old: fx.Node, new: fx.Node) -> bool:
        """True where all users of `old` may read `new`, which has the same elements and strides."""
        old_root, new_root = storage_root(old), storage_root(new)
        if old_root is new_root:
            both_returned = old in self._returned and new in self._returned
            return not (both_returned or (old in self._returned and new.op == "placeholder"))
        if new_root in self._written or old_root in self._written:
            return False
        if old_root not in self._escaping:
            return True
        is_input = new_root.op in ("placeholder", "get_attr")
        return not is_input and new_root not in self._escaping

    def replaced(self, old: fx.Node, new: fx.Node) -> None:
        """Tell that all users of `old` now read `new`; call it before `old` is erased."""
        if old in self._returned:
            self._returned.discard(old)
            self._returned.add(new)
        old_root = storage_root(old)
        if old_root in self._escaping:
            self._escaping.add(storage_root(new))

    def touches_written(self, node: fx.Node) -> bool:
        """True where `node` reads a storage that something in the graph writes."""
        return any(storage_root(a) in self._written for a in node.all_input_nodes)

    def escapes(self, node: fx.Node) -> bool:
        """True where an output shares the storage of `node`."""
        return storage_root(node) in self._escaping


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True where sizes, strides, offset, dtype, device, and what the negative and conjugate bits
    make of the memory, are equal, by expression and without guards.
    """
    return (
        a.dtype == b.dtype
        and a.is_neg() == b.is_neg()
        and a.is_conj() == b.is_conj()
        and a.device == b.device
        and same_numbers(a.shape, b.shape)
        and same_numbers(a.stride(), b.stride())
        and same_number(a.storage_offset(), b.storage_offset())
    )
