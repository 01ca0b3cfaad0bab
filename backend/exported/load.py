"""`trnx.load`: a folder that `trnx.export` wrote, as a function to call.

No Dynamo, no passes and no partition: the plan is read, each of its kernels is traced once, and the
executable (or on a device the one graph for TorchNeuron) is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trnx.backend.compiler import GraphCompiler, next_frame_name
from trnx.backend.errors import InputChangedError
from trnx.backend.exported.archive import MADE
from trnx.backend.exported.archive_reader import Archive, read_archive
from trnx.backend.exported.errors import DamagedFolderError
from trnx.backend.exported.graph_reader import read_graph
from trnx.backend.exported.manifest import GRAPH, Manifest, read_manifest
from trnx.backend.exported.plan_json import read_plan
from trnx.backend.exported.structure import flatten, is_structure, unflatten
from trnx.backend.exported.values import decode
from trnx.backend.neuron.choice import choose_runner
from trnx.backend.options import make_options
from trnx.backend.runners import NeuronRunner
from trnx.backend.versions import check_versions
from trnx.fallback.xla import jax_missing
from trnx.fx_passes import advice
from trnx.fx_passes.errors import GraphInvariantError
from trnx.fx_passes.nodes import op_name
from trnx.fx_passes.region import LedgerEntry, Plan, Region
from trnx.fx_passes.source import source_line
from trnx.fx_passes.verify import verify_functional, verify_graph, verify_plan


def load(folder: str | Path, *, runner: str | None = None) -> Loaded:
    """The model in `folder`, for the runner of the option of that name.

    Raises ForeignFolderError, DamagedFolderError, UnsafeFolderError or FolderVersionError, and what
    the option raises.
    """
    check_versions()
    place = Path(folder).resolve()
    manifest = read_manifest(place)
    asked = {} if runner is None else {"runner": runner}
    options = make_options({"target": manifest.target, **dict(manifest.options), **asked})
    archive = read_archive(place / GRAPH)
    graph_module = read_graph(archive)
    plan = read_plan(graph_module, manifest.steps, manifest.ledger, options.hardware)
    _verify(plan, manifest, archive)
    choice = choose_runner(options.runner, options.target)
    device = torch.device("neuron" if isinstance(choice.runner, NeuronRunner) else "cpu")
    if options.fallback == "auto":
        plan = _without_xla(plan)
    compiler = GraphCompiler(options, choice, f"{next_frame_name()}.{place.name}")
    try:
        signature = _Signature(manifest, archive)
        with torch.no_grad():
            run = compiler.assemble(plan, "inference", device)
        return Loaded(run, signature, archive, device)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
        raise DamagedFolderError(
            f"the plan in {place} cannot be run ({type(error).__name__}: {error}); export anew"
        ) from error


def _verify(plan: Plan, manifest: Manifest, archive: Archive) -> None:
    """Raises DamagedFolderError for a plan that cannot be run as it stands."""
    outputs = len(archive.program["graph_module"]["graph"]["outputs"])
    inputs = len(archive.program["graph_module"]["graph"]["inputs"])
    try:
        verify_graph(plan.graph_module, "load")
        verify_functional(plan.graph_module, "load")
        verify_plan(plan)
    except GraphInvariantError as error:
        raise DamagedFolderError(f"the manifest's plan does not fit its graph: {error}") from error
    if not is_structure(manifest.inputs, inputs) or not is_structure(manifest.outputs, outputs):
        raise DamagedFolderError("the manifest's inputs or outputs do not fit its graph")


def _without_xla(plan: Plan) -> Plan:
    """The plan with regions of XLA in eager, and in the ledger, where JAX is not installed."""
    missing = jax_missing()
    if missing is None:
        return plan
    ledger, moved = list(plan.ledger), {}
    for region in plan.regions:
        if region.engine == "xla":
            moved[region.name] = replace(region, engine="eager")
            last = region.nodes[-1]
            why = LedgerEntry(
                op_name(last), last.name, "eager", missing, source_line(last), advice.INSTALL
            )
            ledger.append(why)
    steps = tuple(moved.get(s.name, s) if isinstance(s, Region) else s for s in plan.steps)
    regions = tuple(moved.get(region.name, region) for region in plan.regions)
    return Plan(plan.graph_module, regions, tuple(ledger), steps)


class _Signature:
    """What each input of the graph is, and what each of its results is for."""

    def __init__(self, manifest: Manifest, archive: Archive) -> None:
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        signature = archive.program["graph_module"]["signature"]
        self.state: list[str] = []
        self.arguments: list[str] = []
        for spec in signature["input_specs"]:
            ((kind, one),) = spec.items()
            if kind in ("user_input", "constant_input"):
                self.arguments.append(_name_of(one))
            elif not (kind == "tensor_constant" and one["tensor_constant_name"].startswith(MADE)):
                self.state.append(_target_of(one))
        self.constants = _constants(manifest.constants, len(self.arguments))
        # Result -> the place of what it is written to: among the state, or the arguments.
        self.writes_state: dict[int, int] = {}
        self.writes_argument: dict[int, int] = {}
        self.returned: list[int] = []
        for place, spec in enumerate(signature["output_specs"]):
            ((kind, one),) = spec.items()
            if kind == "buffer_mutation":
                self.writes_state[place] = self.state.index(one["buffer_name"])
            elif kind == "parameter_mutation":
                self.writes_state[place] = self.state.index(one["parameter_name"])
            elif kind == "user_input_mutation":
                self.writes_argument[place] = self.arguments.index(one["user_input_name"])
            elif kind == "user_output":
                self.returned.append(place)
            else:
                raise DamagedFolderError(f"the graph has a result of kind {kind}; export anew")


def _constants(given: Mapping[str, Any], arguments: int) -> dict[int, Any]:
    """The values of arguments that are no tensors, by their places."""
    if not isinstance(given, dict) or not given.keys() <= {str(n) for n in range(arguments)}:
        raise DamagedFolderError("the manifest's constants are no arguments; export anew")
    return {int(place): decode(value, {}) for place, value in given.items()}


def _name_of(spec: Mapping[str, Any]) -> str:
    return str(spec["arg"]["as_tensor"]["name"] if "arg" in spec else spec["name"])


def _target_of(spec: Mapping[str, Any]) -> str:
    return str(next(spec[k] for k in spec if k.endswith("_name")))


class Loaded:
    """A loaded model: callable with the arguments of the model that was exported, of equal sizes.

    Gradients are not recorded. What the model writes to its buffers is kept from call to call.
    """

    def __init__(
        self, run: Any, signature: _Signature, archive: Archive, device: torch.device
    ) -> None:
        self._run, self._signature = run, signature
        self._state = [archive.tensors[name].to(device) for name in signature.state]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises InputChangedError for arguments that differ in more than the values of tensors."""
        given = flatten(self._signature.inputs, (args, kwargs), "(args, kwargs)")
        self._check_constants(given)
        with torch.no_grad():
            results = self._run([*self._state, *given])
            for place, target in self._signature.writes_state.items():
                self._state[target].copy_(results[place])
            for place, target in self._signature.writes_argument.items():
                given[target].copy_(results[place])
        returned = [results[place] for place in self._signature.returned]
        return unflatten(self._signature.outputs, returned)

    def _check_constants(self, given: Sequence[Any]) -> None:
        for place, wanted in self._signature.constants.items():
            found = given[place]
            if type(found) is not type(wanted) or found != wanted:
                raise InputChangedError(
                    f"argument {place} is {found!r}, and the plan was exported for {wanted!r}: "
                    "numbers are constants of a plan; export anew for this one"
                )
        for place, value in enumerate(given):
            if place not in self._signature.constants and not isinstance(value, torch.Tensor):
                raise InputChangedError(
                    f"argument {place} is a {type(value).__name__}, and was a tensor"
                )
