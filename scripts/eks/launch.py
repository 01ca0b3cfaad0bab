"""How a pod starts its processes: torchrun's flags, in a command or in a shell's script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trnx.eks.controllers import OPERATED
from trnx.eks.pod_views import PodView
from trnx.eks.pods import EFA
from trnx.eks.reading import items, text, words

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
# In the middle of a word # begins none, as in ${HOSTNAME##*-}.
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\((\w+)\)|\$\{(\w+)\}|\$(\w+)")


@dataclass(frozen=True)
class Launch:
    """A torchrun. `flags`: name with dashes -> value; variables that the pod defines are filled in.
    `place`: the container; `line`: all words of its command."""

    place: str
    flags: Mapping[str, str]
    line: tuple[str, ...]

    def flag(self, name: str) -> str:
        """A flag's value, or an empty text."""
        return self.flags.get(name, "")

    @property
    def nodes(self) -> int | None:
        """--nnodes, where it is one number."""
        value = self.flag("nnodes")
        return int(value) if re.fullmatch(r"\d{1,6}", value) else None

    @property
    def least_nodes(self) -> int | None:
        """The smaller number of an elastic --nnodes=2:4."""
        found = re.fullmatch(r"(\d{1,6}):\d{1,6}", self.flag("nnodes"))
        return int(found[1]) if found else None

    @property
    def address(self) -> str:
        """The host of rank 0, without its port; an empty text where none is said."""
        where = self.flag("master-addr") or self.flag("rdzv-endpoint")
        return where.rpartition(":")[0] if re.search(r":\d+$", where) else where


def line_of(container: Mapping[str, Any]) -> list[str]:
    """The words of a command; those of a script that a shell gets are taken apart."""
    found: list[str] = []
    for word in [*words(container, "command"), *words(container, "args")]:
        if not re.search(r"\s", word):
            found.append(word)
            continue
        try:
            found += shlex.split(_COMMENT.sub("", word.replace("\\\n", " ")))
        except ValueError:
            found += word.split()
    return found


def _flags(line: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, word in enumerate(line):
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            continue
        after = line[index + 1] if index + 1 < len(line) else ""
        key = name.removeprefix("--").replace("_", "-")
        found.setdefault(key, value if equals else ("" if after.startswith("--") else after))
    return found


def is_torchrun(line: list[str]) -> bool:
    """Whether a command starts torchrun."""
    return any(word.rpartition("/")[2] == "torchrun" or word in _MODULES for word in line)


def launch_of(pod: PodView) -> Launch | None:
    """The torchrun of a pod, None where no container starts one."""
    for place, container in pod.containers():
        line = line_of(container)
        if not is_torchrun(line):
            continue
        values = {text(v, "name"): text(v, "value") for v in items(container, "env")}

        def known(found: re.Match[str], values: dict[str, str] = values) -> str:
            name = next(filter(None, found.groups()))
            return values.get(name) or found[0]

        flags = {key: _VARIABLE.sub(known, value) for key, value in _flags(line).items()}
        return Launch(place, flags, tuple(line))
    return None


def one_program(pod: PodView) -> bool:
    """Whether the pods of a controller work together, as far as the manifest says: they ask for
    EFA, torchrun counts several nodes, or the operator is one for such programs."""
    launch = launch_of(pod)
    many = launch is not None and (launch.nodes or 1) > 1
    standalone = launch is not None and "standalone" in launch.flags
    return bool(pod.count(EFA)) or many or (pod.kind in OPERATED and not standalone)
