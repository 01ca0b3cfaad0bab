"""The pod of a job: container, resources, environment, volumes; the claims of the DRA flavour."""

from __future__ import annotations

from typing import Any

from trnx.eks.documents import Manifest
from trnx.eks.instances import facts_text
from trnx.eks.model import Flavour, Kind, Operator, TrnxJob
from trnx.eks.reading import amount

NEURON = "aws.amazon.com/neuron"
EFA = "vpc.amazonaws.com/efa"
DEVICE_CLASS = "neuron.aws.com"
CLAIM = "neurons"
SDK_ANNOTATION = "trnx/neuron-sdk"
FACTS_ANNOTATION = "trnx/instance-facts"
ZONE_LABEL = "topology.kubernetes.io/zone"
RENDEZVOUS_PORT = 29500
SHM_VOLUME = "dshm"
NAME_LABEL = "app.kubernetes.io/name"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "trnx-eks"
TRNX_CACHE = "trnx"
LOCAL_CACHE = "/var/cache/neff-local"

# Share of a node's allocatable CPU and memory that pods ask for; the rest is for daemons.
USABLE = 0.9
# Part of a pod's memory that /dev/shm may take: data loaders and collectives pass tensors there.
SHM_PART = 8
MIB = 2**20
# What is left of the pod's grace period for torchrun itself once its processes have stopped.
STOPPING_SECONDS = 15
# User and group in containers/Dockerfile.*
GROUP = 1000


def quantity(text: str) -> float:
    """The number that a quantity of a job file, which is one, stands for: 64Gi, 500m."""
    found = amount(text)
    assert found is not None, text
    return found


def labels(job: TrnxJob) -> dict[str, str]:
    """Labels of everything that belongs to a job; `delete` goes by them."""
    return {
        NAME_LABEL: job.name,
        MANAGED_BY: MANAGER,
        "trnx/kind": job.kind.value,
    }


def metadata(job: TrnxJob, *, queued: bool = False) -> Manifest:
    """Metadata of an object of a job; `queued`: it is what Kueue admits."""
    queue = {"kueue.x-k8s.io/queue-name": job.queue} if queued and job.queue else {}
    return {"name": job.name, "namespace": job.namespace, "labels": {**labels(job), **queue}}


def pod_metadata(job: TrnxJob) -> Manifest:
    """Metadata of a job's pods."""
    annotations = {} if job.kind == Kind.SERVE else {"karpenter.sh/do-not-disrupt": "true"}
    if job.sdk is not None:
        annotations[SDK_ANNOTATION] = job.sdk
    if job.instance_facts is not None:
        annotations[FACTS_ANNOTATION] = facts_text(job.facts)
    return {"labels": labels(job), **({"annotations": annotations} if annotations else {})}


def _share(job: TrnxJob) -> float:
    return max(job.the_devices, 1) / job.facts.devices * USABLE


def cpu_and_memory(job: TrnxJob) -> tuple[str, str]:
    """What a pod asks for: as written, else the devices' share of the node."""
    facts = job.facts
    cpu = job.cpu or str(max(int((facts.cpu or 0) * _share(job)), 1))
    memory = job.memory or f"{max(int((facts.memory_gi or 0) * _share(job)), 1)}Gi"
    return cpu, memory


def resources(job: TrnxJob) -> Manifest:
    """Requests and limits; extended resources are equal in both, as Kubernetes wants them."""
    cpu, memory = cpu_and_memory(job)
    extended = {}
    if job.the_devices and job.flavour != Flavour.DRA:
        extended[NEURON] = str(job.the_devices)
    if job.the_efa:
        extended[EFA] = str(job.the_efa)
    claims = {"claims": [{"name": CLAIM}]} if claims_devices(job) else {}
    return {
        **claims,
        "requests": {"cpu": cpu, "memory": memory, **extended},
        "limits": {"memory": memory, **extended},
    }


def claims_devices(job: TrnxJob) -> bool:
    """Whether the pod takes its devices by a resource claim."""
    return job.flavour == Flavour.DRA and job.the_devices > 0


def claim_templates(job: TrnxJob) -> list[Manifest]:
    """The ResourceClaimTemplate of the DRA flavour, else nothing."""
    if not claims_devices(job):
        return []
    expression = f"device.attributes['{DEVICE_CLASS}'].instanceType == '{job.instance}'"
    request = {
        "name": CLAIM,
        "exactly": {
            "deviceClassName": DEVICE_CLASS,
            "allocationMode": "ExactCount",
            "count": job.the_devices,
            "selectors": [{"cel": {"expression": expression}}],
        },
    }
    devices: Manifest = {"requests": [request]}
    if job.the_devices > 1:
        # Neighbours in the device topology.
        group = f"resource.aws.com/devicegroup{job.the_devices}_id"
        devices["constraints"] = [{"requests": [CLAIM], "matchAttribute": group}]
    if job.lnc is not None and len(job.facts.lncs) > 1:
        parameters = {
            "apiVersion": f"{DEVICE_CLASS}/v1",
            "kind": "NeuronConfig",
            "logicalNeuronCore": job.lnc,
        }
        opaque = {"driver": DEVICE_CLASS, "parameters": parameters}
        devices["config"] = [{"requests": [CLAIM], "opaque": opaque}]
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(job),
        "spec": {"spec": {"devices": devices}},
    }
    return [template]


def environment(job: TrnxJob) -> list[Manifest]:
    """What a job's containers need in their environment, then the user's own variables."""
    pairs: dict[str, str] = {}
    if job.the_efa:
        pairs["FI_PROVIDER"] = "efa"
        pairs["FI_EFA_USE_DEVICE_RDMA"] = "1"
    if job.lnc is not None and len(job.facts.lncs) > 1:
        pairs["NEURON_LOGICAL_NC_CONFIG"] = str(job.lnc)
    if job.kind == Kind.WARM_CACHE and not job.the_devices:
        pairs["TORCH_NEURONX_COMPILE_ONLY"] = "1"
    if job.kind == Kind.TRAIN:
        # torchrun kills its processes 30 s after SIGTERM, whatever the pod's grace; a checkpoint
        # may take longer. Versions that do not know the variable ignore it.
        pairs["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(job.grace_seconds - STOPPING_SECONDS)
    if job.the_cache:
        # Plans and predicted times of trnx; what is compiled from them lies beside.
        pairs["TRNX_CACHE_DIR"] = f"{job.the_cache}/{TRNX_CACHE}"
    if job.the_cache and job.facts.generation == "trn1":
        # SDKs that drive trn1 have PyTorch/XLA's cache.
        pairs["NEURON_COMPILE_CACHE_URL"] = job.the_cache
    elif job.the_cache:
        pairs["TORCH_NEURONX_NEFF_CACHE_DIR"] = job.the_cache
        pairs["TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR"] = LOCAL_CACHE
    return [{"name": name, "value": value} for name, value in {**pairs, **job.env}.items()]


def _volumes(job: TrnxJob) -> tuple[list[Manifest], list[Manifest]]:
    """(volumes of the pod, mounts of the container)."""
    memory = quantity(cpu_and_memory(job)[1])
    shm = job.shm or f"{max(int(memory / SHM_PART / MIB), 64)}Mi"
    volumes: list[Manifest] = [
        {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": shm}}
    ]
    mounts: list[Manifest] = [{"name": SHM_VOLUME, "mountPath": "/dev/shm"}]
    if job.the_cache and job.facts.generation != "trn1":
        volumes.append({"name": "neff-local", "emptyDir": {}})
        mounts.append({"name": "neff-local", "mountPath": LOCAL_CACHE})
    if job.the_cache and job.cache_is_local:
        volumes.append({"name": "neff-cache", "emptyDir": {}})
        mounts.append({"name": "neff-cache", "mountPath": job.the_cache})
    for volume in job.volumes:
        read_only = {"readOnly": True} if volume.read_only else {}
        claim = {"claimName": volume.claim, **read_only}
        volumes.append({"name": volume.name, "persistentVolumeClaim": claim})
        mounts.append({"name": volume.name, "mountPath": volume.mount, **read_only})
    return volumes, mounts


def master_address(job: TrnxJob) -> str:
    """The DNS name of rank 0: index 0 behind the headless service of the Job or the JobSet."""
    pod = f"{job.name}-node-0-0" if job.the_operator == Operator.JOBSET else f"{job.name}-0"
    return f"{pod}.{job.name}"


def _cache_runner(job: TrnxJob) -> list[str]:
    """What stands in front of a command whose cache is counted, or copied from and to S3."""
    if job.the_cache is None or not (job.kind == Kind.WARM_CACHE or job.cache_s3):
        return []
    place = [f"--s3={job.cache_s3}"] if job.cache_s3 else []
    if place and job.kind == Kind.WARM_CACHE:
        place.append("--must-store")
    return ["python", "-m", "trnx.eks.cache_run", f"--folder={job.the_cache}", *place, "--"]


def command_and_args(job: TrnxJob) -> tuple[list[str], list[str]]:
    """What the container runs; training gets torchrun in front and `resume` behind."""
    if job.kind != Kind.TRAIN:
        return [*_cache_runner(job), *job.command], []
    torchrun = [*_cache_runner(job), "torchrun"]
    script = [*job.command, *(job.resume if job.restarts else [])]
    if job.the_operator == Operator.TRAINJOB:
        # Trainer hands nodes, processes and rendezvous to torchrun through PET_ variables.
        return torchrun, script
    count = f"--nproc-per-node={job.the_nproc}"
    if job.nodes == 1:
        return torchrun, ["--standalone", count, *script]
    rendezvous = [
        f"--nnodes={job.nodes}",
        count,
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        "--rdzv-backend=static",
        f"--master-addr={master_address(job)}",
        f"--master-port={RENDEZVOUS_PORT}",
    ]
    return torchrun, [*rendezvous, *script]


def _probe(path: str, period: int, failures: int) -> Manifest:
    check = {"path": path, "port": "http"}
    return {"httpGet": check, "periodSeconds": period, "failureThreshold": failures}


def _service_parts(job: TrnxJob) -> Manifest:
    if job.kind != Kind.SERVE:
        return {}
    period, ready = 30, job.ready_path or job.health_path
    return {
        "ports": [{"name": "http", "containerPort": job.port}],
        # A cold compile can take tens of minutes.
        "startupProbe": _probe(ready, period, -(-job.startup_seconds // period)),
        "readinessProbe": _probe(ready, 10, 3),
        "livenessProbe": _probe(job.health_path, period, 5),
    }


def container_name(job: TrnxJob) -> str:
    """Trainer wants `node`; a failure policy names the container too."""
    return {Kind.TRAIN: "node", Kind.SERVE: "server"}.get(job.kind, "main")


def _secrets(job: TrnxJob) -> list[Manifest]:
    return [{"secretRef": {"name": name}} for name in job.secrets]


def container(job: TrnxJob) -> Manifest:
    """The one container of a job's pods."""
    command, args = command_and_args(job)
    port = {"name": "rdzv", "containerPort": RENDEZVOUS_PORT}
    environ = environment(job)
    return {
        "name": container_name(job),
        "image": job.image,
        "command": command,
        **({"args": args} if args else {}),
        **({"env": environ} if environ else {}),
        **({"envFrom": _secrets(job)} if job.secrets else {}),
        **({"ports": [port]} if job.nodes > 1 else {}),
        **_service_parts(job),
        "resources": resources(job),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _volumes(job)[1],
    }


def _one_zone(job: TrnxJob) -> Manifest:
    """EFA does not reach from one zone into another: all pods go where the first one went."""
    term = {"labelSelector": {"matchLabels": labels(job)}, "topologyKey": ZONE_LABEL}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def pod_spec(job: TrnxJob) -> Manifest:
    """The spec of a job's pods."""
    spec: dict[str, Any] = {}
    if job.kind != Kind.SERVE:
        spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = job.grace_seconds
    # Nothing in the pod asks the API server. (Roles of AWS come by a token of their own.)
    spec["automountServiceAccountToken"] = False
    # What a `restricted` namespace admits: the user of trnx's images, who can write to volumes.
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": GROUP,
        "runAsGroup": GROUP,
        "fsGroup": GROUP,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if job.service_account:
        spec["serviceAccountName"] = job.service_account
    if job.the_devices:
        spec["nodeSelector"] = {"node.kubernetes.io/instance-type": job.instance}
        spec["tolerations"] = [{"key": NEURON, "operator": "Exists", "effect": "NoSchedule"}]
    else:
        spec["nodeSelector"] = {"kubernetes.io/arch": "amd64"}
    if job.zone:
        spec["nodeSelector"][ZONE_LABEL] = job.zone
    elif job.nodes > 1:
        spec["affinity"] = _one_zone(job)
    if claims_devices(job):
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": job.name}]
    spec["containers"] = [container(job)]
    spec["volumes"] = _volumes(job)[0]
    return spec
