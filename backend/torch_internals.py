"""The only file that imports private torch APIs: torch 2.13 to 2.15.

Everything here is a thin function with a plain contract, so that a new torch means one file to
check.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._dynamo.backends.registry
import torch._dynamo.eval_frame
import torch._functorch.config
import torch._inductor.config
import torch.autograd.forward_ad as forward_ad
from torch import fx
from torch._C._distributed_c10d import _resolve_process_group
from torch._decomp import (
    _core_aten_decompositions_post_autograd,
    core_aten_decompositions,
    decomposition_table,
)
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._dynamo.utils import counters, get_debug_dir, graph_break_reasons
from torch._export.serde import serialize
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)
from torch._guards import detect_fake_mode
from torch._inductor import inductor_prims
from torch._library.custom_ops import OPDEFS
from torch._prims_common import suggest_memory_format as _suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager
from torch.distributed.distributed_c10d import GroupName
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import _register_custom_builtin
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)
from torch.utils._sympy.symbol import SymT, symbol_is_type

from trnx.fx_passes.source import users_name
from trnx.simulator.memory.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# `fma(a, b, c)`: what Dynamo writes for `addcmul_`, `addcdiv_` and `add_` with a factor.
FUSED_MULTIPLY_ADD = inductor_prims.fma
# What Dynamo writes of a line and of a function that it gave up.
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ([^\s,]+)')
_SKIPPED = re.compile(r"frame skipped: (\S+) \((.+) line (\d+)\)")

# Generated code has complex numbers as Python shows them, `(nan+nanj)`: the names in them.
for _name in ("infj", "nanj"):
    _register_custom_builtin(_name, f"{_name} = complex({_name!r})", complex(_name))

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
    compiler = _autograd_compiler(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=False,
    )
    _make_constants_of_floats(example_inputs)
    try:
        compiled: Callable[..., Any] = compiler(gm, example_inputs)
    finally:
        # The notes are names that other functions' symbols have too, so they must not stay.
        TensorifyState.clear()
    return compiled


def _autograd_compiler(**given: Any) -> Callable[..., Any]:
    """torch's `aot_autograd(**given)`, without Inductor.

    torch's imports Inductor's scheduler and its IR, some tenths of a second of a first call, for
    the log of AOTAutograd under `TORCH_COMPILE_DEBUG`. Where nobody asked for that, and inputs are
    flat (as they are but for compiled autograd), this does what is left of it.
    """
    theirs: Callable[..., Any] = aot_autograd(**given)
    if torch._inductor.config.trace.enabled:
        return theirs
    backward = torch._dynamo.disable(given["bw_compiler"], reason="it compiles backward graphs")  # type: ignore[no-untyped-call]

    def compile_backward(*args: Any, **kwargs: Any) -> Any:
        found = backward(*args, **kwargs)
        return torch._dynamo.disable(found, reason="it is compiled already")  # type: ignore[no-untyped-call]

    def run(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if any(isinstance(one, (list, tuple, dict)) for one in inputs):
            return theirs(gm, inputs)
        counters["aot_autograd"]["total"] += 1
        try:
            found = aot_module_simplified(gm, inputs, **{**given, "bw_compiler": compile_backward})
        except TensorifyScalarRestartAnalysis:
            raise
        except Exception:
            counters["aot_autograd"]["not_ok"] += 1
            raise
        counters["aot_autograd"]["ok"] += 1
        return torch._dynamo.disable(found, reason="it is compiled already")  # type: ignore[no-untyped-call]

    return run


def _make_constants_of_floats(example_inputs: Sequence[Any]) -> None:
    """Let AOTAutograd make constants, with a guard, of the floats that it cannot turn into tensors.

    With dynamic shapes a module's float attributes (`eps`, `norm_type`) are symbols. AOTAutograd
    notes those that have to be constants, and asks Dynamo to start again where one was not noted
    before it traced the graph; it reads the notes for nothing else. So all are noted.
    """
    mode = detect_fake_mode(example_inputs)
    if mode is None or mode.shape_env is None:
        return
    for symbol in mode.shape_env.backed_var_to_val:
        if symbol_is_type(symbol, SymT.FLOAT):
            TensorifyState.specialize(str(symbol))


def fake_results() -> int:
    """How many results of operators on fake tensors torch remembers in this process."""
    return len(FakeTensorMode.cache)


def bound_fake_results(most: int) -> None:
    """Forget all but the `most` newest: torch keeps those of every shape that was ever compiled,
    also after `torch.compiler.reset()`; what is asked for again is computed."""
    cache = FakeTensorMode.cache
    for key in list(itertools.islice(cache, max(len(cache) - most, 0))):
        cache.pop(key, None)


def debug_directory() -> Path | None:
    """Where this process leaves artefacts of compilation, `torch_compile_debug/run_*`; None where
    nobody asked for them (`TORCH_COMPILE_DEBUG=1`, `torch._inductor.config.trace.enabled`)."""
    if not torch._inductor.config.trace.enabled:
        return None
    return Path(get_debug_dir())


# Whether torch.profiler, or the profiler of autograd, records in this thread.
is_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled


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


def suggest_memory_format(x: torch.Tensor) -> torch.memory_format:
    """The layout that eager gives results that are as `x`: channels last, or contiguous."""
    return _suggest_memory_format(x)


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator overload -> its decomposition to core ATen, without the composites that AOTAutograd
    takes apart before it asks."""
    return dict(_core_aten_decompositions_post_autograd())


def exported_decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator overload -> its decomposition to core ATen, for the graphs of torch.export, which
    have the composites. To list those takes a tenth of a second."""
    return dict(core_aten_decompositions())


def every_decomposition() -> dict[Any, Callable[..., Any]]:
    """Operator overload -> its decomposition, those that core ATen leaves out included."""
    return dict(decomposition_table)


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


def metadata_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function that tells in one call of C++ whether other tensors are like these, by type,
    dtype, sizes, strides, dispatch keys (of wrappers and bits) and `requires_grad`.

    It knows the modes that are on now (inference, autocast), and is False in others.
    """
    guards = torch._C._dynamo.guards.TensorGuards
    check: Callable[..., bool] = guards(
        *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    return check


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a value of torch.func's (of a vmap, say), or of the older vmap of
    `is_grads_batched`, which has more in it than the graph knows."""
    keys = torch._C._dispatch_keys(tensor)
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor) or keys.has("Batched"))


def has_tangents(values: Sequence[Any]) -> bool:
    """Whether forward-mode differentiation follows one of `values`."""
    level = forward_ad._current_level
    if level < 0:
        return False
    unpack: Any = forward_ad.unpack_dual
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return any(unpack(tensor, level=level).tangent is not None for tensor in tensors)


def with_torch_function() -> AbstractContextManager[Any]:
    """Subclasses (fx's proxies) see calls of torch, although Dynamo traces one without that."""
    context: AbstractContextManager[Any] = torch._C._EnableTorchFunction()
    return context


def without_subclass(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor of a subclass without dispatch of its own, as `torch.Tensor`.

    In a graph's first call AOTAutograd has a dispatch mode on that takes no subclass.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


def expression(value: Any) -> Any:
    """The sympy expression of a symbolic number; a plain number is returned as it is."""
    node = getattr(value, "node", None)
    return value if node is None else node.expr


def symbol_facts(numbers: Iterable[Any]) -> list[str]:
    """What is known of the symbols in these symbolic numbers, as text: their ranges, and the guards
    of their shape environments."""
    facts: set[str] = set()
    for number in numbers:
        environment = number.node.shape_env
        for symbol in number.node.expr.free_symbols:
            facts.add(f"{symbol} {environment.var_to_range.get(symbol)}")
        facts.update(f"guard {guard.expr}" for guard in environment.guards)
    return sorted(facts)


def implementation(overload: Any) -> Callable[..., Any]:
    """The Python function behind a custom operator of `torch.library.custom_op`."""
    function: Callable[..., Any] = OPDEFS[overload._schema.name]._init_fn
    return function


def trace_on_meta(function: Callable[..., Any], inputs: Sequence[TensorSpec]) -> fx.GraphModule:
    """The ATen graph of a function of tensors, which have no memory (device `meta`)."""
    with _disable_current_modes(), torch.no_grad():
        given = [
            torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")
            for spec in inputs
        ]
        traced: fx.GraphModule = make_fx(function)(*given)
        return traced


def move_fake(tensor: torch.Tensor, device: torch.device) -> None:
    """Let a fake tensor say that it is on `device`."""
    tensor.fake_device = device  # type: ignore[attr-defined]


def fake_mode() -> Any:
    """A mode under which new tensors have no memory."""
    return FakeTensorMode()


def archive_codes() -> tuple[dict[int, torch.dtype], dict[int, Any], dict[int, Any]]:
    """What the numbers in the JSON of a torch.export archive stand for: dtypes, layouts, memory
    formats."""
    return (
        {int(code): dtype for dtype, code in serialize._TORCH_TO_SERIALIZE_DTYPE.items()},
        {int(code): layout for layout, code in serialize._TORCH_TO_SERIALIZE_LAYOUT.items()},
        {int(c): form for form, c in serialize._TORCH_TO_SERIALIZE_MEMORY_FORMAT.items()},
    )


def is_dispatched(overload: Any) -> bool:
    """Whether an operator of `torch.ops` is the dispatcher's. Others are TorchScript's, which may
    have effects that no schema shows."""
    return bool(torch._C._dispatch_has_kernel(overload.name()))


def without_modes() -> AbstractContextManager[Any]:
    """No dispatch mode is on inside: in a graph's first call AOTAutograd has one on, under which
    nothing else can be traced."""
    context: AbstractContextManager[Any] = _disable_current_modes()
    return context


# The mode that AOTAutograd has on in a graph's first call.
_CUSTOM_OP_CHECK: Any = getattr(runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", ())
# How many dispatch modes are on in this thread.
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def without_custom_op_check() -> AbstractContextManager[Any]:
    """The innermost dispatch mode is not on inside where it is the one that looks at every op of a
    graph's first call, to find results of users' operators that alias operands: for who calls ATen
    alone, thousands of times. Other modes stay."""
    if not isinstance(_get_current_dispatch_mode(), _CUSTOM_OP_CHECK):
        return nullcontext()
    context: AbstractContextManager[Any] = _pop_mode_temporarily()
    return context


def dynamo_backend(name: str) -> Callable[..., Any]:
    """The Dynamo backend that is registered under `name`."""
    backend: Callable[..., Any] = torch._dynamo.lookup_backend(name)
    return backend


def without_disable(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `torch.compiler.disable` was put around; any other function as it is."""
    return torch._dynamo.eval_frame.innermost_fn(function)


class GraphBreak(NamedTuple):
    """Why Dynamo ended a graph (the first line of its reason), and the stack there, outermost
    first: file, line, function."""

    reason: str
    stack: tuple[tuple[str, int, str], ...]


@contextmanager
def graph_breaks() -> Iterator[Counter[GraphBreak]]:
    """Counts Dynamo's graph breaks while the block runs, and the functions that it gives up."""
    before, skipped_before = len(graph_break_reasons), Counter(counters["unimplemented"])
    frames_before = Counter(counters["frames"])
    found: Counter[GraphBreak] = Counter()
    yield found
    frames = Counter(counters["frames"]) - frames_before
    told = {_first_line(cause.reason) for cause in graph_break_reasons[before:]}
    for cause in graph_break_reasons[before:]:
        stack = tuple((f.filename, f.lineno or 0, f.name) for f in cause.user_stack)
        found[GraphBreak(_first_line(cause.reason), stack)] += 1
    for message, count in (Counter(counters["unimplemented"]) - skipped_before).items():
        if _SKIPPED.search(message):
            found[_skipped_frame(message)] += count
        elif frames["total"] > frames["ok"] and _first_line(message) not in told:
            # A break where Dynamo cannot go on after it, within `try` for one.
            stack = tuple((f, int(n), name) for f, n, name in _FRAME.findall(message))
            reason = f"{_first_line(message)}; all of the function runs in eager"
            found[GraphBreak(reason, stack)] += count


def _first_line(reason: str) -> str:
    line = reason.strip().splitlines()[0]
    # Dynamo's name for an `if` or `while` on a tensor, where it goes on after the break.
    return "Data-dependent branching" if line.startswith("generic_jump") else line


def _skipped_frame(message: str) -> GraphBreak:
    """A break within a loop: the whole function stays with eager; Dynamo lists it nowhere else."""
    function, file, start = _SKIPPED.findall(message)[-1]
    lines = [(f, int(n), name) for f, n, name in _FRAME.findall(message)]
    reason = f"{_first_line(message)} in a loop; all of {users_name(function)} runs in eager"
    return GraphBreak(reason, tuple(lines) or ((file, int(start), function),))


def eager_backward_compile() -> AbstractContextManager[Any]:
    """Backward graphs are compiled with their forward, not at the first `backward()`."""
    context: AbstractContextManager[Any] = torch._functorch.config.patch(
        force_non_lazy_backward_lowering=True
    )
    return context


@dataclass(frozen=True)
class Compiled:
    """What `torch.compile` was given: the function, the backend and its `options`, `dynamic`."""

    function: Any
    backend: Any
    options: Any = None
    dynamic: bool | None = None


def compiled_with(function: Any) -> Compiled | None:
    """What `torch.compile` (or `Module.compile`) was given, if `function` is what it returned."""
    if isinstance(function, torch._dynamo.eval_frame.OptimizedModule):
        return _given_to(function.dynamo_ctx, function._orig_mod)
    if isinstance(function, torch.nn.Module):
        call = function._compiled_call_impl  # that of `Module.compile`
        return None if call is None else _given_to(_context_of(call), function)
    original = getattr(function, "_torchdynamo_orig_callable", None)
    if original is None:
        return None
    if isinstance(function, MethodType):  # the attribute is that of the class's function
        original = MethodType(original, function.__self__)
    return _given_to(_context_of(function), original)


def _context_of(function: Any) -> Any:
    """Dynamo's context, which its wrapper of a function keeps in a closure alone."""
    cells = getattr(getattr(function, "get_compiler_config", None), "__closure__", None) or ()
    return cells[0].cell_contents if cells else None


def _given_to(context: Any, original: Any) -> Compiled:
    callback = getattr(context, "callback", None)
    backend = innermost_backend(callback) if callable(callback) else None
    kwargs = getattr(backend, "kwargs", {})
    compiler = getattr(backend, "compiler_fn", backend)
    return Compiled(original, compiler, kwargs.get("options"), getattr(backend, "dynamic", None))


def process_group_ranks(group: Any) -> tuple[int, ...]:
    """The global ranks of a process group, which a graph names or holds, in order."""
    found: Any = group
    if isinstance(found, str):
        found = _resolve_process_group(GroupName(found))
    return tuple(torch.distributed.get_process_group_ranks(found))


def local_part(tensor: DTensor) -> tuple[slice, ...]:
    """Where this rank's part of a sharded tensor lies in the whole one."""
    # torch.distributed.tensor takes long to import, and a single process has no use for it.
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))


def register_artifact(
    name: str, load: Callable[[str, bytes], None]
) -> Callable[[str, bytes], None]:
    """A function that gives `(key, content)` to torch's cache artefacts under the type `name`;
    `load` gets what is loaded."""

    class Artifact(CacheArtifact):
        @staticmethod
        def type() -> str:
            return name

        def populate_cache(self) -> None:
            load(self.key, self.content)

    if name not in CacheArtifactFactory._artifact_types:
        CacheArtifactFactory.register(Artifact)
    return functools.partial(CacheArtifactManager.record_artifact, name)
