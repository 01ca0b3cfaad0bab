"""Whether a plan runs on buckets, and what its report says of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import torch

from trnx.backend.buckets.sizes import bucket_of
from trnx.backend.options import Options
from trnx.backend.report import RegionReport
from trnx.backend.shapes import concrete, specialised_symbols, symbol_sources
from trnx.backend.torch_internals import expression
from trnx.fx_passes.nodes import has_tensor, placeholders, val
from trnx.fx_passes.padding import PaddedPlan, analyse_padding
from trnx.fx_passes.region import Plan, Region
from trnx.fx_passes.symbolic import has_symbolic_layout, is_symbolic, symbols_of
from trnx.nki_kernels.hints import hint_int

log = logging.getLogger(__name__)


def may_pad(options: Options) -> bool:
    """Whether any size may be padded under these options."""
    return options.buckets != "exact" and options.check == "none" and options.runner != "neuron"


def choose_padding(plan: Plan, options: Options) -> PaddedPlan | None:
    """Which regions of the plan run on buckets; None where all sizes are the same in all calls, or
    exact sizes are asked for."""
    if not may_pad(options):
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
    read = {source.symbol for source in sources}
    tied = {symbol for form in padded.ties.values() for symbol in form.free_symbols}
    if padded.symbols | padded.ties.keys() | tied <= read:
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
    seen = {} if padded is None else _seen_buckets(plan, padded, options)
    for region in plan.regions:
        if region.match is None or not any(map(has_symbolic_layout, _values(region))):
            continue
        if padded is None:
            text = f"exact: {_why_exact(plan, options)}"
        elif region.name in padded.regions:
            text = _buckets(region, padded, seen)
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


def _seen_buckets(plan: Plan, padded: PaddedPlan, options: Options) -> dict[Any, int]:
    """The bucket of each symbol by the size seen at capture; that size where it has none."""
    values = [node.meta.get("val") for node in placeholders(plan.graph_module)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    sizes: list[Any] = [size for value in tensors for size in value.shape if is_symbolic(size)]
    sizes += [value for value in values if isinstance(value, torch.SymInt)]
    hints = {expression(size): hint_int(size) for size in sizes}
    padded_hints = {one: hints[one] for one in padded.symbols if one in hints}
    buckets = {one: bucket_of(size, options.buckets) or size for one, size in padded_hints.items()}
    return hints | buckets


def _buckets(region: Region, padded: PaddedPlan, seen: Mapping[Any, int]) -> str:
    """`s27 100 to 112: 12 % padding`."""
    found = {padded.padded.form(s): s for value in _values(region) for s in value.shape}
    symbolic = sorted((str(form), form, size) for form, size in found.items() if is_symbolic(size))
    simple = [one for one in symbolic if one[1] in padded.symbols] or [
        one for one in symbolic if padded.padded.enter(one[2])
    ]
    pairs = [(name, hint_int(size), int(concrete(form, seen))) for name, form, size in simple]
    listed = ", ".join(f"{name} {size} to {bucket}" for name, size, bucket in pairs)
    more = prod(bucket / max(size, 1) for _, size, bucket in pairs) - 1
    parts = [f"{listed}: {100 * more:.0f} % padding"] if pairs else ["padded strides"]
    return "; ".join([*parts, *_kept(region, padded)])


def _kept(region: Region, padded: PaddedPlan) -> list[str]:
    """The symbols of the region that are padded nowhere."""
    numbers = [n for value in _values(region) for n in (*value.shape, *value.stride())]
    symbols = frozenset[Any]().union(*map(symbols_of, numbers))
    found = sorted((str(one), why) for one, why in padded.kept.items() if one in symbols)
    return [f"{name} is exact: {why}" for name, why in found]
