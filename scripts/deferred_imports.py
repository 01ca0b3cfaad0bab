"""Imports of trnx within functions, and cycles of imports: what `check_tree.py` asks of sources.

An import within a function is for what is slow to load or may be missing, never to break a cycle.
Modules that have one are in `DEFERRED`, each with its reason; an entry that is not needed is an
error as well.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

_COMMANDS = "a command loads what it needs, so that `trnx --help` is quick"
_EXTRA = "needs an extra, which may not be installed"
_CLUSTER = "the clients of Kubernetes and AWS are slow to load, and need an extra"

DEFERRED = {
    "trnx.backend.model_profile": _EXTRA,
    "trnx.backend.prediction": "the timing model is loaded by the first prediction",
    "trnx.backend.neuron.doctor": "the doctor works, and says so, where torch cannot be imported",
    "trnx.cache_cli": _COMMANDS,
    "trnx.cli": _COMMANDS,
    "trnx.migrate_cli": _COMMANDS,
    "trnx.plan_cli": _COMMANDS,
    "trnx.device.worker": "who waits counts the time of imports as the first task's",
    "trnx.eks.cli": _CLUSTER,
    "trnx.eks.cluster.checks": _CLUSTER,
    "trnx.eks.cluster_cli": _CLUSTER,
    "trnx.eks.commands": _CLUSTER,
    "trnx.eks.extra": _EXTRA,
    "trnx.eks.preflight_cli": _CLUSTER,
    "trnx.eks.validate": "schemas are loaded where documents are checked against them",
    "trnx.fallback.xla": "JAX is slow to load, and needs an extra",
    "trnx.jobs.continuous": _EXTRA,
    "trnx.jobs.serve": "the server's flags are read before what it serves with is loaded",
    "trnx.nki_kernels.generator.kernel": "kernels are loaded when one is first called",
    "trnx.nki_kernels.registry": "kernels are loaded when one is first asked for",
    "trnx.simulator.frontend.kernel": "calling a kernel starts the simulator, which loads kernels",
    "trnx.simulator.timing.profile": _EXTRA,
}


def _imported(node: ast.AST, modules: Collection[str]) -> set[str]:
    """The modules of ours that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        members = [f"{node.module}.{alias.name}" for alias in node.names]
        names = [name if name in modules else node.module for name in members]
    else:
        names = []
    return {name for name in names if name in modules}


def _statements(node: ast.AST, is_deferred: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All statements that a run may execute, and whether a call has to come first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child, is_deferred
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _statements(child, is_deferred or is_function)


def check_sources(tree: Path, allowed: Mapping[str, str] = DEFERRED) -> tuple[bool, str]:
    """Judge the packages laid out under `tree`; (holds, report)."""
    modules = {
        ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__"): path
        for path in tree.rglob("*.py")
    }
    at_import: dict[str, set[str]] = {name: set() for name in modules}
    deferring: dict[str, set[str]] = {}
    for name, path in modules.items():
        for node, is_deferred in _statements(ast.parse(path.read_text())):
            for other in _imported(node, modules):
                (deferring.setdefault(name, set()) if is_deferred else at_import[name]).add(other)
    problems = [
        f"{name} imports {', '.join(sorted(deferring[name]))} in a function; import it at the top, "
        "or say why not in scripts/deferred_imports.py"
        for name in sorted(deferring.keys() - allowed.keys())
    ]
    problems += [
        f"{name} imports nothing in a function; take it out of scripts/deferred_imports.py"
        for name in sorted(allowed.keys() - deferring.keys())
    ]
    try:
        TopologicalSorter(at_import).prepare()
    except CycleError as error:
        problems.append(f"imports form a cycle: {' <- '.join(error.args[1])}")
    return not problems, "\n".join(problems) or f"{len(modules)} modules, {len(deferring)} defer"
