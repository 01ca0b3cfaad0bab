"""Neuron devices that DRA hands out: what nodes publish, less what claims hold.

A ResourceSlice names devices of a pool; slices of an older generation of their pool are out of
date. A ResourceClaim that is allocated names (driver, pool, device) in its status; one with admin
access holds nothing:
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trnx.eks.documents import Manifest
from trnx.eks.pods import DEVICE_CLASS
from trnx.eks.reading import items, mapping, text, whole

_Device = tuple[str, str]  # pool, name


@dataclass(frozen=True)
class DraDevices:
    """Devices by node: those that are published, and those of them that no claim holds."""

    published: Counter[str]
    free: Counter[str]


def _current(slices: list[Manifest]) -> Iterator[Manifest]:
    """Specs of the slices that their pools consist of now."""
    newest: Counter[str] = Counter()
    specs = [mapping(item, "spec") for item in slices]
    for spec in specs:
        pool = mapping(spec, "pool")
        name = text(pool, "name")
        newest[name] = max(newest[name], whole(pool.get("generation")) or 0)
    for spec in specs:
        pool = mapping(spec, "pool")
        if (whole(pool.get("generation")) or 0) == newest[text(pool, "name")]:
            yield spec


def _held(claims: list[Manifest]) -> Iterator[_Device]:
    for claim in claims:
        for result in items(mapping(claim, "status", "allocation", "devices"), "results"):
            if text(result, "driver") == DEVICE_CLASS and result.get("adminAccess") is not True:
                yield text(result, "pool"), text(result, "device")


def count_devices(slices: list[Manifest], claims: list[Manifest]) -> DraDevices:
    """Devices of the driver's slices, with the claims of all namespaces."""
    held, published, free = set(_held(claims)), Counter[str](), Counter[str]()
    for spec in _current(slices):
        node, pool = text(spec, "nodeName"), text(mapping(spec, "pool"), "name")
        for device in items(spec, "devices"):
            published[node] += 1
            free[node] += (pool, text(device, "name")) not in held
    return DraDevices(published, free)
