"""From a region's nodes to its form as one tile: lower it, cut it in all ways (`region_cuts.py`),
and keep those that may be the fastest by estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import fx

from trnx.nki_kernels.generator.geometry import (
    PARTITIONS,
    Strides,
    memory_order,
    merge,
)
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.loads_aside import with_loads_aside
from trnx.nki_kernels.generator.lower import Lowered, lower, reachable
from trnx.nki_kernels.generator.region_cuts import RegionCuts
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.warm_up import warmed
from trnx.nki_kernels.generator.ways_to_run import by_stage
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

# Dimensions are split where no cut comes so close to the time of the region's bytes, closer where
# the best one leaves more partitions empty than `_FILLED`.
_FAR, _FAR_WITH_EMPTY, _FILLED = 1.5, 1.1, 0.85
# Tiles are filled along several orders step by step where other ones take so many times as long.
_FAR_IN_ORDERS = 1.2
# How many ways are tried in the order of list scheduling.
_MOST_LISTED = 4
# How many tilings are scheduled, and how much slower than the best one they are by estimate.
MOST_TILINGS = 8
_WORTH_A_TRY = 1.15


def tile_region(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> TiledRegion | Reject:
    """The region of `nodes`, in topological order, cut so that it fits into SBUF."""
    found = tilings(nodes, outputs, specs, hw)
    return found if isinstance(found, Reject) else found[0][0]


def refuse_region(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> Reject | None:
    """Why the region of `nodes` cannot be cut, None where one way is found."""
    cuts = _cuts(nodes, outputs, specs, hw)
    if isinstance(cuts, Reject):
        return cuts
    return None if next(iter(cuts[0].all()), None) else _too_long(nodes)


def tilings(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> list[list[TiledRegion]] | Reject:
    """The ways to cut the region that may be the fastest, at most MOST_TILINGS, and of each the
    ways to share its work between the engines: the best one by estimate first."""
    cuts = _cuts(nodes, outputs, specs, hw)
    if isinstance(cuts, Reject):
        return cuts
    merged, whole = cuts
    found = list(merged.all())
    if found and len(merged.order) < len(whole.order) and _leaves_empty(found, merged.reduced):
        # A dimension of its own may lie on the partitions that others leave empty.
        found += whole.all()
    elif len(merged.order) < len(whole.order):
        # Tensors that lie in several orders may have longer runs beside a part of a merged one.
        found += whole.permuted_in_all_sizes()
    if not found:
        return _too_long(nodes)
    estimates = _estimates(found, hw)
    least, best = min(estimates, key=lambda pair: pair[0])
    is_filled = best.geometry.filled >= _FILLED
    far = _FAR if is_filled else _FAR_WITH_EMPTY
    if least > far * 1e9 * (merged.dma_seconds + hw.region_seconds):
        in_steps = bool(merged.reduced) and merged.reduces_as_floats()
        estimates += _estimates(list(merged.split(best.geometry.filled, in_steps=in_steps)), hw)
        least = min(ns for ns, _ in estimates)
    if least > _FAR_IN_ORDERS * 1e9 * (whole.dma_seconds + hw.region_seconds):
        spaces = [whole, merged] if len(merged.order) < len(whole.order) else [whole]
        estimates += _estimates([one for s in spaces for one in s.with_long_runs()], hw)
    close = [one for _, one in _close(estimates)]
    aside = [found for one in close for found in with_loads_aside(one, hw)]
    listed: list[TiledRegion] = []
    least = min(ns for ns, _ in estimates)
    if least > _FAR_WITH_EMPTY * 1e9 * (merged.dma_seconds + hw.region_seconds):
        ways = merged.fitting(by_stage(close))[:_MOST_LISTED]
        listed = [one.in_list_order(hw) for one in ways]
    by_cut: dict[Hashable, list[TiledRegion]] = {}
    for ns, region in _close([*estimates, *_estimates([*aside, *listed], hw)]):
        # The schedule says whether the products pay: by estimate TensorE may seem to wait longer.
        ways = [region, *warmed(region, ns, hw)]
        by_cut.setdefault((region.geometry, region.keeps), []).extend(ways)
    return list(by_cut.values())[:MOST_TILINGS]


def _close(estimates: Sequence[tuple[float, TiledRegion]]) -> list[tuple[float, TiledRegion]]:
    """Those that may be the fastest, the best one by estimate first."""
    ordered = sorted(estimates, key=lambda pair: pair[0])
    return [pair for pair in ordered if pair[0] <= _WORTH_A_TRY * ordered[0][0]]


def _estimates(regions: Sequence[TiledRegion], hw: Hardware) -> list[tuple[float, TiledRegion]]:
    """Those that differ, with what they take."""
    different = {region.key: region for region in regions}
    return [(region.estimated_ns(hw), region) for region in different.values()]


def _too_long(nodes: Sequence[fx.Node]) -> Reject:
    return Reject("a reduced row and its temporaries do not fit in SBUF", nodes[-1])


def _cuts(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> tuple[RegionCuts, RegionCuts] | Reject:
    """The ways to cut the region with neighbouring dimensions merged, and those without."""
    lowered = lower(nodes, outputs, specs)
    if isinstance(lowered, Reject):
        return lowered
    lowered = _as_in_memory(lowered, specs)
    strides = _strides(lowered, specs)
    values = reachable(tuple(o.value for o in lowered.outputs))
    long = frozenset(lowered.order)
    groups = [v.axes & long for v in values] + [lowered.reduced]
    accesses = [*strides[0].values(), *strides[1]]
    order, sizes = merge(lowered.order, lowered.sizes, accesses, groups)
    merged = RegionCuts(lowered, order, sizes, strides, hw)
    return merged, RegionCuts(lowered, lowered.order, lowered.sizes, strides, hw)


def _leaves_empty(regions: Sequence[TiledRegion], reduced: frozenset[int]) -> bool:
    return bool(reduced) and max(r.geometry.partitions for r in regions) <= PARTITIONS * 3 // 4


def _as_in_memory(lowered: Lowered, specs: Mapping[fx.Node, Any]) -> Lowered:
    """`lowered` with the order of the space, and of the results, that most tensors have."""
    loads, results = _strides(lowered, specs)
    accesses = [(strides, value.dtype.itemsize) for value, strides in loads.items()]
    kinds = [output.spec.dtype.itemsize for output in lowered.outputs]
    order = memory_order(lowered.order, [*accesses, *zip(results, kinds, strict=True)])
    outputs = tuple(output.along(order) for output in lowered.outputs)
    return dataclasses.replace(lowered, order=order, outputs=outputs)


def _strides(
    lowered: Lowered, specs: Mapping[fx.Node, Any]
) -> tuple[Mapping[Value, Strides], tuple[Strides, ...]]:
    by_name = {node.name: spec for node, spec in specs.items()}
    loads: dict[Value, Strides] = {}
    for value in reachable(tuple(o.value for o in lowered.outputs)):
        if value.op == "load":
            loads[value] = _by_label(value.attribute, by_name[value.name])
    return loads, tuple(_by_label(o.dims, o.spec) for o in lowered.outputs)


def _by_label(dims: Sequence[int], spec: TensorSpec) -> Strides:
    entries = zip(dims, spec.shape, spec.strides, strict=True)
    return {label: stride for label, size, stride in entries if size != 1}
