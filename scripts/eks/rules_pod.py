"""Rules about pods: image, memory, mounts, environment, and what survives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnx.eks.controllers import OPERATED
from trnx.eks.documents import shown_key
from trnx.eks.errors import Finding
from trnx.eks.images import parse_image
from trnx.eks.instances import FIRST_SDK_WITHOUT_TRN1
from trnx.eks.launch import launch_of
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.pods import NEURON
from trnx.eks.reading import items, mapping, text, words
from trnx.eks.rules_storage import S3_DRIVER

_FOREIGN_ENV = ("NCCL_", "PYTORCH_CUDA_", "CUDA_", "TPU_")
_RUNTIME_ENV = ("NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES", "NEURON_RT_ROOT_COMM_ID")
_CACHE_ENV = ("TORCH_NEURONX_NEFF_CACHE_DIR", "NEURON_COMPILE_CACHE_URL")
_ONE_NODE = {"ReadWriteOnce", "ReadWriteOncePod"}


def pinned_image(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Every pod of a job runs the same image, also after a restart."""
    for place, container in pod.containers():
        name = text(container, "image")
        image = parse_image(name)
        if name and (image is None or not image.pinned):
            yield Finding(
                "pinned-image",
                pod.at(f"{place}.image"),
                f"{name!r} does not say which build it is",
                "write a digest (repository@sha256:...), or at least a tag other than latest",
            )


def sdk_drives_type(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """TorchNeuron, the stack of SDK 2.32 and later, does not run on trn1."""
    if pod.instance is None or pod.instance.generation != "trn1":
        return
    for place, container in pod.containers():
        sdk = pod.sdk(container)
        if sdk is not None and sdk >= FIRST_SDK_WITHOUT_TRN1:
            yield Finding(
                "sdk-trn1",
                pod.at(f"{place}.image"),
                f"SDK {sdk[0]}.{sdk[1]} has no PyTorch for {pod.instance.name}",
                "take an image of SDK 2.31 or older, or a trn2 type",
            )


def shared_memory(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """/dev/shm is 64 MiB unless a memory volume is mounted there."""
    if not pod.on_neuron or not pod.complete:
        return
    in_memory = {
        text(volume, "name")
        for volume in items(pod.spec, "volumes")
        if text(mapping(volume, "emptyDir"), "medium") == "Memory"
        or text(mapping(volume, "hostPath"), "path").rstrip("/") == "/dev/shm"
    }
    for place, container in pod.with_devices():
        mounts = items(container, "volumeMounts")
        held = {text(m, "name") for m in mounts if text(m, "mountPath") == "/dev/shm"}
        if not held & in_memory:
            yield Finding(
                "shared-memory",
                pod.at(f"{place}.volumeMounts"),
                "no memory volume at /dev/shm: loaders and collectives get 64 MiB",
                "mount an emptyDir with medium: Memory at /dev/shm",
            )


def _made_volumes(value: Any) -> Iterator[str]:
    """Volumes that a controller makes: of StatefulSets, LeaderWorkerSets and JobSets."""
    if isinstance(value, dict):
        policies = items(value, "volumeClaimPolicies")
        templates = [t for policy in policies for t in items(policy, "templates")]
        for template in [*items(value, "volumeClaimTemplates"), *templates]:
            yield text(mapping(template, "metadata"), "name")
        for part in value.values():
            yield from _made_volumes(part)


def mounts_have_volumes(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Every mount names a volume of the pod, every claim of a container one of the pod."""
    if not pod.complete:
        return
    volumes = {text(volume, "name") for volume in items(pod.spec, "volumes")}
    volumes |= set(_made_volumes(pod.manifest))
    claims = {text(claim, "name") for claim in items(pod.spec, "resourceClaims")}
    for place, container in pod.containers():
        for index, mount in enumerate(items(container, "volumeMounts")):
            if text(mount, "name") not in volumes:
                yield Finding(
                    "dangling-mount",
                    pod.at(f"{place}.volumeMounts.{index}.name"),
                    f"the pod has no volume {text(mount, 'name')!r}",
                    f"add it to `volumes`, or take one of {', '.join(sorted(volumes)) or 'none'}",
                )
        for index, claim in enumerate(items(mapping(container, "resources"), "claims")):
            if text(claim, "name") not in claims:
                yield Finding(
                    "dangling-claim",
                    pod.at(f"{place}.resources.claims.{index}.name"),
                    f"the pod has no resource claim {text(claim, 'name')!r}",
                    "add it to the pod's `resourceClaims`",
                )


def toleration(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Neuron nodes are tainted."""
    if not pod.on_neuron or not pod.complete:
        return
    for item in items(pod.spec, "tolerations"):
        everything = not text(item, "key") and text(item, "operator") == "Exists"
        if text(item, "key") == NEURON or everything:
            return
    yield Finding(
        "toleration",
        pod.at("tolerations"),
        f"nodes with devices have the taint {NEURON}:NoSchedule",
        f"add {{key: {NEURON}, operator: Exists, effect: NoSchedule}}",
    )


def restart_policy(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """A failed pod is replaced, not restarted in place, where policies would not see it."""
    # JobSet fills in OnFailure, other controllers leave Kubernetes' own default.
    default = "OnFailure" if pod.kind == "JobSet" else "Always"
    policy = text(pod.spec, "restartPolicy") or default
    runs_to_end = pod.kind in ("Job", "JobSet", "CronJob")
    if runs_to_end and policy == "Always":
        yield Finding(
            "restart-policy",
            pod.at("restartPolicy"),
            f"a {pod.kind} runs to its end; the API server refuses Always",
            "write restartPolicy: Never",
            Level.ERROR,
        )
    elif runs_to_end and policy != "Never" and stream.devices(pod):
        yield Finding(
            "restart-policy",
            pod.at("restartPolicy"),
            f"{policy}: a restart in place hides failures from podFailurePolicy, keeps a sick "
            "node, and leaves the other ranks waiting",
            "write restartPolicy: Never",
        )
    elif pod.kind in ("Deployment", "StatefulSet") and policy != "Always":
        yield Finding(
            "restart-policy",
            pod.at("restartPolicy"),
            f"a {pod.kind} restarts its containers; {policy} is refused by the API server",
            "remove restartPolicy",
            Level.ERROR,
        )


def environment(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Variables that do nothing here, or fight with what sets them."""
    trains = launch_of(pod) is not None or pod.kind in OPERATED
    for place, name, value in pod.env():
        field = pod.at(f"{place}.name ({shown_key(name)})")
        if name == "FI_EFA_FORK_SAFE":
            fix = "remove it: it is for kernels older than 5.15; Amazon Linux 2023 has a newer one"
            yield Finding("fork-safe", field, "slows EFA down, and is not needed", fix)
        elif name.startswith(_FOREIGN_ENV):
            yield Finding("foreign-env", field, "is of another accelerator", "remove the variable")
        elif name in _RUNTIME_ENV and (trains or name == "NEURON_RT_ROOT_COMM_ID"):
            message = "device plugin or DRA, and torchrun, hand cores and ranks out"
            yield Finding("runtime-env", field, message, "remove the variable")
        elif name.startswith("PET_") and pod.kind in ("TrainJob", "TrainingRuntime"):
            message = "Trainer reserves PET_ variables and refuses the job"
            yield Finding("reserved-env", field, message, "set numNodes and numProcPerNode instead")
        elif name == _CACHE_ENV[0] and "://" in value:
            message = "is an address; the NEFF cache is a folder"
            fix = "mount FSx for Lustre or EFS, or copy from and to S3 around the job"
            yield Finding("s3-cache", field, message, fix)


def _drivers(stream: Stream) -> dict[str, str]:
    """Claim name -> CSI driver, of claims whose volume stands in the stream."""
    found = {}
    for claim in stream.of_kind("PersistentVolumeClaim"):
        volume = stream.named("PersistentVolume", text(mapping(claim, "spec"), "volumeName"))
        name = text(mapping(claim, "metadata"), "name")
        found[name] = text(mapping(volume, "spec", "csi"), "driver")
    return found


def cache_volume(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """The NEFF cache writes and renames, which S3's CSI driver cannot."""
    drivers = _drivers(stream)
    on_s3 = set()
    for volume in items(pod.spec, "volumes"):
        claim = text(mapping(volume, "persistentVolumeClaim"), "claimName")
        if S3_DRIVER in (text(mapping(volume, "csi"), "driver"), drivers.get(claim)):
            on_s3.add(text(volume, "name"))
    for place, container in pod.containers():
        mounts = items(container, "volumeMounts")
        for variable in items(container, "env"):
            path = text(variable, "value")
            if text(variable, "name") not in _CACHE_ENV:
                continue
            inside = [m for m in mounts if f"{path}/".startswith(f"{text(m, 'mountPath')}/")]
            deepest = max(inside, key=lambda m: len(text(m, "mountPath")), default={})
            if text(deepest, "name") in on_s3:
                yield Finding(
                    "s3-cache",
                    pod.at(f"{place}.env ({text(variable, 'name')})"),
                    f"{path} is on the S3 CSI driver, which has no rename",
                    "take FSx for Lustre or EFS for the cache; S3 is good for read-only weights",
                )


def access_modes(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """Claims of pods on several nodes can be mounted on several nodes."""
    if max(pod.width, pod.placement.pods) < 2:
        return
    for index, volume in enumerate(items(pod.spec, "volumes")):
        name = text(mapping(volume, "persistentVolumeClaim"), "claimName")
        claim = stream.named("PersistentVolumeClaim", name)
        modes = set(words(mapping(claim, "spec"), "accessModes"))
        if modes and modes <= _ONE_NODE:
            yield Finding(
                "access-mode",
                pod.at(f"volumes.{index}.persistentVolumeClaim.claimName"),
                f"{name} is {', '.join(sorted(modes))}: one node alone can mount it",
                "take a claim that is ReadWriteMany (FSx for Lustre, EFS), or one pod",
            )
