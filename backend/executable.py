"""`Executable`: what AOTAutograd calls. It owns a specialisation for each set of buckets of sizes,
or of exact sizes where nothing may be padded (and of numbers that kernels are made for; all others
are arguments of each call).

Calls may overlap (threads, reentrance): a specialisation is immutable but for its pool of frames.
Specialisations are bounded: the least recently used one leaves first.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from trnx.backend.buckets.conversions import CannotPadError
from trnx.backend.buckets.function import BucketFunction
from trnx.backend.buckets.sizes import bucketed
from trnx.backend.buckets.specialisation import BucketSpecialisation
from trnx.backend.collectives import is_awaited, waited
from trnx.backend.garbage import new_objects_only
from trnx.backend.inputs import OF_FUNC, InputSpecs, TransformedInput
from trnx.backend.kernel_call import KernelCall, Place, describe
from trnx.backend.options import Options
from trnx.backend.programs import host_bytes
from trnx.backend.region_check import make_checker
from trnx.backend.report import GraphReport, RegionReport
from trnx.backend.runners import Runner
from trnx.backend.shapes import (
    Number,
    Symbols,
    UnknownSizeError,
    concrete,
    specialised_symbols,
    symbol_sources,
)
from trnx.backend.specialisation import Specialisation, results_of
from trnx.backend.torch_internals import boxed, has_tangents, implementation, without_fake_mode
from trnx.fallback.host import why_eager
from trnx.fx_passes.advice import MEMORY, TRANSFORM
from trnx.fx_passes.extract import region_module
from trnx.fx_passes.ledger import entry as ledger_entry
from trnx.fx_passes.numbers import region_symbols
from trnx.fx_passes.padding import PaddedPlan
from trnx.fx_passes.region import FallbackEngine, LedgerEntry, Plan, Region, RegionFunction
from trnx.fx_passes.symbolic import is_symbolic
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.program.program import Program

# Specialisations kept for one graph; each holds its prepared kernels and its buffers.
SPECIALISATIONS = 32
SPECIALISATION_BYTES = 1 << 30
# Sets of exact sizes whose buckets are remembered.
ROUTES = 1024

_BucketKey = tuple[tuple[Number, ...]]


@dataclass(frozen=True)
class _Route:
    """Where calls with some sizes go: `symbols` are the exact ones; `buckets` is the key of their
    specialisation, None where they have no buckets."""

    symbols: Symbols
    buckets: _BucketKey | None


class Executable:
    """Callable with the list of the graph's inputs, which it empties; returns the outputs."""

    def __init__(
        self,
        plan: Plan,
        options: Options,
        runner: Runner,
        engines: Sequence[FallbackEngine],
        report: GraphReport,
        padded: PaddedPlan | None = None,
    ) -> None:
        self._plan = plan
        self._options = options
        self._runner = runner
        self._engines = {engine.name: engine for engine in engines}
        self._report = report
        self._regions = {entry.name: entry for entry in report.regions}
        self._sources = symbol_sources(plan.graph_module, specialised_symbols(plan))
        self._checker = make_checker(options.check, report.name, self._regions)
        self._lock = fork_lock(self, threading.RLock)
        self._specialisations: LruCache[Specialisation | BucketSpecialisation] = LruCache(
            SPECIALISATIONS, SPECIALISATION_BYTES, _program_bytes
        )
        self._specs = InputSpecs(plan.graph_module)
        self._padded = padded if padded is not None and padded.regions else None
        self._function: BucketFunction | None = None  # of all buckets
        self._results = results_of(plan)
        self._routes: LruCache[_Route] = LruCache(ROUTES)
        self._eager: dict[str, RegionFunction] = {}
        self._is_noted = False
        self._fallbacks = {
            region.name: self._compile_fallback(region)
            for region in plan.regions
            if region.match is None
        }
        # Kernels that no size enters: one for all specialisations, with what it has bound.
        self._common: dict[str, KernelCall] = {}
        self._unsized = frozenset(
            region.name
            for region in plan.regions
            if self._sources and region.match is not None and not region_symbols(region)
        )
        # What runs every call of a graph without symbols.
        self._static: Specialisation | None = None
        if not self._sources:
            with without_fake_mode():
                self._static = self._specialise(())

    def __call__(self, args: list[Any]) -> list[Any]:
        if has_tangents(args):
            return self._by_torch(args, self._with_tangents, OF_FUNC)
        run = self._static or self._specialised(tuple(one.read(args) for one in self._sources))
        try:
            return run(args)
        except TransformedInput as given:
            return self._by_torch(args, self._plan.graph_module, str(given))

    def _by_torch(self, args: list[Any], graph: fx.GraphModule, reason: str) -> list[Any]:
        """The graph by PyTorch's operators, which know batches, tangents and any memory."""
        with self._lock:
            if not self._is_noted:
                self._is_noted = True
                _note(self._plan, self._report, reason)
        return list(boxed(graph.forward)(args))

    @cached_property
    def _with_tangents(self) -> fx.GraphModule:
        """The graph with what trnx's own operators do in their place: operators drop tangents."""
        graph = copy.deepcopy(self._plan.graph_module.graph)
        for node in graph.nodes:
            if getattr(node.target, "namespace", "") == "trnx":
                node.target = implementation(node.target)
        return fx.GraphModule(self._plan.graph_module, graph)

    def _specialised(self, key: tuple[Number, ...]) -> Callable[[list[Any]], list[Any]]:
        """What runs calls with these symbols."""
        if self._padded is not None:
            route = self._routes.get_or_make(key, lambda: self._route(key))
            made = None if route.buckets is None else self._bucketed(route.buckets)
            if made is not None:
                return partial(made, exact=key, symbols=route.symbols)
        found = self._specialisations.get(key)
        return found if isinstance(found, Specialisation) else self._specialise(key)

    def _route(self, key: tuple[Number, ...]) -> _Route:
        assert self._padded is not None
        symbols = {s.symbol: n for s, n in zip(self._sources, key, strict=True)}
        ties = self._padded.ties
        if any(symbols[one] != concrete(other, symbols) for one, other in ties.items()):
            return _Route(symbols, None)
        sizes = {symbol: int(symbols[symbol]) for symbol in self._padded.symbols}
        found = bucketed(sizes, self._options.buckets)
        if found is None:
            return _Route(symbols, None)
        known = {**symbols, **found}
        found |= {one: int(concrete(other, known)) for one, other in ties.items()}
        # A tuple of a tuple, so that no set of exact sizes has the same key.
        return _Route(symbols, (tuple({**symbols, **found}.values()),))

    def _bucketed(self, key: _BucketKey) -> BucketSpecialisation | None:
        """The specialisation for these buckets; None where one of its tensors cannot be padded."""
        found = self._specialisations.get(key)
        if isinstance(found, BucketSpecialisation):
            return found
        with self._lock:
            found = self._specialisations.get(key)
            if isinstance(found, BucketSpecialisation) or self._padded is None:
                return found if isinstance(found, BucketSpecialisation) else None
            symbols = {s.symbol: n for s, n in zip(self._sources, key[0], strict=True)}
            try:
                with new_objects_only():
                    if self._function is None:
                        self._function = BucketFunction(
                            self._plan, self._padded, self._sources, self._make_kernel,
                            self._fallbacks,
                        )  # fmt: skip
                    made = BucketSpecialisation(
                        self._function, self._results, symbols, self._make_kernel, self._specs
                    )
            except (CannotPadError, UnknownSizeError) as error:
                self._padded = None
                for entry in self._report.regions:
                    entry.padding = f"exact: {error}" if entry.padding else ""
                return None
            self._made(key, made)
            return made

    def _made(self, key: Hashable, made: Specialisation | BucketSpecialisation) -> None:
        self._specialisations.put(key, made)
        self._report.shapes += 1
        self._report.buffer_bytes = made.buffer_bytes

    def _compile_fallback(self, region: Region) -> RegionFunction:
        """The region by its engine, or by the one that serves this machine better."""
        name = region.engine
        reason = why_eager(region.nodes) if name == "xla" else None
        if reason is not None and self._options.fallback == "auto":
            name = "eager"
            entry = self._regions[region.name]
            entry.host_engine, entry.host_reason = name, reason
        run = self._engines[name].compile(
            region_module(region), refuse=partial(self._refuse, region)
        )
        return run if name != "collective" or is_awaited(region) else waited(run)

    @property
    def source(self) -> str:
        """The generated function of the specialisation that ran last, for reading."""
        made = self._specialisations.values()
        return made[-1].source if made else ""

    def _specialise(self, key: tuple[Number, ...]) -> Specialisation:
        with self._lock:
            if isinstance(known := self._specialisations.get(key), Specialisation):
                return known
            symbols = {s.symbol: n for s, n in zip(self._sources, key, strict=True)}
            with new_objects_only():
                made = Specialisation(
                    self._plan, self._results, symbols, self._make_kernel, self._fallbacks,
                    self._specs, self._checker,
                )  # fmt: skip
            self._made(key, made)
            return made

    def _make_kernel(
        self, region: Region, places: dict[fx.Node, Place], symbols: Symbols
    ) -> KernelCall:
        # Places are numbered alike for all sizes.
        known = self._common.get(region.name)
        if known is not None:
            return known
        call = self._new_kernel(region, places, symbols)
        if region.name in self._unsized:
            self._common[region.name] = call
        return call

    def _new_kernel(
        self, region: Region, places: dict[fx.Node, Place], symbols: Symbols
    ) -> KernelCall:
        call = KernelCall(
            region,
            places,
            self._runner,
            self._options.hardware,
            symbols,
            eager=partial(self._eager_function, region),
            refuse=partial(self._refuse, region),
            strict=self._options.fallback == "error",
        )
        entry: RegionReport = self._regions[region.name]
        entry.copied = call.copied
        if call.prepared is not None:
            entry.executed_flops = call.prepared.matmul_flops
        return call

    def _eager_function(self, region: Region) -> RegionFunction:
        with self._lock:
            if region.name not in self._eager:
                compiled = self._engines["eager"].compile(region_module(region))
                self._eager[region.name] = compiled
            return self._eager[region.name]

    def _refuse(self, region: Region, reason: str, advice: str) -> None:
        op, line = describe(region)
        with self._lock:
            entry = self._regions[region.name]
            if region.match is not None:
                entry.executed_flops = 0
            if _is_static(region):  # else other sizes may still run where the plan says
                entry.engine = "eager"
            fallback = LedgerEntry(op, region.nodes[-1].name, "eager", reason, line, advice)
            if fallback not in self._report.fallbacks:
                self._report.fallbacks.append(fallback)


def _note(plan: Plan, report: GraphReport, reason: str) -> None:
    """Tell the ledger of the first call by PyTorch's operators; other calls run as planned."""
    compute = (node for region in plan.regions for node in region.nodes)
    if (node := next(compute, None)) is not None:
        advice = TRANSFORM if reason == OF_FUNC else MEMORY
        report.fallbacks.append(ledger_entry(node, "eager", reason, advice))


def _program_bytes(kept: Collection[Specialisation | BucketSpecialisation]) -> int:
    """Memory of their Programs, of which they share some."""
    return host_bytes(frozenset[Program]().union(*(one.programs for one in kept)))


def _is_static(region: Region) -> bool:
    """Whether all calls have the same sizes and numbers, so that one program serves them."""
    values = [node.meta.get("val") for node in region.inputs]
    sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    return not any(is_symbolic(value) for value in (*values, *sizes))
