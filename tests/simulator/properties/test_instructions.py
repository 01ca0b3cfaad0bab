"""Every instruction of nki.isa against the NumPy reference, on each generation that has it.

hypothesis chooses shapes, types, layouts, memories, engines and operators; the reference functions
(scripts/fuzz/nki_reference) are written from the NKI 0.6 documents and share no code with trnx.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TypeVar

import nki_reference
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nki_reference.choices import SeededChoices
from nki_reference.differential import check
from nki_reference.program import TARGETS
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import ENTRIES

from trnx.simulator.frontend.nki_modules import nki_modules
from trnx.simulator.isa.instruction import INSTRUCTIONS

T = TypeVar("T")
nki_modules()  # fills INSTRUCTIONS
PUBLIC = sorted({*INSTRUCTIONS, "register_alloc"})
PAIRS = [(name, target) for name in sorted(ENTRIES) for target in TARGETS]
LEGAL = [pair for pair in PAIRS if TARGETS[pair[1]] in ENTRIES[pair[0]].generations]
COMMON = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


class DrawnChoices:
    """Choices that hypothesis makes, and can simplify."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def flag(self, percent: int = 50) -> bool:
        return self.integer(0, 99) >= 100 - percent


def assert_agrees(name: str, target: str, count: int) -> None:
    """Drawn programs run, twice, and give what the reference gives."""
    entry = ENTRIES[name]

    @settings(max_examples=count, **COMMON)
    @given(st.data())
    def examples(data: st.DataObject) -> None:
        builder = ProgramBuilder(DrawnChoices(data), target, entry.cores)
        entry.draw(builder)
        program = builder.program()
        is_move = entry.moves and len({storage.dtype for storage in program.storages}) == 1
        verdict = check(program, must_run=True, strict_bits=is_move)
        assert verdict.status == "agreed", f"{verdict.detail}\n{program.source()}"

    examples()


@pytest.mark.parametrize(("name", "target"), LEGAL)
def test_agrees_with_numpy(name: str, target: str) -> None:
    assert_agrees(name, target, count=6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), LEGAL)
def test_agrees_with_numpy_in_many_examples(name: str, target: str) -> None:
    assert_agrees(name, target, count=200)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PUBLIC)
def test_no_instruction_is_without_property_test(name: str, target: str) -> None:
    """An instruction has an entry; a generation that the entry leaves out refuses its calls."""
    assert name in ENTRIES, f"nisa.{name} has no entry in scripts/fuzz/nki_reference"
    entry = ENTRIES[name]
    assert entry.apply.__module__.startswith(nki_reference.__name__)
    if TARGETS[target] in entry.generations:
        return
    newest = max(entry.generations)
    builder = ProgramBuilder(
        SeededChoices(name), {g: t for t, g in TARGETS.items()}[newest], entry.cores
    )
    entry.draw(builder)
    program = builder.program()
    program.target = target
    assert check(program, must_run=False).status == "refused"


def test_the_table_has_the_public_instructions() -> None:
    public = {
        name
        for name, value in vars(nki_modules()["nki.isa"]).items()
        if name.islower() and inspect.isfunction(value) and not name.startswith("get_nc_")
    }
    assert public == set(PUBLIC) == set(ENTRIES) - {"language"}
