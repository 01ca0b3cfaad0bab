"""Find the patterns of kernels in the canonical graph.

`Matcher(kernel, pattern)` traces the pattern once. `match(node)` compares it with the graph at
`node`: operators and literals must be equal, the operands of commutative operators may be swapped,
a parameter stands for a node or a constant (see `spec.Pattern`), the same one for the same
parameter. A node inside the match whose value is used outside it makes a near miss: a `Reject`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.errors import PatternError
from trnx.fx_passes.nodes import arguments, aten, getitems, is_compute
from trnx.fx_passes.region import KernelMatch
from trnx.fx_passes.trace_pattern import parameters_of, trace_pattern
from trnx.nki_kernels.hints import hinted
from trnx.nki_kernels.spec import Bindings, Kernel, Pattern
from trnx.simulator.errors import Reject
from trnx.simulator.lru_cache import LruCache

_COMMUTATIVE = frozenset(
    {
        aten.add.Tensor,
        aten.mul.Tensor,
        aten.maximum.default,
        aten.minimum.default,
        aten.eq.Tensor,
        aten.ne.Tensor,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten.bitwise_and.Tensor,
        aten.bitwise_or.Tensor,
        aten.bitwise_xor.Tensor,
    }
)


@dataclass(frozen=True)
class GraphMatch:
    """A kernel's pattern at a place: `nodes` in order, the root's getitems included."""

    match: KernelMatch
    root: fx.Node
    nodes: tuple[fx.Node, ...]


Arguments = tuple[Any, ...]


def call_arguments(node: fx.Node) -> Arguments:
    """The arguments by position, defaults filled in, lists as tuples."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return tuple(node.args) + tuple(node.kwargs.values())
    values: list[Any] = []
    for place, argument in enumerate(schema.arguments):
        if place < len(node.args):
            value = node.args[place]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        else:
            value = argument.default_value
        values.append(tuple(value) if isinstance(value, (list, tuple)) else value)
    return tuple(values)


class Matcher:
    """One pattern of one kernel, traced."""

    def __init__(self, kernel: Kernel, pattern: Pattern) -> None:
        self.kernel = kernel
        self._constants = dict(pattern.constants)
        try:
            graph = trace_pattern(pattern.function)
        except (TypeError, ValueError, NameError) as error:  # TraceError is a ValueError
            raise PatternError(f"cannot trace the pattern of {kernel.name}: {error}") from error
        self._order = tuple(graph.nodes)
        self._parameters = parameters_of(pattern.function, graph)
        result = next(iter(reversed(graph.nodes))).args[0]
        self._results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if not all(isinstance(n, fx.Node) and n.op != "placeholder" for n in self._results):
            raise PatternError(f"kernel {kernel.name}: a pattern returns results of calls only")
        self._root = self._results[0]
        # A pattern that returns a multi-output node returns all its results.
        single = not isinstance(result, (tuple, list))
        self._whole = single and self._root.target is not operator.getitem
        calls = [n for n in graph.nodes if n.op == "call_function"]
        self.targets = frozenset(n.target for n in calls)
        self.size = len(calls)
        self._arguments = {call: call_arguments(call) for call in calls}

    @property
    def root_target(self) -> Any:
        """The operator that the match is anchored at."""
        return _skip_getitem(self._root).target

    def match(
        self, node: fx.Node, known: dict[fx.Node, Arguments] | None = None
    ) -> GraphMatch | Reject | None:
        """The match that ends at `node`, a Reject for a near miss, None where the pattern is not
        there. `known` collects arguments of the graph's calls, for matches until it changes.
        """
        anchor = self._root
        found = _Found({}, {}, {} if known is None else known)
        if anchor.target is operator.getitem:
            place = next((g for g in getitems(node) if g.args[1] == anchor.args[1]), None)
            if place is None or not self._same(anchor, place, found):
                return None
        elif not self._same(anchor, node, found):
            return None
        if not all(self._find_result(result, found) for result in self._results[1:]):
            return None
        return self._finish(node, found)

    def _finish(self, root: fx.Node, found: _Found) -> GraphMatch | Reject | None:
        results = [found.calls.get(result) for result in self._results]
        inside = set(found.calls.values())
        if self._whole and (parts := _result_count(root)):
            results = [None] * parts
            for item in getitems(root):
                results[arguments(item)[1]] = item
                inside.add(item)
        if leak := _leak(inside, {r for r in results if r is not None}):
            # Where it is one call without some results, a pattern with all of them takes as much.
            is_alone = leak is root and sum(map(is_compute, inside)) == 1
            return Reject(
                f"kernel {self.kernel.name} would hide {leak.name}, which is used outside of it",
                root,
                "" if is_alone else self.kernel.name,
                advice.HIDDEN,
            )
        if any(r is not None and r.users and inside.issuperset(r.users) for r in results[1:]):
            return None  # a pattern without this result is the one that is there
        if len(results) > 1 and (late := _needed_inside(inside)):
            return Reject(
                f"kernel {self.kernel.name} would need {late.name}, which is made of its results",
                root,
                self.kernel.name,
                advice.HIDDEN,
            )
        bindings = {name: found.bound.get(name) for name in self._parameters}
        bindings.update(self._constants)
        if any(_depends_on_compute(bound, inside) for bound in bound_nodes(bindings)):
            return None  # `y + y`: what is bound would have to be there before the kernel
        # The pattern's order is a topological one; the getitems of its root follow.
        calls = [found.calls[n] for n in self._order if n in found.calls]
        nodes = tuple(dict.fromkeys([*calls, *(r for r in results if r is not None)]))
        return GraphMatch(KernelMatch(self.kernel, bindings, tuple(results)), root, nodes)

    def _find_result(self, result: fx.Node, found: _Found) -> bool:
        """Find one more result of a pattern with several roots, next to what is found already."""
        if result in found.calls:
            return True
        near = [
            found.calls.get(n) or found.bound.get(str(n.target)) for n in result.all_input_nodes
        ]
        for base in (n for n in near if isinstance(n, fx.Node)):
            for candidate in base.users:
                if candidate in found.calls.values():
                    continue  # alike results are nodes of their own
                mark = found.mark()
                if self._same(result, candidate, found):
                    return True
                found.back_to(mark)
        # A result that nobody uses is no node of the graph.
        return result.target is operator.getitem and result.args[0] in found.calls

    def _same(self, pattern: Any, value: Any, found: _Found) -> bool:
        if not isinstance(pattern, fx.Node):
            return _same_literal(pattern, value)
        if pattern.op == "placeholder":
            return self._bind(str(pattern.target), value, found)
        if not isinstance(value, fx.Node):
            return False
        if pattern in found.calls:
            return found.calls[pattern] is value
        if value.op != "call_function" or pattern.target is not value.target:
            return False
        mark = found.mark()
        found.calls[pattern] = value
        wanted, have = self._arguments[pattern], found.arguments_of(value)
        if self._all_same(wanted, have, found):
            return True
        if pattern.target in _COMMUTATIVE:
            found.back_to(mark)
            found.calls[pattern] = value
            if self._all_same(wanted, (have[1], have[0], *have[2:]), found):
                return True
        found.back_to(mark)
        return False

    def _all_same(self, wanted: Any, have: Any, found: _Found) -> bool:
        if len(wanted) != len(have):
            return False
        for one, other in zip(wanted, have, strict=True):  # a loop: most calls end here
            if not self._same_item(one, other, found):
                return False
        return True

    def _same_item(self, wanted: Any, have: Any, found: _Found) -> bool:
        if isinstance(wanted, (tuple, list)):
            return isinstance(have, (tuple, list)) and self._all_same(wanted, have, found)
        return self._same(wanted, have, found)

    def _bind(self, name: str, value: Any, found: _Found) -> bool:
        if name in found.bound:
            known = found.bound[name]
            if isinstance(known, fx.Node):
                return known is value
            return _same_literal(known, value)
        if not self._parameters[name].takes(value):
            return False
        found.bound[name] = value
        return True


@dataclass
class _Found:
    """What a match has found so far; insertion order makes it cheap to go back."""

    calls: dict[fx.Node, fx.Node]
    bound: dict[str, Any]
    known: dict[fx.Node, Arguments]

    def arguments_of(self, node: fx.Node) -> Arguments:
        """`call_arguments`, once for all patterns."""
        if node not in self.known:
            self.known[node] = call_arguments(node)
        return self.known[node]

    def mark(self) -> tuple[int, int]:
        return len(self.calls), len(self.bound)

    def back_to(self, mark: tuple[int, int]) -> None:
        while len(self.calls) > mark[0]:
            self.calls.popitem()
        while len(self.bound) > mark[1]:
            self.bound.popitem()


def _skip_getitem(node: fx.Node) -> fx.Node:
    source = node.args[0] if node.target is operator.getitem else node
    assert isinstance(source, fx.Node)
    return source


def _result_count(node: fx.Node) -> int:
    """How many tensors a multi-output node gives; 0 for a node with one value."""
    value = node.meta.get("val")
    return len(value) if isinstance(value, (tuple, list)) else 0


def _same_literal(a: Any, b: Any) -> bool:
    if isinstance(b, fx.Node):
        return False
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same_literal(x, y) for x, y in zip(a, b, strict=True))
    return (type(a) is type(b) or _is_plain_number(a, b)) and bool(a == b)


def _is_plain_number(*values: Any) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _leak(inside: set[fx.Node], results: set[fx.Node]) -> fx.Node | None:
    """A node that depends on what the match computes, is no result, and is used outside.

    Views of what is bound may be used elsewhere: whoever uses them evaluates them anew.
    """
    for node in sorted(inside):
        if node in results or all(user in inside for user in node.users):
            continue
        if is_compute(node) or any(_depends_on_compute(a, inside) for a in node.all_input_nodes):
            return node
    return None


def _needed_inside(inside: set[fx.Node]) -> fx.Node | None:
    """A node outside of the match that it reads, and that depends on what it computes."""
    first = min(inside)
    reads = [n for node in sorted(inside) for n in node.all_input_nodes if n not in inside]
    seen: set[fx.Node] = set()
    for start in dict.fromkeys(reads):
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if node in inside:
                return start
            if node not in seen and not node < first:
                seen.add(node)
                waiting.extend(node.all_input_nodes)
    return None


def _depends_on_compute(node: fx.Node, inside: set[fx.Node]) -> bool:
    if node not in inside:
        return False
    return is_compute(node) or any(_depends_on_compute(a, inside) for a in node.all_input_nodes)


def matchers(kernels: Iterable[Kernel]) -> tuple[Matcher, ...]:
    """All patterns of all kernels that have any, biggest first, then in the order of `kernels`."""
    every = [matcher for kernel in kernels for matcher in _matchers_of(kernel)]
    return tuple(sorted(every, key=lambda m: -m.size))


# Kernel's id -> the kernel, which keeps the id its own, and its matchers: they hold nothing of the
# graphs that they were used for.
_KNOWN: LruCache[tuple[Kernel, tuple[Matcher, ...]]] = LruCache(256)


def _matchers_of(kernel: Kernel) -> tuple[Matcher, ...]:
    """Traced once for a kernel, not for every graph."""

    def make() -> tuple[Kernel, tuple[Matcher, ...]]:
        patterns = getattr(kernel, "patterns", ())
        return kernel, tuple(Matcher(kernel, pattern) for pattern in patterns)

    return _KNOWN.get_or_make(id(kernel), make)[1]


def pattern_targets(kernels: Iterable[Kernel]) -> frozenset[Any]:
    """The operators that patterns are written in: decompositions must leave them whole."""
    found: set[Any] = set()
    for matcher in matchers(kernels):
        found.update(t for t in matcher.targets if isinstance(t, torch._ops.OpOverload))
    return frozenset(found)


def bindings_spec(match: KernelMatch) -> Bindings:
    """The bindings as guards and costs take them: specs for tensors, hints for symbolic numbers."""
    return Bindings({name: _spec(value) for name, value in match.bindings.items()})


def _spec(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return hinted(value.meta["val"])
    if isinstance(value, (list, tuple)):
        return [_spec(item) for item in value]
    return value


def bound_nodes(bindings: Mapping[str, Any]) -> tuple[fx.Node, ...]:
    """The nodes among the bindings, those in lists included, each once, in the order of the
    names.
    """
    found: dict[fx.Node, None] = {}
    for value in bindings.values():
        items = value if isinstance(value, (list, tuple)) else (value,)
        found.update((item, None) for item in items if isinstance(item, fx.Node))
    return tuple(found)
