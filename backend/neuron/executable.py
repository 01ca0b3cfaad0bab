"""What AOTAutograd calls under the runner `neuron`: the graph of the sizes of a call, compiled by
TorchNeuron.

Each set of sizes has one graph and one executable of the device. The graph is handed over at its
first call, when there are tensors of the device: to compile is to open it. Real tensors keep
TorchNeuron's tracing apart from the one that is compiling the plan.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from trnx.backend.kernel_call import describe
from trnx.backend.neuron.errors import NeuronCompileError, NeuronError
from trnx.backend.neuron.graph import NeuronGraph, made_at_each_call, neuron_graph
from trnx.backend.neuron.stack import LNC_VARIABLE
from trnx.backend.options import Options
from trnx.backend.report import GraphReport
from trnx.backend.shapes import Number, specialised_symbols, symbol_sources
from trnx.backend.torch_internals import dynamo_backend, without_modes
from trnx.fx_passes.advice import FAILED
from trnx.fx_passes.numbers import symbols_read
from trnx.fx_passes.region import LedgerEntry, Plan
from trnx.fx_passes.symbolic import is_symbolic
from trnx.simulator.fork_locks import fork_lock

# A graph that fails to compile must fail, and not run op by op: torch/reference/env-vars.rst,
# TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION (earlier releases fall back unless they are told).
_OPTIONS = {"fallback_execution": False}


@dataclass
class _Compiled:
    graph: NeuronGraph
    run: Callable[..., Sequence[Any]] | None = None


class NeuronExecutable:
    """Callable with the list of the graph's inputs, which it empties; returns the outputs."""

    def __init__(
        self, plan: Plan, options: Options, report: GraphReport, device: torch.device
    ) -> None:
        self._plan = plan
        self._options = options
        self._report = report
        self._device = device
        needed = specialised_symbols(plan) | _numbers_in_calls(plan.graph_module.graph)
        self._sources = symbol_sources(plan.graph_module, needed)
        self._lock = fork_lock(self, threading.RLock)
        self._compiled: dict[tuple[Number, ...], _Compiled] = {}
        _all_compiled(report)
        if not self._sources:
            self._specialised(())

    def __call__(self, args: list[Any]) -> list[Any]:
        compiled = self._specialised(tuple(source.read(args) for source in self._sources))
        graph = compiled.graph
        with torch.no_grad(), without_modes():
            given = [one.admit(args[one.place], self._device) for one in graph.tensors]
            given += [make(args[place]).to(self._device) for place, make in graph.numbers]
        kept = {place: args[place] for kind, place in graph.results if kind == "input"}
        args.clear()
        with torch.no_grad(), without_modes(), _named(self._report.name):
            computed = self._run(compiled, given)
        found: dict[str, Any] = {"computed": computed, "input": kept}
        return [
            value if kind == "constant" else found[kind][value] for kind, value in graph.results
        ]

    def _run(self, compiled: _Compiled, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if compiled.graph.is_empty:
            return ()
        if compiled.run is None:
            with self._lock:
                if compiled.run is None:
                    compiled.run = self._hand_over(compiled.graph, given)
        return compiled.run(*given)

    def _hand_over(self, graph: NeuronGraph, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
        backend = dynamo_backend("neuron")
        return backend(graph.graph_module, list(given), options=dict(_OPTIONS))  # type: ignore[no-any-return]

    def _specialised(self, key: tuple[Number, ...]) -> _Compiled:
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = _Compiled(self._made(key))
                self._report.shapes += 1
            return self._compiled[key]

    def _made(self, key: tuple[Number, ...]) -> NeuronGraph:
        symbols = {s.symbol: n for s, n in zip(self._sources, key, strict=True)}
        made = neuron_graph(
            self._plan,
            symbols,
            self._options.hardware,
            self._device,
            lnc=os.environ.get(LNC_VARIABLE),
            strict=self._options.fallback == "error",
        )
        self._note(made)
        return made

    def _note(self, made: NeuronGraph) -> None:
        """Tell the ledger of regions whose kernel could not be launched."""
        regions = {region.name: region for region in self._plan.regions}
        entries = {entry.name: entry for entry in self._report.regions}
        for name, reason in made.refused.items():
            op, line = describe(regions[name])
            entries[name].engine = "xla"
            found = LedgerEntry(op, regions[name].nodes[-1].name, "xla", reason, line, FAILED)
            if found not in self._report.fallbacks:
                self._report.fallbacks.append(found)


def _numbers_in_calls(graph: fx.Graph) -> frozenset[Any]:
    """The symbols of numbers that calls read: a graph is made for their values."""
    read = [
        number
        for node in graph.nodes
        if not made_at_each_call(node)
        for number in node.all_input_nodes
        if is_symbolic(number.meta.get("val"))
    ]
    return symbols_read(read)


def _all_compiled(report: GraphReport) -> None:
    """What the plan leaves to eager is compiled as well: the graph goes to the compiler whole."""
    for region in report.regions:
        region.engine = "xla" if region.engine == "eager" else region.engine
    report.fallbacks[:] = [replace(entry, engine="xla") for entry in report.fallbacks]


@contextmanager
def _named(graph: str) -> Iterator[None]:
    """Errors of TorchNeuron under the name of the graph; an error of trnx's own as it is."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, NeuronError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        raise NeuronCompileError(
            f"TorchNeuron could not compile or run {graph}: {type(error).__name__}: {error}. "
            "Look the code NCC_... up in the compiler's list of errors; with options={'select': "
            "'none'} the graph has no kernels of trnx in it"
        ) from error
