"""The members of `nki.isa`: every declared instruction, and what goes with them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from trnx.simulator import isa
from trnx.simulator.errors import IllegalInstructionError
from trnx.simulator.isa import collectives, register
from trnx.simulator.isa.instruction import INSTRUCTIONS, NkiInstruction
from trnx.simulator.language import enums
from trnx.simulator.language.registers import VirtualRegister


@functools.cache
def load_families() -> None:
    """Import every file of this package, which declares its instructions."""
    for info in pkgutil.iter_modules(isa.__path__):
        importlib.import_module(f"{isa.__name__}.{info.name}")


def namespace() -> dict[str, Any]:
    """The members by name, those with them that were declared outside of this package."""
    load_families()
    return {
        **enums.EXPORTS,
        **INSTRUCTIONS,
        "register_alloc": register.register_alloc,
        "get_nc_version": register.get_nc_version,
        "get_nc_sub_version": register.get_nc_sub_version,
        "VirtualRegister": VirtualRegister,
        "NkiInstruction": NkiInstruction,
        "NkiValidationError": IllegalInstructionError,
    }


def is_instruction(name: str) -> bool:
    """True for a member of `nki.isa` or `nki.collectives`."""
    return name in namespace() or name in collectives.namespace()
