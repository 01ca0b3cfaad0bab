"""From a region's nodes to the expression IR, or the reason why not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

# Importing these modules fills the table.
from trnx.nki_kernels.generator import (  # noqa: F401
    rules_activation,
    rules_arithmetic,
    rules_backward,
    rules_gamma,
    rules_logic,
    rules_reduction,
    rules_special,
    rules_trigonometry,
)
from trnx.nki_kernels.generator.align import Alignment, align
from trnx.nki_kernels.generator.ir import STORAGE_DTYPES, Builder, Dims, Operand, Value
from trnx.nki_kernels.generator.late_rounding import with_late_rounding
from trnx.nki_kernels.generator.long_builder import LongBuilder
from trnx.nki_kernels.generator.monotone import move_behind_extrema
from trnx.nki_kernels.generator.needless_extrema import without_needless_extrema
from trnx.nki_kernels.generator.powers import move_powers_to_sums
from trnx.nki_kernels.generator.roots import roots_as_powers
from trnx.nki_kernels.generator.rounding import loose_quotients
from trnx.nki_kernels.generator.signs import without_needless_signs
from trnx.nki_kernels.generator.table import entry_of
from trnx.nki_kernels.hints import hinted
from trnx.simulator.errors import Reject
from trnx.simulator.memory.tensor_spec import TensorSpec

SpecOf = Mapping[fx.Node, Any]  # TensorSpec of tensors, the number of anything else


@dataclass(frozen=True)
class Output:
    """One result: its value, the labels of its dimensions, and its shape, strides and dtype.

    `order` are its dimensions in the order in which the kernel returns them, outermost first.
    """

    value: Value
    dims: Dims
    spec: TensorSpec
    order: Dims = ()

    @property
    def returned_shape(self) -> tuple[int, ...]:
        """The shape that the kernel returns."""
        return tuple(self.spec.shape[i] for i in self.order)

    def along(self, labels: Dims) -> Output:
        """The result as it lies in memory in eager where that is dense and goes along `labels`,
        else row-major."""
        place = {label: i for i, label in enumerate(labels)}
        order = sorted(range(len(self.dims)), key=lambda i: place.get(self.dims[i], -1))
        spec = self.spec
        if spec.is_contiguous or not spec.permuted(order).is_contiguous:
            dense = TensorSpec.dense(spec.shape, spec.dtype)
            return replace(self, spec=dense, order=tuple(range(spec.ndim)))
        return replace(self, order=tuple(order))


@dataclass(frozen=True)
class Lowered:
    """A region in the IR. `order` are the labels of the iteration space, outermost first."""

    outputs: tuple[Output, ...]
    sizes: Mapping[int, int]
    order: Dims
    reduced: frozenset[int]


def lower(nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: SpecOf) -> Lowered | Reject:
    """`nodes`, in topological order, to the values of `outputs`."""
    refusal = _refuse(nodes, specs)
    if refusal is not None:
        return refusal
    alignment = align(list(nodes), lambda node: specs[node].ndim, _alike(outputs, specs))
    sizes = _sizes(alignment, specs)
    if isinstance(sizes, Reject):
        return sizes
    values = _lower_nodes(nodes, specs, alignment)
    if isinstance(values, Reject):
        return values
    builder, table = values
    results = tuple(_output(builder, n, table[n], alignment, specs) for n in outputs)
    results = _simplified(results, without_needless_signs)
    results = _simplified(results, roots_as_powers)
    results = _simplified(results, move_powers_to_sums)
    results = _simplified(results, without_needless_extrema)
    results = _simplified(results, partial(move_behind_extrema, sizes=sizes))
    results = _simplified(results, with_late_rounding)
    return _in_common_space(results, alignment, sizes)


def _simplified(
    results: tuple[Output, ...],
    rewrite: Callable[[tuple[Value, ...], list[Value]], Mapping[Value, Value]],
) -> tuple[Output, ...]:
    roots = tuple(o.value for o in results)
    new = rewrite(roots, reachable(roots))
    return tuple(replace(o, value=new[o.value]) for o in results)


def _refuse(nodes: Sequence[fx.Node], specs: SpecOf) -> Reject | None:
    for node in nodes:
        if entry_of(node.target) is None:
            return Reject(f"{node.target} has no rule for generated kernels", node)
        if not any(isinstance(specs[n], TensorSpec) for n in node.all_input_nodes):
            return Reject("a constant needs no kernel", node)
        for one in (node, *node.all_input_nodes):
            spec = specs[one]
            if not isinstance(spec, TensorSpec):
                continue
            if spec.dtype not in STORAGE_DTYPES:
                return Reject(f"{spec.dtype} is not a type that generated kernels compute in", node)
            if 0 in spec.shape:
                return Reject("an empty tensor leaves a kernel nothing to do", node)
    return None


def _alike(outputs: Sequence[fx.Node], specs: SpecOf) -> list[fx.Node]:
    """Outputs of the largest shape, which share the iteration space though they share no input."""
    largest = max((specs[n].shape for n in outputs), key=lambda s: (len(s), math.prod(s)))
    return [n for n in outputs if specs[n].shape == largest]


def _sizes(alignment: Alignment, specs: SpecOf) -> dict[int, int] | Reject:
    sizes: dict[int, int] = {}
    labelled = [(n, d) for n, d in alignment.nodes.items()]
    labelled += [(n, d) for (n, _), d in alignment.uses.items()]
    for node, dims in labelled:
        for label, size in zip(dims, specs[node].shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    for node, dims in labelled:
        for label, size in zip(dims, specs[node].shape, strict=True):
            if size not in (1, sizes[label]):
                return Reject(f"a dimension is both {size} and {sizes[label]} long here", node)
        if len({*dims}) != len(dims):
            return Reject("two dimensions of one tensor run together", node)
    return sizes


def _lower_nodes(
    nodes: Sequence[fx.Node], specs: SpecOf, alignment: Alignment
) -> tuple[Builder, dict[fx.Node, Value]] | Reject:
    builder = LongBuilder()
    values: dict[fx.Node, Value] = {}
    sets: set[frozenset[int]] = set()
    loose = loose_quotients(nodes, specs)

    def operand(node: fx.Node, user: fx.Node) -> Operand:
        if node in values:
            return values[node]
        spec = specs[node]
        if not isinstance(spec, TensorSpec):
            return spec  # type: ignore[no-any-return]  # a number that the call was given
        dims = alignment.uses[node, user]
        return builder.load(node.name, spec.dtype, _stepped(dims, spec), dims)

    for node in nodes:
        entry = entry_of(node.target)
        assert entry is not None
        builder.out = specs[node].dtype
        builder.rounds_quotients = node not in loose
        builder.reduced, builder.count = _reduced(node, specs, alignment)
        sets |= {builder.reduced} - {frozenset()}
        if len(sets) > 1:
            return Reject("reductions over different dimensions do not share one tile", node)
        here: dict[fx.Node, Any] = {n: operand(n, node) for n in node.all_input_nodes}
        args: Any = fx.map_arg(node.args, here.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, here.__getitem__)
        result = entry.lowering(builder, *args, **kwargs)
        if isinstance(result, Reject):
            return Reject(result.reason, node)
        held = _as_result(builder, result)
        if isinstance(held, Reject):
            return Reject(held.reason, node)
        values[node] = held
    return builder, values


def _varying(dims: Dims, shape: tuple[int, ...]) -> frozenset[int]:
    return frozenset(label for label, size in zip(dims, shape, strict=True) if size != 1)


def _stepped(dims: Dims, spec: TensorSpec) -> frozenset[int]:
    """The labels along which a tensor in memory varies: an expanded one is loaded once."""
    steps = zip(dims, spec.shape, spec.strides, strict=True)
    return frozenset(label for label, size, stride in steps if size != 1 and stride != 0)


def _reduced(node: fx.Node, specs: SpecOf, alignment: Alignment) -> tuple[frozenset[int], int]:
    if node not in alignment.reductions:
        return frozenset(), 1
    first: Any = node.args[0]
    shape = specs[first].shape
    positions = alignment.reductions[node].dims
    labels = alignment.reduced[node]
    kept = frozenset(d for d, i in zip(labels, positions, strict=True) if shape[i] != 1)
    return kept, math.prod(shape[i] for i in positions)


def _as_result(builder: LongBuilder, result: Operand) -> Value | Reject:
    """A lowering's result, rounded to the node's dtype where eager rounds."""
    out = builder.out
    if out is torch.int64:
        return builder.to_long(result)
    if not isinstance(result, Value):
        number = bool(result) if out is torch.bool else result
        dtype = out if out in (torch.bool, torch.int32) else torch.float32
        return builder.constant(number, dtype, frozenset())
    if out is torch.bool:
        value = builder.to_bool(result)
    elif out is torch.int32:
        value = builder.to_int(result)
    else:
        value = builder.cast(result, out)
    assert isinstance(value, Value)
    return value


def _output(
    builder: Builder, node: fx.Node, value: Value, alignment: Alignment, specs: SpecOf
) -> Output:
    spec = specs[node]
    dims = alignment.nodes[node]
    value = builder.spread(value, spec.dtype, _varying(dims, spec.shape))
    return Output(value, dims, spec)


def _in_common_space(
    outputs: tuple[Output, ...], alignment: Alignment, sizes: Mapping[int, int]
) -> Lowered | Reject:
    order: Dims = ()
    every = [*alignment.nodes.values(), *alignment.uses.values()]
    for dims in every:
        long = tuple(d for d in dims if sizes[d] > 1)
        order = long if len(long) > len(order) else order
    values = reachable(tuple(o.value for o in outputs))
    used = frozenset().union(*(v.axes for v in values))
    if not used <= set(order):
        return Reject("the region's tensors have no common iteration space")
    reduced = frozenset().union(*(v.args[0].axes - v.axes for v in values if v.op == "reduce"))  # type: ignore[union-attr]
    return Lowered(outputs, sizes, order, reduced)


def reachable(roots: tuple[Value, ...]) -> list[Value]:
    """All values that `roots` are made of, operands first."""
    seen: dict[Value, None] = {}
    stack: list[tuple[Value, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        value, done = stack.pop()
        if done:
            seen.setdefault(value)
        elif value not in seen:
            stack.append((value, True))
            stack += [(a, False) for a in reversed(value.args) if isinstance(a, Value)]
    return list(seen)


def specs_of_metadata(nodes: Sequence[fx.Node]) -> dict[fx.Node, Any]:
    """Specs of nodes from `meta["val"]`, symbolic sizes by their hints."""
    return {node: hinted(node.meta["val"]) for node in nodes}


def specs_of_bindings(graph: fx.Graph, bindings: Mapping[str, Any]) -> dict[fx.Node, Any]:
    """Specs of all nodes when the placeholders are `bindings`: the graph runs on meta tensors."""
    env: dict[fx.Node, Any] = {}
    specs: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            bound = bindings[node.name]
            specs[node] = bound
            env[node] = _meta(bound) if isinstance(bound, TensorSpec) else bound
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = node.target(*args, **kwargs)
            specs[node] = hinted(env[node])
    return specs


def _meta(spec: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")
