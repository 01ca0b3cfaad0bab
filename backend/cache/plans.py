"""Plans on disk: which nodes of a canonical graph form which region, and the ledger.

An entry holds decisions, by the names of nodes; nothing in it is believed. A region's inputs and
outputs follow from its nodes, a kernel of the registry has to match its nodes again, a generated
one is made of the nodes themselves, and the plan is verified as a new one is. So an entry that
somebody made up can make a plan slow, and never its results wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from trnx.backend.cache.cache import PLAN, Codec
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Key
from trnx.backend.cache.errors import DamagedEntryError
from trnx.backend.cache.graphs import GraphText
from trnx.backend.cache.identity import jax_version, kernels_part, versions
from trnx.backend.exported.errors import ExportError
from trnx.backend.exported.values import encode
from trnx.backend.options import Options
from trnx.fx_passes.errors import GraphInvariantError
from trnx.fx_passes.extract import extract, inputs_of
from trnx.fx_passes.form_generated import outputs_of
from trnx.fx_passes.match import GraphMatch, bound_nodes, matchers
from trnx.fx_passes.nodes import op_name
from trnx.fx_passes.order import effect_edges
from trnx.fx_passes.region import KernelMatch, LedgerEntry, Plan, Region
from trnx.fx_passes.schedule import collective_region, values_used_outside
from trnx.fx_passes.source import source_line
from trnx.fx_passes.verify import verify_plan
from trnx.nki_kernels.generator.kernel import FusedKernel
from trnx.nki_kernels.registry import Registry

log = logging.getLogger(__name__)

_FALLBACKS = {"auto": ("xla", "eager"), "xla": ("xla", "eager"), "eager": ("eager",), "error": ()}


def plan_key(text: GraphText | None, options: Options, kernels: Registry) -> Key | None:
    """The key of the plan of a canonical graph with this text; None where that, or the text of a
    user's kernel, does not tell it from others."""
    users = kernels_part(kernels)
    if text is None or users is None:
        return None
    return Key(
        PLAN,
        {
            **versions(),
            "jax": jax_version(),
            "target": options.target,
            "lnc": str(options.lnc),
            "fallback": options.fallback,
            "select": options.select,
            "kernels": users,
            "graph": text.structure,
            "shapes": text.shapes,
        },
    )


def kept_plan(
    gm: fx.GraphModule,
    options: Options,
    kernels: Registry,
    make: Callable[[], Plan],
    text: GraphText | None = None,
) -> Plan:
    """The plan of the canonical graph `gm`, by `make` where it is not in the cache; `text` is the
    graph's, where that is known."""
    cache = current()
    key = None if cache is None else plan_key(text or GraphText.of(gm), options, kernels)
    if cache is None or key is None:
        return make()
    reader = _Reader(gm, kernels, _FALLBACKS[options.fallback])
    return cache.get_or_make(key, make, Codec(reader.encode, reader.decode))


class _Reader:
    """Plans of one graph as JSON and back."""

    def __init__(self, gm: fx.GraphModule, kernels: Registry, fallbacks: Sequence[str]) -> None:
        self._gm = gm
        self._kernels = kernels
        self._fallbacks = fallbacks
        self._nodes = {node.name: node for node in gm.graph.nodes}

    # -- to JSON -----------------------------------------------------------------------------

    def encode(self, plan: Plan) -> Any:
        """The plan, None for one that does not come back as it is."""
        try:
            given = {
                "steps": [_region(s) if isinstance(s, Region) else s.name for s in plan.steps],
                "ledger": [[e.node, e.engine, e.reason, e.advice] for e in plan.ledger],
            }
            again = self.decode(given)
        except (ExportError, DamagedEntryError, KeyError) as error:
            log.info("a plan is not kept: %s", error)
            return None
        if not _same(plan, again):
            log.info("a plan is not kept: what is read is another")
            return None
        return given

    # -- from JSON ---------------------------------------------------------------------------

    def decode(self, given: Any) -> Plan:
        """The plan. Raises DamagedEntryError for one that cannot be of this graph."""
        steps = tuple(
            self._nodes[step] if isinstance(step, str) else self._read(step)
            for step in given["steps"]
        )
        regions = tuple(step for step in steps if isinstance(step, Region))
        ledger = tuple(self._entry(*entry) for entry in given["ledger"])
        plan = Plan(self._gm, regions, ledger, steps)
        try:
            verify_plan(plan)
        except GraphInvariantError as error:
            raise DamagedEntryError(str(error)) from error
        _check_effects(plan)
        return plan

    def _entry(self, node: str, engine: Any, reason: str, advice: str) -> LedgerEntry:
        found = self._nodes[node]
        if not all(isinstance(text, str) for text in (engine, reason, advice)):
            raise DamagedEntryError(f"an entry of the ledger about {node} is no text")
        return LedgerEntry(op_name(found), node, engine, reason, source_line(found), advice)

    def _read(self, given: Mapping[str, Any]) -> Region:
        name, engine = str(given["region"]), given["engine"]
        nodes = tuple(self._nodes[node] for node in given["nodes"])
        if engine == "nki":
            generated = given["bindings"] is None
            match = self._generated(nodes) if generated else self._matched(given, nodes)
            outputs = tuple(node for node in match.results if node is not None)
            return Region(name, "nki", nodes, bound_nodes(match.bindings), outputs, match)
        if engine == "collective":
            return collective_region(name, nodes)
        if engine not in self._fallbacks:
            raise DamagedEntryError(f"{name} is for {engine!r}")
        return Region(name, engine, nodes, inputs_of(nodes), values_used_outside(nodes))

    def _generated(self, nodes: tuple[fx.Node, ...]) -> KernelMatch:
        inputs, outputs = inputs_of(nodes), outputs_of(nodes)
        kernel = FusedKernel(extract(nodes, inputs, outputs))
        return KernelMatch(kernel, {node.name: node for node in inputs}, outputs)

    def _matched(self, given: Mapping[str, Any], nodes: tuple[fx.Node, ...]) -> KernelMatch:
        """The match of the named kernel that takes exactly these nodes, with these bindings."""
        for matcher in matchers([self._kernels[given["kernel"]]]):
            for node in nodes:
                found = matcher.match(node) if node.target is matcher.root_target else None
                if not isinstance(found, GraphMatch) or found.nodes != nodes:
                    continue
                if _bindings(found.match) == given["bindings"]:
                    return found.match
        raise DamagedEntryError(f"kernel {given['kernel']} does not match {given['region']}")


def _region(region: Region) -> dict[str, Any]:
    found: dict[str, Any] = {
        "region": region.name,
        "engine": region.engine,
        "nodes": [node.name for node in region.nodes],
    }
    if region.match is not None:
        is_generated = isinstance(region.match.kernel, FusedKernel)
        found["kernel"] = region.match.kernel.name
        found["bindings"] = None if is_generated else _bindings(region.match)
    return found


def _bindings(match: KernelMatch) -> dict[str, Any]:
    return {name: encode(value) for name, value in match.bindings.items()}


def _same(plan: Plan, other: Plan) -> bool:
    """Whether two plans of one graph do the same."""
    return plan.ledger == other.ledger and _facts(plan.steps) == _facts(other.steps)


def _facts(steps: Iterable[Region | fx.Node]) -> list[Any]:
    found: list[Any] = []
    for step in steps:
        if isinstance(step, Region):
            match = step.match
            parts = (step.name, step.engine, step.nodes, step.inputs, step.outputs)
            kernel = None if match is None else (match.kernel.name, match.results)
            found.append((*parts, kernel, None if match is None else _bound(match)))
        else:
            found.append(step)
    return found


def _bound(match: KernelMatch) -> Any:
    """What a kernel reads; the names in a generated one may be those of an equal region."""
    found = _bindings(match)
    return [*found.values()] if isinstance(match.kernel, FusedKernel) else found


def _check_effects(plan: Plan) -> None:
    """Raises DamagedEntryError where random ops, or a write and a read, have changed places."""
    first: dict[fx.Node, int] = {}
    last: dict[fx.Node, int] = {}
    steps = (step.nodes if isinstance(step, Region) else (step,) for step in plan.steps)
    for place, node in enumerate(node for nodes in steps for node in nodes):
        first.setdefault(node, place)
        last[node] = place
    for node, before in effect_edges(plan.graph_module.graph).items():
        for other in before:
            if node in first and other in last and first[node] <= last[other]:
                raise DamagedEntryError(f"{node.name} would run before {other.name}")
