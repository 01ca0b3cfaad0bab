"""Schemas of custom resources that trnx writes itself, from what their projects document.

Kueue's objects beside queues (kueue.sigs.k8s.io/docs/reference) and EKS Auto Mode's NodeClass
(docs.aws.amazon.com/eks/latest/userguide/create-node-class.html). What a field holds is left open
where the documents do not say all of it.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": 253}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_QUANTITY: Schema = {"x-kubernetes-int-or-string": True}


def _object(*required: str, **properties: Schema) -> Schema:
    made: Schema = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def _list(items: Schema, least: int = 0, most: int = 64) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _kind(*required: str, **properties: Schema) -> Schema:
    """An object with what every object has."""
    head = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _OPEN}
    return _object(*required, **head, status=_OPEN, **properties)


def _with_spec(spec: Schema) -> Schema:
    return _kind("spec", spec=spec)


_PARAMETERS = _object("apiGroup", "kind", "name", apiGroup=_TEXT, kind=_TEXT, name=_TEXT)
_RETRY = _object(backoffLimitCount=_COUNT, backoffBaseSeconds=_COUNT, backoffMaxSeconds=_COUNT)
_QUOTA = _object(
    "name", "nominalQuota",
    name=_TEXT, nominalQuota=_QUANTITY, borrowingLimit=_QUANTITY, lendingLimit=_QUANTITY,
)  # fmt: skip
_GROUP = _object(
    "coveredResources", "flavors",
    coveredResources=_list(_TEXT, 1),
    flavors=_list(_object("name", "resources", name=_TEXT, resources=_list(_QUOTA, 1)), 1),
)  # fmt: skip
_LEVELS = {
    **_list(_object("nodeLabel", nodeLabel=_TEXT), 1, 16),
    "x-kubernetes-validations": [
        {
            "rule": "self.all(x, self.filter(y, x.nodeLabel == y.nodeLabel).size() == 1)",
            "message": "each level has a label of its own",
        },
        {
            "rule": "self.filter(x, x.nodeLabel == 'kubernetes.io/hostname').size() == 0 || "
            "self[self.size() - 1].nodeLabel == 'kubernetes.io/hostname'",
            "message": "kubernetes.io/hostname can only be the last level",
        },
    ],
}
_KUEUE = {
    "WorkloadPriorityClass": _kind(
        "value", value={"type": "integer"}, description={"type": "string"}
    ),
    "AdmissionCheck": _with_spec(
        _object(
            "controllerName",
            controllerName=_TEXT,
            parameters=_PARAMETERS,
            retryDelayMinutes=_COUNT,
        )
    ),
    "ProvisioningRequestConfig": _with_spec(
        _object(
            "provisioningClassName",
            provisioningClassName=_TEXT,
            parameters={"type": "object", "additionalProperties": {"type": "string"}},
            managedResources=_list(_TEXT, 0, 100),
            retryStrategy=_RETRY,
            podSetUpdates=_OPEN,
            podSetMergePolicy={
                "type": "string",
                "enum": ["IdenticalPodTemplates", "IdenticalWorkloadSchedulingRequirements"],
            },
        )
    ),
    "Topology": _with_spec(_object("levels", levels=_LEVELS)),
    "Cohort": _kind(
        spec=_object(
            parentName=_TEXT, parent=_TEXT, fairSharing=_OPEN, resourceGroups=_list(_GROUP)
        )
    ),
}

_TAGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_BY_TAGS = _object(tags=_TAGS, id=_TEXT)
_BY_NAME = _object(tags=_TAGS, id=_TEXT, name=_TEXT)
_CERTIFICATE = _object("name", "data", name=_TEXT, data={"type": "string"})
_NODE_CLASS = _with_spec(
    _object(
        role=_TEXT,
        instanceProfile=_TEXT,
        subnetSelectorTerms=_list(_BY_TAGS, 1),
        securityGroupSelectorTerms=_list(_BY_NAME, 1),
        podSubnetSelectorTerms=_list(_BY_TAGS, 1),
        podSecurityGroupSelectorTerms=_list(_BY_NAME, 1),
        capacityReservationSelectorTerms=_list(_OPEN),
        snatPolicy={"type": "string", "enum": ["Random", "Disabled"]},
        networkPolicy={"type": "string", "enum": ["DefaultAllow", "DefaultDeny"]},
        networkPolicyEventLogs={"type": "string", "enum": ["Enabled", "Disabled"]},
        ephemeralStorage=_object(size=_TEXT, iops=_COUNT, throughput=_COUNT, kmsKeyID=_TEXT),
        advancedNetworking=_OPEN,
        advancedSecurity=_OPEN,
        certificateBundles=_list(_CERTIFICATE),
        tags=_TAGS,
    )
)

# (group, kind) -> versions and schema.
WRITTEN: dict[tuple[str, str], tuple[tuple[str, ...], Schema]] = {
    **{
        ("kueue.x-k8s.io", kind): (
            ("v1beta1", "v1beta2", *(("v1alpha1",) if kind in ("Topology", "Cohort") else ())),
            schema,
        )
        for kind, schema in _KUEUE.items()
    },
    ("eks.amazonaws.com", "NodeClass"): (("v1",), _NODE_CLASS),
}


def written_schema(group: str, version: str, kind: str) -> Schema | None:
    """The schema of a kind, None where there is none of it, or not of this version."""
    versions, schema = WRITTEN.get((group, kind), ((), None))
    return schema if version in versions else None
