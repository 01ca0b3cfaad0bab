"""The graph that is handed to TorchNeuron: a plan for concrete sizes, NKI regions as single ops.

Everything that no kernel takes stays as it was, in the order of the plan. What a kernel wants of
its operands and gives as its results is spelled out as ops around it, for the graph compiler to
fuse:

* operands are contiguous, because tensors of a compiled graph have no strides;
* int64 is passed as pairs of 32-bit words, bool as bytes, and a tensor without dimensions as one of
  one element, because NKI has no such types;
* results get the strides that the rest of the graph was traced with.

Sizes are numbers: TorchNeuron refuses symbols (`dynamic` in
torch/compile/reference-torch-compile.rst).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import fx

from trnx.backend.errors import KernelFailedError, KernelRefusedError
from trnx.backend.kernel_call import concrete_bindings, describe
from trnx.backend.neuron.composites import decomposed
from trnx.backend.neuron.errors import (
    NeuronDtypeError,
    NeuronError,
    NeuronNumberError,
    NeuronShapeError,
)
from trnx.backend.neuron.inputs import DeviceInput
from trnx.backend.neuron.kernel_form import as_operand, as_result
from trnx.backend.neuron.region_op import RegionOp, check_dense, check_lnc, region_op
from trnx.backend.prediction import PREDICTIONS
from trnx.backend.programs import PROGRAMS
from trnx.backend.shapes import (
    Number,
    Symbols,
    UnknownSizeError,
    concrete,
    concrete_spec,
)
from trnx.backend.torch_internals import without_fake_mode
from trnx.fx_passes.assertions import asserted_numbers
from trnx.fx_passes.metadata import copied_meta
from trnx.fx_passes.nodes import arguments, op_name, placeholders, tensors
from trnx.fx_passes.numbers import number_tensor
from trnx.fx_passes.region import Plan, Region
from trnx.fx_passes.source import source_line
from trnx.fx_passes.symbolic import depends_on_data, is_symbolic
from trnx.nki_kernels.spec import Bindings, Launch
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

aten = torch.ops.aten
_VALUE = aten._local_scalar_dense.default

# compiler/error-codes/EVRF004.rst; the device computes float64 in 32 bits, which is another result
# (but for numbers, which PyTorch holds in float64 and operators round).
_REFUSED = {
    torch.complex32: "use real and imaginary parts",
    torch.complex64: "use real and imaginary parts",
    torch.complex128: "use real and imaginary parts",
    torch.float64: "use .float()",
}


Result = tuple[Literal["computed", "input", "constant"], Any]
Maker = Callable[[Number], torch.Tensor]


def made_at_each_call(node: fx.Node) -> bool:
    """True for a tensor without dimensions that is made of a number among the graph's inputs."""
    if node.target not in (number_tensor, aten.scalar_tensor.default):
        return False
    number = arguments(node)[0]
    return isinstance(number, fx.Node) and number.op == "placeholder"


@dataclass
class NeuronGraph:
    """`graph_module` takes `tensors`, those among the inputs of the plan's graph, and after them
    what `numbers` make of numbers: (place of the number, what makes the tensor). It returns tensors
    that it computes; `results` says what the plan's graph returns: of each result the kind, and its
    place among the computed ones or the plan's inputs, or the number (or None) that it is.

    `ops` are its NKI ops by region; `refused` the regions whose kernel could not be launched, with
    the reason: their nodes stand in the graph instead.
    """

    graph_module: fx.GraphModule
    tensors: tuple[DeviceInput, ...]
    numbers: tuple[tuple[int, Maker], ...]
    results: tuple[Result, ...]
    ops: dict[str, RegionOp] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not any(node.op == "call_function" for node in self.graph_module.graph.nodes)


def neuron_graph(
    plan: Plan,
    symbols: Symbols,
    hw: Hardware,
    device: torch.device,
    *,
    lnc: str | None,
    strict: bool,
) -> NeuronGraph:
    """The graph for the sizes `symbols`; `lnc` is the value of NEURON_LOGICAL_NC_CONFIG.

    Raises NeuronShapeError, NeuronNumberError or NeuronDtypeError for what the device does not
    have, NeuronLncError, NeuronConstantError, and with `strict` KernelRefusedError or
    KernelFailedError.
    """
    return _Writer(plan, symbols, hw, device, lnc, strict).run()


class _Writer:
    def __init__(
        self,
        plan: Plan,
        symbols: Symbols,
        hw: Hardware,
        device: torch.device,
        lnc: str | None,
        strict: bool,
    ) -> None:
        self.plan, self.symbols, self.hw, self.device = plan, symbols, hw, device
        self.lnc, self.strict = lnc, strict
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.inputs = placeholders(plan.graph_module)
        self.numbers: list[tuple[int, Maker]] = []
        self.ops: dict[str, RegionOp] = {}
        self.refused: dict[str, str] = {}

    def run(self) -> NeuronGraph:
        places = self.read_inputs()
        asserted = asserted_numbers(self.plan.graph_module.graph)
        for step in self.plan.steps:
            for node in step.nodes if isinstance(step, Region) else (step,):
                _check(node, is_read=node in asserted or node.target is _VALUE)
        for step in self.plan.steps:
            if isinstance(step, Region) and step.match is not None:
                self.kernel(step)
            else:
                for node in step.nodes if isinstance(step, Region) else (step,):
                    self.copy(node)
        results = self.write_output()
        self.graph.eliminate_dead_code()
        module = fx.GraphModule(_on_device(self.plan.graph_module, self.device), self.graph)
        numbers = tuple(self.numbers)
        return NeuronGraph(module, places, numbers, results, self.ops, self.refused)

    # -- inputs and plain nodes ------------------------------------------------------------------

    def read_inputs(self) -> tuple[DeviceInput, ...]:
        """Placeholders of tensors, then of the numbers that tensors are made of at each call."""
        places = []
        for index, node in enumerate(self.inputs):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                _check(node)
                self.values[node] = self.graph.placeholder(node.name)
                self.values[node].meta = dict(node.meta)
                places.append(DeviceInput.of(index, node, self.symbols))
            else:
                self.values[node] = self.number(node)
        for node in self.plan.graph_module.graph.nodes:
            if node.op == "get_attr":
                self.values[node] = self.graph.node_copy(node)
            elif made_at_each_call(node) and self.number(arguments(node)[0]) is None:
                self.values[node] = self.graph.placeholder(node.name)
                place = self.inputs.index(arguments(node)[0])
                maker = partial(node.target, dtype=dict(node.kwargs)["dtype"])
                self.numbers.append((place, maker))
        return tuple(places)

    def write_output(self) -> tuple[Result, ...]:
        """What is computed goes through the device; inputs (saved for backward, mostly) and numbers
        need not."""
        computed: dict[fx.Node, int] = {}
        results: list[Result] = []
        for node in arguments(self.plan.graph_module.graph.output_node())[0]:
            value = self.values[node] if isinstance(node, fx.Node) else self.resolved(node)
            if node in self.inputs and isinstance(value, fx.Node):
                results.append(("input", self.inputs.index(node)))
            elif isinstance(value, fx.Node):
                results.append(("computed", computed.setdefault(value, len(computed))))
            else:
                results.append(("constant", value))
        self.graph.output(tuple(computed))
        return tuple(results)

    def number(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        try:
            return concrete(value, self.symbols) if is_symbolic(value) else value
        except UnknownSizeError:
            return None

    def resolved(self, value: Any) -> Any:
        """An argument with values for nodes, numbers for symbols, and the device's name."""

        def leaf(item: Any) -> Any:
            if isinstance(item, torch.device):
                return self.device
            return concrete(item, self.symbols) if is_symbolic(item) else item

        return fx.node.map_aggregate(fx.map_arg(value, self.values.__getitem__), leaf)

    def copy(self, node: fx.Node) -> None:
        """`node` as it was; a number as a number, a composite of trnx as ATen."""
        if node in self.values:
            return
        if is_symbolic(node.meta.get("val")):
            self.values[node] = self.number(node)
            if self.values[node] is not None:
                return
        args, kwargs = self.resolved(node.args), self.resolved(node.kwargs)
        if getattr(node.target, "namespace", "") == "trnx":
            self.values[node] = decomposed(self.graph, node, args, self.device, self.symbols)
        elif node.target is operator.getitem and isinstance(args[0], (list, tuple)):
            self.values[node] = args[0][args[1]]  # of a composite
        else:
            self.values[node] = self.emit(node, node.target, *args, **kwargs)

    def emit(self, origin: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call with the user's line of `origin`."""
        made = self.graph.call_function(target, args, kwargs)
        made.meta = copied_meta(origin)
        return made

    # -- regions ---------------------------------------------------------------------------------

    def kernel(self, region: Region) -> None:
        assert region.match is not None
        results = [node for node in region.match.results if node is not None]
        if not any(concrete_spec(node.meta["val"], self.symbols).numel for node in results):
            found = "results without elements need no kernel"
        else:
            found = self.launched(region)
        if found:
            self.refused[region.name] = found
            for node in region.nodes:
                self.copy(node)

    def launched(self, region: Region) -> str:
        """Write the kernel's call; the reason where it cannot be made."""
        assert region.match is not None
        match, kernel = region.match, region.match.kernel
        op, line = describe(region)
        b = _dense(concrete_bindings(match, self.symbols)[0])
        if rejected := kernel.supports(b, self.hw):
            reason = f"{kernel.name} refuses contiguous operands: {rejected.reason}"
            return self.refuse(KernelRefusedError, reason, op, line)
        try:
            launch = PREDICTIONS.launch(kernel, b, self.hw)
            check_lnc(launch, kernel.name, self.hw.target, self.lnc)
            with without_fake_mode():
                program = PROGRAMS.get(launch, self.hw.target)
                check_dense(program, kernel.name)
                made = region_op(kernel.name, launch, program, line)
        except NeuronError:
            raise
        except Exception as error:  # noqa: BLE001  the fallback boundary
            reason = f"kernel {kernel.name} failed: {type(error).__name__}: {error}"
            return self.refuse(KernelFailedError, reason, op, line)
        self.call(region, made, launch)
        return ""

    def refuse(self, error: type[Exception], reason: str, op: str, line: str) -> str:
        if self.strict:
            raise error(f"{op} at {line or 'unknown line'}: {reason}. Use fallback='auto'")
        return reason

    def call(self, region: Region, made: RegionOp, launch: Launch) -> None:
        assert region.match is not None
        origin = region.nodes[-1]
        operands = []
        for name in launch.tensor_names:
            node = region.match.bindings[name]
            spec = concrete_spec(node.meta["val"], self.symbols)
            is_neg = node.meta["val"].is_neg()
            emit = partial(self.emit, origin)
            operands.append(as_operand(emit, self.values[node], spec, is_neg=is_neg))
        called = self.graph.create_node(
            "call_function", made.overload, tuple(operands), name=made.kernel_name
        )
        called.meta = copied_meta(origin)
        self.ops[region.name] = made
        for index, node in enumerate(region.match.results):
            if node is None:
                continue
            result = called
            if len(made.outputs) > 1:
                result = self.emit(node, operator.getitem, called, index)
            order = launch.result_orders[index] if launch.result_orders else ()
            back = sorted(range(len(order)), key=order.__getitem__)
            if back != list(range(len(order))):
                result = self.emit(node, aten.permute.default, result, back)
            spec = concrete_spec(node.meta["val"], self.symbols)
            emit = partial(self.emit, node)
            self.values[node] = as_result(emit, result, spec, self.device)


def _dense(b: Bindings) -> Bindings:
    """The bindings with every tensor contiguous, as tensors of a compiled graph are."""
    dense: Callable[[Any], Any] = lambda v: (  # noqa: E731
        TensorSpec.dense(v.shape, v.dtype) if isinstance(v, TensorSpec) else v
    )
    return Bindings({name: dense(value) for name, value in b.items()})


def _check(node: fx.Node, *, is_read: bool = False) -> None:
    """Raises NeuronDtypeError, NeuronNumberError or NeuronShapeError for what the device does not
    have; `is_read` says that `node` is a number which only the data of the call determine."""
    if is_read:
        raise NeuronNumberError(
            f"{_place(node)} is a number that depends on data, and graphs of the device hold no "
            "such number: leave torch._dynamo.config.capture_scalar_outputs and "
            "capture_dynamic_output_shape_ops at False, so that the graph breaks there, or keep "
            "the number in a tensor"
        )
    for value in tensors((node.meta.get("val"),)):
        if _is_refused(value):
            raise NeuronDtypeError(
                f"{_place(node)} is {value.dtype}, which Neuron devices do not have: "
                f"{_REFUSED[value.dtype]}"
            )
        if depends_on_data(value):
            raise NeuronShapeError(
                f"{_place(node)} has a size that depends on data, and graphs of the device have "
                "static sizes: leave torch._dynamo.config.capture_dynamic_output_shape_ops at "
                "False, so that the graph breaks there, or pad to a fixed size"
            )


def _place(node: fx.Node) -> str:
    """A node's op, or input, and the user's line: where it is read for an input."""
    line = source_line(node) or next(filter(None, map(source_line, node.users)), "unknown line")
    return f"{f'input {node.name}' if node.op == 'placeholder' else op_name(node)} at {line}"


def _is_refused(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _REFUSED and (tensor.ndim > 0 or tensor.is_complex())


def _on_device(root: fx.GraphModule, device: torch.device) -> torch.nn.Module:
    """The attributes of the plan's graph module, its constants moved to the device."""
    moved = torch.nn.Module()
    for node in root.graph.nodes:
        if node.op == "get_attr" and not hasattr(moved, str(node.target)):
            value = getattr(root, str(node.target))
            if isinstance(value, torch.Tensor):
                with without_fake_mode():
                    value = value.detach().to(device)
            setattr(moved, str(node.target), value)
    return moved
