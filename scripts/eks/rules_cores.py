"""Rules about NeuronCores: what a program asks for is on the devices that its container gets.

Source: nrt-configurable-parameters.rst of the Neuron documentation (NEURON_RT_NUM_CORES,
NEURON_RT_VISIBLE_CORES); vLLM's --tensor-parallel-size is its number of cores on Neuron.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trnx.eks.documents import Manifest
from trnx.eks.errors import Finding
from trnx.eks.launch import line_of
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream, extended
from trnx.eks.pods import NEURON
from trnx.eks.reading import items, text
from trnx.eks.rules_devices import logical_cores_of

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_PARALLEL = ("--tensor-parallel-size", "--tensor_parallel_size", "-tp")
# (place within the container, cores that the program takes, how sure it is that this fails)
Asked = tuple[str, int, Level]


def _listed(value: str) -> set[int] | None:
    """Cores of a list such as 0-7,12; None where it is none."""
    found: set[int] = set()
    for part in value.split(","):
        ends = _RANGE.fullmatch(part.strip())
        if ends is None:
            return None
        found |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return found


def _from_environment(container: Manifest) -> Iterator[Asked]:
    for index, variable in enumerate(items(container, "env")):
        name, value = text(variable, "name"), text(variable, "value")
        if name == "NEURON_RT_NUM_CORES" and re.fullmatch(r"\d{1,5}", value):
            yield f"env.{index}", int(value), Level.ERROR
        if name == "NEURON_RT_VISIBLE_CORES":
            yield f"env.{index}", len(_listed(value) or ()), Level.ERROR


def _from_command(container: Manifest) -> Iterator[Asked]:
    line = line_of(container)
    if not any("vllm" in word for word in line):
        return
    for word, after in zip(line, [*line[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        value = value if equals else after
        if flag in _PARALLEL and re.fullmatch(r"\d{1,5}", value):
            yield "args", int(value), Level.WARNING


def cores(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """No program asks for more logical cores than its container's devices have."""
    each = logical_cores_of(pod)
    if each is None or pod.claims:
        return
    for place, container in pod.containers():
        devices = extended(container, NEURON)
        if not devices:
            continue
        asked = [*_from_environment(container)]
        # A server may spread over the pods of a group.
        asked += _from_command(container) if pod.width == 1 else ()
        for where, count, level in asked:
            if count > devices * each:
                yield Finding(
                    "cores",
                    pod.at(f"{place}.{where}"),
                    f"{count} cores are asked for, and {devices} devices have {devices * each}: "
                    "the runtime does not start",
                    f"ask for at most {devices * each} cores, or for more devices ({NEURON})",
                    level,
                )
