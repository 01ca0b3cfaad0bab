# ruff: noqa: ARG002, ARG005  -- fakes have the signatures of their protocols
"""Fakes for the rooms to the right, and a backend that runs every pass and verifies after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from trnx.fx_passes.canonicalise import CANONICALISE
from trnx.fx_passes.extract import region_module
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.partition import partition
from trnx.fx_passes.region import Plan, Region
from trnx.fx_passes.rewrite import REWRITE_COMPOSITES
from trnx.fx_passes.verify import verify_functional, verify_graph, verify_plan
from trnx.nki_kernels.spec import Cost, Pattern
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware

aten = torch.ops.aten


@dataclass
class FakeKernel:
    """A kernel that is its own pattern."""

    name: str
    function: Callable[..., Any]
    refuse: Callable[[Any], Reject | None] = lambda b: None
    work: Cost = field(default_factory=Cost)
    strided: frozenset[str] = frozenset()
    fuses: bool = False

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return (Pattern(self.function),)

    def supports(self, b: Any, hw: Any) -> Reject | None:
        return self.refuse(b)

    def cost(self, b: Any) -> Cost:
        return self.work

    def reference(self, **values: Any) -> Any:
        return self.function(**values)


class FakeEngine:
    """A fallback engine that takes everything but `refused`."""

    def __init__(
        self, name: str = "eager", refused: Sequence[Any] = (), seconds: float = 1e-2
    ) -> None:
        self.name = name
        self._refused = frozenset(refused)
        self._seconds = seconds

    def supports(self, node: fx.Node) -> Reject | None:
        return (
            Reject(f"{node.target} is not for {self.name}")
            if node.target in self._refused
            else None
        )

    def cost(self, nodes: Sequence[fx.Node]) -> float:
        return self._seconds

    def compile(self, gm: fx.GraphModule) -> Any:
        return gm


class FakeGenerator:
    """A generator of every pointwise op and of `mean.dim`, over at most `limit` nodes."""

    def __init__(self, limit: int = 100) -> None:
        self._limit = limit

    def supports_node(self, node: fx.Node, hw: Any) -> Reject | None:
        taken = torch.Tag.pointwise in node.target.tags or node.target is aten.mean.dim
        return None if taken else Reject(f"{node.target} is not pointwise")

    def fused_kernel(self, gm: fx.GraphModule, hw: Any) -> Any:
        count = sum(1 for node in gm.graph.nodes if node.op == "call_function")
        if count > self._limit:
            return Reject(f"{count} nodes are too many")
        return FakeKernel("generated", lambda **values: gm(*values.values()))


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    return aten.linear.default(x, weight, bias)


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str) -> Any:
    return aten.gelu.default(aten.linear.default(x, weight, bias), approximate=approximate)


def layer_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> Any:
    return aten.native_layer_norm.default(x, shape, weight, bias, eps)


KERNELS = (
    FakeKernel("layer_norm", layer_norm),
    FakeKernel("linear", linear),
    FakeKernel("linear_gelu", linear_gelu),
)


def execute(plan: Plan, args: Sequence[Any]) -> list[Any]:
    """Run a plan step by step, as the executable does."""
    graph = plan.graph_module.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    env: dict[fx.Node, Any] = dict(zip(places, args, strict=True))
    for node in graph.nodes:
        if node.op == "get_attr":
            env[node] = getattr(plan.graph_module, node.target)

    def known(value: Any) -> Any:
        return fx.node.map_arg(value, env.__getitem__)

    for step in plan.steps:
        if not isinstance(step, Region):
            env[step] = step.target(*known(step.args), **known(step.kwargs))
        elif step.match is not None:
            values = {name: known(value) for name, value in step.match.bindings.items()}
            results = step.match.kernel.reference(**values)
            many = results if isinstance(results, (tuple, list)) else (results,)
            pairs = zip(step.match.results, many, strict=True)
            env.update({node: value for node, value in pairs if node is not None})
        else:
            outputs = region_module(step)(*(env[node] for node in step.inputs))
            env.update(zip(step.outputs, outputs, strict=True))
    return list(known(next(iter(reversed(graph.nodes))).args[0]))


@dataclass
class Compiled:
    """What the backend saw: the plan of each graph, forward before backward."""

    plans: list[Plan] = field(default_factory=list)

    def compile(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        for one in CANONICALISE:
            gm = one.run(gm)
            _verify(gm, one.name)
        verify_graph(gm, "canonicalise")
        verify_functional(gm, "canonicalise")
        plan = partition(
            gm,
            kernels=KERNELS,
            hardware=hardware("trn2"),
            engines=[FakeEngine()],
            generator=FakeGenerator(),
            select="legal",
        )
        verify_plan(plan)
        self.plans.append(plan)

        def call(args: list[Any]) -> list[Any]:
            values = list(args)
            args.clear()
            return execute(plan, values)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        compiler = aot_autograd(
            fw_compiler=self.compile, bw_compiler=self.compile, inference_compiler=self.compile
        )
        result: Callable[..., Any] = compiler(REWRITE_COMPOSITES.run(gm), examples)
        return result

    def targets(self, graph: int = 0) -> list[Any]:
        """The operators of a canonical graph, in order."""
        nodes = self.plans[graph].graph_module.graph.nodes
        return [node.target for node in nodes if node.op == "call_function"]


def _verify(gm: fx.GraphModule, stage: str) -> None:
    gm.graph.lint()
    for node in gm.graph.nodes:
        if node.op == "call_function" and not str(node.target).startswith("aten._assert"):
            assert "val" in node.meta, (stage, node)


def compare(have: torch.Tensor, want: torch.Tensor) -> None:
    """Equal values (to the rounding of another order of summation), dtype, shape and strides."""
    torch.testing.assert_close(have, want, check_stride=True)


@dataclass(frozen=True)
class Coverage:
    """How much of a plan runs on NKI, in compute nodes."""

    on_nki: int
    total: int

    @property
    def share(self) -> float:
        """On NKI over all; 1 where there is nothing to compute."""
        return self.on_nki / self.total if self.total else 1.0


def _coverage(plan: Plan) -> Coverage:
    """Compute nodes on NKI and in all; views, getitems, factories and symbolic numbers do not
    count.
    """
    total = sum(1 for node in plan.graph_module.graph.nodes if is_compute(node))
    on_nki = {n for r in plan.regions if r.engine == "nki" for n in r.nodes if is_compute(n)}
    return Coverage(len(on_nki), total)


@pytest.fixture
def trnx() -> SimpleNamespace:
    """The fakes and helpers of this file."""
    return SimpleNamespace(
        FakeKernel=FakeKernel,
        FakeEngine=FakeEngine,
        FakeGenerator=FakeGenerator,
        KERNELS=KERNELS,
        Compiled=Compiled,
        compare=compare,
        execute=execute,
    )


@pytest.fixture
def coverage() -> Callable[[Plan], Coverage]:
    """How much of a plan runs on NKI."""
    return _coverage


@pytest.fixture
def check() -> Callable[..., Compiled]:
    """Compile `function` through all passes, run it, and compare with eager.

    `grad` compares the gradients of all parameters and of inputs that require them, too.
    """

    def run(function: Any, *args: Any, grad: bool = False, dynamic: bool | None = None) -> Compiled:
        torch._dynamo.reset()
        seen = Compiled()
        compiled = torch.compile(function, backend=seen.backend, dynamic=dynamic, fullgraph=True)
        with torch.set_grad_enabled(grad):
            torch.manual_seed(0)
            want = function(*args)
            torch.manual_seed(0)
            have = compiled(*args)
        wanted = want if isinstance(want, tuple) else (want,)
        had = have if isinstance(have, tuple) else (have,)
        for h, w in zip(had, wanted, strict=True):
            compare(h, w)
        if grad:
            _compare_gradients(function, args, had, wanted)
        return seen

    return run


def _compare_gradients(function: Any, args: Sequence[Any], had: Any, wanted: Any) -> None:
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if isinstance(function, torch.nn.Module):
        leaves += list(function.parameters())
    torch.manual_seed(1)
    weights = [torch.randn_like(w) for w in wanted]

    def gradients(results: Any) -> Any:
        loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
        return torch.autograd.grad(loss, leaves)

    # Of gradients, eager's strides depend on which of its attention kernels it takes.
    for h, w in zip(gradients(had), gradients(wanted), strict=True):
        torch.testing.assert_close(h, w)
