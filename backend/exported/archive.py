"""The graph of a plan as a torch.export archive, which `torch.export.load` reads as well.

Constants that the passes made are inputs there, as torch.export has all constants. The archive
holds no example inputs, which would be the user's data, and nothing pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)

from trnx.backend.exported.capture import Captured
from trnx.backend.exported.errors import ExportError
from trnx.fx_passes.metadata import VAL
from trnx.fx_passes.nodes import placeholders

# Targets of the constants that the passes made; they are attributes of a plan's graph.
MADE = "_trnx_constant_"
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def write_archive(captured: Captured, file: Path) -> ExportedProgram:
    """Write the plan's graph to `file` and return the program in it. Raises ExportError for
    tensors that would be pickled."""
    program = program_of(captured)
    for name, value in {**program.state_dict, **program.constants}.items():
        if type(value) not in _PLAIN or value.layout is not torch.strided:
            raise ExportError(
                f"{name} is a {type(value).__name__} of layout {getattr(value, 'layout', None)}, "
                "which an archive can only pickle; export a model of plain dense tensors"
            )
    torch.export.save(program, file)
    return program


def program_of(captured: Captured) -> ExportedProgram:
    """The exported program of the plan's graph. Its nodes have the names that they have there."""
    before = captured.program
    gm = captured.plan.graph_module
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    specs = dict(zip(placeholders(gm), before.graph_signature.input_specs, strict=True))
    given = [node for node, spec in specs.items() if spec.kind is InputKind.USER_INPUT]
    inputs: list[InputSpec] = []
    constants: dict[str, Any] = dict(before.constants)

    def take(nodes: list[fx.Node]) -> None:
        for node in nodes:
            values[node] = graph.node_copy(node, values.__getitem__)
            inputs.append(_renamed(specs[node], values[node].name))

    take([node for node in specs if node not in given])
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            name = f"{MADE}{len(constants)}"
            values[node] = graph.create_node("placeholder", node.name, name=node.name)
            values[node].meta = dict(node.meta)
            constants[name] = getattr(gm, str(node.target))
            argument = TensorArgument(name=values[node].name)
            inputs.append(InputSpec(InputKind.CONSTANT_TENSOR, argument, name, persistent=True))
    take(given)
    for node in gm.graph.nodes:
        if node.op == "call_function":
            values[node] = graph.node_copy(node, values.__getitem__)
        elif node.op == "output":
            graph.output(fx.map_arg(tuple(node.args[0]), values.__getitem__))
    _check_names(values)
    return ExportedProgram(
        root=torch.nn.Module(),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, _outputs(before, graph, specs)),
        state_dict=before.state_dict,
        range_constraints={},
        module_call_graph=before.module_call_graph,
        constants=constants,
    )


def _renamed(spec: InputSpec, name: str) -> InputSpec:
    """fx names a graph's inputs its own way: what a user calls `input` is `input_1` there."""
    return replace(spec, arg=replace(spec.arg, name=name))


def _outputs(
    before: ExportedProgram, graph: fx.Graph, specs: Mapping[fx.Node, InputSpec]
) -> list[Any]:
    """What the results are for, under the names that they have in the new graph."""
    found = []
    names = {spec.arg.name: node.name for node, spec in specs.items()}
    returned: Any = graph.output_node().args[0]
    for spec, value in zip(before.graph_signature.output_specs, returned, strict=True):
        argument = TensorArgument(name=value.name) if isinstance(value, fx.Node) else spec.arg
        is_argument = spec.kind is OutputKind.USER_INPUT_MUTATION
        target = names[spec.target] if is_argument and spec.target else spec.target
        found.append(replace(spec, arg=argument, target=target))
    return found


def _check_names(values: Mapping[fx.Node, fx.Node]) -> None:
    """The manifest names nodes as the plan does."""
    for old, new in values.items():
        assert old.name == new.name, (old, new)
        assert VAL in new.meta or not new.users, new
