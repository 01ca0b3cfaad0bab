"""Stand-ins for packages that the suite imports and that a simulation needs little of or nothing:
remote hosts, metrics, plots, reports. A package that is installed is used instead.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy._core._dtype as numpy_dtypes

from trnx.simulator.memory.arrays import PACKED

# What the suite imports for machines, the cloud, plots and reports: any name is an empty class.
_EMPTY = (
    "aws_embedded_metrics",
    "aws_embedded_metrics.logger",
    "aws_embedded_metrics.logger.metrics_context",
    "aws_embedded_metrics.serializers",
    "aws_embedded_metrics.serializers.log_serializer",
    "boto3",
    "botocore",
    "botocore.credentials",
    "botocore.exceptions",
    "fabric2",
    "filelock",
    "paramiko",
    "plotext",
    "pytest_html",
    "pytest_html.extras",
)


def install_stand_ins() -> list[str]:
    """Put stand-ins for what is not installed into `sys.modules`; their names."""
    empty = [name for name in _EMPTY if _is_missing(name.partition(".")[0])]
    for name in empty:
        sys.modules[name] = _EmptyModule(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    made = {"attr": {"dataclass": dataclass}}
    missing = [name for name in made if _is_missing(name)]
    for name in missing:
        module = ModuleType(name)
        vars(module).update(made[name])
        sys.modules[name] = module
    return [*empty, *missing]


def name_packed_types() -> None:
    """Have `str` of a packed dtype be its name, by which the suite looks such types up.

    It is for AWS's own package `neuron_dtypes`; numpy has no public way to name a type of Python.
    """
    printer = vars(numpy_dtypes)
    default = printer["__str__"]

    def printed(dtype: np.dtype[Any]) -> str:
        name = dtype.type.__name__
        return name if PACKED.get(name) is dtype else str(default(dtype))

    printer["__str__"] = printed


def _is_missing(name: str) -> bool:
    known = sys.modules.get(name)
    if known is not None:
        return isinstance(known, _EmptyModule)
    return importlib.util.find_spec(name) is None


class _EmptyModule(ModuleType):
    """Every name is a new empty exception class: it can be a base, an annotation, be caught."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (Exception,), {})
        setattr(self, name, found)
        return found
