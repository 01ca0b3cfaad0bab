"""The ops of `trnx::lists` in a functional ATen graph, each on one tensor; a copy into a tensor of
the same layout is what is copied.

Elements that are alike (in layout, in numbers, and in which of their tensors are the same one) are
the same ATen ops, which are found once, by running the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from trnx.fx_passes.metadata import VAL, copied_meta, fake_mode, without_guards
from trnx.fx_passes.nodes import arguments, getitems, val
from trnx.nki_kernels.list_ops import Place, registered

aten = torch.ops.aten
LISTS = torch.ops.trnx.lists.default
COPY = aten._foreach_copy.default

Table = Mapping[Any, Callable[..., Any]]


def expand_lists(gm: fx.GraphModule, table: Table) -> None:
    """Replace each `trnx::lists`, and copies of lists, in `gm`. What elements are made of is
    decomposed by `table`."""
    if not any(node.target in (LISTS, COPY) for node in gm.graph.nodes):
        return
    with ExitStack() as stack:
        stack.enter_context(without_guards(fake_mode(gm.graph)))
        stack.enter_context(torch.no_grad())
        _Expansion(gm.graph, table).run()


@dataclass(frozen=True)
class _Call:
    """An ATen call; a `Place` in it is one of the element's inputs, or an earlier call's result."""

    op: Any
    args: Any
    kwargs: Any
    value: torch.Tensor


@dataclass(frozen=True)
class _Form:
    """The calls that compute an element, and which place its value has."""

    calls: tuple[_Call, ...]
    result: Place


class _Expansion:
    def __init__(self, graph: fx.Graph, table: Table) -> None:
        self._graph = graph
        self._table = table
        self._forms: dict[Hashable, _Form] = {}
        self._layouts: dict[fx.Node, Hashable] = {}
        self._new: dict[fx.Node, fx.Node] = {}  # what was taken of a list -> what computes it

    def run(self) -> None:
        """One walk in order: to replace uses one by one is quadratic, lists being the uses."""
        replaced = []
        for node in list(self._graph.nodes):
            if any(argument in self._new for argument in node.all_input_nodes):
                node.args = self._renewed(node.args)
                node.kwargs = self._renewed(node.kwargs)
            if node.target in (LISTS, COPY):
                with self._graph.inserting_before(node):
                    made = self._program(node) if node.target is LISTS else self._copies(node)
                self._new.update((item, made[arguments(item)[1]]) for item in getitems(node))
                replaced.append(node)
        for node in reversed(replaced):
            for item in getitems(node):
                self._graph.erase_node(item)
            self._graph.erase_node(node)

    def _renewed(self, given: Any) -> Any:
        return fx.node.map_arg(given, lambda node: self._new.get(node, node))

    def _program(self, node: fx.Node) -> list[fx.Node]:
        number, inputs = arguments(node)
        program = registered(number)
        made: list[fx.Node] = []

        def value(place: Place) -> fx.Node:
            found: fx.Node = (inputs if place.is_input else made)[place.index]
            return found

        for single, elements in program.steps:
            for args, kwargs in elements:
                made.append(self._element(node, single, args, kwargs, value))
        return [value(place) for place in program.results]

    def _copies(self, node: fx.Node) -> list[fx.Node]:
        targets, sources, *_ = arguments(node)
        return [
            source
            if self._layout(target) == self._layout(source)
            else self._copy(node, target, source)
            for target, source in zip(targets, sources, strict=True)
        ]

    def _copy(self, node: fx.Node, target: fx.Node, source: fx.Node) -> fx.Node:
        places = {Place(True, 0): target, Place(True, 1): source}
        return self._element(node, aten.copy.default, tuple(places), {}, places.__getitem__)

    def _element(
        self,
        origin: fx.Node,
        single: Callable[..., Any],
        args: Any,
        kwargs: Any,
        value: Callable[[Place], fx.Node],
    ) -> fx.Node:
        """Insert the calls of an element, whose value is that of the node that is returned."""
        inputs: dict[Place, Place] = {}

        def numbered(place: Place) -> Place:
            return inputs.setdefault(place, Place(True, len(inputs)))

        args, kwargs = _mapped((args, kwargs), numbered)
        nodes = [value(place) for place in inputs]
        form = self._form(single, args, kwargs, nodes)
        made: list[fx.Node] = []

        def node_at(place: Place) -> fx.Node:
            return (nodes if place.is_input else made)[place.index]

        for call in form.calls:
            new = self._graph.call_function(
                call.op, _mapped(call.args, node_at), _mapped(call.kwargs, node_at)
            )
            new.meta = {**copied_meta(origin), VAL: call.value}
            made.append(new)
        return node_at(form.result)

    def _form(
        self, single: Callable[..., Any], args: Any, kwargs: Any, nodes: Sequence[fx.Node]
    ) -> _Form:
        key = (single, repr((args, kwargs)), *map(self._layout, nodes))
        if key not in self._forms:
            # Each a tensor of its own: nodes may share their fake values.
            inputs = [aten.alias.default(val(node)) for node in nodes]
            self._forms[key] = _recorded(single, args, kwargs, inputs, self._table)
        return self._forms[key]

    def _layout(self, node: fx.Node) -> Hashable:
        if node not in self._layouts:
            value = val(node)
            place = value.storage_offset(), value.device, value.is_neg(), value.is_conj()
            self._layouts[node] = value.dtype, tuple(value.shape), value.stride(), place
        return self._layouts[node]


def _mapped(given: Any, value: Callable[[Place], Any]) -> Any:
    return fx.node.map_aggregate(
        given, lambda item: value(item) if isinstance(item, Place) else item
    )


def _recorded(
    single: Callable[..., Any],
    args: Any,
    kwargs: Any,
    inputs: Sequence[torch.Tensor],
    table: Table,
) -> _Form:
    recorder = _Recorder(table, inputs)
    args, kwargs = _mapped((args, kwargs), lambda place: inputs[place.index])
    with recorder:
        result = single(*args, **kwargs)
        if recorder.place_of(result).is_input:  # of which eager gives a copy
            result = aten.clone.default(result)
    return _Form(tuple(recorder.calls), recorder.place_of(result))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ATen calls of what runs under it, some of which `table` decomposes."""

    def __init__(self, table: Table, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self._table = table
        self._places = {id(value): Place(True, index) for index, value in enumerate(inputs)}

    def place_of(self, value: torch.Tensor) -> Place:
        """Which input, or result of a call, `value` is."""
        return self._places[id(value)]

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            # Composites come here where nobody records gradients.
            rule = self._table.get(op, op.decompose)
            decomposed = rule(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        result = op(*args, **kwargs)
        self._places[id(result)] = Place(False, len(self.calls))
        self.calls.append(_Call(op, self._placed(args), self._placed(kwargs), result))
        return result

    def _placed(self, given: Any) -> Any:
        def placed(item: Any) -> Any:
            return self.place_of(item) if isinstance(item, torch.Tensor) else item

        return fx.node.map_aggregate(given, placed)
