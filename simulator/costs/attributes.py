"""Attributes: what the cost of an instruction depends on besides its operands, one record a kind.

An instruction sets `emit.attributes`; rows keep them, costs read their fields, and a listing shows
`str` of them. Records are immutable. The functions below make one record of each value, so that
equal ones are the same, and tracing compares them at no cost.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Attributes:
    """Of an instruction that has none. Every field of a kind has a default."""

    __slots__ = ()

    def __str__(self) -> str:
        return ""


NONE = Attributes()


@dataclass(frozen=True, slots=True, eq=False)
class OperatorAttributes(Attributes):
    """The ALU operator of an instruction whose speed depends on it."""

    operator: str = ""

    def __str__(self) -> str:
        return self.operator


@dataclass(frozen=True, slots=True, eq=False)
class ActivationAttributes(Attributes):
    """The function that ScalarE computes, which may need a table."""

    function: str = ""

    def __str__(self) -> str:
        return self.function


class ProductMode(Enum):
    """How the Tensor engine takes its operands."""

    plain = ""
    double_row = "double_row"
    transpose = "transpose"
    onezero = "onezero"

    __hash__ = object.__hash__


class ArrayTile(NamedTuple):
    """A part of the 128 x 128 array of TensorE: its first row and column, and its extent."""

    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True, eq=False)
class ProductAttributes(Attributes):
    """Mode of a matrix product, and the part of the array that it uses (None: all of it)."""

    mode: ProductMode = ProductMode.plain
    tile: ArrayTile | None = None

    def __str__(self) -> str:
        tile = "" if self.tile is None else f" tile {' '.join(map(str, self.tile))}"
        return self.mode.value + tile


class DmaIssuer(Enum):
    """Who starts a transfer: an engine's DGE, GpSimd's software, or a list made beforehand."""

    unknown = ""
    sync = "sync"
    scalar = "scalar"
    gpsimd = "gpsimd"
    static = "static"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, eq=False)
class DmaAttributes(Attributes):
    """Who issues a transfer, and its priority (0 goes before 3; None: not given)."""

    issuer: DmaIssuer = DmaIssuer.unknown
    priority: int | None = None

    def __str__(self) -> str:
        return self.issuer.value + _priority_text(self.priority)


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeAttributes(Attributes):
    """Whether two cores exchange data by GpSimd's own DMA."""

    uses_gpsimd: bool = False

    def __str__(self) -> str:
        return "gpsimd_dma" if self.uses_gpsimd else ""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveAttributes(Attributes):
    """The ranks of a collective, and its priority (None: not given)."""

    group: tuple[int, ...] = (0,)
    priority: int | None = None

    def __str__(self) -> str:
        return f"group {','.join(map(str, self.group))}{_priority_text(self.priority)}"


def _priority_text(priority: int | None) -> str:
    return "" if priority is None else f" priority {priority}"


operator_attributes = functools.cache(OperatorAttributes)
activation_attributes = functools.cache(ActivationAttributes)
product_attributes = functools.cache(ProductAttributes)
dma_attributes = functools.cache(DmaAttributes)
exchange_attributes = functools.cache(ExchangeAttributes)
collective_attributes = functools.cache(CollectiveAttributes)
