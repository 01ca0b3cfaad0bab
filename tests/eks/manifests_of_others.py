"""Manifests as the ecosystem writes them: samples of AWS, JobSet, Kueue, Kubeflow, MPI operator,
LeaderWorkerSet and Karpenter have these forms. Each is built anew, to be broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

Manifest = dict[str, Any]
NEURON, EFA = "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"
TYPE = "node.kubernetes.io/instance-type"
IMAGE = "public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.33.0-ubuntu24.04"
OLD = "public.ecr.aws/neuron/pytorch-training-neuronx:2.8.0-neuronx-py311-sdk2.26.0-ubuntu22.04"
CPU_IMAGE = "docker.io/library/python:3.12"
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}
SHM = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
SHM_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}
TOLERATION = {"key": NEURON, "operator": "Exists", "effect": "NoSchedule"}
WHOLE = {NEURON: 16, EFA: 16}


def meta(name: str, **more: Any) -> Manifest:
    return {"name": name, **more}


def box(name: str = "main", ask: Manifest | None = None, **more: Any) -> Manifest:
    """A container; `ask` stands in requests and limits."""
    made: Manifest = {"name": name, "image": IMAGE, "command": ["python", "main.py"], **more}
    if ask:
        made.setdefault("resources", {"requests": dict(ask), "limits": dict(ask)})
        made.setdefault("volumeMounts", [dict(SHM_MOUNT)])
    return made


def pod(*boxes: Manifest, on: str | None = "trn2.48xlarge", **more: Any) -> Manifest:
    made: Manifest = {"containers": list(boxes), "volumes": [copy.deepcopy(SHM)], **more}
    if on:
        made.setdefault("nodeSelector", {TYPE: on})
        made.setdefault("tolerations", [dict(TOLERATION)])
    return made


def on_cpu(*boxes: Manifest, **more: Any) -> Manifest:
    return {"containers": list(boxes), **more}


def template(spec: Manifest, **metadata: Any) -> Manifest:
    return {**({"metadata": metadata} if metadata else {}), "spec": spec}


def job_spec(spec: Manifest, **more: Any) -> Manifest:
    return {"backoffLimit": 0, **more, "template": template({"restartPolicy": "Never", **spec})}


def job(
    spec: Manifest, name: str = "work", meta_more: Manifest | None = None, **more: Any
) -> Manifest:
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name, **(meta_more or {}))}
    return {**made, "spec": job_spec(spec, **more)}


def jobset(
    jobs: list[Manifest], name: str = "train", meta_more: Any = None, **more: Any
) -> Manifest:
    made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return {
        **made,
        "metadata": meta(name, **(meta_more or {})),
        "spec": {"replicatedJobs": jobs, **more},
    }


def replicated(name: str, spec: Manifest, replicas: int = 1, **more: Any) -> Manifest:
    return {"name": name, "replicas": replicas, "template": {"spec": job_spec(spec, **more)}}


def service(name: str, selector: Manifest, headless: bool = True, **port: Any) -> Manifest:
    spec: Manifest = {"selector": selector, "ports": [{"port": 29500, **port}]}
    if headless:
        spec["clusterIP"] = "None"
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta(name), "spec": spec}


def torchrun(
    nodes: int, address: str, nproc: int = 64, rank: str = "$(JOB_COMPLETION_INDEX)"
) -> Manifest:
    line = ["torchrun", f"--nnodes={nodes}", f"--nproc_per_node={nproc}", f"--node_rank={rank}"]
    line += [f"--master_addr={address}", "--master_port=29500", "train.py"]
    return {"command": line}


def gang(name: str = "work", nodes: int = 2) -> list[Manifest]:
    spec = pod(box(ask=WHOLE, **torchrun(nodes, f"{name}-0.{name}")), subdomain=name)
    indexed = {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes}
    return [service(name, {"job-name": name}), job(spec, name, **indexed)]


def deployment(spec: Manifest, name: str = "vllm", **more: Any) -> Manifest:
    labels = {"app": name[:63]}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(name)}
    body = {"selector": {"matchLabels": labels}, "template": template(spec, labels=labels), **more}
    return {**made, "spec": body}


def server(cores: int = 4, **more: Any) -> Manifest:
    probe = {"httpGet": {"path": "/health", "port": "http"}, "failureThreshold": 240}
    ports = [{"name": "http", "containerPort": 8000}]
    args = ["serve", "/models/llama", f"--tensor-parallel-size={cores}"]
    return box(
        "server", {NEURON: 1}, command=["vllm"], args=args, ports=ports, startupProbe=probe, **more
    )


def kubeflow(kind: str, version: str, specs: Manifest, key: str, **more: Any) -> Manifest:
    made = {"apiVersion": f"kubeflow.org/{version}", "kind": kind, "metadata": meta("train")}
    return {**made, "spec": {key: specs, **more}}


def replica(spec: Manifest, count: int) -> Manifest:
    return {"replicas": count, "restartPolicy": "Never", "template": template(spec)}


def pytorchjob(**more: Any) -> Manifest:
    inner = pod(box("pytorch", WHOLE, command=["torchrun", "train.py"]))
    specs = {"Master": replica(inner, 1), "Worker": replica(copy.deepcopy(inner), 3)}
    return kubeflow("PyTorchJob", "v1", specs, "pytorchReplicaSpecs", nprocPerNode="64", **more)


def mpijob(version: str) -> Manifest:
    launcher = on_cpu(box("launcher", command=["mpirun", "-n", "128", "nccom-test", "allr"]))
    specs = {"Launcher": replica(launcher, 1), "Worker": replica(pod(box("worker", WHOLE)), 2)}
    for spec in specs.values():
        spec.pop("restartPolicy")
    return kubeflow("MPIJob", version, specs, "mpiReplicaSpecs", slotsPerWorker=64)


def runtime(kind: str, name: str = "trn", ask: Manifest | None = None) -> Manifest:
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = replicated("node", pod(box("node", ask or WHOLE, command=["torchrun", "train.py"])))
    node["template"]["metadata"] = {"labels": label}
    node.pop("replicas")
    spec = {
        "mlPolicy": {"numNodes": 2, "torch": {}},
        "template": {"spec": {"replicatedJobs": [node]}},
    }
    made = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": kind, "metadata": meta(name)}
    return {**made, "spec": spec}


def trainjob(kind: str = "TrainingRuntime", name: str = "trn", **trainer: Any) -> Manifest:
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": kind, "name": name}
    made = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": meta("fit"),
    }
    return {**made, "spec": {"runtimeRef": reference, "trainer": {"numProcPerNode": 64, **trainer}}}


def leader_worker_set(template_more: Manifest, size: int = 2, replicas: int = 1) -> Manifest:
    made = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": size, **template_more}}
    return {**made, "metadata": meta("vllm"), "spec": spec}


def claim_template(count: int = 1) -> Manifest:
    request = {"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**made, "metadata": meta("one-device"), "spec": spec}


def claimed() -> Manifest:
    claims = [{"name": "neurons", "resourceClaimTemplateName": "one-device"}]
    inner = box(resources={"claims": [{"name": "neurons"}]}, volumeMounts=[dict(SHM_MOUNT)])
    return pod(inner, resourceClaims=claims)


def node_pool(*requirements: Manifest, node_class: str = "trn") -> Manifest:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": node_class}
    taint = {"key": NEURON, "value": "true", "effect": "NoSchedule"}
    spec = {"nodeClassRef": reference, "requirements": list(requirements), "taints": [taint]}
    made = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": meta("trn")}
    return {**made, "spec": {"template": {"spec": spec}, "limits": {NEURON: "64"}}}


def node_class() -> Manifest:
    terms = [{"tags": {"karpenter.sh/discovery": "cluster"}}]
    spec = {"amiSelectorTerms": [{"alias": "al2023@v20260101"}], "role": "KarpenterNodeRole"}
    spec |= {"subnetSelectorTerms": terms, "securityGroupSelectorTerms": terms}
    made = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": meta("trn")}
    return {**made, "spec": spec}


def one_of(key: str, *values: str) -> Manifest:
    return {"key": key, "operator": "In", "values": list(values)}


def kueue() -> list[Manifest]:
    api = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    quota = [{"name": NEURON, "nominalQuota": 64}]
    group = {"coveredResources": [NEURON], "flavors": [{"name": "trn2", "resources": quota}]}
    return [
        {
            **api,
            "kind": "ResourceFlavor",
            "metadata": meta("trn2"),
            "spec": {"nodeLabels": {TYPE: "trn2.48xlarge"}},
        },
        {
            **api,
            "kind": "ClusterQueue",
            "metadata": meta("all"),
            "spec": {"resourceGroups": [group], "namespaceSelector": {}},
        },
        {**api, "kind": "LocalQueue", "metadata": meta("team"), "spec": {"clusterQueue": "all"}},
    ]


def core(kind: str, name: str, version: str = "v1", **body: Any) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": meta(name), **body}


def claim(name: str = "data", mode: str = "ReadWriteMany", **more: Any) -> Manifest:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Ti"}}, **more}
    return core("PersistentVolumeClaim", name, spec=spec)


def volume(driver: str, name: str = "data-volume") -> Manifest:
    csi = {"driver": driver, "volumeHandle": "fs-1"}
    spec = {"capacity": {"storage": "1Ti"}, "accessModes": ["ReadWriteMany"], "csi": csi}
    return core("PersistentVolume", name, spec=spec)


def with_claim(spec: Manifest, name: str = "data", path: str = "/data") -> Manifest:
    spec["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": name}})
    for inner in spec["containers"]:
        inner.setdefault("volumeMounts", []).append({"name": "data", "mountPath": path})
    return spec


def affinity(label: str, *types: str) -> Manifest:
    term = {"matchExpressions": [one_of(label, *types)]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}, "tolerations": [{"operator": "Exists"}]}


SCRIPT = """set -e
export MASTER=work-0.work
torchrun --nnodes 2 --nproc-per-node=64 \\
  --node-rank $JOB_COMPLETION_INDEX \\
  --master-addr $MASTER_ADDR --master-port 29500 \\
  train.py --steps=10  # a comment
"""


def scripted() -> list[Manifest]:
    made = gang()
    inner = made[1]["spec"]["template"]["spec"]["containers"][0]
    inner["command"] = ["/bin/bash", "-c", SCRIPT]
    inner["env"] = [{"name": "MASTER_ADDR", "value": "work-0.work.default.svc.cluster.local"}]
    return made


def statefulset() -> list[Manifest]:
    command = torchrun(2, "ring-0.ring", rank="${HOSTNAME##*-}")["command"]
    inner = pod(box(ask=WHOLE, command=["sh", "-c", " ".join(command)]))
    inner["containers"][0]["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    labels = {"app": "ring"}
    spec = {"replicas": 2, "serviceName": "ring", "selector": {"matchLabels": labels}}
    spec |= {"template": template(inner, labels=labels), "podManagementPolicy": "Parallel"}
    spec["volumeClaimTemplates"] = [claim("scratch", "ReadWriteOnce")]
    return [service("ring", labels), core("StatefulSet", "ring", "apps/v1", spec=spec)]


def secret_env() -> Manifest:
    key = {"secretKeyRef": {"name": "hf", "key": "HF_TOKEN"}}
    tokens = [("MAX_TOKEN", "4096"), ("EOS_TOKEN", "</s>"), ("TOKENIZERS_PARALLELISM", "false")]
    env = [{"name": name, "value": value} for name, value in tokens]
    return box(ask={NEURON: 1}, env=[*env, {"name": "HF_TOKEN", "valueFrom": key}])


def jobset_of(replicas: int, parallelism: int, **more: Any) -> Manifest:
    nodes = replicas * parallelism
    address = f"train-node-0-0.{more.get('network', {}).get('subdomain', 'train')}"
    inner = pod(box(ask=WHOLE, **torchrun(nodes, address)))
    width = {"parallelism": parallelism, "completions": parallelism}
    return jobset([replicated("node", inner, replicas, **width)], **more)


def leader_and_workers() -> Manifest:
    inner = pod(box(ask=WHOLE, **torchrun(4, "train-leader-0-0.train", rank="$(RANK_OF_NODE)")))
    workers = replicated("worker", copy.deepcopy(inner), 3, parallelism=1, completions=1)
    return jobset([replicated("leader", inner, 1), workers])


def vllm_group(**more: Any) -> Manifest:
    inner = pod(box("vllm", WHOLE, command=["sh", "-c", "serve.sh $(LWS_LEADER_ADDRESS)"]))
    return {"workerTemplate": template(inner), **more}


def daemon(name: str, host: str, **more: Any) -> Manifest:
    inner = box(
        name,
        securityContext={"privileged": True},
        volumeMounts=[{"name": "host", "mountPath": host}],
    )
    spec = on_cpu(inner, volumes=[{"name": "host", "hostPath": {"path": host}}], **more)
    labels = {"name": name}
    body = {"selector": {"matchLabels": labels}, "template": template(spec, labels=labels)}
    return core("DaemonSet", name, "apps/v1", spec=body)


def as_in_samples() -> Manifest:
    """What controllers fill in is left out: restartPolicy, and names of rules."""
    made = jobset_of(1, 2, failurePolicy={"maxRestarts": 3, "rules": [{"action": "FailJobSet"}]})
    del made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["restartPolicy"]
    return made


def group_with_volumes() -> Manifest:
    made = leader_worker_set(vllm_group(volumeClaimTemplates=[claim("scratch", "ReadWriteOnce")]))
    inner = made["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    inner["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    return made


ONE = {NEURON: 1}
INDEXED = {"completionMode": "Indexed", "completions": 8, "parallelism": 2}
CORRECT: dict[str, Callable[[], list[Manifest]]] = {
    "requests and limits": lambda: [job(pod(box(ask=ONE)))],
    "limits alone": lambda: [job(pod(box(resources={"limits": ONE}, volumeMounts=[SHM_MOUNT])))],
    "devices as text": lambda: [job(pod(box(ask={NEURON: "16"})))],
    "affinity in place of a selector": lambda: [
        job(pod(box(ask=ONE), on=None, **affinity(TYPE, "trn2.48xlarge")))
    ],
    "affinity for several types": lambda: [
        job(pod(box(ask=WHOLE), on=None, **affinity(TYPE, "trn2.48xlarge", "trn2u.48xlarge")))
    ],
    "the old label of types": lambda: [
        job(pod(box(ask=ONE), nodeSelector={"beta.kubernetes.io/instance-type": "trn2.3xlarge"}))
    ],
    "a node pool in place of a type": lambda: [
        job(pod(box(ask=ONE), nodeSelector={"karpenter.sh/nodepool": "trn"}))
    ],
    "no node named": lambda: [job(pod(box(ask=ONE), on=None))],
    "suspended for Kueue": lambda: [
        job(pod(box(ask=ONE)), meta_more={"labels": QUEUE}, suspend=True)
    ],
    "a name that is generated": lambda: [
        {**job(pod(box(ask=ONE))), "metadata": {"generateName": "work-"}}
    ],
    "two generated names": lambda: [
        {**job(pod(box(ask=ONE))), "metadata": {"generateName": "work-"}} for _ in range(2)
    ],
    "one process on one device": lambda: [
        job(pod(box(ask=ONE, command=["torchrun", "--nproc_per_node=1", "train.py"])))
    ],
    "one process for all devices": lambda: [
        job(pod(box(ask={NEURON: 16}, command=["torchrun", "--nproc-per-node", "1", "spmd.py"])))
    ],
    "init container and main in turn": lambda: [
        job(pod(box(ask={NEURON: 16}), initContainers=[box("compile", {NEURON: 16})]))
    ],
    "a sidecar without shared memory": lambda: [
        job(pod(box(ask=ONE), box("sync", image=CPU_IMAGE, command=["sync"])))
    ],
    "a native sidecar": lambda: [
        job(
            pod(box(ask=ONE), initContainers=[box("sync", image=CPU_IMAGE, restartPolicy="Always")])
        )
    ],
    "numbers of tokens and a Secret's token": lambda: [job(pod(secret_env()))],
    "a CronJob": lambda: [
        core(
            "CronJob",
            "nightly",
            "batch/v1",
            spec={
                "schedule": "0 3 * * *",
                "jobTemplate": {"spec": job_spec(pod(box(ask=ONE)))},
            },
        )
    ],
    "restarted in place": lambda: [job({**pod(box(ask=ONE)), "restartPolicy": "OnFailure"})],
    "a sweep over an index": lambda: [
        job(
            pod(
                box(ask=ONE, image=OLD, args=["--trial=$(JOB_COMPLETION_INDEX)"]), on="trn1.2xlarge"
            ),
            **INDEXED,
        )
    ],
    "a work queue on CPUs": lambda: [job(on_cpu(box(image=CPU_IMAGE)), parallelism=4)],
    "two nodes with a headless Service": gang,
    "two nodes started by a script": scripted,
    "sixteen nodes": lambda: gang("big", 16),
    "a pod to look around": lambda: [
        core("Pod", "shell", spec={**pod(box(ask=ONE, command=["sleep", "infinity"]))})
    ],
    "a pod with a projected token": lambda: [
        core(
            "Pod",
            "irsa",
            spec=on_cpu(
                box(image=CPU_IMAGE),
                automountServiceAccountToken=False,
                volumes=[
                    {
                        "name": "t",
                        "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
                    }
                ],
            ),
        )
    ],
    "the monitor of Neuron nodes": lambda: [daemon("neuron-monitor", "/sys", hostPID=True)],
    "the device plugin": lambda: [
        daemon(
            "neuron-device-plugin",
            "/var/lib/kubelet/device-plugins",
            priorityClassName="system-node-critical",
            tolerations=[dict(TOLERATION)],
        )
    ],
    "a test with the host's /dev/shm": lambda: [
        job(pod(box(ask=ONE), volumes=[{"name": "shm", "hostPath": {"path": "/dev/shm"}}]))
    ],
    "a device by a claim": lambda: [claim_template(), job(claimed())],
    "a claim whose template is elsewhere": lambda: [job(claimed())],
    "JobSet, pods in one Job": lambda: [jobset_of(1, 4)],
    "JobSet, a pod for each Job": lambda: [
        jobset_of(
            4, 1, meta_more={"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}}
        )
    ],
    "JobSet, two Jobs of two pods": lambda: [jobset_of(2, 2)],
    "JobSet with a leader": lambda: [leader_and_workers()],
    "JobSet with a subdomain": lambda: [
        jobset_of(1, 2, network={"enableDNSHostnames": True, "subdomain": "ring"})
    ],
    "JobSet with a driver on CPUs": lambda: [
        jobset(
            [
                replicated("driver", on_cpu(box(image=CPU_IMAGE))),
                replicated("node", pod(box(ask={NEURON: 16})), 2),
            ]
        )
    ],
    "JobSet for Kueue": lambda: [
        *kueue(),
        jobset_of(1, 2, suspend=True, meta_more={"labels": QUEUE}),
    ],
    "JobSet as in its samples": lambda: [as_in_samples()],
    "LeaderWorkerSet with volumes of its own": lambda: [group_with_volumes()],
    "a null that is left out": lambda: [
        kubeflow(
            "MPIJob",
            "v2beta1",
            {
                "Launcher": {"template": template(on_cpu(box(command=None)))},
                "Worker": {"replicas": 1, "template": template(on_cpu(box(command=None)))},
            },
            "mpiReplicaSpecs",
        )
    ],
    "keys that are none": lambda: [
        job(pod(box(ask=ONE, command=["sh", "-c", "OPENAI_API_KEY=EMPTY eval --api-key $(KEY)"])))
    ],
    "PyTorchJob": lambda: [pytorchjob()],
    "PyTorchJob, suspended for Kueue": lambda: [
        {**pytorchjob(runPolicy={"suspend": True}), "metadata": meta("train", labels=QUEUE)}
    ],
    "PyTorchJob, elastic": lambda: [
        kubeflow(
            "PyTorchJob",
            "v1",
            {"Worker": replica(pod(box("pytorch", WHOLE, command=["torchrun", "t.py"])), 2)},
            "pytorchReplicaSpecs",
            elasticPolicy={"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"},
        )
    ],
    "MPIJob": lambda: [mpijob("v2beta1")],
    "MPIJob of the training operator": lambda: [mpijob("v1")],
    "TrainJob with its runtime": lambda: [runtime("TrainingRuntime"), trainjob(numNodes=4)],
    "TrainJob for a runtime of the cluster": lambda: [
        trainjob(
            "ClusterTrainingRuntime",
            "torch-distributed",
            numNodes=2,
            image=IMAGE,
            resourcesPerNode={"limits": {NEURON: 16}},
        )
    ],
    "a runtime alone": lambda: [runtime("ClusterTrainingRuntime")],
    "LeaderWorkerSet with one template": lambda: [leader_worker_set(vllm_group(), 2)],
    "LeaderWorkerSet with two, twice": lambda: [
        leader_worker_set(vllm_group(leaderTemplate=vllm_group()["workerTemplate"]), 4, 2)
    ],
    "a server and its Service": lambda: [
        deployment(
            pod(server(env=[{"name": "NEURON_RT_VISIBLE_CORES", "value": "0-3"}])), replicas=2
        ),
        service("vllm", {"app": "vllm"}, False, targetPort="http"),
    ],
    "a long name": lambda: [
        deployment(pod(server()), "meta-llama-3-1-405b-instruct-speculative-decoding-trn2-ultra")
    ],
    "a server scaled by load": lambda: [
        deployment(pod(server())),
        core(
            "HorizontalPodAutoscaler",
            "vllm",
            "autoscaling/v2",
            spec={
                "maxReplicas": 4,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"},
            },
        ),
        core("PodDisruptionBudget", "vllm", "policy/v1", spec={"minAvailable": 1}),
    ],
    "StatefulSet as a ring": statefulset,
    "a server on Inferentia": lambda: [deployment(pod(server(cores=2), on="inf2.8xlarge"))],
    "a server with shared weights": lambda: [
        claim(),
        deployment(with_claim(pod(server())), replicas=3),
    ],
    "a server behind an Ingress": lambda: [
        deployment(pod(server())),
        service("vllm", {"app": "vllm"}, False, targetPort=8000),
        core(
            "Ingress",
            "vllm",
            "networking.k8s.io/v1",
            spec={
                "defaultBackend": {
                    "service": {"name": "vllm", "port": {"number": 29500}},
                }
            },
        ),
    ],
    "a Service alone": lambda: [service("vllm", {"app": "vllm"}, False, targetPort="http")],
    "Karpenter": lambda: [node_class(), node_pool(one_of(TYPE, "trn2.48xlarge"))],
    "Karpenter on Spot": lambda: [
        node_pool(
            one_of("karpenter.sh/capacity-type", "spot", "on-demand"),
            one_of(TYPE, "trn1.32xlarge", "inf2.xlarge"),
        )
    ],
    "Kueue": kueue,
    "storage on FSx": lambda: [
        core("StorageClass", "fsx", "storage.k8s.io/v1", provisioner="fsx.csi.aws.com"),
        volume("fsx.csi.aws.com"),
        claim(storageClassName="fsx", volumeName="data-volume"),
        job(with_claim(pod(box(ask=ONE)))),
    ],
    "weights on S3": lambda: [
        volume("s3.csi.aws.com"),
        claim(volumeName="data-volume"),
        job(with_claim(pod(box(ask=ONE)), path="/weights")),
    ],
    "a script in a ConfigMap": lambda: [
        core("ConfigMap", "code", data={"main.py": "print('a')\n"}),
        job(
            on_cpu(
                box(image=CPU_IMAGE, volumeMounts=[{"name": "c", "mountPath": "/code"}]),
                volumes=[{"name": "c", "configMap": {"name": "code"}}],
            )
        ),
    ],
    "an account of its own": lambda: [
        core("ServiceAccount", "trainer"),
        core(
            "Role",
            "trainer",
            "rbac.authorization.k8s.io/v1",
            rules=[
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            ],
        ),
        job(pod(box(ask=ONE), serviceAccountName="trainer")),
    ],
    "a namespace and its limits": lambda: [
        core("Namespace", "team"),
        core("ResourceQuota", "team", spec={"hard": {f"requests.{NEURON}": "64"}}),
    ],
}
