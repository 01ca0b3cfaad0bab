"""`flavour: auto`, decided by what the cluster's nodes hand devices out with."""

from __future__ import annotations

from trnx.eks.cluster.api import Api
from trnx.eks.cluster.pending import allocatable, nodes_of_type
from trnx.eks.cluster.resources import NODE, RESOURCE_SLICE
from trnx.eks.documents import Manifest
from trnx.eks.errors import ForbiddenError, NotInstalledError
from trnx.eks.model import Flavour, TrnxJob
from trnx.eks.pods import DEVICE_CLASS, NEURON
from trnx.eks.reading import mapping, text


def neuron_slices(api: Api) -> list[Manifest] | None:
    """What the Neuron DRA driver publishes; None: may not be read."""
    try:
        slices = api.items(RESOURCE_SLICE, "")
    except NotInstalledError:
        return []
    except ForbiddenError:
        return None
    return [item for item in slices if text(mapping(item, "spec"), "driver") == DEVICE_CLASS]


def nodes_of(slices: list[Manifest]) -> set[str]:
    """Names of the nodes whose devices are published."""
    return {text(mapping(item, "spec"), "nodeName") for item in slices} - {""}


def decide(nodes: list[Manifest], published: set[str], instance: str) -> Flavour:
    """The flavour that more nodes of the type have; the device plugin where none has any."""
    of_type = nodes_of_type(nodes, instance)
    plugin = sum(allocatable(node, NEURON) > 0 for node in of_type)
    dra = sum(text(mapping(node, "metadata"), "name") in published for node in of_type)
    return Flavour.DRA if dra > plugin else Flavour.DEVICE_PLUGIN


def with_flavour(api: Api, job: TrnxJob) -> TrnxJob:
    """The job with `auto` replaced by what the cluster has.

    Raises:
        ClusterError: the server cannot be asked.
    """
    if job.flavour != Flavour.AUTO:
        return job
    try:
        nodes = api.items(NODE, "")
    except ForbiddenError:
        nodes = []
    found = decide(nodes, nodes_of(neuron_slices(api) or []), job.instance)
    return job.model_copy(update={"flavour": found})
