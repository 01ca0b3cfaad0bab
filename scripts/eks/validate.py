"""All checks of manifests: shape, schema, then the rules, in one report."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trnx.eks import (
    rules_api,
    rules_cores,
    rules_devices,
    rules_gang,
    rules_node,
    rules_objects,
    rules_placement,
    rules_pod,
    rules_references,
    rules_secrets,
    rules_security,
    rules_values,
    rules_workload,
)
from trnx.eks.documents import Manifest
from trnx.eks.errors import Finding, JobRefusedError
from trnx.eks.levels import Level
from trnx.eks.model import TrnxJob
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.reading import mapping, text, title
from trnx.eks.render import render

StreamRule = Callable[[Stream], Iterator[Finding]]
PodRule = Callable[[PodView, Stream], Iterator[Finding]]

STREAM_RULES: tuple[StreamRule, ...] = (
    rules_values.words_of_fields,
    rules_objects.refused_objects,
    rules_workload.names,
    rules_workload.not_suspended,
    rules_workload.trainer_contract,
    rules_workload.cleaned_pods,
    rules_workload.selectors_match,
    rules_devices.claim_groups,
    rules_secrets.no_secrets,
    rules_references.references,
    rules_references.keys_of_config_maps,
    rules_references.ports,
    rules_references.ingress_ports,
    rules_node.node_pools,
)
POD_RULES: tuple[PodRule, ...] = (
    rules_api.refused_pod,
    rules_placement.refused_placement,
    rules_devices.requests_equal_limits,
    rules_devices.device_resource,
    rules_devices.plugin_or_claims,
    rules_devices.known_instance,
    rules_devices.device_count,
    rules_devices.efa,
    rules_devices.whole_nodes,
    rules_devices.lnc,
    rules_devices.nproc,
    rules_cores.cores,
    rules_gang.gang_size,
    rules_gang.started_together,
    rules_gang.completion_index,
    rules_gang.master_address,
    rules_node.size,
    rules_node.architecture,
    rules_node.spot_resume,
    rules_pod.pinned_image,
    rules_pod.sdk_drives_type,
    rules_pod.shared_memory,
    rules_pod.mounts_have_volumes,
    rules_pod.toleration,
    rules_security.host_access,
    rules_security.pod_security,
    rules_pod.restart_policy,
    rules_pod.environment,
    rules_pod.cache_volume,
    rules_pod.access_modes,
    rules_workload.preemption,
    rules_workload.grace,
    rules_workload.rollout,
)


@dataclass(frozen=True)
class Report:
    """What the checks found. `unchecked`: manifests of which there was no schema here."""

    manifests: tuple[str, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]

    def all_findings(self, *, allow_unchecked: bool = False) -> list[Finding]:
        """The findings, and one for each manifest that could not be checked."""
        level = Level.ADVICE if allow_unchecked else Level.ERROR
        fix = "correct apiVersion or kind; name a folder with its schema in TRNX_CRD_SCHEMAS, or "
        fix += "say --allow-unchecked"
        message = "there is no schema of this kind here: only rules were checked"
        return [
            *self.findings,
            *(Finding("unchecked", name, message, fix, level) for name in self.unchecked),
        ]

    def without(self, rules: Collection[str]) -> Report:
        """The report without findings of these rules."""
        kept = tuple(finding for finding in self.findings if finding.rule not in rules)
        return replace(self, findings=kept)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "manifests": list(self.manifests),
            "findings": [finding.to_dict() for finding in self.findings],
            "unchecked": list(self.unchecked),
        }


# Schemas are looked up by these, so they have to be what they are in Kubernetes.
_SHAPES = {
    "apiVersion": re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*"),
    "kind": re.compile(r"[A-Za-z][A-Za-z0-9]*"),
}
_MISSING = "missing, or no"


def _shape(documents: Sequence[Any]) -> Iterator[Finding]:
    if not documents:
        fix = "check what was to be piped or saved here"
        yield Finding("manifest", "(the file)", "is empty", fix)
    for index, document in enumerate(documents):
        for key, shape in _SHAPES.items():
            if not shape.fullmatch(text(document, key)):
                fix = f"add `{key}:`; a job file for trnx has `kind: train` or another of its kinds"
                yield Finding("manifest", f"document {index}.{key}", f"{_MISSING} {key}", fix)
        meta = mapping(document, "metadata")
        if not (text(meta, "name") or text(meta, "generateName")):
            fix = "add `metadata: {name: ...}`"
            yield Finding("manifest", f"document {index}.metadata.name", f"{_MISSING} text", fix)


def check_rules(manifests: Sequence[Manifest]) -> list[Finding]:
    """Every rule that the manifests, taken together, break, but for what they allow themselves."""
    stream = Stream(manifests)
    findings = [finding for rule in STREAM_RULES for finding in rule(stream)]
    for pod in stream.pods():
        findings += [finding for check in POD_RULES for finding in check(pod, stream)]
    return _not_allowed(findings, manifests)


# `trnx/allow: host-access, toleration` on an object, or on its pods.
ALLOW_ANNOTATION = "trnx/allow"


def _allowed(manifests: Sequence[Manifest]) -> dict[str, set[str]]:
    """Kind and name -> rules that the object's annotation, or its pods', allows."""
    places = [(title(item), mapping(item, "metadata")) for item in manifests]
    places += [(title(pod.manifest), pod.metadata) for pod in Stream(manifests).pods()]
    found: dict[str, set[str]] = {}
    for name, metadata in places:
        said = text(mapping(metadata, "annotations"), ALLOW_ANNOTATION)
        found.setdefault(name, set()).update(re.split(r"[\s,]+", said))
    return found


def _not_allowed(findings: Sequence[Finding], manifests: Sequence[Manifest]) -> list[Finding]:
    allowed = _allowed(manifests)
    return [
        finding
        for finding in findings
        if finding.rule not in allowed.get(finding.field.partition(" ")[0], ())
    ]


def validate(documents: Sequence[Any], kubernetes: str) -> Report:
    """Check manifests by schema and rules; `kubernetes` is the cluster's version, such as 1.34.

    Raises:
        EksError: no schemas of that version, or TRNX_CRD_SCHEMAS names no folder.
    """
    # jsonschema and the schemas are wanted by this function alone.
    from trnx.eks.schemas import check_schema, check_version

    check_version(kubernetes)
    if shape := list(_shape(documents)):
        return Report((), tuple(shape), ())
    findings: list[Finding] = []
    unchecked, allowed = [], _allowed(documents)
    for manifest in documents:
        found = check_schema(manifest, title(manifest), kubernetes)
        if found is None and "unchecked" not in allowed[title(manifest)]:
            unchecked.append(title(manifest))
        findings += found or []
    findings = [*_not_allowed(findings, documents), *check_rules(documents)]
    return Report(tuple(map(title, documents)), tuple(findings), tuple(unchecked))


def render_checked(job: TrnxJob) -> list[Manifest]:
    """The job's manifests, held against all rules.

    Raises:
        JobRefusedError: they break one, through the job's `env`, `image` or `sdk`, say.
    """
    manifests = render(job)
    if findings := refusals(manifests):
        raise JobRefusedError(findings)
    return manifests


def refusals(manifests: Sequence[Manifest]) -> list[Finding]:
    """What trnx does not render: everything but advice."""
    return [finding for finding in check_rules(manifests) if finding.level != Level.ADVICE]
