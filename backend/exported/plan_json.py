"""A plan as JSON, its nodes by their names in the archive, and back.

A kernel is written by its name and by the checksums of its sources. Who reads it takes the kernel
of that name from the registry, or generates it anew, and refuses one that is not the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import fx

from trnx.backend.exported.errors import DamagedFolderError, ExportError, FolderVersionError
from trnx.backend.exported.sources import digest_of, kernel_sources
from trnx.backend.exported.values import decode, encode
from trnx.backend.kernel_call import describe
from trnx.fx_passes.extract import extract
from trnx.fx_passes.region import KernelMatch, LedgerEntry, Plan, Region
from trnx.fx_passes.source import source_line
from trnx.nki_kernels.generator.kernel import FusedKernel
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Kernel
from trnx.simulator.hardware import Hardware

SOURCES = "sources/"


def region_json(region: Region, hw: Hardware) -> dict[str, Any]:
    """One region. Raises ExportError for a kernel with a constant that has no JSON, and for a
    collective."""
    if region.engine == "collective":
        raise ExportError(
            f"{region.name} is a collective of a process group of this job, which a folder cannot "
            "hold: export the model as it is before it is sharded"
        )
    found: dict[str, Any] = {
        "region": region.name,
        "engine": region.engine,
        "nodes": _names(region.nodes),
        "inputs": _names(region.inputs),
        "outputs": _names(region.outputs),
        "op": describe(region)[0],
        "lines": list(dict.fromkeys(filter(None, map(source_line, region.nodes)))),
    }
    if region.match is not None:
        match = region.match
        found["kernel"] = match.kernel.name
        found["generated"] = isinstance(match.kernel, FusedKernel)
        found["bindings"] = {name: encode(value) for name, value in match.bindings.items()}
        found["results"] = [None if node is None else node.name for node in match.results]
        sources = kernel_sources(match, hw)
        found["sources"] = {SOURCES + name: digest_of(f) for name, f in sorted(sources.items())}
    return found


def _names(nodes: Iterable[fx.Node]) -> list[str]:
    return [node.name for node in nodes]


def ledger_json(plan: Plan) -> list[Mapping[str, str]]:
    """The ledger's entries."""
    return [asdict(entry) for entry in plan.ledger]


def read_plan(
    gm: fx.GraphModule, steps: Sequence[Any], ledger: Sequence[Any], hw: Hardware
) -> Plan:
    """The plan of `gm`. Raises DamagedFolderError for JSON that is no plan, FolderVersionError
    where a kernel is not here, or is another."""
    nodes = {node.name: node for node in gm.graph.nodes}
    try:
        found = tuple(nodes[s] if isinstance(s, str) else _region(s, nodes, hw) for s in steps)
        entries = tuple(LedgerEntry(**entry) for entry in ledger)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise DamagedFolderError(
            f"the manifest's plan cannot be read ({type(error).__name__}: {error}); export anew"
        ) from error
    regions = tuple(step for step in found if isinstance(step, Region))
    return Plan(gm, regions, entries, found)


def _region(given: Mapping[str, Any], nodes: Mapping[str, fx.Node], hw: Hardware) -> Region:
    def named(key: str) -> tuple[fx.Node, ...]:
        return tuple(nodes[name] for name in given[key])

    parts = named("nodes"), named("inputs"), named("outputs")
    if given["engine"] not in ("nki", "xla", "eager"):
        raise ValueError(f"engine {given['engine']!r}")
    if (given["engine"] == "nki") != ("kernel" in given):
        raise ValueError(f"{given['region']} and its kernel do not fit together")
    match = None if "kernel" not in given else _match(given, parts, nodes, hw)
    if match is not None and not set(parts[2]) <= set(match.results):
        raise ValueError(f"{given['region']} has results that its kernel does not give")
    return Region(str(given["region"]), given["engine"], *parts, match)


def _match(
    given: Mapping[str, Any],
    parts: tuple[tuple[fx.Node, ...], tuple[fx.Node, ...], tuple[fx.Node, ...]],
    nodes: Mapping[str, fx.Node],
    hw: Hardware,
) -> KernelMatch:
    kernel: Kernel = FusedKernel(extract(*parts)) if given["generated"] else _registered(given)
    bindings = {str(name): decode(value, nodes) for name, value in given["bindings"].items()}
    results = tuple(None if name is None else nodes[name] for name in given["results"])
    match = KernelMatch(kernel, bindings, results)
    sources = kernel_sources(match, hw)
    here = {SOURCES + name: digest_of(file) for name, file in sources.items()}
    if here != given["sources"]:
        names = sorted({name for name, _ in here.items() ^ given["sources"].items()})
        raise FolderVersionError(
            f"kernel {kernel.name} is not the one that was exported (it differs in "
            f"{', '.join(names)}): install the trnx that exported the folder, or export anew"
        )
    return match


def _registered(given: Mapping[str, Any]) -> Kernel:
    try:
        return kernels()[given["kernel"]]
    except KeyError:
        raise FolderVersionError(
            f"no kernel {given['kernel']!r} is registered here: load it first with "
            f"trnx.load_kernels(FILE); its source is in {', '.join(given['sources'])}"
        ) from None
