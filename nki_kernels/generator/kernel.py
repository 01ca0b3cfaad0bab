"""`FusedKernel`: a region of pointwise ops, reductions and casts as one generated NKI kernel.

The region is a GraphModule whose placeholders are the bindings and whose output is a tuple.
`supports` uses the sizes that are known at compile time; `launch` generates source for concrete
sizes, strides and broadcasts, so that a kernel has no argument but its tensors. A result of rank 0
is returned as `(1,)`.

Equal regions (ops, constants, sizes, strides, dtypes) are generated once in a process, whatever the
names of their nodes, and share one kernel.
"""

from __future__ import annotations

import functools
import math
import re
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx

from trnx.nki_kernels.errors import GeneratorError
from trnx.nki_kernels.generator import source_cache
from trnx.nki_kernels.generator.emit_text import PartCall, emit_calls, module_text
from trnx.nki_kernels.generator.emitters import emit, emit_part
from trnx.nki_kernels.generator.lower import specs_of_bindings, specs_of_metadata
from trnx.nki_kernels.generator.parts import Part, parts_of
from trnx.nki_kernels.generator.table import entry_of
from trnx.nki_kernels.generator.tile import refuse_region, tile_region, tilings
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.keys import key_of
from trnx.nki_kernels.spec import Bindings, Cost, Launch
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.memory.tensor_spec import TensorSpec

_MAX_NODES = 100
# With so many times the time of its bytes a kernel is near its limit.
_CLOSE = 1.15
# Instructions of the tilings that are scheduled besides the one that is the best by estimate: about
# half a second of tracing.
_MOST_TRIED = 2000


@dataclass(frozen=True)
class Refusal:
    """A Reject with the index of its node in the region in place of the node."""

    reason: str
    index: int | None


@dataclass(frozen=True)
class Generated:
    """A kernel's source, `Launch.result_orders`, and how many cores share its tiles."""

    source: str
    orders: tuple[tuple[int, ...], ...]
    cores: int = 1


Made = Generated | Refusal


class SourceStore(Protocol):
    """What remembers kernels' sources between processes."""

    def __call__(self, key: str, make: Callable[[], Made]) -> Made:
        """What was made for `key`, which is equal for equal regions, sizes and targets."""


class Judge(Protocol):
    """What predicts kernels' times."""

    def __call__(self, launch: Launch, cost: Cost, hw: Hardware) -> float | None:
        """Seconds by the schedule of the launch's instructions; None where it has too many."""


# Some kilobytes of source each.
_SOURCES: LruCache[Generated | Refusal] = LruCache(2048)
_COSTS: LruCache[Cost] = LruCache(4096)
_NODES: LruCache[str | None] = LruCache(4096)
# One object for equal ones: the keys above hold them, and sizes alone tell most of those apart.
_STRUCTURES: LruCache[Hashable] = LruCache(1024)
_stores: list[SourceStore] = []
_judges: list[Judge] = []
_KERNELS: weakref.WeakValueDictionary[Path, Any] = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def keep_sources_in(store: SourceStore) -> None:
    """Ask `store` before a source is generated."""
    _stores[:] = [store]


def judge_by(judge: Judge) -> None:
    """Ask `judge` which of several tilings is the fastest."""
    _judges[:] = [judge]


def _kept(key: Hashable, make: Callable[[], Made]) -> Made:
    text = repr(key)
    # An address in it tells nothing in another process.
    return _stores[0](text, make) if _stores and " at 0x" not in text else make()


def _kernel_of(path: Path, name: str) -> Any:
    """The kernel in a generated file; the same object while a reference to it exists."""
    from trnx import simulator

    _trust(path.parent)
    with _LOADING:
        kernel = _KERNELS.get(path)
        if kernel is None:
            kernel = _KERNELS[path] = getattr(simulator.load_module(path), name)
        return kernel


@functools.cache
def _trust(folder: Path) -> None:
    """Record kernels from `folder` unread: tests read what the generator writes, for every rule
    and cut, and reading takes as long as recording."""
    from trnx.simulator.frontend.subset import trust_sources

    trust_sources(folder)


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
    call = _call_key(node, node.all_input_nodes.index)
    key = (call, key_of(list(specs.values())), hw.target, hw.cores)

    def reason() -> str | None:
        found = refuse_region([node], [node], specs, hw)
        return None if found is None else found.reason

    refused = _NODES.get_or_make(key, reason)
    return None if refused is None else Reject(refused, node)


def _call_key(node: fx.Node, index: Callable[[fx.Node], int]) -> Hashable:
    """The call, with the index of each argument that is a node in place of the node."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: _NodeIndex(index(n)))
    return _shared((node.target, key_of(args), key_of(dict(kwargs))))


def _shared(structure: Hashable) -> Hashable:
    return _STRUCTURES.get_or_make(structure, lambda: structure)


class _NodeIndex(int):
    """The index of a node: a type of its own, because calls have numbers as arguments too."""


def _refuse_tensor(value: Any, node: fx.Node) -> Reject | None:
    if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
        return Reject(f"a tensor on {value.device} is not the backend's", node)
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return Reject(f"layout {value.layout} is not strided", node)
    return None


def fused_kernel(gm: fx.GraphModule, hw: Hardware) -> FusedKernel | Reject:
    """The kernel of the region, or why it cannot be generated for the sizes of its metadata."""
    kernel = FusedKernel(gm)
    specs = specs_of_metadata(_placeholders(gm))
    reject = kernel.supports(Bindings({node.name: spec for node, spec in specs.items()}), hw)
    return kernel if reject is None else reject


def _placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def _computations(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def _outputs(gm: fx.GraphModule) -> list[fx.Node]:
    result: Any = gm.graph.output_node().args[0]
    return [result] if isinstance(result, fx.Node) else list(result)


class FusedKernel:
    """A generated kernel. See the module's docstring and `trnx.nki_kernels.spec.Kernel`."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm = gm
        self._nodes = _computations(gm)
        self._names = tuple(n.name for n in _placeholders(gm))
        self._parts = parts_of(gm, self._nodes, _outputs(gm))
        self._name = _name_of(self._nodes, self._parts)
        indices = {node: index for index, node in enumerate(gm.graph.nodes)}
        calls = tuple(_call_key(node, indices.__getitem__) for node in self._nodes)
        results = tuple(indices[n] for n in _outputs(gm))
        self._structure = _shared((len(self._names), calls, results))

    @functools.cached_property
    def _part_kernels(self) -> tuple[FusedKernel, ...]:
        return tuple(FusedKernel(part.gm) for part in self._parts)

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

    def supports(self, b: Bindings, hw: Hardware) -> Reject | None:
        """None where the region can be generated for these sizes, else why not."""
        longest = max((len(part.gm.graph.nodes) for part in self._parts), default=len(self._nodes))
        if longest > _MAX_NODES:
            return Reject(f"{longest} ops in one kernel are more than {_MAX_NODES}")
        found = self._generated(b, hw)
        return self._reject(found) if isinstance(found, Refusal) else None

    def _generated(self, b: Mapping[str, Any], hw: Hardware, share: int = 0) -> Made:
        """Tiles for `share` of the cores, all where it is 0."""
        tiled_for = replace(hw, cores=share or hw.cores)

        def make() -> Made:
            if self._parts:
                return self._generated_by_parts(b, tiled_for, hw.cores)
            specs = specs_of_bindings(self._gm.graph, b)
            found = tilings(self._nodes, _outputs(self._gm), specs, tiled_for)
            if not isinstance(found, Reject):
                return self._fastest(found, b, hw)
            nodes = list(self._gm.graph.nodes)
            return Refusal(found.reason, nodes.index(found.node) if found.node in nodes else None)

        key = (self._key(b), hw.target, hw.cores, tiled_for.cores)
        return _SOURCES.get_or_make(key, lambda: _kept(key, make))

    def _fastest(
        self, tilings: Sequence[Sequence[TiledRegion]], b: Mapping[str, Any], hw: Hardware
    ) -> Made:
        """The kernel of the tiling that takes the least time by its schedule, or by estimate where
        nobody schedules: the first of each group of `tilings`, then the others of the two best.
        No more are tried after one that comes close to the time of its bytes, and none that would
        take long to trace."""
        cost = self.cost(Bindings(b))
        enough = _CLOSE * hw.roofline_seconds(0, 0, cost.hbm_bytes) + hw.region_seconds
        times: dict[str, float] = {}
        best, least = self._made(tilings[0][0], b, hw), math.inf
        left = _MOST_TRIED

        def try_out(region: TiledRegion) -> float:
            """The time of `region`, infinite where it is not scheduled."""
            nonlocal best, least, left
            many = region.geometry.tiles_of_core * region.calls
            if times and (least <= enough or many > left):
                return math.inf
            one = self._made(region, b, hw)
            if one.source in times:
                return times[one.source]
            left -= many if times else 0
            seconds = _judges[0](self._launched(one, Bindings(b), hw), cost, hw)
            times[one.source] = math.inf if seconds is None else seconds
            if times[one.source] < least:
                best, least = one, times[one.source]
            return times[one.source]

        if not _judges or sum(map(len, tilings)) == 1:
            return best
        first = [try_out(candidates[0]) for candidates in tilings]
        for n in sorted(range(len(tilings)), key=first.__getitem__)[:2]:
            for region in tilings[n][1:]:
                try_out(region)
        return best

    def _made(self, region: TiledRegion, b: Mapping[str, Any], hw: Hardware) -> Generated:
        source = emit(self._name, self._summary(b), self._parameters(b), region, hw.cores)
        orders = [output.order for output in region.outputs]
        return Generated(source, _unless_plain(orders), len(region.geometry.shares))

    def _generated_by_parts(self, b: Mapping[str, Any], hw: Hardware, programs: int) -> Made:
        """A function for each part that differs from those before, and a kernel that calls them."""
        names: dict[Hashable, str] = {}
        functions: list[str] = []
        calls: list[PartCall] = []
        orders: dict[int, tuple[int, ...]] = {}
        tensors = {name: i for i, name in enumerate(self._inputs(b))}
        tiled: dict[Hashable, TiledRegion] = {}
        for part, kernel in zip(self._parts, self._part_kernels, strict=True):
            key = kernel._key(b)
            if key not in tiled:
                specs = specs_of_bindings(part.gm.graph, b)
                found = tile_region(kernel._nodes, _outputs(part.gm), specs, hw)
                if isinstance(found, Reject):
                    return Refusal(found.reason, None)
                tiled[key] = found
                names[key] = f"_part{len(names)}"
                parameters = kernel._parameters(b)
                functions += [*emit_part(names[key], parameters, found, programs), ""]
            inputs = [tensors[name] for name in kernel._inputs(b)]
            calls.append(PartCall(names[key], inputs, part.outputs))
            region_orders = (output.order for output in tiled[key].outputs)
            orders.update(zip(part.outputs, region_orders, strict=True))
        functions += emit_calls(self._name, len(tensors), calls)
        text = module_text(self._summary(b), functions)
        shares = max(len(region.geometry.shares) for region in tiled.values())
        return Generated(text, _unless_plain([orders[i] for i in range(len(orders))]), shares)

    def _reject(self, refusal: Refusal) -> Reject:
        index = refusal.index
        return Reject(refusal.reason, None if index is None else list(self._gm.graph.nodes)[index])

    def cost(self, b: Bindings) -> Cost:
        """The FLOPs per element that the table gives each op; every tensor crosses HBM once."""
        return _COSTS.get_or_make(self._key(b), lambda: self._count_cost(b))

    def _count_cost(self, b: Bindings) -> Cost:
        if self._parts:
            return self._cost_by_parts(b)
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

    def _cost_by_parts(self, b: Bindings) -> Cost:
        """The costs of the parts, many of which are equal; what several read crosses HBM once."""
        kernels = self._part_kernels
        costs = [kernel.cost(b) for kernel in kernels]
        again = sum(kernel._input_bytes(b) for kernel in kernels) - self._input_bytes(b)
        flops = sum(cost.vector_flops for cost in costs)
        return Cost(vector_flops=flops, hbm_bytes=sum(cost.hbm_bytes for cost in costs) - again)

    def _input_bytes(self, b: Mapping[str, Any]) -> int:
        return sum(b[name].nbytes for name in self._inputs(b))

    def source(self, b: Mapping[str, Any], hw: Hardware) -> str:
        """The kernel's source for these sizes."""
        return self._accepted(b, hw).source

    def _accepted(self, b: Mapping[str, Any], hw: Hardware, share: int = 0) -> Generated:
        found = self._generated(b, hw, share)
        if isinstance(found, Generated):
            return found
        raise GeneratorError(
            f"{self._name} cannot be generated: {found.reason}; ask supports first"
        )

    def _parameters(self, b: Mapping[str, Any]) -> dict[str, str]:
        """Tensor -> parameter of the kernel: numbered, so that equal regions have equal sources."""
        return {name: f"x{index}" for index, name in enumerate(self._inputs(b))}

    def _summary(self, b: Mapping[str, Any]) -> str:
        sizes = (f"{new}{list(b[name].shape)}" for name, new in self._parameters(b).items())
        return f"{self._name} for {', '.join(sizes)}. Generated by trnx."

    def _inputs(self, b: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(n for n in self._names if isinstance(b[n], TensorSpec))

    def launch(self, b: Bindings, hw: Hardware) -> Launch:
        """The kernel for these sizes, from its file in the cache folder; cores share its tiles."""
        return self._launched(self._accepted(b, hw), b, hw)

    def launch_on_one(self, b: Bindings, hw: Hardware) -> Launch:
        """The same, and the first core has all tiles."""
        return self._launched(self._accepted(b, hw, 1), b, hw)

    def _launched(self, found: Generated, b: Bindings, hw: Hardware) -> Launch:
        path = source_cache.write(self._name, found.source)
        launch = Launch.of(_kernel_of(path, self._name), b, self._inputs(b))
        launch = replace(launch, result_orders=found.orders)
        if hw.cores == 1:
            return launch
        return replace(launch, grid=hw.cores, cores=found.cores, knows_cores=True)

    def reference(self, **values: Any) -> Any:
        """The region in eager."""
        return self._gm(*(values[name] for name in self._names))


def _unless_plain(orders: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """`Launch.result_orders`: none where every result is returned as it is."""
    plain = all(order == tuple(range(len(order))) for order in orders)
    return () if plain else tuple(orders)


def _name_of(nodes: Sequence[fx.Node], parts: Sequence[Part]) -> str:
    if parts:
        return f"{_name_of(_computations(parts[0].gm), ())}_x{len(parts)}"
    names = [entry.name for n in nodes if (entry := entry_of(n.target)) is not None]
    joined = "_".join(names[:8]) + (f"_and_{len(names) - 8}" if len(names) > 8 else "")
    return "fused_" + re.sub(r"\W", "_", joined)
