"""`trnx.export`: a model's plan as a folder."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from trnx.backend.explain import options_of
from trnx.backend.exported.archive import write_archive
from trnx.backend.exported.capture import Captured, capture
from trnx.backend.exported.errors import ExportError
from trnx.backend.exported.manifest import GRAPH, Manifest, described, write_manifest
from trnx.backend.exported.plan_json import SOURCES, ledger_json, region_json
from trnx.backend.exported.sources import kernel_sources
from trnx.backend.exported.structure import Structure, structure_of
from trnx.backend.exported.values import encode
from trnx.backend.options import Options
from trnx.backend.torch_internals import compiled_with
from trnx.backend.versions import check_versions
from trnx.fallback.errors import FallbackError
from trnx.fallback.xla import XlaEngine
from trnx.fx_passes.extract import extract, region_module
from trnx.fx_passes.nodes import has_tensor, placeholders
from trnx.fx_passes.region import Plan, Region

STABLEHLO = "stablehlo/"


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, its manifest, bytes."""

    folder: Path
    manifest: Manifest

    @property
    def nbytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(int(file["bytes"]) for file in self.manifest.files.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "folder": str(self.folder),
            "target": self.manifest.target,
            "bytes": self.nbytes,
            "regions": [step for step in self.manifest.steps if isinstance(step, dict)],
            "ledger": self.manifest.ledger,
            "model_stablehlo": self.manifest.model_stablehlo,
        }

    def __str__(self) -> str:
        regions = self.to_dict()["regions"]
        engines = Counter(region["engine"] for region in regions)
        kinds = ", ".join(f"{count} {engine}" for engine, count in engines.items())
        lines = [
            f"{self.folder}: {len(regions)} regions ({kinds}) for {self.manifest.target}, "
            f"{self.nbytes / 1e6:.1f} MB"
        ]
        whole = self.manifest.model_stablehlo
        lines.append(f"StableHLO of the model: {whole.get('file') or 'none, ' + whole['reason']}")
        lines += [
            f"{r['region']} has no StableHLO: {r['reason']}" for r in regions if "reason" in r
        ]
        return "\n".join(lines)


def export(
    model: Callable[..., Any],
    args: Sequence[Any],
    folder: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | Options | None = None,
) -> Exported:
    """Write the plan of `model(*args, **kwargs)`, for inference and these sizes, to a new folder,
    which `trnx.load` runs. `model` is a torch.nn.Module; what `torch.compile` returned stands for
    what it was given.

    Values of `args` that are no tensors are constants of the plan. Raises ExportError.
    """
    check_versions()
    compiled_by = compiled_with(model)
    chosen = options_of(compiled_by, options)
    model = model if compiled_by is None else compiled_by.function
    target = Path(folder)
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"trnx.export takes a torch.nn.Module, not a {type(model).__name__}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} is there already; name a new folder, or an empty one")
    inputs, given = structure_of((tuple(args), dict(kwargs or {})), "the arguments")
    _check_memory(model, given)
    captured = capture(model, tuple(args), kwargs or {}, chosen)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        manifest = _write(captured, inputs, given, chosen, made)
        write_manifest(manifest, made)
        made.chmod(0o755)
        made.replace(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return Exported(target, manifest)


def _check_memory(model: torch.nn.Module, given: Sequence[Any]) -> None:
    tensors = [*model.parameters(), *model.buffers(), *given]
    for value in tensors:
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise ExportError(
                f"a tensor is on device {str(value.device)!r}: export from host memory, with "
                "model.to('cpu') and inputs there; trnx.load moves the model to the device"
            )


def _write(
    captured: Captured, inputs: Structure, given: Sequence[Any], options: Options, made: Path
) -> Manifest:
    plan = captured.plan
    program = write_archive(captured, made / GRAPH)
    steps: list[Any] = []
    for step in plan.steps:
        steps.append(_written(step, options, made) if isinstance(step, Region) else step.name)
    whole = _stablehlo(_whole(plan), options, made, "model")
    return Manifest(
        target=options.target,
        options={
            "fallback": options.fallback,
            "select": options.select,
            "lnc": str(options.lnc),
        },
        inputs=inputs,
        outputs=_outputs(program),
        constants=_constants(program, given),
        steps=steps,
        ledger=ledger_json(plan),
        model_stablehlo=whole,
        files=_sealed(made),
    )


def _written(region: Region, options: Options, made: Path) -> dict[str, Any]:
    """The region, with its kernel's sources or its StableHLO in the folder."""
    try:
        found = region_json(region, options.hardware)
    except ExportError as error:
        raise ExportError(f"{region.name}: {error}") from error
    if region.match is None:
        hlo = _stablehlo(region_module(region), options, made, region.name)
        return {**found, **({"stablehlo": hlo["file"]} if "file" in hlo else hlo)}
    for name, file in kernel_sources(region.match, options.hardware).items():
        copy = made / SOURCES / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return found


def _stablehlo(gm: fx.GraphModule, options: Options, made: Path, name: str) -> dict[str, str]:
    """`file` where XLA takes the graph, else the `reason` why it does not."""
    try:
        text = XlaEngine(options.hardware).stablehlo(gm)
    except FallbackError as error:
        return {"reason": str(error)}
    file = made / STABLEHLO / f"{name}.mlir"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return {"file": STABLEHLO + file.name}


def _whole(plan: Plan) -> fx.GraphModule:
    """All of the plan's graph as one region: the model's tensors in, tensors out."""
    gm = plan.graph_module
    calls = [node for node in gm.graph.nodes if node.op in ("call_function", "get_attr")]
    inputs = [node for node in placeholders(gm) if has_tensor(node)]
    returned: Any = gm.graph.output_node().args[0]
    return extract(calls, inputs, [node for node in returned if has_tensor(node)])


def _sealed(made: Path) -> dict[str, dict[str, Any]]:
    for path in made.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return described(made)


def _outputs(program: ExportedProgram) -> Structure:
    """The containers of the model's results, which are the graph's but for what is written to."""
    specs = program.graph_signature.output_specs
    places = [i for i, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT]
    tree = pytree.tree_unflatten(places, program.call_spec.out_spec)
    structure, leaves = structure_of(tree, "the result", mappings=Mapping)
    if leaves != places:
        raise ExportError("the result holds a tensor in a container that hides it; return tuples")
    return structure


def _constants(program: ExportedProgram, given: Sequence[Any]) -> dict[str, Any]:
    """The arguments that are no tensors, by their place."""
    specs = [
        spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT
    ]
    if len(specs) != len(given):
        raise ExportError(
            f"torch.export sees {len(specs)} values in the arguments, and there are {len(given)}"
        )
    pairs = enumerate(zip(specs, given, strict=True))
    return {str(i): encode(v) for i, (s, v) in pairs if isinstance(s.arg, ConstantArgument)}
