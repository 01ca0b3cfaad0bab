"""Where the API server keeps the kinds that trnx writes and reads."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Resource:
    """One kind: its group and version, and the plural that stands in addresses."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str, name: str = "") -> str:
        """The address of the kind's objects in a namespace (all where it is empty), or of one."""
        root = "/apis" if "/" in self.api_version else "/api"
        inside = self.namespaced and namespace
        place = f"/namespaces/{quote(namespace, safe='')}" if inside else ""
        end = f"/{quote(name, safe='')}" if name else ""
        return f"{root}/{self.api_version}{place}/{self.plural}{end}"


JOB = Resource("batch/v1", "Job", "jobs")
JOBSET = Resource("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
TRAINJOB = Resource("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
RUNTIME = Resource("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "trainingruntimes")
DEPLOYMENT = Resource("apps/v1", "Deployment", "deployments")
SERVICE = Resource("v1", "Service", "services")
CLAIM_TEMPLATE = Resource("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
DEVICE_CLAIM = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
POD = Resource("v1", "Pod", "pods")
EVENT = Resource("v1", "Event", "events")
NODE = Resource("v1", "Node", "nodes", namespaced=False)
NAMESPACE = Resource("v1", "Namespace", "namespaces", namespaced=False)
VOLUME_CLAIM = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
SECRET = Resource("v1", "Secret", "secrets")
SERVICE_ACCOUNT = Resource("v1", "ServiceAccount", "serviceaccounts")
DAEMON_SET = Resource("apps/v1", "DaemonSet", "daemonsets")
DEVICE_CLASS = Resource("resource.k8s.io/v1", "DeviceClass", "deviceclasses", namespaced=False)
RESOURCE_SLICE = Resource("resource.k8s.io/v1", "ResourceSlice", "resourceslices", namespaced=False)
QUEUE = Resource("kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues")
KUEUE_WORKLOAD = Resource("kueue.x-k8s.io/v1beta2", "Workload", "workloads")
DEFINITION = Resource(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)

# What runs pods, the outermost first: a TrainJob makes a JobSet, which makes Jobs.
WORKLOADS = (TRAINJOB, JOBSET, JOB, DEPLOYMENT)
# What a job's manifests can be, in the order in which they are removed. Volumes and claims of
# volumes are not here, and so can never be removed.
OWNED = (*WORKLOADS, RUNTIME, SERVICE, CLAIM_TEMPLATE)

KNOWN = {
    (resource.api_version, resource.kind): resource
    for resource in (*OWNED, POD, VOLUME_CLAIM, SERVICE_ACCOUNT, DAEMON_SET, NAMESPACE, QUEUE)
}

# What to install where a group is not served.
INSTALL = {
    "jobset.x-k8s.io": "install the JobSet controller, or write operator: job",
    "trainer.kubeflow.org": "install Kubeflow Trainer v2, or write operator: jobset",
    "kueue.x-k8s.io": "install Kueue, in a version that serves v1beta2, or leave `queue` out",
    "resource.k8s.io": "Kubernetes 1.34 or later serves it; else write flavour: device-plugin",
}
