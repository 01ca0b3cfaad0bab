"""`FusedKernel`: a region of pointwise ops, reductions and casts as one generated NKI kernel.

The region is a GraphModule whose placeholders are the bindings and whose output is a tuple.
Legality is asked with whatever sizes are known; `launch` generates source for concrete sizes,
strides and broadcasts, so that a kernel has no argument but its tensors. A result of rank 0 is
returned as `(1,)`.

Equal regions (ops, constants, sizes, strides, dtypes) are planned and emitted once in a process,
whatever their nodes are called, and share one kernel.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from trnx.nki_kernels.errors import GeneratorError
from trnx.nki_kernels.generator import source_cache
from trnx.nki_kernels.generator.emit import Scheduled, emit
from trnx.nki_kernels.generator.geometry import Geometry, cut, merge
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.lower import (
    Lowered,
    lower,
    reachable,
    specs_of_bindings,
    specs_of_metadata,
)
from trnx.nki_kernels.generator.schedule import Instruction, Scheduler
from trnx.nki_kernels.generator.table import entry_of
from trnx.nki_kernels.keys import key_of
from trnx.nki_kernels.spec import Bindings, Cost, Launch
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.spec import TensorSpec

# Elements of one partition in a tile: long enough to hide the fixed cost of an instruction and of a
# DMA (2 KiB a partition), short enough that the temporaries of a long chain fit.
_FREE_SIZE = 2048
_MAX_NODES = 100


@dataclass(frozen=True)
class _Refusal:
    """A Reject without its node: the place of the node in the region."""

    reason: str
    place: int | None


# Some kilobytes of source each.
_SOURCES: LruCache[str | _Refusal] = LruCache(2048)
_COSTS: LruCache[Cost] = LruCache(4096)
_NODES: LruCache[str | None] = LruCache(4096)
_KERNELS: weakref.WeakValueDictionary[Path, Any] = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def _kernel_of(path: Path, name: str) -> Any:
    """The kernel in a generated file, the same object for as long as somebody holds it."""
    from trnx import simulator

    with _LOADING:
        kernel = _KERNELS.get(path)
        if kernel is None:
            kernel = _KERNELS[path] = getattr(simulator.load_module(path), name)
        return kernel


def supports_node(node: fx.Node, hw: Hardware) -> Reject | None:
    """None where `node` alone can be generated, else why not."""
    if node.op != "call_function" or entry_of(node.target) is None:
        return Reject(f"{node.target} has no rule for generated kernels", node)
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return Reject("the node does not give one tensor", node)
    for one in (node, *node.all_input_nodes):
        if "val" not in one.meta:
            return Reject(f"{one.name} has no metadata", node)
        refusal = _refuse_tensor(one.meta.get("val"), node)
        if refusal is not None:
            return refusal
    specs = specs_of_metadata([*node.all_input_nodes, node])
    key = (_call_key(node, node.all_input_nodes.index), key_of(list(specs.values())), hw.target)

    def reason() -> str | None:
        plan = _plan([node], [node], specs, hw)
        return plan.reason if isinstance(plan, Reject) else None

    refused = _NODES.get_or_make(key, reason)
    return None if refused is None else Reject(refused, node)


def _call_key(node: fx.Node, place: Callable[[fx.Node], int]) -> Hashable:
    """The call, with the places of its arguments in their stead."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: _Place(place(n)))
    return (node.target, key_of(args), key_of(dict(kwargs)))


class _Place(int):
    """The place of a node, which is no number of a call."""


def _refuse_tensor(value: Any, node: fx.Node) -> Reject | None:
    if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
        return Reject(f"a tensor on {value.device} is not the backend's", node)
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return Reject(f"layout {value.layout} is not strided", node)
    return None


def supports_region(gm: fx.GraphModule, hw: Hardware) -> Reject | None:
    """None where the region can be generated for the sizes of its metadata, else why not."""
    return FusedKernel(gm).supports(Bindings(_by_name(specs_of_metadata(_placeholders(gm)))), hw)


def _by_name(specs: Mapping[fx.Node, Any]) -> dict[str, Any]:
    return {node.name: spec for node, spec in specs.items()}


def _placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def _computations(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def _outputs(gm: fx.GraphModule) -> list[fx.Node]:
    result: Any = gm.graph.output_node().args[0]
    return [result] if isinstance(result, fx.Node) else list(result)


class _Plan:
    """A region scheduled for one geometry."""

    def __init__(
        self,
        lowered: Lowered,
        geometry: Geometry,
        instructions: Sequence[Instruction],
        held: Mapping[Value, Value],
        strides: tuple[Mapping[Value, Mapping[int, int]], tuple[Mapping[int, int], ...]],
    ) -> None:
        self.lowered = lowered
        self.geometry = geometry
        self.instructions = instructions
        self.held = held
        self.load_strides, self.output_strides = strides

    def bytes_per_partition(self) -> int:
        """SBUF that is live at once, were nothing shared between tiles."""
        last: dict[Value, int] = {v: len(self.instructions) for v in self.held.values()}
        for index, instruction in enumerate(self.instructions):
            for value in instruction.reads():
                last[value] = max(index, last.get(value, 0))
        live = peak = 0
        ends: dict[int, int] = {}
        for index, instruction in enumerate(self.instructions):
            for value in instruction.writes():
                size = self._bytes(value)
                live += size
                end = max(index, last.get(value, index))
                ends[end] = ends.get(end, 0) + size
            peak = max(peak, live)
            live -= ends.get(index, 0)
        return peak

    def _bytes(self, value: Value) -> int:
        count = value.dtype.itemsize
        for label in self.geometry.free_labels:
            if label in value.axes:
                count *= self.geometry.count(label)
        return count


def _plan(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> _Plan | Reject:
    lowered = lower(nodes, outputs, specs)
    if isinstance(lowered, Reject):
        return lowered
    strides = _strides(lowered, specs)
    values = reachable(tuple(o.value for o in lowered.outputs))
    long = frozenset(lowered.order)
    groups = [v.axes & long for v in values] + [lowered.reduced]
    accesses = [*strides[0].values(), *strides[1]]
    order, sizes = merge(lowered.order, lowered.sizes, accesses, groups)
    return _fit(lowered, (order, sizes), strides, hw, nodes[-1])


def _fit(
    lowered: Lowered,
    space: tuple[tuple[int, ...], dict[int, int]],
    strides: Any,
    hw: Hardware,
    node: fx.Node,
) -> _Plan | Reject:
    """The plan with the largest tiles of which two fit, for loads to overlap with work."""
    roots = tuple(dict.fromkeys(o.value for o in lowered.outputs))
    order, sizes = space
    reduced = frozenset(d for d in order if d in lowered.reduced)
    budget = max(_FREE_SIZE, _row(order, sizes, reduced))
    while budget:
        geometry = cut(order, sizes, reduced, budget)
        if geometry is None:
            break
        scheduler = Scheduler(roots, geometry, scalar_bias=hw.generation > 2)
        instructions, held = scheduler.run()
        plan = _Plan(lowered, geometry, instructions, held, strides)
        copies = 2 if geometry.tiles > 1 else 1
        if copies * plan.bytes_per_partition() <= hw.sbuf_partition_bytes * 7 // 8:
            return plan
        budget //= 2
    return Reject("a reduced row and its temporaries do not fit in SBUF", node)


def _row(order: tuple[int, ...], sizes: Mapping[int, int], reduced: frozenset[int]) -> int:
    """Elements that one partition must hold because a reduction needs them."""
    total = 1
    for label in order:
        total *= sizes[label] if label in reduced else 1
    if len(reduced) == len(order) and order:
        parts = next(p for p in range(128, 0, -1) if total % p == 0)
        return total // parts
    return total


def _strides(
    lowered: Lowered, specs: Mapping[fx.Node, Any]
) -> tuple[dict[Value, Mapping[int, int]], tuple[Mapping[int, int], ...]]:
    by_name = {node.name: spec for node, spec in specs.items()}
    loads: dict[Value, Mapping[int, int]] = {}
    for value in reachable(tuple(o.value for o in lowered.outputs)):
        if value.op == "load":
            loads[value] = _by_label(value.attribute, by_name[value.name])
    return loads, tuple(_by_label(o.dims, o.spec) for o in lowered.outputs)


def _by_label(dims: Sequence[int], spec: TensorSpec) -> dict[int, int]:
    entries = zip(dims, spec.shape, spec.strides, strict=True)
    return {label: stride for label, size, stride in entries if size != 1}


class FusedKernel:
    """A generated kernel. See the module's docstring and `trnx.nki_kernels.spec.Kernel`."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm = gm
        self._nodes = _computations(gm)
        self._names = tuple(n.name for n in _placeholders(gm))
        self._name = _name_of(self._nodes)
        places = {node: place for place, node in enumerate(gm.graph.nodes)}
        calls = tuple(_call_key(node, places.__getitem__) for node in self._nodes)
        self._structure = (len(self._names), calls, tuple(places[n] for n in _outputs(gm)))

    @property
    def name(self) -> str:
        """`fused_` and the ops, in the user's order."""
        return self._name

    @property
    def strided(self) -> frozenset[str]:
        """All bindings: loads are access patterns."""
        return frozenset(self._names)

    def _key(self, b: Mapping[str, Any]) -> Hashable:
        return (self._structure, tuple(key_of(b[name]) for name in self._names))

    def _plan_for(self, b: Mapping[str, Any], hw: Hardware) -> _Plan | Reject:
        specs = specs_of_bindings(self._gm.graph, b)
        return _plan(self._nodes, _outputs(self._gm), specs, hw)

    def supports(self, b: Bindings, hw: Hardware) -> Reject | None:
        """None where the region can be generated for these sizes, else why not."""
        if len(self._nodes) > _MAX_NODES:
            return Reject(f"{len(self._nodes)} ops in one kernel are more than {_MAX_NODES}")
        source = self._generated(b, hw)
        return None if isinstance(source, str) else self._reject(source)

    def _generated(self, b: Mapping[str, Any], hw: Hardware) -> str | _Refusal:
        def make() -> str | _Refusal:
            plan = self._plan_for(b, hw)
            if not isinstance(plan, Reject):
                return emit(self._scheduled(plan, b))
            nodes = list(self._gm.graph.nodes)
            return _Refusal(plan.reason, nodes.index(plan.node) if plan.node in nodes else None)

        return _SOURCES.get_or_make((self._key(b), hw.target), make)

    def _reject(self, refusal: _Refusal) -> Reject:
        place = refusal.place
        return Reject(refusal.reason, None if place is None else list(self._gm.graph.nodes)[place])

    def cost(self, b: Bindings) -> Cost:
        """One FLOP an element and operator of the table; every tensor crosses HBM once."""
        return _COSTS.get_or_make(self._key(b), lambda: self._work(b))

    def _work(self, b: Bindings) -> Cost:
        specs = specs_of_bindings(self._gm.graph, b)
        flops = 0
        for node in self._nodes:
            entry = entry_of(node.target)
            work = max(
                (
                    s.numel
                    for n in (node, *node.all_input_nodes)
                    if isinstance(s := specs[n], TensorSpec)
                ),
                default=0,
            )
            flops += work * (entry.flops if entry else 1)
        crossing = [specs[n] for n in (*_placeholders(self._gm), *_outputs(self._gm))]
        bytes_ = sum(s.nbytes for s in crossing if isinstance(s, TensorSpec))
        return Cost(vector_flops=flops, hbm_bytes=bytes_)

    def source(self, b: Mapping[str, Any], hw: Hardware) -> str:
        """The kernel's source for these sizes."""
        source = self._generated(b, hw)
        if isinstance(source, str):
            return source
        raise GeneratorError(
            f"{self._name} cannot be generated: {source.reason}; ask supports first"
        )

    def _scheduled(self, plan: _Plan, b: Mapping[str, Any]) -> Scheduled:
        inputs = self._inputs(b)
        parameters = tuple(f"x{place}" for place in range(len(inputs)))
        named = zip(parameters, inputs, strict=True)
        sizes = ", ".join(f"{parameter}{list(b[n].shape)}" for parameter, n in named)
        return Scheduled(
            self._name,
            f"{self._name} for {sizes}. Generated by trnx.",
            inputs,
            parameters,
            plan.lowered.outputs,
            plan.held,
            plan.geometry,
            plan.instructions,
            plan.load_strides,
            plan.output_strides,
        )

    def _inputs(self, b: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(n for n in self._names if isinstance(b[n], TensorSpec))

    def launch(self, b: Bindings, hw: Hardware) -> Launch:
        """The kernel for these sizes, from its file in the cache folder."""
        path = source_cache.write(self._name, self.source(b, hw))
        inputs = self._inputs(b)
        kernel = _kernel_of(path, self._name)
        return Launch(kernel, tuple(b[n] for n in inputs), inputs)

    def reference(self, **values: Any) -> Any:
        """The region in eager."""
        return self._gm(*(values[name] for name in self._names))


def _name_of(nodes: Sequence[fx.Node]) -> str:
    names = [entry.name for n in nodes if (entry := entry_of(n.target)) is not None]
    joined = "_".join(names[:8]) + (f"_and_{len(names) - 8}" if len(names) > 8 else "")
    return "fused_" + re.sub(r"\W", "_", joined)
