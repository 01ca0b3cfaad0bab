"""A model as a canonical graph with its plan, captured by torch.export: all of it, or an error.

The graph has the model's parameters, buffers and constants as its first inputs, and what the model
writes to among its outputs; the signature of the exported program says which is which.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.export import ExportedProgram

from trnx.backend.decompositions import decomposition_table
from trnx.backend.exported.errors import ExportError
from trnx.backend.options import Options
from trnx.backend.pipeline import before_autograd, make_engines, plan_graph
from trnx.backend.torch_internals import copy_graph_module
from trnx.fx_passes.metadata import EXAMPLE_VALUE, VAL
from trnx.fx_passes.nodes import tensors
from trnx.fx_passes.region import Plan
from trnx.fx_passes.symbolic import is_symbolic
from trnx.nki_kernels.registry import kernels

aten = torch.ops.aten


@dataclass(frozen=True)
class Captured:
    """The exported program with its functional ATen graph, and the plan of that graph."""

    program: ExportedProgram
    plan: Plan


def capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> Captured:
    """Raises ExportError where torch.export does not take the model, or where the graph holds what
    a folder cannot."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch.export's own, of what it copies.
            warnings.filterwarnings("ignore", "`isinstance.treespec", FutureWarning)
            program = torch.export.export(model, args, dict(kwargs), strict=False)
            _name_composites(program.graph_module)
            program = program.run_decompositions(decomposition_table(kernels(), is_exported=True))
    except Exception as error:
        raise ExportError(
            f"torch.export does not take {type(model).__name__}: {type(error).__name__}: {error}"
        ) from error
    _check(program.graph_module)
    graph_module = copy_graph_module(program.graph_module)
    _drop_assertions(graph_module.graph)
    with torch.no_grad():
        plan = plan_graph(graph_module, options, make_engines(options))
    _check(plan.graph_module)
    return Captured(program, plan)


def _drop_assertions(graph: fx.Graph) -> None:
    """torch.export writes down the dtype of what is cast. In a graph of fixed sizes it is known,
    and the assertion keeps constants from being folded."""
    for node in list(graph.nodes):
        if node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)


def _check(gm: fx.GraphModule) -> None:
    """Raises ExportError for a graph whose sizes are symbols, or which calls other graphs."""
    for node in gm.graph.nodes:
        values = tensors((node.meta.get(VAL),))
        sizes = [size for value in values for size in value.shape]
        if any(map(is_symbolic, [node.meta.get(VAL), *sizes])):
            raise ExportError(f"{node.name} has a size that is no number; export for fixed sizes")
        if any(value.is_neg() or value.is_conj() for value in values):
            raise ExportError(
                f"{node.name} is the conjugate or negative view of another tensor, which an "
                "archive cannot say; call .resolve_conj() or .resolve_neg() in the model"
            )
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise ExportError(
                f"the model's graph calls {node.target}, a graph within the graph, which cannot "
                "be written to a folder; write the model without it"
            )


# -- composites ----------------------------------------------------------------------------------

_REDUCTIONS = ("none", "mean", "sum")


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: Any = -100,
    label_smoothing: float = 0.0,
) -> tuple[Sequence[Any], dict[str, Any]]:
    return (input, target), {
        "weight": weight,
        "ignore_index": ignore_index,
        "reduction": _REDUCTIONS[reduction],
        "label_smoothing": label_smoothing,
    }


def _unchanged(*args: Any, **kwargs: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    return args, kwargs


# The overload in an exported graph -> the function that stands for it in Dynamo's, and its
# arguments there: the passes over Dynamo's graph know functions.
_FUNCTIONS: Mapping[Any, tuple[Any, Callable[..., tuple[Sequence[Any], dict[str, Any]]]]] = {
    aten.scaled_dot_product_attention.default: (F.scaled_dot_product_attention, _unchanged),
    aten.rms_norm.default: (F.rms_norm, _unchanged),
    aten.cross_entropy_loss.default: (F.cross_entropy, _cross_entropy),
    aten.lstm.input: (torch.lstm, _unchanged),
    aten.gru.input: (torch.gru, _unchanged),
    aten.rnn_tanh.input: (torch.rnn_tanh, _unchanged),
    aten.rnn_relu.input: (torch.rnn_relu, _unchanged),
}


def _name_composites(gm: fx.GraphModule) -> None:
    """Attention, RMS norms, cross-entropy and recurrent layers as the `trnx::` ops, as for a
    compiled model."""
    spelled: dict[fx.Node, tuple[Any, Any, Any]] = {}
    for node in gm.graph.nodes:
        if VAL in node.meta:
            node.meta[EXAMPLE_VALUE] = node.meta[VAL]
        if node.op == "call_function" and node.target in _FUNCTIONS:
            spelled[node] = node.target, node.args, node.kwargs
            node.target, rewrite = _FUNCTIONS[node.target]
            node.args, node.kwargs = rewrite(*node.args, **node.kwargs)
    if not spelled:
        return
    before_autograd(gm)
    for node in gm.graph.nodes:
        if node in spelled and node.target is _FUNCTIONS[spelled[node][0]][0]:
            node.target, node.args, node.kwargs = spelled[node]
        if VAL not in node.meta and EXAMPLE_VALUE in node.meta:
            node.meta[VAL] = node.meta[EXAMPLE_VALUE]
    gm.recompile()
