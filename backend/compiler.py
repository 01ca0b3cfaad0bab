"""From one functional ATen graph to an executable and its report: AOTAutograd's inner compiler."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from trnx.backend.buckets.choice import choose_padding, may_pad, note_padding
from trnx.backend.collectives import CollectiveEngine
from trnx.backend.debug_folder import DebugFolder
from trnx.backend.executable import Executable
from trnx.backend.garbage import new_objects_only
from trnx.backend.neuron.choice import Choice
from trnx.backend.neuron.executable import NeuronExecutable
from trnx.backend.neuron.host_view import device_of, seen_on_host
from trnx.backend.options import Options
from trnx.backend.pipeline import make_engines, plan_graph
from trnx.backend.prediction import PREDICTIONS
from trnx.backend.programs import PROGRAMS
from trnx.backend.report import GraphReport, RegionReport, publish, ran
from trnx.backend.runners import NeuronRunner
from trnx.backend.torch_internals import (
    boxed,
    copy_graph_module,
    mark_boxed,
    with_torch_function,
    without_guards,
)
from trnx.fx_passes.advice import EAGER_ERROR
from trnx.fx_passes.eager_errors import find_refused
from trnx.fx_passes.flops import graph_flops
from trnx.fx_passes.labels import layer_of, region_reads, shapes_of
from trnx.fx_passes.ledger import entry
from trnx.fx_passes.nodes import is_compute, op_name, tensors
from trnx.fx_passes.padding import PaddedPlan
from trnx.fx_passes.region import FallbackEngine, Plan, Region
from trnx.fx_passes.source import source_line
from trnx.nki_kernels.hints import product
from trnx.nki_kernels.spec import Cost

log = logging.getLogger(__name__)

# Names of graphs: `graph_3.backward` is the backward of the fourth graph that Dynamo captured.
_frames = itertools.count()


def next_frame_name() -> str:
    """A name, unique in the process, for what one captured graph becomes."""
    return f"graph_{next(_frames)}"


class GraphCompiler:
    """Compiles the graphs (forward, backward or inference) that come from one captured graph.

    Without a choice of runner the graphs are planned and reported, and run in eager. `expand` is
    done to graphs first.
    """

    def __init__(
        self,
        options: Options,
        choice: Choice | None,
        name: str,
        expand: Callable[[fx.GraphModule], None] | None = None,
    ) -> None:
        self._options = options
        self._collectives = CollectiveEngine(options.hardware)
        self._choice = choice
        self._runner = None if choice is None else choice.runner
        self._name = name
        self._expand = expand

    def compiler(self, kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        """The function that AOTAutograd calls for graphs of `kind`."""

        def compile_graph(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            with new_objects_only(), without_guards(inputs), with_torch_function():
                if self._expand is not None:
                    self._expand(gm)
                run = self.compile(gm, kind)
            PROGRAMS.trim()
            return run

        return compile_graph

    def compile(self, gm: fx.GraphModule, kind: str) -> Callable[..., Any]:
        """The executable of `gm`; its report is published."""
        start = time.perf_counter()
        flops = graph_flops(gm.graph.nodes)
        debug = DebugFolder(gm)
        engines = make_engines(self._options)
        refused = find_refused(gm.graph)
        device = device_of(gm)
        is_kept = bool(refused) or (self._runner is None and device.type != "cpu")
        given = copy_graph_module(gm) if is_kept else gm
        with seen_on_host(gm):
            on_device = isinstance(self._runner, NeuronRunner)
            for_buckets = not on_device and may_pad(self._options)
            plan = plan_graph(gm, self._options, engines, for_buckets)
            padded = self._padding(plan)
            report = self._report(plan, kind, engines, flops, padded)
            if refused:
                node, error = refused
                reason = f"eager raises in every call: {error}"
                report.fallbacks.append(entry(node, "eager", reason, EAGER_ERROR))
            run = (
                boxed(given.forward)
                if is_kept
                else self._executable(plan, engines, report, device, padded)
            )
        _publish(report, start)
        debug.write(plan, report)
        return run

    def assemble(self, plan: Plan, kind: str, device: torch.device) -> Callable[..., Any]:
        """The executable of a plan that is made already; its report is published."""
        start = time.perf_counter()
        engines = make_engines(self._options)
        padded = self._padding(plan)
        flops = graph_flops(plan.graph_module.graph.nodes)
        report = self._report(plan, kind, engines, flops, padded)
        run = self._executable(plan, engines, report, device, padded)
        _publish(report, start)
        return run

    def _executable(
        self,
        plan: Plan,
        engines: Sequence[FallbackEngine],
        report: GraphReport,
        device: torch.device,
        padded: PaddedPlan | None,
    ) -> Callable[..., Any]:
        if self._runner is None:
            return boxed(plan.graph_module.forward)
        executable: Callable[[list[Any]], list[Any]]
        if isinstance(self._runner, NeuronRunner):
            executable = NeuronExecutable(plan, self._options, report, device)
        else:
            every = (*engines, self._collectives)
            executable = Executable(plan, self._options, self._runner, every, report, padded)

        def run(args: list[Any]) -> list[Any]:
            ran(report)
            return executable(args)

        return mark_boxed(run)

    def _padding(self, plan: Plan) -> PaddedPlan | None:
        on_device = isinstance(self._runner, NeuronRunner)
        return None if on_device else choose_padding(plan, self._options)

    def _report(
        self,
        plan: Plan,
        kind: str,
        engines: Sequence[FallbackEngine],
        flops: int,
        padded: PaddedPlan | None,
    ) -> GraphReport:
        report = GraphReport(
            name=f"{self._name}.{kind}",
            kind=kind,
            target=self._options.target,
            runner=self._runner.name if self._runner else "none",
            lnc=self._options.lnc,
            runner_reason=self._choice.reason if self._choice else "",
            flops_total=flops,
        )
        for e in plan.ledger:
            (report.near_misses if e.engine == "nki" else report.fallbacks).append(e)
        by_name = {engine.name: engine for engine in engines}
        reads = region_reads(plan.regions)
        for region in plan.regions:
            entry = self._region_report(region, by_name.get(region.engine))
            entry.reads = reads[region.name]
            report.regions.append(entry)
        note_padding({one.name: one for one in report.regions}, plan, padded, self._options)
        self._report_collectives(report, plan)
        report.launch_seconds = self._options.hardware.launch_seconds
        _count_nodes(report, plan)
        return report

    def _report_collectives(self, report: GraphReport, plan: Plan) -> None:
        """Entries of the ledger; a collective's region takes as long as the graph waits for it."""
        entries = {entry.name: entry for entry in report.regions}
        report.collectives = self._collectives.ledger(
            plan, lambda region: entries[region.name].predicted_seconds
        )
        for found in report.collectives:
            entry = entries[found.region]
            entry.ops, entry.source = [found.op], found.source
            entry.fallback_seconds = found.exposed_seconds

    def _region_report(self, region: Region, engine: FallbackEngine | None) -> RegionReport:
        nodes = [node for node in region.nodes if is_compute(node)]
        hw = self._options.hardware
        prediction = None if region.match is None else PREDICTIONS.of(region.match, hw)
        return RegionReport(
            name=region.name,
            engine=region.engine,
            kernel=region.match.kernel.name if region.match else None,
            ops=[op_name(node) for node in nodes],
            source=next((line for n in reversed(nodes) if (line := source_line(n))), ""),
            layer=layer_of(nodes),
            shapes=shapes_of(nodes),
            cost=Cost() if prediction is None else prediction.cost,
            model_flops=graph_flops(nodes),
            op_bytes=[_node_bytes(node) for node in nodes],
            prediction=prediction,
            fallback_seconds=0.0 if engine is None else engine.cost(nodes),
        )


def _publish(report: GraphReport, start: float) -> None:
    report.compile_seconds = time.perf_counter() - start
    publish(report)
    log.info("%s", report)


def _node_bytes(node: fx.Node) -> int:
    """Bytes of what a node reads and writes, by the sizes seen at capture."""
    found = tensors(n.meta.get("val") for n in (node, *node.all_input_nodes))
    return sum(product(value.shape) * value.dtype.itemsize for value in found)


def _count_nodes(report: GraphReport, plan: Plan) -> None:
    nodes = [node for node in plan.graph_module.graph.nodes if is_compute(node)]
    report.compute_nodes = len(nodes)
    report.bytes_total = sum(map(_node_bytes, nodes))
