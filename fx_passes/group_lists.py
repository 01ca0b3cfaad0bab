"""Stretches of ops on lists in Dynamo's graph (an optimizer's step, clipping) become `trnx::lists`,
which AOTAutograd does not trace through, and one copy into the tensors that they write to.

A stretch is calls of `torch._foreach_*`, what is taken of their results, and `full_like` with a
number. It stays as it is where that could mean something else: tensors that autograd follows, that
share memory while one of them is written to, that are no plain ones or of sizes that are symbols;
under autocast, in inference mode and under torch.func; a number that is a symbol.

Where an element of a call that stays reads what another one writes, the call becomes one for each
element: eager on the CPU takes them in order, and AOTAutograd would read all before it writes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.list_calls import PREFIX, SINGLE, by_place
from trnx.fx_passes.metadata import EXAMPLE_VALUE, copied_meta
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.rewrite import is_transformed, may_be_autocast, plain_tensor
from trnx.fx_passes.symbolic import is_symbolic
from trnx.nki_kernels.list_ops import Layout, ListProgram, Place, Step, register

# Elements of a stretch: fewer are left to AOTAutograd.
LEAST = 16
# What the arguments of calls may be, in lists or not.
_ARGUMENTS = (fx.Node, bool, int, float, torch.dtype, type(None))


@dataclass(frozen=True)
class _Call:
    """What computes an element, and whether the op writes it to the first argument."""

    single: Callable[..., torch.Tensor]
    writes: bool = False


@dataclass(frozen=True)
class _Written:
    """`single` in the dtype of the first argument, to which the op writes."""

    single: Callable[..., torch.Tensor]

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = self.single(x, *args, **kwargs)
        return result if result.dtype == x.dtype else result.to(x.dtype)


def _calls() -> Mapping[Any, _Call]:
    found: dict[Any, _Call] = {}
    for name, single in SINGLE.items():
        for suffix, call in (("", _Call(single)), ("_", _Call(_Written(single), writes=True))):
            target = getattr(torch, PREFIX + name + suffix, None)
            if target is not None:
                found[target] = call
    return found


_CALLS = _calls()


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    graph = gm.graph
    if any(node.target in _CALLS for node in graph.nodes) and not _is_special(graph):
        for stretch in reversed(_stretches(graph)):  # which read what those before them give
            stretch.replace()
        for node in list(graph.nodes):
            if node.target in _CALLS:
                _split_where_order_matters(node)
        graph.lint()
    return gm


GROUP_LISTS = Pass("group_lists", _run)


def _is_special(graph: fx.Graph) -> bool:
    """Whether ops may mean something else than what they compute of plain tensors."""
    return is_transformed(graph) or torch.is_inference_mode_enabled() or may_be_autocast(graph)


class _Stretch:
    """Nodes side by side, as a program. `outside` are the tensors that it reads, in the order of
    its inputs; `written` those of them that it writes to."""

    def __init__(self) -> None:
        self.nodes: list[fx.Node] = []
        self.outside: dict[fx.Node, Place] = {}
        self.written: dict[fx.Node, None] = {}
        self.values: dict[fx.Node, Place] = {}  # what a tensor is by now
        self.steps: list[Step] = []
        self.size = 0
        self._lists: dict[tuple[fx.Node, int], Place] = {}  # results that nobody has taken yet

    def add(self, node: fx.Node, is_followed: Callable[[torch.Tensor], bool]) -> bool:
        """Whether `node` is one of the stretch, which holds it then."""
        if node.target is operator.getitem:
            is_added = self._add_item(node)
        elif node.target is torch.full_like:
            is_added = self._add_filled(node, is_followed)
        else:
            is_added = node.target in _CALLS and self._add_call(node, is_followed)
        if is_added:
            self.nodes.append(node)
        return is_added

    def _add_item(self, node: fx.Node) -> bool:
        place = self._lists.pop(node.args, None)  # type: ignore[arg-type]
        if place is None:
            return False
        self.values[node] = place
        return True

    def _add_filled(self, node: fx.Node, is_followed: Callable[[torch.Tensor], bool]) -> bool:
        if node.kwargs or len(node.args) != 2 or not isinstance(node.args[1], (bool, int, float)):
            return False
        if not all(_is_plain(n, is_followed) for n in (node, *node.all_input_nodes)):
            return False
        (self.values[node],) = self._compute(_Call(torch.full_like), [(node.args, {})])
        return True

    def _add_call(self, node: fx.Node, is_followed: Callable[[torch.Tensor], bool]) -> bool:
        call, elements = _CALLS[node.target], _elements(node)
        if not elements or (call.writes and node.users):
            return False
        if not all(_is_plain(n, is_followed) for n in node.all_input_nodes):
            return False
        places = self._compute(call, elements)
        if not call.writes:
            self._lists |= {(node, index): place for index, place in enumerate(places)}
        return True

    def _compute(self, call: _Call, elements: Sequence[tuple[Any, Any]]) -> list[Place]:
        """A step, one element after the other: one may read what those before have written."""
        placed, results = [], []
        for args, kwargs in elements:
            placed.append(fx.node.map_arg((args, kwargs), self._value))
            results.append(Place(is_input=False, index=self.size))
            self.size += 1
            if call.writes:
                self.values[args[0]] = results[-1]
                if args[0] in self.outside:
                    self.written[args[0]] = None
        self.steps.append(Step(call.single, placed))
        return results

    def _value(self, node: fx.Node) -> Any:
        if node not in self.values:
            self.values[node] = self.outside[node] = Place(True, len(self.outside))
        return self.values[node]

    def is_replaceable(self) -> bool:
        """Whether what is written to shares no memory with another tensor from outside, and lists
        are used inside alone."""
        uses = Counter(map(_storage, self.outside))
        inside = set(self.nodes)
        lists = (node for node in self.nodes if node not in self.values)
        return all(uses[_storage(node)] == 1 for node in self.written) and all(
            inside.issuperset(node.users) for node in lists
        )

    def replace(self) -> None:
        """One call in the place of the last node, and a copy into what is written to."""
        last, inside = self.nodes[-1], set(self.nodes)
        kept = [n for n in self.nodes if n in self.values and not inside.issuperset(n.users)]
        results = [*self.written, *kept]
        program = ListProgram(
            self.steps, [self.values[n] for n in results], [_layout(n) for n in results]
        )
        graph = last.graph
        with graph.inserting_after(last):
            call = graph.call_function(
                torch.ops.trnx.lists.default, (register(program), [*self.outside])
            )
        call.meta = {**copied_meta(last), "program": program}  # which holds it
        taken = self._taken(call, results)
        if self.written:
            with graph.inserting_after(taken[-1]):
                pairs = [*self.written], taken[: len(self.written)]
                graph.call_function(torch._foreach_copy_, pairs).meta = copied_meta(last)
        _replace_uses(call, dict(zip(kept, taken[len(self.written) :], strict=True)))
        for node in reversed(self.nodes):
            graph.erase_node(node)

    @staticmethod
    def _taken(call: fx.Node, results: Sequence[fx.Node]) -> list[fx.Node]:
        found, before = [], call
        for index, node in enumerate(results):
            with call.graph.inserting_after(before):
                before = call.graph.call_function(operator.getitem, (call, index))
            before.meta = dict(node.meta)
            found.append(before)
        return found


def _elements(node: fx.Node) -> list[tuple[Any, Any]] | None:
    """The arguments of each element of a call, None where a number is no plain one."""
    given = by_place(getattr(node.target, "__name__", ""), node.args, node.kwargs)
    if given is None:
        return None
    args, kwargs = given
    values = [*args, *kwargs.values()]
    sizes = {len(value) for value in values if isinstance(value, (list, tuple))}
    items = (v if isinstance(v, (list, tuple)) else [v] for v in values)
    if len(sizes) != 1 or not all(isinstance(i, _ARGUMENTS) for every in items for i in every):
        return None

    def element(value: Any, index: int) -> Any:
        return value[index] if isinstance(value, (list, tuple)) else value

    return [
        (
            tuple(element(value, index) for value in args),
            {name: element(value, index) for name, value in kwargs.items()},
        )
        for index in range(*sizes)
    ]


def _is_plain(node: fx.Node, is_followed: Callable[[torch.Tensor], bool]) -> bool:
    value = plain_tensor(node)
    if value is None or value.is_complex() or is_followed(value):
        return False
    return not any(map(is_symbolic, (*value.shape, *value.stride(), value.storage_offset())))


def _storage(node: fx.Node) -> int:
    return int(_example(node).untyped_storage()._cdata)


def _layout(node: fx.Node) -> Layout:
    value = _example(node)
    return Layout(tuple(value.shape), value.stride(), value.dtype, value.device)


def _example(node: fx.Node) -> torch.Tensor:
    value = node.meta[EXAMPLE_VALUE]
    assert isinstance(value, torch.Tensor)
    return value


def _replace_uses(after: fx.Node, new: Mapping[fx.Node, fx.Node]) -> None:
    """In one walk: node by node it would be quadratic, lists being the uses."""
    node = after.next
    while new and node.op != "root":
        if any(argument in new for argument in node.all_input_nodes):
            node.args = fx.node.map_arg(node.args, lambda n: new.get(n, n))
            node.kwargs = fx.node.map_arg(node.kwargs, lambda n: new.get(n, n))
        node = node.next


def _stretches(graph: fx.Graph) -> list[_Stretch]:
    """The stretches that are worth it and may become programs."""
    found = [_Stretch()]
    is_enabled = torch.is_grad_enabled()

    def is_followed(value: torch.Tensor) -> bool:
        return is_enabled and value.requires_grad

    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):  # which have no effect
            continue
        if node.target is torch._C._set_grad_enabled:
            (is_enabled,) = node.args
        if not found[-1].add(node, is_followed):
            found.append(_Stretch())
            found[-1].add(node, is_followed)
    return [one for one in found if one.size >= LEAST and one.is_replaceable()]


def write_element(name: str, x: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """The element of `torch._foreach_<name>_` whose first argument is `x`."""
    x.copy_(SINGLE[name](x, *args, **kwargs))


def _split_where_order_matters(node: fx.Node) -> None:
    elements = _elements(node)
    if not _CALLS[node.target].writes or node.users or not elements:
        return
    if any(plain_tensor(argument) is None for argument in node.all_input_nodes):
        return
    users: dict[int, set[int]] = {}
    for index, (args, kwargs) in enumerate(elements):
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, fx.Node):
                users.setdefault(_storage(argument), set()).add(index)
    if all(len(users[_storage(args[0])]) == 1 for args, _ in elements):
        return
    name = getattr(node.target, "__name__", "").removeprefix(PREFIX).removesuffix("_")
    with node.graph.inserting_before(node):
        for args, kwargs in elements:
            one = node.graph.call_function(write_element, (name, *args), kwargs)
            one.meta = copied_meta(node)
    node.graph.erase_node(node)
