"""Whether a plan runs on buckets, and what its report says of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from trnx.backend.buckets.sizes import bucket_of
from trnx.backend.options import Options
from trnx.backend.report import RegionReport
from trnx.backend.shapes import specialised_symbols, symbol_sources
from trnx.fx_passes.nodes import has_tensor, val
from trnx.fx_passes.padding import PaddedPlan, analyse_padding
from trnx.fx_passes.region import Plan, Region
from trnx.fx_passes.symbolic import is_symbolic, symbols_of
from trnx.nki_kernels.hints import hint_int

log = logging.getLogger(__name__)


def choose_padding(plan: Plan, options: Options) -> PaddedPlan | None:
    """Which regions of the plan run on buckets; None where all sizes are the same in all calls, or
    exact sizes are asked for."""
    if options.buckets == "exact" or options.check != "none" or options.runner == "neuron":
        return None
    if any(region.engine == "collective" for region in plan.regions):
        # They write memory while other regions run.
        return None
    sources = symbol_sources(plan.graph_module, specialised_symbols(plan))
    if not sources:
        return None
    try:
        padded = analyse_padding(plan)
    except Exception as error:  # exact sizes are always right, so no analysis stops a compilation
        log.warning("the padding of a graph is not known; its sizes are exact", exc_info=True)
        names = [region.name for region in plan.regions if region.match is not None]
        reason = f"the analysis failed: {type(error).__name__}: {error}"
        return PaddedPlan({}, dict.fromkeys(names, reason), {}, frozenset())
    if padded.symbols <= {source.symbol for source in sources}:
        return padded
    reason = "a size is known only as a part of others"
    exact = {**dict.fromkeys(padded.regions, reason), **padded.exact}
    return PaddedPlan({}, exact, {}, frozenset())


def note_padding(
    reports: Mapping[str, RegionReport],
    plan: Plan,
    padded: PaddedPlan | None,
    options: Options,
) -> None:
    """Say in the reports of NKI regions with symbolic sizes what their buckets are, by the sizes
    seen at capture, or why they have none."""
    for region in plan.regions:
        if region.match is None or not any(map(_is_dynamic, _values(region))):
            continue
        if padded is None:
            text = f"exact: {_why_exact(plan, options)}"
        elif region.name in padded.regions:
            text = _buckets(region, padded, options)
        else:
            text = "; ".join([f"exact: {padded.exact[region.name]}", *_kept(region, padded)])
        reports[region.name].padding = text


def _why_exact(plan: Plan, options: Options) -> str:
    if options.buckets == "exact":
        return "buckets='exact'"
    if options.check != "none":
        return f"check={options.check!r} compares exact sizes"
    if any(region.engine == "collective" for region in plan.regions):
        return "the graph has collectives"
    return "the runner 'neuron' compiles a graph for each set of sizes"


def _values(region: Region) -> Iterable[Any]:
    return (val(node) for node in (*region.inputs, *region.outputs) if has_tensor(node))


def _is_dynamic(value: Any) -> bool:
    return any(is_symbolic(number) for number in (*value.shape, *value.stride()))


def _buckets(region: Region, padded: PaddedPlan, options: Options) -> str:
    """`s27 100 to 112: 12 % padding`."""
    sizes = [size for value in _values(region) for size in value.shape if is_symbolic(size)]
    hints = {str(size): hint_int(size) for size in sizes}
    simple = sorted(str(one) for one in padded.symbols if str(one) in hints)
    pairs = [(name, hints[name], bucket_of(hints[name], options.buckets)) for name in simple]
    listed = ", ".join(f"{name} {size} to {bucket or size}" for name, size, bucket in pairs)
    more = prod((bucket or size) / max(size, 1) for _, size, bucket in pairs) - 1
    parts = [f"{listed}: {100 * more:.0f} % padding"] if pairs else ["padded strides"]
    return "; ".join([*parts, *_kept(region, padded)])


def _kept(region: Region, padded: PaddedPlan) -> list[str]:
    """The symbols of the region that are padded nowhere."""
    numbers = [n for value in _values(region) for n in (*value.shape, *value.stride())]
    symbols = frozenset[Any]().union(*map(symbols_of, numbers))
    found = sorted((str(one), why) for one, why in padded.kept.items() if one in symbols)
    return [f"{name} is exact: {why}" for name, why in found]
