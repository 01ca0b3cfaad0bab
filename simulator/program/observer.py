"""`Observer`: what sees a kernel while it is recorded. Checks are observers, and users write them.

    class Bytes(Observer):
        def on_instruction(self, instruction): ...

    with observing(Bytes()):
        trace(kernel, arguments)

Observers own their state. They are told of an instruction before its steps run, in the order of the
program; `watches` is asked once for each kind of instruction. They may report findings, and change
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

from trnx.simulator.costs.attributes import Attributes
from trnx.simulator.errors import Location
from trnx.simulator.kernel_lines import Line, location_of
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import Storage
from trnx.simulator.program.propagation import Missing, Propagation
from trnx.simulator.program.specification import InstructionSpec


class Recorded:
    """One instruction: `operands` are pairs of tensor and "is written", of which `writes` has the
    tensors that are.

    `spec` is its declaration, `name` what rows call it, `index` its place among the instructions of
    all programs, `core` the program. `flops` are those of matrix products. `keeps`: something of
    what it writes over stays, as sums and elements that it skips do. `products` are the tensors
    that hold matrix products now. `missing` are reads of elements that nothing has written, which
    `propagation` places in the results, `skipped` (conditions, operand) those of elements that
    gathers may have skipped; see `program.skipped_rows`.
    """

    __slots__ = (
        "attributes",
        "core",
        "engine",
        "flops",
        "hbm_bytes",
        "index",
        "keeps",
        "line",
        "missing",
        "name",
        "operands",
        "products",
        "propagation",
        "skipped",
        "spec",
        "writes",
    )

    index: int
    core: int
    spec: InstructionSpec
    name: str
    engine: Engine
    attributes: Attributes
    operands: list[tuple[NkiTensor, bool]]
    writes: list[NkiTensor]
    line: Line
    flops: int
    hbm_bytes: int
    keeps: bool
    products: list[NkiTensor]
    missing: list[Missing]
    skipped: list[tuple[torch.Tensor, str]]
    propagation: Propagation

    @property
    def location(self) -> Location:
        """The kernel's source line."""
        return location_of(self.line)


class Observer:
    """Sees the instructions of one trace, or of several, one after the other."""

    def watches(self, spec: InstructionSpec) -> bool:
        """False for instructions that it need not be told of."""
        del spec
        return True

    def on_instruction(self, instruction: Recorded) -> None:
        """An instruction is recorded; its steps have not run."""

    def on_rendezvous(self, about: Storage | None) -> None:
        """The programs of a grid have met, for the sake of one storage or of everything."""

    def on_freed(self, indices: Sequence[int]) -> None:
        """The last tensors in some storages are gone; told now and then, of many at once."""

    def finish(self, core: int) -> None:
        """A program of the grid has come to its end."""


_Seen = TypeVar("_Seen", bound=Observer)
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("trnx_observers", default=())


@contextmanager
def observing(observer: _Seen) -> Iterator[_Seen]:
    """Kernels that are recorded in this block tell `observer`, which is the value of `with`; blocks
    may be nested.
    """
    token = _observers.set((*_observers.get(), observer))
    try:
        yield observer
    finally:
        _observers.reset(token)


def observers() -> tuple[Observer, ...]:
    """Who is to be told, besides the simulator's checks."""
    return _observers.get()
