"""Does fusion ever lose? The predicted time of each model's plan against plans with one fusion
switched off.

The models are 20 architectures of `scripts/suites/hugging_face.py`, inference in bfloat16. Their
graphs are captured once and planned again, in turn without: the patterns of more than one op of
each kernel that fuses ops in the plan, kernels generated for more than one op, ops left to
generated kernels, alike generated kernels merged, GELU and RMS norm named where they are written
out. Times are those of all regions, off NKI too.

Bar: no plan without a fusion is faster by more than a millionth. `--target`, `--lnc`, `--models
NAME ...` (any of the suite), `--train` (forward and backward graphs), `--json` prints one object as
the last line. Exit status 0 means that the bar holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suites.hugging_face import BUILDERS

import trnx
from trnx.backend import compiler
from trnx.backend.options import Options, make_options
from trnx.backend.pipeline import make_engines
from trnx.backend.prediction import PREDICTIONS
from trnx.backend.torch_internals import copy_graph_module
from trnx.fx_passes import kernel_units
from trnx.fx_passes.canonicalise import CANONICALISE
from trnx.fx_passes.match import Matcher
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.partition import partition
from trnx.fx_passes.passes import run_passes
from trnx.fx_passes.region import Plan
from trnx.nki_kernels import generator
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Kernel
from trnx.simulator.errors import Reject

MODELS = (
    "bert", "distilbert", "deberta_v2", "modernbert", "gpt2", "gpt_neox", "opt", "bloom", "llama",
    "mistral", "qwen3", "gemma2", "gemma3", "phi3", "falcon", "mixtral", "t5", "bart", "vit",
    "clip",
)  # fmt: skip
NAMED = ("name_gelu", "name_rms_norm")
MARGIN = 1e-6


@dataclass(frozen=True)
class Row:
    """A model: microseconds of its plan, and of the plan without each fusion."""

    model: str
    us: float
    without: dict[str, float]
    seconds: float

    @property
    def losses(self) -> dict[str, float]:
        """Fusions without which the plan is faster, and how many times as long it takes with."""
        return {n: self.us / us for n, us in self.without.items() if us * (1 + MARGIN) < self.us}

    def text(self) -> str:
        """A line of the table, and one for each fusion that loses."""
        gains = max((us / self.us for us in self.without.values()), default=1.0)
        head = f"{self.model:<16}{self.us:10.1f}{len(self.without):10d}{gains:12.2f}x"
        lost = [f"    {ratio:.3f}x with {name}" for name, ratio in self.losses.items()]
        return "\n".join([head, *lost])


class _OneOp:
    """The generator for one op a kernel."""

    def __getattr__(self, name: str) -> Any:
        return getattr(generator, name)

    def fused_kernel(self, gm: fx.GraphModule, hardware: Any) -> Kernel | Reject:
        """Refuses regions of several ops."""
        if sum(map(is_compute, gm.graph.nodes)) > 1:
            return Reject("fusion is switched off")
        return generator.fused_kernel(gm, hardware)


def captured(name: str, train: bool) -> list[fx.GraphModule]:
    """The graphs of a model as trnx gets them from AOTAutograd."""
    graphs: list[fx.GraphModule] = []
    plan_graph = compiler.plan_graph

    def recorded(gm: fx.GraphModule, *given: Any) -> Plan:
        graphs.append(copy_graph_module(gm))
        return plan_graph(gm, *given)

    torch._dynamo.reset()
    built = BUILDERS[name](train)
    model = built.model.to(torch.bfloat16)
    args = [_in_bfloat16(value) for value in built.args]
    kwargs = {key: _in_bfloat16(value) for key, value in built.kwargs.items()}
    with mock.patch.object(compiler, "plan_graph", recorded), torch.set_grad_enabled(train):
        trnx.explain(model, *args, **kwargs)
    return graphs


def _in_bfloat16(value: Any) -> Any:
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.bfloat16) if is_real else value


@dataclass(frozen=True)
class Planner:
    """How graphs are planned; `passes` and `kernels` are what is left of them."""

    options: Options
    kernels: tuple[Kernel, ...] = ()
    generator: Any = generator
    without_pass: str = ""

    def plan(self, graph: fx.GraphModule) -> Plan:
        """The plan of a copy of `graph`."""
        passes = [one for one in CANONICALISE if one.name != self.without_pass]
        return partition(
            run_passes(copy_graph_module(graph), passes),
            kernels=self.kernels,
            hardware=self.options.hardware,
            engines=make_engines(self.options),
            generator=self.generator,
            predictor=lambda match: PREDICTIONS.of(match, self.options.hardware).seconds,
        )

    def microseconds(self, plans: Iterable[Plan]) -> float:
        """Predicted time of all regions."""
        engines = {engine.name: engine for engine in make_engines(self.options)}
        total = 0.0
        for region in (one for plan in plans for one in plan.regions):
            if region.match is not None:
                total += PREDICTIONS.of(region.match, self.options.hardware).seconds
            elif region.engine in engines:
                total += engines[region.engine].cost([n for n in region.nodes if is_compute(n)])
        return total * 1e6

    def time(self, graphs: Iterable[fx.GraphModule]) -> float:
        """Predicted microseconds of the plans of `graphs`."""
        return self.microseconds([self.plan(graph) for graph in graphs])


def _without_fusion_of(name: str, every: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """The kernels, of which `name` has its patterns of one op alone."""
    left: list[Kernel] = []
    for kernel in every:
        patterns = getattr(kernel, "patterns", ())
        if kernel.name == name:
            patterns = tuple(p for p in patterns if Matcher(kernel, p).size == 1)
            kernel = replace(kernel, patterns=patterns)  # type: ignore[type-var]
        if patterns:
            left.append(kernel)
    return tuple(left)


def _fusing(plans: Iterable[Plan]) -> list[str]:
    """The registry's kernels that run several ops in a region."""
    known = {kernel.name for kernel in kernels()}
    matches = (
        region.match.kernel.name
        for plan in plans
        for region in plan.regions
        if region.match is not None and sum(map(is_compute, region.nodes)) > 1
    )
    return sorted({name for name in matches if name in known})


def _variants(whole: Planner, plans: Iterable[Plan]) -> Iterator[tuple[str, Planner]]:
    for name in _fusing(plans):
        yield name, replace(whole, kernels=_without_fusion_of(name, whole.kernels))
    yield "generated kernels", replace(whole, generator=_OneOp())
    for name in NAMED:
        yield name, replace(whole, without_pass=name)


@contextmanager
def _switched_off(step: str, nothing: Callable[..., Any]) -> Iterator[None]:
    with mock.patch.object(kernel_units, step, nothing):
        yield


def measured(name: str, options: Options, train: bool) -> Row:
    """One model."""
    start = time.perf_counter()
    graphs = captured(name, train)
    whole = Planner(options, tuple(kernels()))
    plans = [whole.plan(graph) for graph in graphs]
    without = {title: one.time(graphs) for title, one in _variants(whole, plans)}
    with (
        _switched_off("without_fusible", lambda matches, *_: matches),
        _switched_off("without_adjoining", lambda matches, *_: matches),
    ):
        without["ops left to generated kernels"] = whole.time(graphs)
    with _switched_off("merge_alike", lambda units, *_: units):
        without["merged kernels"] = whole.time(graphs)
    return Row(name, whole.microseconds(plans), without, time.perf_counter() - start)


def main() -> int:
    """Command line: 0 where the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--lnc", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=sorted(BUILDERS))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options = make_options({"target": given.target, "lnc": given.lnc})
    rows = []
    print(f"{'model':<16}{'us':>10}{'fusions':>10}{'most gain':>13}")
    for name in given.models:
        rows.append(measured(name, options, given.train))
        print(rows[-1].text(), flush=True)
    holds = not any(row.losses for row in rows)
    print(f"no fusion loses in {sum(not row.losses for row in rows)} of {len(rows)} models")
    if given.json:
        found = [{**asdict(row), "losses": row.losses} for row in rows]
        print(json.dumps({"rows": found, "bars_hold": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
