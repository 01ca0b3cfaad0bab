"""Virtual registers: 32-bit integers that instructions read and write while a Program runs.

A register is one int64 element of this process's memory. Its value is not known while a kernel is
traced: reading it in Python is a finding, except for `while register:`, which records a loop.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from trnx.simulator.errors import KernelSubsetError
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.recorder import current


class VirtualRegister:
    """One register; made by `nisa.register_alloc`, and by loops for their counter."""

    __slots__ = ("is_frozen", "is_set", "lacks", "value", "writes")

    def __init__(self, is_frozen: bool = False) -> None:
        self.value = torch.zeros(1, dtype=torch.int64, device="cpu")
        self.is_set = False
        # Where only a loop gives it a value: a flag that is True while the loop has made no turn,
        # and why it lacks one then.
        self.lacks: tuple[torch.Tensor, str] | None = None
        # How many instructions write it.
        self.writes = 0
        # A loop's counter is passed by value: writing to it does not change the loop.
        self.is_frozen = is_frozen

    def __bool__(self) -> bool:
        return current("while register").while_condition(self)

    def _unknown(self, *_: object) -> NoReturn:
        raise KernelSubsetError(
            "kernel-subset",
            "the value of a register is not known while a kernel is traced; "
            "use nl.fori_loop, nl.while_loop, or pass it as scalar_offset; "
            "compute with it on a tensor (nisa.register_store, nisa.tensor_scalar)",
            kernel_location(),
        )

    def __eq__(self, other: object) -> bool:
        """The same register; equality with a number would be one of values."""
        if isinstance(other, bool | int | float):
            self._unknown()
        return self is other

    def __hash__(self) -> int:
        return id(self)

    __int__ = __index__ = __float__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _unknown
