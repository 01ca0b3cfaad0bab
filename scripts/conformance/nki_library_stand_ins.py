"""Stand-ins for packages that the suite imports and that a simulation needs little of or nothing:
remote hosts, metrics, plots, reports. A package that is installed is used instead.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

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
    made = {"attr": {"dataclass": dataclass}, "allpairspy": {"AllPairs": AllPairs}}
    missing = [name for name in made if _is_missing(name)]
    for name in missing:
        module = ModuleType(name)
        vars(module).update(made[name])
        sys.modules[name] = module
    return [*empty, *missing]


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


class AllPairs:
    """Rows of values such that every pair of values of two parameters that the filter allows is in
    some row; greedy. The filter is also asked about the beginnings of rows.
    """

    def __init__(
        self,
        parameters: Sequence[Sequence[Any]],
        filter_func: Callable[[list[Any]], bool] | None = None,
    ) -> None:
        self._parameters = [list(values) for values in parameters]
        self._allows = filter_func or (lambda _row: True)
        self._tries = 0

    def __iter__(self) -> Iterator[list[Any]]:
        sizes = [range(len(values)) for values in self._parameters]
        missing = {
            (first, i, second, j)
            for first, second in itertools.combinations(range(len(sizes)), 2)
            for i in sizes[first]
            for j in sizes[second]
        }
        while missing:
            wanted = min(missing)
            self._tries = 0
            chosen = self._row([], wanted, missing)
            missing.discard(wanted)
            if chosen is not None:
                missing -= _pairs(chosen)
                yield self._values(chosen)

    def _values(self, chosen: list[int]) -> list[Any]:
        return [values[i] for values, i in zip(self._parameters, chosen, strict=False)]

    def _row(
        self, chosen: list[int], wanted: tuple[int, int, int, int], missing: set[Any]
    ) -> list[int] | None:
        """The row that begins with `chosen`, has the pair `wanted` and many missing ones."""
        position = len(chosen)
        if position == len(self._parameters):
            return chosen
        fixed = {wanted[0]: wanted[1], wanted[2]: wanted[3]}
        options = [fixed[position]] if position in fixed else range(len(self._parameters[position]))

        def gain(option: int) -> int:
            return -sum((k, i, position, option) in missing for k, i in enumerate(chosen))

        for option in sorted(options, key=gain):
            self._tries += 1
            if self._tries > 2000:
                return None
            row = [*chosen, option]
            if self._allows(self._values(row)):
                found = self._row(row, wanted, missing)
                if found is not None:
                    return found
        return None


def _pairs(chosen: list[int]) -> set[tuple[int, int, int, int]]:
    numbered = list(enumerate(chosen))
    return {(a, i, b, j) for (a, i), (b, j) in itertools.combinations(numbered, 2)}
