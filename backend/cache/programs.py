"""Recorded kernels on disk: a warm process replays them, and runs no Python of a kernel.

A Program names functions that it calls, so it is code (`Kind.is_code`). Its instructions are not
kept: who asks for them (a profile, a listing) has the kernel recorded again.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from trnx.backend.cache.cache import PROGRAM, Codec
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Key
from trnx.backend.cache.errors import DamagedEntryError
from trnx.backend.cache.predictions import launch_parts
from trnx.nki_kernels.spec import Launch
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.portable import from_data, to_data
from trnx.simulator.program.program import Program

# Bytes of a Program's JSON: beyond, a warm process records the kernel again.
_LARGEST = 16 << 20


def program_key(launch: Launch, target: str) -> Key | None:
    """The key of a launch, None for one that its text does not tell from others."""
    parts = launch_parts(launch, target)
    return None if parts is None else Key(PROGRAM, {**parts, "numpy": np.__version__})


def kept_program(
    launch: Launch,
    target: str,
    make: Callable[[], Program],
    rows: Callable[[], InstructionTable],
) -> Program:
    """The Program of a launch, by `make` where it is not in the cache; `rows` records the
    instructions of one that is."""
    cache = current()
    key = None if cache is None else program_key(launch, target)
    if cache is None or key is None:
        return make()
    return cache.get_or_make(key, make, Codec(_encode, lambda given: _decode(given, rows)))


def _encode(program: Program) -> Any:
    data = to_data(program)
    text = "" if data is None else json.dumps(data, separators=(",", ":"))
    if not 0 < len(text) <= _LARGEST:
        return None
    packed = base64.b64encode(zlib.compress(text.encode(), 1)).decode()
    return {"program": packed}


def _decode(given: Any, rows: Callable[[], InstructionTable]) -> Program:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(base64.b64decode(given["program"], validate=True), _LARGEST)
    except zlib.error as error:
        raise DamagedEntryError(str(error)) from error
    if not unpacker.eof:
        raise DamagedEntryError("it ends early, or is larger than what is kept")
    return from_data(json.loads(text), rows)
