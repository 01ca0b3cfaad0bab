"""The table of the NKI API agrees with the simulator."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def table() -> ModuleType:
    file = ROOT / "scripts" / "generate_api_table.py"
    spec = importlib.util.spec_from_file_location("generate_api_table", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table_is_current(table: ModuleType) -> None:
    assert table.TABLE.read_text() == table.render(), (
        f"docs/nki_api.md is out of date: run {sys.executable} scripts/generate_api_table.py"
    )


def test_every_public_name_is_there(table: ModuleType) -> None:
    assert [name for name in table.public_names() if not table.has(name)] == []


def test_a_name_that_is_absent_counts_as_missing(table: ModuleType) -> None:
    assert not table.has("nki.isa.no_such_instruction")
    assert not table.has("nki.language.NkiTensor.no_such_view")
    assert "| missing |" in table._row("nki.isa.no_such_instruction")


def test_functions_take_the_documented_parameters(table: ModuleType) -> None:
    wrong = {}
    for name, parameters in table.documented().items():
        if parameters is None:
            continue
        accepted = [p for p in table.accepted(name) if p != "self"]
        if tuple(accepted[: len(parameters)]) != parameters:
            wrong[name] = (accepted, parameters)
    assert wrong == {}


def test_generations_are_read_off_the_instructions(table: ModuleType) -> None:
    expected = {"activate2": 4, "core_barrier": 3, "quantize_mx": 4, "tensor_copy": 2, "topk": 2}
    found = {name: table.first_generation(f"nki.isa.{name}") for name in expected}
    assert found == expected
    assert table.first_generation("nki.language.abs_max") == 4
    assert table.first_generation("nki.language.sbuf") is None


@pytest.mark.parametrize(
    "name",
    ["nki.isa.constants.dge_mode", "nki.dtype.bfloat16", "nki.typing.tensor", "nki.language.range",
     "nki.language.bool", "neuronxcc.nki.typing.mutable_tensor"],
)  # fmt: skip
def test_undocumented_names_of_public_kernels(table: ModuleType, name: str) -> None:
    assert table.has(name)


def test_functions_have_a_signature_and_a_line(table: ModuleType) -> None:
    named = [name for name in table.public_names() if table.signature(name)]
    assert len(named) > 150
    assert [name for name in named if not table.summary(name)] == []
    row = table._row("nki.isa.tensor_reduce")
    assert "tensor_reduce(dst, op, data, axis" in row
    assert "VectorE" in table.summary("nki.language.add")
    assert table.signature("nki.language.sbuf") == ""
