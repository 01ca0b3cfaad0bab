"""The pipeline, as one readable list: what happens to a graph between Dynamo and the executable.

Dynamo's graph  -> BEFORE_AUTOGRAD -> AOTAutograd (decomposition table) ->
functional ATen -> canonicalise    -> partition -> Plan
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from trnx.backend.cache.findings import kept_findings
from trnx.backend.cache.graphs import kept_canonical
from trnx.backend.cache.plans import kept_plan
from trnx.backend.cache.sources import kept_source
from trnx.backend.options import Options
from trnx.backend.prediction import PREDICTIONS
from trnx.fallback.eager import EagerEngine
from trnx.fallback.xla import XlaEngine
from trnx.fx_passes.canonicalise import CANONICAL, CANONICALISE, canonicalise
from trnx.fx_passes.expand_interpolate import EXPAND_INTERPOLATE
from trnx.fx_passes.expand_recurrent import EXPAND_RECURRENT
from trnx.fx_passes.functionalise_collectives import FUNCTIONALISE_COLLECTIVES
from trnx.fx_passes.group_lists import GROUP_LISTS
from trnx.fx_passes.mask_keys import MASK_KEYS
from trnx.fx_passes.name_python_gelu import NAME_PYTHON_GELU
from trnx.fx_passes.name_python_linear import NAME_PYTHON_LINEAR
from trnx.fx_passes.partition import partition
from trnx.fx_passes.passes import Pass, check_order, run_passes
from trnx.fx_passes.region import FallbackEngine, Plan
from trnx.fx_passes.rewrite import REWRITE_COMPOSITES
from trnx.fx_passes.verify import verify_functional, verify_graph, verify_plan
from trnx.nki_kernels import generator
from trnx.nki_kernels.generator.kernel import judge_by, keep_sources_in
from trnx.nki_kernels.registry import kernels
from trnx.simulator.frontend.subset import keep_findings_in

BEFORE_AUTOGRAD: tuple[Pass, ...] = (
    REWRITE_COMPOSITES,
    NAME_PYTHON_GELU,
    NAME_PYTHON_LINEAR,
    EXPAND_INTERPOLATE,
    EXPAND_RECURRENT,
    FUNCTIONALISE_COLLECTIVES,
    GROUP_LISTS,
)

FOR_BUCKETS: tuple[Pass, ...] = (MASK_KEYS,)

keep_sources_in(kept_source)
keep_findings_in(kept_findings)
judge_by(PREDICTIONS.scheduled_seconds)
check_order(CANONICALISE, check_order(BEFORE_AUTOGRAD), wanted=CANONICAL)
check_order(FOR_BUCKETS, CANONICAL)


def before_autograd(gm: fx.GraphModule) -> fx.GraphModule:
    """Passes over Dynamo's graph."""
    return run_passes(gm, BEFORE_AUTOGRAD)


def make_engines(options: Options) -> tuple[FallbackEngine, ...]:
    """The fallback engines that the option allows, in the order of preference."""
    eager = EagerEngine(options.hardware)
    if options.fallback == "eager":
        return (eager,)
    return (XlaEngine(options.hardware), eager)


def plan_graph(
    gm: fx.GraphModule,
    options: Options,
    engines: Sequence[FallbackEngine],
    for_buckets: bool = False,
) -> Plan:
    """The plan of a functional ATen graph, which the passes may change: from the compile cache, or
    made. Graph and plan are verified, which takes some thousandths of the time. `for_buckets`: its
    sizes may be padded."""
    run = _canonical_for_buckets if for_buckets else canonicalise
    gm, text = kept_canonical(gm, run.__name__, run)
    verify_graph(gm, "canonicalise")
    verify_functional(gm, "canonicalise")
    return kept_plan(gm, options, kernels(), lambda: _partition(gm, options, engines), text)


def _canonical_for_buckets(gm: fx.GraphModule) -> fx.GraphModule:
    return run_passes(canonicalise(gm), FOR_BUCKETS)


def _partition(gm: fx.GraphModule, options: Options, engines: Sequence[FallbackEngine]) -> Plan:
    plan = partition(
        gm,
        kernels=kernels(),
        hardware=options.hardware,
        engines=engines,
        generator=generator,
        select=options.select,
        policy=options.fallback,
        predictor=lambda match: PREDICTIONS.of(match, options.hardware).seconds,
    )
    verify_plan(plan)
    return plan
