"""Why a pod waits, from its conditions, its events, the nodes and the claims."""

from __future__ import annotations

from collections.abc import Iterator

from trnx.eks.cluster.causes import WAITING, Cause, recognised
from trnx.eks.cluster.snapshot import Snapshot, condition, name_of
from trnx.eks.documents import Manifest
from trnx.eks.pod_views import INSTANCE_LABEL, PodView
from trnx.eks.pods import EFA, NEURON
from trnx.eks.reading import items, mapping, text, whole

KUEUE_GATE = "kueue.x-k8s.io/admission"
QUEUE_FIX = (
    "see `kubectl describe localqueue` and its ClusterQueue: quota for aws.amazon.com/neuron (and "
    "EFA, CPU, memory), and a ResourceFlavor for the instance type; jobs ahead may have to end"
)


def allocatable(node: Manifest, resource: str) -> int:
    """Units of an extended resource that a node advertises."""
    return whole(mapping(node, "status", "allocatable").get(resource)) or 0


def nodes_of_type(nodes: list[Manifest], instance: str) -> list[Manifest]:
    """Nodes of an instance type; all of them where the type is not named."""
    if not instance:
        return nodes
    return [n for n in nodes if mapping(n, "metadata", "labels").get(INSTANCE_LABEL) == instance]


def _plugin_missing(resource: str, instance: str, count: int) -> Cause:
    if resource == EFA:
        return Cause(
            "efa-missing",
            f"no {instance or 'node'} advertises {EFA}",
            "install the EFA device plugin (chart aws-efa-k8s-device-plugin), and make the nodes "
            "with EFA interfaces (eksctl: efaEnabled: true)",
        )
    return Cause(
        "plugin-missing",
        f"{count} nodes of type {instance or 'any'}, and none advertises {NEURON}",
        "install the Neuron device plugin (helm: oci://public.ecr.aws/neuron/neuron-helm-chart); "
        "where the nodes run the DRA driver instead, write flavour: dra",
    )


def _short_of(resource: str, pod: PodView, snapshot: Snapshot, message: str) -> Cause:
    wanted, instance = pod.count(resource), pod.instance_name
    if snapshot.nodes is None:
        return Cause(
            "efa-missing" if resource == EFA else "devices-taken",
            message,
            f"see `kubectl get nodes -o yaml` for allocatable {resource}: none is a missing "
            "plugin, fewer than the job wants is the wrong type, as many is a busy node",
        )
    nodes = nodes_of_type(snapshot.nodes, instance)
    if not nodes:
        return _no_node(instance, message)
    most = max(allocatable(node, resource) for node in nodes)
    if most == 0:
        return _plugin_missing(resource, instance, len(nodes))
    if most < wanted:
        cause = "efa-missing" if resource == EFA else "device-count"
        return Cause(
            cause,
            f"the pod wants {wanted} {resource}; the most that a {instance} node has is {most}",
            f"write a job of at most {most} a pod"
            if resource == NEURON
            else "make the nodes with all their EFA interfaces (launch template or EC2NodeClass)",
        )
    return Cause(
        "devices-taken",
        f"the nodes' {resource} are in use ({message})",
        "wait, remove another job (trnx eks delete), or add nodes",
    )


def _no_node(instance: str, message: str) -> Cause:
    return Cause(
        "no-node",
        f"the cluster has no ready node of type {instance or 'any'} ({message})",
        "add nodes: scale the node group up, or allow the type in a Karpenter NodePool, in the "
        "zone of the job's volumes; Capacity Blocks end at their date",
    )


def _node_selector(pod: PodView, snapshot: Snapshot, message: str) -> Cause:
    nodes = snapshot.nodes
    if nodes is None or not nodes_of_type(nodes, pod.instance_name):
        return _no_node(pod.instance_name, message)
    selector = mapping(pod.spec, "nodeSelector")
    return Cause(
        "no-node",
        f"no node has the labels {selector} and fits ({message})",
        "correct nodeSelector or affinity in `overrides`, or label the nodes",
    )


def _from_scheduler(pod: PodView, snapshot: Snapshot, message: str) -> Iterator[Cause]:
    for resource in (NEURON, EFA):
        if f"Insufficient {resource}" in message:
            yield _short_of(resource, pod, snapshot, message)
    if "node affinity/selector" in message or "0/0 nodes" in message:
        yield _node_selector(pod, snapshot, message)
    # An untolerated taint of other nodes says nothing where devices are short.
    if found := recognised(message):
        yield found


def _unscheduled(pod: Manifest, view: PodView, snapshot: Snapshot) -> Iterator[Cause]:
    for found in items(mapping(pod, "status"), "conditions"):
        if found.get("type") != "PodScheduled" or found.get("status") != "False":
            continue
        message = text(found, "message") or text(found, "reason")
        gates = {text(gate, "name") for gate in items(view.spec, "schedulingGates")}
        if text(found, "reason") == "SchedulingGated" and KUEUE_GATE in gates:
            yield Cause("queue", message or "Kueue holds the pod", QUEUE_FIX)
            return
        causes = list(_from_scheduler(view, snapshot, message))
        yield from causes or [Cause("unknown", message, "see `kubectl describe pod`")]
        return
    scheduler = text(view.spec, "schedulerName")
    if scheduler not in ("", "default-scheduler"):
        yield Cause(
            "scheduler-missing",
            f"no scheduler has looked at the pod; it names {scheduler!r}",
            "install the Neuron scheduler extension as a second scheduler of that name (helm "
            "chart: scheduler.enabled=true), or take schedulerName out of `overrides`",
        )


def claim_causes(view: PodView, snapshot: Snapshot) -> Iterator[Cause]:
    """Claims of volumes that are missing, or have no volume."""
    if snapshot.claims is None:
        return
    known = {name_of(claim): claim for claim in snapshot.claims}
    for volume in items(view.spec, "volumes"):
        name = text(mapping(volume, "persistentVolumeClaim"), "claimName")
        if not name:
            continue
        claim = known.get(name)
        if claim is None:
            message = f'persistentvolumeclaim "{name}" not found'
        elif text(mapping(claim, "status"), "phase") == "Pending":
            events = snapshot.events_of(claim)
            said = text(events[-1], "message") if events else "no event says why"
            message = f"the persistentvolumeclaim {name} is not bound: {said}"
        else:
            continue
        if found := recognised(message):
            yield found


def _containers(pod: Manifest) -> Iterator[Cause]:
    status = mapping(pod, "status")
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in items(status, key):
            waiting = mapping(container, "state", "waiting")
            reason = text(waiting, "reason")
            if reason in WAITING:
                cause, fix = WAITING[reason]
                said = text(waiting, "message") or reason
                yield Cause(cause, f"{text(container, 'name')}: {reason}: {said}", fix)


def _from_events(pod: Manifest, snapshot: Snapshot) -> Iterator[Cause]:
    for event in reversed(snapshot.events_of(pod)):
        if event.get("type") == "Normal" and event.get("reason") != "NotTriggerScaleUp":
            continue
        said = f"{text(event, 'reason')}: {text(event, 'message')}"
        if found := recognised(said):
            yield found


def _unready(pod: Manifest) -> Iterator[Cause]:
    status = mapping(pod, "status")
    running = text(status, "phase") == "Running" and not mapping(pod, "metadata").get(
        "deletionTimestamp"
    )
    if running and items(status, "conditions") and not condition(pod, "Ready"):
        yield Cause(
            "not-ready",
            "runs, and is not ready: a service that compiles answers its probe only then",
            "wait (`startup_seconds` bounds it), and read trnx eks logs; a warm cache makes it "
            "short",
        )


def why_waiting(pod: Manifest, snapshot: Snapshot) -> list[Cause]:
    """Causes why a pod does not run or is not ready, the most telling first, each once."""
    view = PodView(pod, "spec", mapping(pod, "spec"), mapping(pod, "metadata"))
    causes = [*_containers(pod)]
    if text(mapping(pod, "status"), "phase") in ("Pending", ""):
        causes += [
            *claim_causes(view, snapshot),
            *_unscheduled(pod, view, snapshot),
            *_from_events(pod, snapshot),
        ]
        if not causes:
            causes = list(_last_words(pod, snapshot))
    causes += _unready(pod) if not causes else []
    first: dict[str, Cause] = {}
    for cause in causes:
        first.setdefault(cause.name, cause)
    if set(first) & {"plugin-missing", "no-node", "device-count", "devices-taken"}:
        first.pop("taint", None)
    return list(first.values())


def _last_words(pod: Manifest, snapshot: Snapshot) -> Iterator[Cause]:
    events = snapshot.events_of(pod)
    warnings = [event for event in events if event.get("type") == "Warning"]
    if warnings:
        said = f"{text(warnings[-1], 'reason')}: {text(warnings[-1], 'message')}"
        yield Cause("unknown", said, "see `kubectl describe pod`")


def queue_cause(workload: Manifest, snapshot: Snapshot) -> Cause | None:
    """What Kueue says of a job that it holds back; None where it does not."""
    if not mapping(workload, "spec").get("suspend"):
        return None
    uid, name = mapping(workload, "metadata").get("uid"), name_of(workload)
    said = ""
    for admission in snapshot.admissions:
        owners = items(mapping(admission, "metadata"), "ownerReferences")
        if not any(o.get("name") == name and o.get("uid") in (None, uid) for o in owners):
            continue
        for found in items(mapping(admission, "status"), "conditions"):
            if found.get("type") in ("QuotaReserved", "Admitted") and found.get("status") != "True":
                said = said or text(found, "message")
    queue = mapping(workload, "metadata", "labels").get("kueue.x-k8s.io/queue-name")
    if not queue:
        return Cause(
            "queue",
            "the job is suspended, and has no queue",
            f"resume it: kubectl patch {workload['kind'].lower()} {name} --type=merge "
            """-p '{"spec":{"suspend":false}}'""",
        )
    return Cause("queue", said or f"waits in the queue {queue}; Kueue has not said why", QUEUE_FIX)
