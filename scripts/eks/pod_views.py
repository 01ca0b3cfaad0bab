"""Every pod that a stream of manifests would start, as one flat view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnx.eks.controllers import Placement, placement_of
from trnx.eks.documents import Manifest
from trnx.eks.images import parse_image, parse_sdk
from trnx.eks.instances import Instance, instance_of
from trnx.eks.pods import DEVICE_CLASS, FACTS_ANNOTATION, NEURON, SDK_ANNOTATION
from trnx.eks.reading import amount, items, mapping, name_of, text, title, whole, words

INSTANCE_LABEL = "node.kubernetes.io/instance-type"
_TYPE_LABELS = (INSTANCE_LABEL, "beta.kubernetes.io/instance-type")


@dataclass(frozen=True)
class PodView:
    """One pod template, and how many pods its controller makes of it. `complete`: volumes and the
    rest are known."""

    manifest: Manifest
    path: str
    spec: Manifest
    metadata: Manifest
    workload: Manifest = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    complete: bool = True

    @property
    def width(self) -> int:
        """Pods of the whole controller that run side by side as one program."""
        return max(self.placement.group, 1)

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

    def _sum(self, of: Callable[[Manifest], float]) -> float:
        """What the scheduler reserves: containers together, or more for init containers, which run
        one after the other; those that are restarted (sidecars) run on."""
        beside, most = 0.0, 0.0
        for container in items(self.spec, "initContainers"):
            if text(container, "restartPolicy") == "Always":
                beside += of(container)
                most = max(most, beside)
            else:
                most = max(most, beside + of(container))
        return max(most, beside + sum(of(c) for c in items(self.spec, "containers")))

    def count(self, resource: str) -> int:
        """Units of an extended resource that the pod takes."""
        return int(self._sum(lambda container: extended(container, resource)))

    def requested(self, resource: str) -> float:
        """CPU in cores or memory in bytes that the scheduler reserves for the pod."""
        return self._sum(lambda container: _requested(container, resource))

    @property
    def claims(self) -> bool:
        """Whether the pod takes devices by claims."""
        return bool(items(self.spec, "resourceClaims"))

    @property
    def on_neuron(self) -> bool:
        """Whether the pod asks for a Neuron device."""
        return self.count(NEURON) > 0 or self.claims

    def with_devices(self) -> Iterator[tuple[str, Manifest]]:
        """The containers that get devices; all of them where the pod alone says so."""
        found = [
            (place, container)
            for place, container in self.containers()
            if place.startswith("containers")
            and (extended(container, NEURON) or items(mapping(container, "resources"), "claims"))
        ]
        yield from found or [
            (f"containers.{index}", container)
            for index, container in enumerate(items(self.spec, "containers")[:1])
        ]

    def node_labels(self) -> dict[str, tuple[str, ...]]:
        """Label -> values that the pod's nodes may have, by selector and required affinity."""
        affinity = mapping(self.spec, "affinity", "nodeAffinity")
        required = mapping(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
        found: dict[str, tuple[str, ...]] = {}
        for term in items(required, "nodeSelectorTerms"):
            for expression in items(term, "matchExpressions"):
                key = text(expression, "key")
                if text(expression, "operator") == "In":
                    found[key] = (*found.get(key, ()), *words(expression, "values"))
                elif text(expression, "operator") == "Exists":
                    found.setdefault(key, ())
        selector = mapping(self.spec, "nodeSelector")
        return {**found, **{str(key): (str(value),) for key, value in selector.items()}}

    @property
    def instance_names(self) -> tuple[str, ...]:
        """The EC2 instance types that selector or affinity name; SageMaker HyperPod's nodes have
        those of SageMaker, `ml.trn1.32xlarge`."""
        found = self.node_labels()
        names = (name for label in _TYPE_LABELS for name in found.get(label, ()))
        return tuple(name.removeprefix("ml.") for name in names)

    @property
    def instance_name(self) -> str:
        """The instance type that is named, or an empty text where it is none or several."""
        names = self.instance_names
        return names[0] if len(names) == 1 else ""

    @property
    def instance(self) -> Instance | None:
        """Facts of the type that is named; of several, where they have the same ones."""
        noted = text(mapping(self.metadata, "annotations"), FACTS_ANNOTATION)
        found = [instance_of(name, noted) for name in self.instance_names]
        first = found[0] if found else None
        same = all(other is not None and first is not None and first.like(other) for other in found)
        return first if same else None

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


def extended(container: Manifest, resource: str) -> int:
    """Units of an extended resource: the limit, which a request has to be equal to."""
    resources = mapping(container, "resources")
    limit = whole(mapping(resources, "limits").get(resource))
    return limit if limit is not None else whole(mapping(resources, "requests").get(resource)) or 0


def _requested(container: Manifest, resource: str) -> float:
    """A request, which is the limit where it is left out."""
    resources = mapping(container, "resources")
    asked = mapping(resources, "requests").get(resource)
    value = asked if asked is not None else mapping(resources, "limits").get(resource)
    return amount(value) or 0.0


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
            if name_of(item) == name:
                return item
        return None

    def beside(self, manifest: Manifest, kind: str, name: str) -> Manifest | None:
        """The one with a kind and a name in the namespace of a manifest."""
        space = text(mapping(manifest, "metadata"), "namespace")
        for item in self.of_kind(kind):
            if name_of(item) == name and text(mapping(item, "metadata"), "namespace") == space:
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
                meta, placed = mapping(above, "metadata"), placement_of(manifest, path)
                yield PodView(manifest, ".".join(path), value, meta, job, placed)
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
    resources = trainer.get("resourcesPerNode", first.get("resources"))
    node: Manifest = {**first, **own, "resources": mapping(resources)}
    nodes = whole(trainer.get("numNodes"))
    if nodes is None and runtime is not None:
        nodes = whole(mapping(runtime, "spec", "mlPolicy").get("numNodes"))
    placed = Placement(nodes or 1, nodes or 1)
    return PodView(
        manifest,
        "spec.trainer",
        {**(base.spec if base else {}), "containers": [node, *known[1:]]},
        base.metadata if base else {},
        base.workload if base else {},
        placed,
        base is not None,
    )
