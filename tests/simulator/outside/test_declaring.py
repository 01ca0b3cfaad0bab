"""Instructions and operators of one file outside of trnx are like those within."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.costs.constants import timing
from trnx.simulator.errors import IllegalInstructionError, TrnxError, UninitialisedReadError
from trnx.simulator.frontend.nki_modules import nki_modules
from trnx.simulator.hardware import TRN2
from trnx.simulator.isa.instruction import INSTRUCTIONS, SPECS
from trnx.simulator.language.operators.table import OPERATORS, Operator, forget
from trnx.simulator.program.listing import listing
from trnx.simulator.timing.model import CostModel

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
X = TensorSpec.dense((128, 64), torch.float32)


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kernels() -> Iterator[ModuleType]:
    nki_modules()  # made before the instruction is declared
    _load(HERE / "cube_instruction.py")
    yield load_module(HERE / "outside_kernels.py")
    for table in (INSTRUCTIONS, SPECS, vars(nki_modules()["nki.isa"])):
        table.pop("cube", None)


def test_it_has_values(kernels: ModuleType) -> None:
    x = torch.randn(128, 64)
    torch.testing.assert_close(simulate(kernels.cubes)(x), x**3)
    program = trace(kernels.cubes, [X])
    torch.testing.assert_close(program.run([x])[0], x**3)


def test_its_declaration_is_checked(kernels: ModuleType) -> None:
    with pytest.raises(IllegalInstructionError, match="cube: needs trn2"):
        trace(kernels.cubes, [X], target="trn1")
    with pytest.raises(IllegalInstructionError, match="choose one of vector, gpsimd"):
        trace(kernels.cubes_on_scalar, [X])
    with pytest.raises(TrnxError, match="two instructions are named 'cube'"):
        _load(HERE / "cube_instruction.py")


def test_it_hands_on_what_is_missing(kernels: ModuleType) -> None:
    x = torch.randn(128, 64)
    torch.testing.assert_close(simulate(kernels.cubes_a_half)(x), x**3)
    with pytest.raises(UninitialisedReadError, match="cube: data") as caught:
        trace(kernels.returns_what_is_missing, [X])
    lines = (HERE / "outside_kernels.py").read_text().splitlines()
    assert caught.value.location is not None
    assert lines[caught.value.location.line - 1].endswith("# the finding is here")


def test_it_has_a_cost_and_is_listed(kernels: ModuleType) -> None:
    program = trace(kernels.cubes, [X])
    cost = CostModel(TRN2, program.rows).of(1)
    cycles = 5 * 64 + timing(TRN2).vector_issue_cycles
    assert cost.interval == round(cycles * 1e12 / TRN2.vector_clock)
    assert any("opcode='cube', engine='vector'" in line for line in listing(program))


@pytest.mark.usefixtures("kernels")
def test_it_is_in_the_table_of_the_api() -> None:
    table = _load(ROOT / "scripts" / "generate_api_table.py")
    assert "* `nki.isa.cube`\n" in table.render()
    assert table.first_generation("nki.isa.cube") == 3


@pytest.fixture
def operators() -> Iterator[ModuleType]:
    nki_modules()
    _load(HERE / "clip_operator.py")
    yield load_module(HERE / "outside_kernels.py")
    for name in ("clip", "hypot"):
        forget(OPERATORS[name])
        del vars(nki_modules()["nki.language"])[name]


def test_an_operator_works_wherever_operators_do(operators: ModuleType) -> None:
    x, y = torch.randn(128, 64) * 2, torch.randn(128, 64)
    *clipped, lengths, norms = simulate(operators.clips_on_three_ways)(x, y)
    for one in clipped:
        assert torch.equal(one, x.clamp(-1, 1))
    torch.testing.assert_close(lengths, torch.hypot(x, y))
    torch.testing.assert_close(norms, x.norm(dim=1, keepdim=True))


@pytest.mark.usefixtures("operators")
def test_an_operator_has_one_declaration() -> None:
    with pytest.raises(ValueError, match="two operators are named 'clip'"):
        _load(HERE / "clip_operator.py")
    table = _load(ROOT / "scripts" / "generate_api_table.py")
    assert "* `nki.language.clip`\n" in table.render()


def test_an_operator_declared_without_a_function_says_so() -> None:
    op = Operator("nameless", is_alu=True)
    assert not op.is_on_tiles
    with pytest.raises(IllegalInstructionError, match="declare it with function="):
        op.function(torch.ones(1), torch.ones(1), out=torch.ones(1))
