"""A plan for concrete sizes: every region prepared, buffers planned, one generated function.

The function is made with torch.fx from the plan's steps: it reads `args` (emptied, so that saved
activations can be freed while backward runs), evaluates glue, calls regions, and drops each value
after its last use. `source` is its text.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx

from trnx.backend.inputs import Inputs, InputSpecs
from trnx.backend.kernel_call import KernelCall, Place
from trnx.backend.memory import Buffer, FramePool
from trnx.backend.region_check import RegionChecker
from trnx.backend.shapes import Symbols, UnknownSizeError, concrete, concrete_spec
from trnx.backend.torch_internals import is_profiling
from trnx.fx_passes.aliasing import storage_root
from trnx.fx_passes.assertions import asserted_numbers
from trnx.fx_passes.nodes import placeholders
from trnx.fx_passes.order import read_nodes
from trnx.fx_passes.region import Plan, Region, RegionFunction
from trnx.fx_passes.symbolic import is_symbolic
from trnx.simulator.program.program import Program

# Where generated functions find their steps, as their source has it.
_REGIONS = "trnx.regions"

Step = Region | fx.Node
KernelFactory = Callable[[Region, dict[fx.Node, Place], Symbols], KernelCall]


def _reads(step: Step) -> Sequence[fx.Node]:
    return step.inputs if isinstance(step, Region) else read_nodes(step)


def _last_uses(steps: Iterable[Step]) -> dict[fx.Node, int]:
    """Storage root -> index of the last step that reads it or a view of it."""
    last: dict[fx.Node, int] = {}
    for index, step in enumerate(steps):
        bound = step.match.bindings.values() if isinstance(step, Region) and step.match else ()
        for node in (*_reads(step), *(n for n in bound if isinstance(n, fx.Node))):
            last[storage_root(node)] = index
    return last


@dataclass(frozen=True)
class Result:
    """A result of an NKI region: the steps that make it and that read it last, and whether it
    escapes from the graph."""

    node: fx.Node
    first: int
    last: int
    escapes: bool


def results_of(plan: Plan) -> tuple[Result, ...]:
    """The results of NKI regions, in order."""
    escaping = {storage_root(n) for n in plan.graph_module.graph.output_node().all_input_nodes}
    last = _last_uses(plan.steps)
    return tuple(
        Result(node, index, max(index, last.get(node, index)), node in escaping)
        for index, step in enumerate(plan.steps)
        if isinstance(step, Region) and step.match is not None
        for node in step.match.results
        if node is not None
    )


def _placed(
    results: Iterable[Result], symbols: Symbols
) -> tuple[dict[fx.Node, Place], list[Buffer]]:
    """Where results go: what escapes to new memory, the rest to planned buffers."""
    places: dict[fx.Node, Place] = {}
    buffers: list[Buffer] = []
    for result in results:
        # Partition gives no kernel a result whose size depends on data.
        spec = concrete_spec(result.node.meta["val"], symbols)
        buffer = None
        if not result.escapes:
            buffer = len(buffers)
            buffers.append(Buffer(spec, result.first, result.last))
        places[result.node] = Place(spec, buffer)
    return places, buffers


class PreparedPlan:
    """What every specialisation of a plan has: kernels by their regions' names, memory, and the
    generated function."""

    kernels: dict[str, KernelCall]
    _frames: FramePool
    _module: fx.GraphModule
    # The generated function, whose steps appear in profilers, and the same one call a step quicker.
    _named: Callable[..., Any]
    _direct: Callable[..., Any]

    def _prepare(
        self,
        results: Iterable[Result],
        regions: Iterable[Region],
        symbols: Symbols,
        make_kernel: KernelFactory,
    ) -> None:
        """Prepare the kernels of `regions` and memory for `results` for these sizes."""
        places, buffers = _placed(results, symbols)
        self.kernels = {region.name: make_kernel(region, places, symbols) for region in regions}
        # The first call may be in inference mode, a later one not.
        with torch.inference_mode(False):
            self._frames = FramePool(buffers)

    def _set_function(self, function: Any) -> None:
        self._named, self._direct = function, _direct(function)

    @property
    def source(self) -> str:
        """The generated function."""
        return str(self._module.code)

    @property
    def programs(self) -> frozenset[Program]:
        """The Programs that its kernels replay."""
        prepared = (kernel.prepared for kernel in self.kernels.values())
        return frozenset(p.program for p in prepared if p is not None and p.program is not None)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of intermediates that one running call owns."""
        return self._frames.nbytes


class Specialisation(PreparedPlan):
    """Callable with the list of the graph's inputs, which it empties; returns the outputs."""

    def __init__(
        self,
        plan: Plan,
        results: tuple[Result, ...],
        symbols: Symbols,
        make_kernel: KernelFactory,
        fallbacks: dict[str, RegionFunction],
        specs: InputSpecs,
        checker: RegionChecker | None = None,
    ) -> None:
        self._symbols = symbols
        self._checker = checker
        self._inputs = Inputs(specs, symbols)
        matched = [region for region in plan.regions if region.match is not None]
        self._prepare(results, matched, symbols, make_kernel)
        self._module = self._generate(plan, fallbacks)
        self._set_function(self._module.forward)

    def __call__(self, args: list[Any]) -> list[Any]:
        self._inputs.admit(args)
        frame = self._frames.take()
        # Not where it raises: a collective may still read from the frame.
        function = self._named if is_profiling() else self._direct
        outputs: list[Any] = function(frame, args)
        self._frames.give_back(frame)
        return outputs

    def _generate(self, plan: Plan, fallbacks: dict[str, RegionFunction]) -> fx.GraphModule:
        graph = fx.Graph()
        frame, args = graph.placeholder("frame"), graph.placeholder("args")
        values: dict[fx.Node, Any] = {}
        asserted = asserted_numbers(plan.graph_module.graph)
        for index, node in enumerate(placeholders(plan.graph_module)):
            values[node] = self._number(node)
            if values[node] is None:
                values[node] = graph.create_node(
                    "call_function", operator.getitem, (args, index), name=node.name
                )
        graph.call_method("clear", (args,))
        for node in plan.graph_module.graph.nodes:
            if node.op == "get_attr":
                values[node] = graph.node_copy(node)
        for step in plan.steps:
            if isinstance(step, Region):
                self._emit_region(graph, step, frame, values, fallbacks)
            else:
                values[step] = None if step in asserted else self._number(step)
                if values[step] is None:
                    values[step] = self._glue(graph, step, values)
        graph.output(self._resolved(list(plan.graph_module.graph.output_node().args[0]), values))  # type: ignore[arg-type]
        return fx.GraphModule(plan.graph_module, graph, class_name="Specialisation")

    def _number(self, node: fx.Node) -> Any:
        """The value of a symbolic number that the inputs determine, else None."""
        value = node.meta.get("val")
        if not is_symbolic(value):
            return None
        try:
            return concrete(value, self._symbols)
        except UnknownSizeError:
            return None

    def _resolved(self, value: Any, values: dict[fx.Node, Any]) -> Any:
        """An argument of the plan's graph in the generated one, with numbers for symbols."""

        def leaf(item: Any) -> Any:
            return concrete(item, self._symbols) if is_symbolic(item) else item

        mapped = fx.map_arg(value, lambda node: values[node])
        return fx.node.map_aggregate(mapped, leaf)

    def _glue(self, graph: fx.Graph, node: fx.Node, values: dict[fx.Node, Any]) -> fx.Node:
        args, kwargs = self._resolved(node.args, values), self._resolved(node.kwargs, values)
        return graph.create_node(node.op, node.target, args, kwargs, name=node.name)

    def _emit_region(
        self,
        graph: fx.Graph,
        region: Region,
        frame: fx.Node,
        values: dict[fx.Node, Any],
        fallbacks: dict[str, RegionFunction],
    ) -> None:
        kernel = self.kernels.get(region.name)
        nodes = region.inputs if kernel is None else kernel.nodes
        step = fallback_step(fallbacks[region.name]) if kernel is None else kernel
        if self._checker is not None:
            step = self._checker.wrapped(region, nodes, step)
        function = named(region.name, step)
        arguments = (*(() if kernel is None else (frame,)), *(values[node] for node in nodes))
        result = graph.create_node("call_function", function, arguments, name=region.name)
        for index, node in enumerate(region.outputs):
            values[node] = graph.create_node(
                "call_function", operator.getitem, (result, index), name=node.name
            )


def fallback_step(function: RegionFunction) -> Callable[..., Any]:
    """A fallback region as a step of a generated function."""

    def run(*values: Any) -> Sequence[torch.Tensor]:
        return function(values)

    return run


def named(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` under the region's name, for the generated source and for profilers."""
    label = f"trnx::{name}"

    def function(*arguments: Any) -> Any:
        with torch.profiler.record_function(label):
            return step(*arguments)

    function.__name__ = function.__qualname__ = name
    function.__module__ = _REGIONS
    function.__wrapped__ = step  # type: ignore[attr-defined]
    return function


def _direct(function: Any) -> MethodType:
    """A generated function, a method of its module, that calls what is `named` by itself."""
    given, found = function.__func__, function.__func__.__globals__
    steps = {
        name: inspect.unwrap(one, stop=lambda step: step.__module__ != _REGIONS)
        for name, one in found.items()
        if getattr(one, "__module__", "") == _REGIONS
    }
    return MethodType(FunctionType(given.__code__, {**found, **steps}), function.__self__)
