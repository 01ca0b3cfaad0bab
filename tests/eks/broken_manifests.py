"""What can be wrong in the manifests of `manifests_of_others`, and what is said of it."""

from __future__ import annotations

from typing import Any

from manifests_of_others import EFA, IMAGE, NEURON, SCRIPT, TYPE, affinity

from trnx.eks.levels import Level

ERROR, WARNING, ADVICE = Level.ERROR, Level.WARNING, Level.ADVICE

DROP = object()
Edits = dict[str, Any]
# Where things stand: in a Job, a JobSet's first Job, and so on.
POD = "0.spec.template.spec"
BOX = f"{POD}.containers.0"
GANG = "1.spec.template.spec.containers.0"
CHILD = "0.spec.replicatedJobs.0.template.spec"
NODE = f"{CHILD}.template.spec.containers.0"
WORKER = "0.spec.pytorchReplicaSpecs.Worker.template.spec"
LWS = "0.spec.leaderWorkerTemplate.workerTemplate.spec"
JOB, GANGS, SETS = (
    "requests and limits",
    "two nodes with a headless Service",
    "JobSet, pods in one Job",
)
SERVER, SPOT = (
    "a server and its Service",
    {"karpenter.sh/capacity-type": "spot", TYPE: "trn2.48xlarge"},
)
BOTH = "resources.requests", "resources.limits"


def both(box: str, resource: str, value: Any) -> Edits:
    """A resource in requests and limits."""
    return {f"{box}.{part}|{resource}": value for part in BOTH}


def env(box: str, name: str, value: Any) -> Edits:
    return {f"{box}.env": [{"name": name, "value": value}]}


INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# (a correct one, what is changed in it, the rule, how grave it is, what the field holds)
BROKEN: list[tuple[str, Edits, str, Level, str]] = [
    # What the API server refuses.
    (JOB, {"0.kind": DROP}, "manifest", ERROR, "kind"),
    (JOB, {"0.apiVersion": "batch"}, "manifest", ERROR, "apiVersion"),
    (JOB, {"0.metadata": {}}, "manifest", ERROR, "metadata.name"),
    (JOB, {"0.metadata.name": "Work"}, "name", ERROR, "metadata.name"),
    (JOB, {"0.metadata.name": "w" * 64}, "name", ERROR, "metadata.name"),
    ("a CronJob", {"0.metadata.name": "n" * 53}, "name", ERROR, "metadata.name"),
    (SERVER, {"1.metadata.name": "1vllm"}, "name", ERROR, "metadata.name"),
    (JOB, {"0.spec.backofLimit": 1}, "schema", ERROR, "Job/work spec"),
    (JOB, {"0.spec.parallelism": "two"}, "schema", ERROR, "spec.parallelism"),
    (JOB, {f"{BOX}.name": DROP}, "schema", ERROR, "containers.0"),
    (JOB, {f"{POD}.containers": DROP}, "schema", ERROR, "spec.template.spec"),
    (JOB, {f"{BOX}.env": {"A": "b"}}, "schema", ERROR, "env"),
    (JOB, {f"{BOX}.imagePullPolicy": "Sometimes"}, "schema", ERROR, "imagePullPolicy"),
    (JOB, {f"{POD}.tolerations.0.effects": "NoSchedule"}, "schema", ERROR, "tolerations.0"),
    (JOB, {f"{POD}.restartPolicy": "Always"}, "restart-policy", ERROR, "restartPolicy"),
    (SERVER, {f"{POD}.restartPolicy": "Never"}, "restart-policy", ERROR, "restartPolicy"),
    (SERVER, {"0.spec.template.metadata.labels": {"app": "x"}}, "selector", ERROR, "matchLabels"),
    (JOB, {f"{BOX}.resources.limits|{NEURON}": 2}, "requests-equal-limits", ERROR, "resources"),
    (JOB, {f"{BOX}.resources.limits": DROP}, "requests-equal-limits", ERROR, "resources"),
    (JOB, both(BOX, NEURON, "0.5"), "requests-equal-limits", ERROR, "resources"),
    (JOB, {f"{BOX}.volumeMounts.0.name": "dshm"}, "dangling-mount", ERROR, "volumeMounts.0"),
    (
        "a device by a claim",
        {"1.spec.template.spec.containers.0.resources.claims.0.name": "x"},
        "dangling-claim",
        ERROR,
        "claims.0",
    ),
    (
        "a device by a claim",
        {"0.apiVersion": "resource.k8s.io/v1beta1"},
        "dra-version",
        WARNING,
        "apiVersion",
    ),
    (SETS, {"0.spec.replicatedJob": []}, "schema", ERROR, "JobSet/train spec"),
    (SETS, {"0.spec.replicatedJobs.0.name": DROP}, "schema", ERROR, "replicatedJobs.0"),
    (SETS, {"0.spec.successPolicy": {"operator": "Most"}}, "schema", ERROR, "operator"),
    ("PyTorchJob", {"0.spec.pytorchReplicaSpecs": DROP}, "schema", ERROR, "PyTorchJob/train spec"),
    ("PyTorchJob", {"0.spec.nprocPerNodes": "64"}, "schema", ERROR, "PyTorchJob/train spec"),
    ("MPIJob", {"0.spec.slotsPerWorker": "many"}, "schema", ERROR, "slotsPerWorker"),
    (
        "LeaderWorkerSet with one template",
        {"0.spec.leaderWorkerTemplate.sizes": 2},
        "schema",
        ERROR,
        "leaderWorkerTemplate",
    ),
    ("TrainJob with its runtime", {"1.spec.runtimeRef.name": DROP}, "schema", ERROR, "runtimeRef"),
    ("Kueue", {"2.spec.clusterQueues": "all"}, "schema", ERROR, "LocalQueue/team spec"),
    (
        "Karpenter",
        {"1.spec.template.spec.requirements.0.operator": "Is"},
        "schema",
        ERROR,
        "operator",
    ),
    ("Karpenter", {"0.spec.amiSelectorTerms": DROP}, "schema", ERROR, "EC2NodeClass/trn spec"),
    (
        "Karpenter",
        {"1.spec.disruption": {"consolidationPolicy": "Never"}},
        "schema",
        ERROR,
        "consolidationPolicy",
    ),
    (JOB, {"0.apiVersion": "batch/v1beta9"}, "unchecked", ERROR, "Job/work"),
    (SETS, {"0.apiVersion": "jobset.x-k8s.io/v1"}, "unchecked", ERROR, "JobSet/train"),
    (SETS, {"0.kind": "JobSets"}, "unchecked", ERROR, "JobSets/train"),
    # What no scheduler can place.
    (JOB, both(BOX, "aws.amazon.com/neurons", 1), "device-resource", ERROR, "resources"),
    (JOB, both(BOX, "vpc.amazonaws.com/efas", 1), "device-resource", ERROR, "resources"),
    (JOB, both(BOX, "aws.amazon.com/Neuron", 1), "device-resource", ERROR, "resources"),
    (JOB, both(BOX, NEURON, 17), "device-count", ERROR, "Job/work"),
    ("the old label of types", both(BOX, NEURON, 2), "device-count", ERROR, "Job/work"),
    (
        "a native sidecar",
        both(BOX, NEURON, 16) | both(f"{POD}.initContainers.0", NEURON, 1),
        "device-count",
        ERROR,
        "Job/work",
    ),
    (
        "a sidecar without shared memory",
        both(BOX, NEURON, 12) | both(f"{POD}.containers.1", NEURON, 8),
        "device-count",
        ERROR,
        "Job/work",
    ),
    (JOB, both(BOX, EFA, 17), "efa", ERROR, "Job/work"),
    ("a sweep over an index", both(BOX, EFA, 1), "efa", ERROR, "Job/work"),
    (JOB, {f"{POD}.nodeSelector|{TYPE}": "p5.48xlarge"}, "unknown-instance", ERROR, "nodeSelector"),
    (
        "affinity in place of a selector",
        {f"{POD}.affinity": affinity(TYPE, "m7i.large")["affinity"]},
        "unknown-instance",
        ERROR,
        "nodeSelector",
    ),
    (JOB, both(BOX, "memory", "2Ti"), "size", ERROR, "containers"),
    (JOB, both(BOX, "cpu", "200"), "size", ERROR, "containers"),
    (
        "a sidecar without shared memory",
        both(BOX, "cpu", "100") | both(f"{POD}.containers.1", "cpu", 100),
        "size",
        ERROR,
        "containers",
    ),
    (
        "a sweep over an index",
        {f"{POD}.volumes.0.emptyDir.sizeLimit": "64Gi"},
        "size",
        ERROR,
        "sizeLimit",
    ),
    (JOB, {f"{POD}.nodeSelector|kubernetes.io/arch": "arm64"}, "architecture", ERROR, "arch"),
    (
        "a work queue on CPUs",
        {f"{BOX}.image": IMAGE, f"{POD}.nodeSelector": {"kubernetes.io/arch": "arm64"}},
        "architecture",
        ERROR,
        "arch",
    ),
    ("a device by a claim", both(GANG, NEURON, 1), "plugin-or-dra", ERROR, "resourceClaims"),
    (JOB, env(BOX, "NEURON_LOGICAL_NC_CONFIG", "4"), "lnc", ERROR, "NEURON_LOGICAL_NC_CONFIG"),
    # What must fail, or waits for ever, once it runs.
    (GANGS, {f"{GANG}.command.1": "--nnodes=4"}, "gang-size", ERROR, "args"),
    (GANGS, {"1.spec.parallelism": 3, "1.spec.completions": 3}, "gang-size", ERROR, "args"),
    (GANGS, {"1.spec.completions": 4}, "gang-size", ERROR, "completions"),
    (SETS, {f"{NODE}.command.1": "--nnodes=2"}, "gang-size", ERROR, "args"),
    (
        "JobSet, a pod for each Job",
        {"0.spec.replicatedJobs.0.replicas": 3},
        "gang-size",
        ERROR,
        "args",
    ),
    ("JobSet with a leader", {"0.spec.replicatedJobs.1.replicas": 2}, "gang-size", ERROR, "args"),
    (
        "PyTorchJob",
        {f"{WORKER}.containers.0.command": ["torchrun", "--nnodes", "2", "t.py"]},
        "gang-size",
        ERROR,
        "args",
    ),
    (
        "LeaderWorkerSet with one template",
        {f"{LWS}.containers.0.command": ["torchrun", "--nnodes=4", "t.py"]},
        "gang-size",
        ERROR,
        "args",
    ),
    ("StatefulSet as a ring", {"1.spec.replicas": 3}, "gang-size", ERROR, "args"),
    (
        "two nodes started by a script",
        {f"{GANG}.command.2": SCRIPT.replace("nnodes 2", "nnodes 8")},
        "gang-size",
        ERROR,
        "args",
    ),
    (GANGS, {"1.spec.completionMode": DROP}, "completion-index", ERROR, "args"),
    (
        "a sweep over an index",
        {"0.spec.completionMode": "NonIndexed"},
        "completion-index",
        ERROR,
        "args",
    ),
    (
        SERVER,
        {f"{BOX}.args.1": "--rank=$(JOB_COMPLETION_INDEX)"},
        "completion-index",
        ERROR,
        "args",
    ),
    (SETS, {f"{CHILD}.completionMode": "NonIndexed"}, "completion-index", ERROR, "args"),
    (
        JOB,
        {
            f"{BOX}.env": [
                {
                    "name": "R",
                    "valueFrom": {"fieldRef": {"fieldPath": INDEX_FIELD}},
                }
            ]
        },
        "completion-index",
        ERROR,
        "env.0",
    ),
    (
        GANGS,
        {f"{GANG}.command.4": "--master_addr=work-1.work"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        GANGS,
        {f"{GANG}.command.4": "--master_addr=localhost"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        GANGS,
        {f"{GANG}.command.4": "--rdzv_endpoint=work-0:29500"},
        "master-address",
        ERROR,
        "rdzv-endpoint",
    ),
    (GANGS, {"1.spec.template.spec.subdomain": DROP}, "master-address", ERROR, "master-addr"),
    (GANGS, {"0.spec.clusterIP": DROP}, "master-address", ERROR, "master-addr"),
    (GANGS, {"0.metadata.name": "works"}, "master-address", WARNING, "master-addr"),
    (
        GANGS,
        {f"{GANG}.command.4": "--master_addr=elsewhere.example"},
        "master-address",
        WARNING,
        "master-addr",
    ),
    (
        SETS,
        {f"{NODE}.command.4": "--master_addr=train-0-0.train"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        SETS,
        {"0.spec.network": {"enableDNSHostnames": False}},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        "JobSet with a subdomain",
        {"0.spec.network.subdomain": "other"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        "StatefulSet as a ring",
        {"1.spec.serviceName": "rings"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (GANGS, {f"{GANG}.command.2": "--nproc_per_node=128"}, "nproc", ERROR, "args"),
    (
        "TrainJob with its runtime",
        {"1.spec.trainer.numProcPerNode": 128},
        "nproc",
        ERROR,
        "numProcPerNode",
    ),
    (
        "TrainJob with its runtime",
        {"1.spec.trainer.numProcPerNode": DROP},
        "trainjob-processes",
        ERROR,
        "numProc",
    ),
    (
        "TrainJob with its runtime",
        {"1.spec.trainer.env": [{"name": "PET_NNODES", "value": "2"}]},
        "reserved-env",
        ERROR,
        "PET_NNODES",
    ),
    ("a sweep over an index", {f"{BOX}.image": IMAGE}, "sdk-trn1", ERROR, "image"),
    (SERVER, {f"{BOX}.startupProbe.httpGet.port": "web"}, "port", ERROR, "startupProbe"),
    (SERVER, {"1.spec.ports.0.targetPort": "web"}, "port", ERROR, "targetPort"),
    # Secrets that are given away.
    (JOB, env(BOX, "HF_TOKEN", "x"), "plain-secret", ERROR, "HF_TOKEN"),
    (JOB, {f"{BOX}.args": ["--api-key", "x"]}, "plain-secret", ERROR, "args.1"),
    (
        JOB,
        {f"{BOX}.command": ["sh", "-c", "login --token=x && run"]},
        "plain-secret",
        ERROR,
        "command.2",
    ),
    (
        JOB,
        {"0.metadata.annotations": {"db": "postgres://a:b@c/d"}},
        "plain-secret",
        ERROR,
        "annotations.db",
    ),
    ("a script in a ConfigMap", {"0.data.password": "x"}, "plain-secret", ERROR, "data.password"),
    (
        "a script in a ConfigMap",
        {"0.kind": "Secret", "0.data": {"a": "eA=="}},
        "secret-in-file",
        WARNING,
        "data.a",
    ),
    # What is likely to fail, or to cost money.
    (GANGS, both(GANG, EFA, 8), "multi-node", WARNING, "Job/work"),
    (
        GANGS,
        both(GANG, NEURON, 8) | {f"{GANG}.command.2": "--nproc_per_node=32"},
        "multi-node",
        WARNING,
        "Job/work",
    ),
    (
        "PyTorchJob",
        both(f"{WORKER}.containers.0", EFA, DROP),
        "multi-node",
        WARNING,
        "PyTorchJob/train",
    ),
    (
        "LeaderWorkerSet with one template",
        both(f"{LWS}.containers.0", EFA, 1),
        "multi-node",
        WARNING,
        "vllm",
    ),
    (GANGS, {f"{GANG}.command.2": "--nproc_per_node=32"}, "nproc", WARNING, "args"),
    (JOB, {f"{BOX}.image": "trnx:latest"}, "pinned-image", WARNING, "image"),
    (JOB, {f"{BOX}.volumeMounts": []}, "shared-memory", WARNING, "volumeMounts"),
    (JOB, {f"{POD}.tolerations": []}, "toleration", WARNING, "tolerations"),
    (JOB, {f"{POD}.hostIPC": True}, "host-access", WARNING, "hostIPC"),
    (JOB, {f"{BOX}.securityContext": {"privileged": True}}, "host-access", WARNING, "privileged"),
    ("suspended for Kueue", {"0.metadata.labels": DROP}, "suspended", WARNING, "suspend"),
    (
        "PyTorchJob, suspended for Kueue",
        {"0.metadata.labels": DROP},
        "suspended",
        WARNING,
        "suspend",
    ),
    (
        "JobSet for Kueue",
        {"3.metadata.labels": {"kueue.x-k8s.io/queue-name": "teams"}},
        "reference",
        WARNING,
        "queue-name",
    ),
    ("Kueue", {"2.spec.clusterQueue": "each"}, "reference", WARNING, "clusterQueue"),
    ("Kueue", {"1.spec.resourceGroups.0.flavors.0.name": "trn"}, "reference", WARNING, "flavors.0"),
    (
        "a device by a claim",
        {"0.metadata.name": "two-devices"},
        "reference",
        WARNING,
        "resourceClaimTemplateName",
    ),
    ("storage on FSx", {"2.metadata.name": "date"}, "reference", WARNING, "claimName"),
    ("a script in a ConfigMap", {"0.metadata.name": "script"}, "reference", WARNING, "configMap"),
    (
        "an account of its own",
        {"0.metadata.name": "train"},
        "reference",
        WARNING,
        "serviceAccountName",
    ),
    (
        "Karpenter",
        {"1.spec.template.spec.requirements.0.values": ["trn2.64xlarge"]},
        "nodepool",
        WARNING,
        "values",
    ),
    ("Karpenter", {"0.metadata.name": "trn2"}, "nodepool", WARNING, "nodeClassRef"),
    (GANGS, {"1.spec.template.spec.nodeSelector": SPOT}, "spot-resume", WARNING, "args"),
    (
        GANGS,
        {f"{GANG}.args": ["--checkpoint-dir=/data"]},
        "grace",
        WARNING,
        "terminationGracePeriodSeconds",
    ),
    (
        SERVER,
        {f"{POD}.volumes.0.emptyDir.sizeLimit": "64Gi"} | both(BOX, "memory", "32Gi"),
        "size",
        WARNING,
        "sizeLimit",
    ),
    (
        "a server with shared weights",
        {"0.spec.accessModes": ["ReadWriteOnce"]},
        "access-mode",
        WARNING,
        "claimName",
    ),
    (SERVER, {"1.spec.selector": {"app": "llm"}}, "selector", WARNING, "spec.selector"),
    (
        SERVER,
        {"0.spec.strategy": {"rollingUpdate": {"maxSurge": 1}}},
        "rollout",
        WARNING,
        "maxSurge",
    ),
    (
        "the old label of types",
        {f"{POD}.nodeSelector": {TYPE: "trn2.96xlarge"}},
        "unknown-instance",
        WARNING,
        "nodeSelector",
    ),
    (GANGS, env(GANG, "NEURON_RT_NUM_CORES", "64"), "runtime-env", WARNING, "NEURON_RT_NUM_CORES"),
    (JOB, {"0.metadata.name": "w" * 60}, "name", ADVICE, "metadata.name"),
]


def change(manifests: list[dict[str, Any]], path: str, value: Any) -> None:
    """Set or drop what is at a path; behind | stands a key with dots."""
    path, _, last = path.partition("|")
    keys = path.split(".")
    if not last:
        last = keys.pop()
    place: Any = manifests
    for key in keys:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if value is DROP:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
