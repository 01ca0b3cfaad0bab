"""Whether torch.compile takes a kernel for what its pattern says."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from trnx.backend.explain import explain
from trnx.backend.kernel_checks.cases import Case, tensors_of
from trnx.nki_kernels.spec import KernelSpec, Pattern


def missed(spec: KernelSpec, pattern: Pattern, case: Case, target: str) -> str:
    """Why the kernel is not chosen for the ops of its own pattern; empty where it is."""
    tensors = tensors_of(case.values)
    with torch.no_grad():
        explanation = explain(
            _module(pattern, case),
            *tensors.values(),
            options={"target": target, "select": "legal"},
        )
    regions = [region for report in explanation.reports for region in report.regions]
    if any(region.kernel == spec.name for region in regions):
        return ""
    if bare := _without_annotation(pattern, case):
        return (
            f"the pattern's {', '.join(bare)} has no annotation, and so stands for a tensor; say "
            "what it is, as in dim: int or dims: list[int]"
        )
    ops = [op for region in regions for op in region.ops]
    entries = [e for r in explanation.reports for e in (*r.near_misses, *r.fallbacks)]
    about = sorted({entry.reason for entry in entries if spec.name in entry.reason})
    return (
        f"the pattern is not found in its own graph, whose canonical ops are "
        f"{', '.join(ops) or 'none'}{''.join(f'; {reason}' for reason in about)}; write the "
        "pattern with these (docs/architecture.md, the canonical graph)"
    )


def _without_annotation(pattern: Pattern, case: Case) -> list[str]:
    """Parameters that are no tensors in the sample, and do not say so."""
    parameters = inspect.signature(pattern.function).parameters.values()
    return [
        one.name
        for one in parameters
        if one.annotation is inspect.Parameter.empty
        and case.values.get(one.name) is not None
        and not isinstance(case.values[one.name], torch.Tensor)
    ]


def _module(pattern: Pattern, case: Case) -> fx.GraphModule:
    """The pattern as a module of the case's tensors: a kernel's file is no module to Dynamo."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    given: dict[str, Any] = dict(case.values)
    for name in tensors_of(case.values):
        given[name] = fx.Proxy(graph.placeholder(name), tracer)
    values = {name: value for name, value in given.items() if name not in pattern.constants}
    result: Any = pattern.function(**values)
    graph.output(tree_map_only(fx.Proxy, lambda proxy: proxy.node, result))
    return fx.GraphModule(torch.nn.Module(), graph)
