"""Reading manifests: every pod that a stream of manifests would start, as one flat view.

Manifests may be wrong in any way, so all access goes through `mapping`, `items` and `text`, which
give something empty where the type is not the expected one; the schema check names such fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnx.eks.documents import Manifest
from trnx.eks.images import parse_image, parse_sdk
from trnx.eks.instances import Instance, instance_of
from trnx.eks.pods import DEVICE_CLASS, FACTS_ANNOTATION, NEURON, SDK_ANNOTATION

INSTANCE_LABEL = "node.kubernetes.io/instance-type"


def mapping(value: Any, *keys: str) -> Manifest:
    """The mapping below `keys`, or an empty one."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: Any, key: str) -> list[Manifest]:
    """The mappings in the list at `key`."""
    found = value.get(key) if isinstance(value, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def words(value: Any, key: str) -> list[str]:
    """The entries of the list at `key`, as text."""
    found = value.get(key) if isinstance(value, dict) else None
    return [str(item) for item in found] if isinstance(found, list) else []


def text(value: Any, key: str) -> str:
    """The text at `key`, or an empty one."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def whole(value: Any) -> int | None:
    """A whole number, also one in text; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdigit() else None


def title(manifest: Manifest) -> str:
    """Kind and name, as messages show a manifest."""
    return f"{text(manifest, 'kind') or '?'}/{text(mapping(manifest, 'metadata'), 'name') or '?'}"


@dataclass(frozen=True)
class PodView:
    """One pod template. `width`: pods side by side. `complete`: volumes and the rest are known."""

    manifest: Manifest
    path: str
    spec: Manifest
    metadata: Manifest
    workload: Manifest = field(default_factory=dict)
    width: int = 1
    complete: bool = True

    @property
    def kind(self) -> str:
        """Kind of the manifest that holds the pod."""
        return text(self.manifest, "kind")

    def at(self, place: str) -> str:
        """A field of the pod, as messages name it."""
        return f"{title(self.manifest)} {self.path}.{place}" if place else title(self.manifest)

    def containers(self) -> Iterator[tuple[str, Manifest]]:
        """(place, container), init containers too."""
        for key in ("initContainers", "containers"):
            for index, container in enumerate(items(self.spec, key)):
                yield f"{key}.{index}", container

    def count(self, resource: str) -> int:
        """Units of an extended resource over all containers."""
        return sum(
            whole(mapping(container, "resources", "limits").get(resource)) or 0
            for _, container in self.containers()
        )

    @property
    def claims(self) -> bool:
        """Whether the pod takes devices by claims."""
        return bool(items(self.spec, "resourceClaims"))

    @property
    def on_neuron(self) -> bool:
        """Whether the pod asks for a Neuron device."""
        return self.count(NEURON) > 0 or self.claims

    @property
    def instance_name(self) -> str:
        """The instance type that the node selector names, or an empty text."""
        return text(mapping(self.spec, "nodeSelector"), INSTANCE_LABEL)

    @property
    def instance(self) -> Instance | None:
        """Facts of the type that the node selector names."""
        noted = text(mapping(self.metadata, "annotations"), FACTS_ANNOTATION)
        return instance_of(self.instance_name, noted)

    def env(self) -> Iterator[tuple[str, str, str]]:
        """(place, name, value) of every variable; the value is empty where it is not literal."""
        for place, container in self.containers():
            for index, variable in enumerate(items(container, "env")):
                yield f"{place}.env.{index}", text(variable, "name"), text(variable, "value")

    def sdk(self, container: Manifest) -> tuple[int, int] | None:
        """The SDK that the annotation, else the image's tag, names."""
        noted = text(mapping(self.metadata, "annotations"), SDK_ANNOTATION)
        if noted:
            return parse_sdk(noted)
        image = parse_image(text(container, "image"))
        return image.sdk if image else None


@dataclass(frozen=True)
class Stream:
    """All manifests that are checked together."""

    manifests: Sequence[Manifest]

    def of_kind(self, *kinds: str) -> Iterator[Manifest]:
        """Manifests of these kinds."""
        return (item for item in self.manifests if text(item, "kind") in kinds)

    def named(self, kind: str, name: str) -> Manifest | None:
        """The manifest with a kind and a name."""
        for item in self.of_kind(kind):
            if text(mapping(item, "metadata"), "name") == name:
                return item
        return None

    def pods(self) -> Iterator[PodView]:
        """Every pod template; a TrainJob's is its runtime's with the trainer's settings."""
        for manifest in self.manifests:
            if text(manifest, "kind") == "TrainJob":
                yield _trainjob_pod(self, manifest)
            else:
                yield from _templates(manifest)

    def claim_count(self, pod: PodView) -> int | None:
        """Neuron devices that the pod's claims ask for; None where a template is not here."""
        total = 0
        for claim in items(pod.spec, "resourceClaims"):
            template = self.named("ResourceClaimTemplate", text(claim, "resourceClaimTemplateName"))
            if template is None:
                return None
            total += sum(count for _, count in neuron_requests(template))
        return total

    def devices(self, pod: PodView) -> int | None:
        """Neuron devices of the pod, by plugin or claim; None where that is not known."""
        return self.claim_count(pod) if pod.claims else pod.count(NEURON)


def neuron_requests(template: Manifest) -> Iterator[tuple[str, int]]:
    """(field, count) of the Neuron device requests of a ResourceClaimTemplate."""
    devices = mapping(template, "spec", "spec", "devices")
    for index, request in enumerate(items(devices, "requests")):
        exactly = mapping(request, "exactly")
        if text(exactly, "deviceClassName") == DEVICE_CLASS:
            count = exactly.get("count", 1)
            place = f"spec.spec.devices.requests.{index}.exactly.count"
            yield place, whole(count) or 0


def _templates(manifest: Manifest) -> Iterator[PodView]:
    def walk(
        value: Any, path: tuple[str, ...], above: Manifest, job: Manifest
    ) -> Iterator[PodView]:
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from walk(item, (*path, str(index)), above, job)
        elif isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                width = max(whole(job.get("parallelism")) or 1, 1)
                meta = mapping(above, "metadata")
                yield PodView(manifest, ".".join(path), value, meta, job, width)
                return
            inner = value if "template" in value else job
            for key, item in value.items():
                yield from walk(item, (*path, str(key)), value, inner)

    yield from walk(manifest, (), manifest, {})


def _trainjob_pod(stream: Stream, manifest: Manifest) -> PodView:
    trainer = mapping(manifest, "spec", "trainer")
    reference = mapping(manifest, "spec", "runtimeRef")
    runtime_kind = text(reference, "kind") or "ClusterTrainingRuntime"
    runtime = stream.named(runtime_kind, text(reference, "name"))
    base = next(_templates(runtime), None) if runtime else None
    known = items(base.spec, "containers") if base else []
    own: Manifest = {
        key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer
    }
    first: Manifest = known[0] if known else {"name": "node"}
    node: Manifest = {
        **first,
        **own,
        "resources": mapping(trainer, "resourcesPerNode"),
    }
    return PodView(
        manifest,
        "spec.trainer",
        {**(base.spec if base else {}), "containers": [node, *known[1:]]},
        base.metadata if base else {},
        base.workload if base else {},
        max(whole(trainer.get("numNodes")) or 1, 1),
        base is not None,
    )
