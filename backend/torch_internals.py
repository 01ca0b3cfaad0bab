"""The only file that imports private torch APIs: torch 2.13 to 2.15.

Everything here is a thin function with a plain contract, so that a new torch means one file to
check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch._dynamo.backends.registry
import torch._dynamo.eval_frame
import torch._functorch.config
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
PartitionFunction = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


class _Backends(dict[str, Any]):
    """Dynamo's table of loaded backends, in which one name may be registered again."""

    def __init__(self, loaded: Mapping[str, Any], name: str) -> None:
        super().__init__(loaded)
        self._loaded = loaded
        self._name = name

    def __contains__(self, name: object) -> bool:
        return name != self._name and super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        return self._loaded[name]  # registered by another thread while this table was made


def let_threads_load(name: str) -> None:
    """Threads may look the backend `name` up for the first time at once.

    Dynamo's `lookup_backend` tests whether a name is loaded, loads its entry point and registers
    it, without a lock, and `register_backend` refuses a name that is taken: of several threads all
    but one fail with "duplicate name". They wait in `load` for the import of the entry point's
    module. So that module calls this when it is imported, before the first of them registers; each
    then registers the same function.
    """
    registry = torch._dynamo.backends.registry
    registry._COMPILER_FNS = _Backends(registry._COMPILER_FNS, name)


def compile_with_autograd(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    partition: PartitionFunction,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Split Dynamo's graph into functional forward and backward graphs, and compile each.

    Input mutations become extra outputs, which AOTAutograd copies back after the graph has run
    (`keep_inference_input_mutations=False`): a failing graph leaves its inputs as they were, and
    autograd's version counters see every write.
    """
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=False,
    )
    try:
        compiled: Callable[..., Any] = compiler(gm, example_inputs)
    except TensorifyScalarRestartAnalysis:
        # With dynamic shapes a module's float attributes (`eps`, `norm_type`) are symbols.
        # AOTAutograd asks Dynamo to start again with those as constants that it cannot turn into
        # tensors. It has noted which they are, and makes them constants itself, with a guard, when
        # it is called again.
        # The notes are names that other functions' symbols have too, so they must not stay.
        try:
            compiled = compiler(gm, example_inputs)
        finally:
            TensorifyState.clear()
    return compiled


def boxed(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """`function(*args)` in AOTAutograd's calling convention: one list, emptied by the callee."""

    def run(args: list[Any]) -> Any:
        values = tuple(args)
        args.clear()
        return function(*values)

    return mark_boxed(run)


def mark_boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Tell AOTAutograd that `function` takes one list of arguments, which it empties."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator overload -> its decomposition to core ATen."""
    return dict(core_aten_decompositions())


def partition_by_min_cut(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
    """Split a joint graph so that little is saved for backward, by recomputing cheap ops."""
    return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def partition_by_default(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
    """Split a joint graph so that backward recomputes nothing."""
    return default_partition(joint, inputs, **kwargs)


def mutated_inputs(joint: fx.GraphModule) -> frozenset[str]:
    """Names of the joint graph's placeholders that the user's function writes to."""
    placeholders = {n.meta.get("desc"): n.name for n in joint.graph.nodes if n.op == "placeholder"}
    descriptions = joint.graph.output_node().meta.get("desc") or ()
    return frozenset(
        placeholders[d.mutated_input] for d in descriptions if isinstance(d, InputMutationAOTOutput)
    )


def copy_graph_module(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph, metadata included, over the same attributes."""
    graph = fx.Graph()
    returned = graph.graph_copy(gm.graph, {})
    graph.output(returned).meta = dict(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph)


def without_fake_mode() -> AbstractContextManager[Any]:
    """Tensors made inside hold values although AOTAutograd's fake mode is active."""
    context: AbstractContextManager[Any] = unset_fake_temporarily()
    return context


def without_guards(values: Sequence[Any]) -> AbstractContextManager[Any]:
    """No guard is added inside to the shape environment of the fake tensors in `values`."""
    mode = detect_fake_mode(values)
    if mode is None or mode.shape_env is None:
        return nullcontext()
    context: AbstractContextManager[Any] = mode.shape_env.suppress_guards()
    return context


def expression(value: Any) -> Any:
    """The sympy expression of a symbolic number; a plain number is returned as it is."""
    node = getattr(value, "node", None)
    return value if node is None else node.expr


@contextmanager
def graph_breaks() -> Iterator[dict[str, int]]:
    """Collects reason (its first line) -> count of Dynamo's graph breaks while the block runs."""
    before = dict(counters["graph_break"])
    found: dict[str, int] = {}
    yield found
    for reason, count in counters["graph_break"].items():
        if new := count - before.get(reason, 0):
            line = reason.strip().splitlines()[0]
            found[line] = found.get(line, 0) + new


def eager_backward_compile() -> AbstractContextManager[Any]:
    """Backward graphs are compiled with their forward, not at the first `backward()`."""
    context: AbstractContextManager[Any] = torch._functorch.config.patch(
        force_non_lazy_backward_lowering=True
    )
    return context


def uncompiled(function: Any) -> Any | None:
    """What `torch.compile` was given, if `function` is what it returned; else None."""
    if isinstance(function, torch._dynamo.eval_frame.OptimizedModule):
        return function._orig_mod
    return getattr(function, "_torchdynamo_orig_callable", None)
