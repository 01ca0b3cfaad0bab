"""`scripts/coverage.py`: what it counts, its suites, and the page that it writes."""

from __future__ import annotations

import importlib.util
import mmap
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
# The script has imported no JAX where it forks; another test may have, in this process.
FORKS = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
PAGE = (ROOT / "docs" / "coverage.md").read_text()


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """The script under another name: the tests' tools have a package of its name."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location("_coverage_script", SCRIPTS / "coverage.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


def small(coverage: ModuleType, model: Any) -> Any:
    """A case of a model that takes [3, 8]."""
    built = sys.modules["suites.case"].Built
    return coverage.Case("small", lambda train: built(model.train(train), (torch.randn(3, 8),)))


@pytest.mark.parametrize("section", ["## Models", "### Training"])
def test_the_page_has_a_row_for_every_model(coverage: ModuleType, section: str) -> None:
    (text,) = re.findall(rf"^{section}\n(.*?)^##", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE)
    found = [(name, cells.split(" | ")) for name, cells in rows if name in names(coverage)]
    assert [name for name, _ in found] == names(coverage)
    for name, cells in found:
        assert len(cells) == 4, name
        assert all(re.fullmatch(r"\d+ %|-", cell) for cell in cells[:3]), name
        assert re.fullmatch(r"-|(`[\w.:]+`(, )?)+", cells[3]), name


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("## Models", r"on NKI in (\d+), (\d+) and (\d+) of the 39 models"),
        ("### Training", r"forward and\s+backward, in (\d+), (\d+) and (\d+)"),
    ],
)
def test_the_page_counts_the_models_of_its_table(section: str, sentence: str) -> None:
    (text,) = re.findall(rf"^{section}\n(.*?)^##", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| \w+ \| (\d+) % \| (\d+) % \| (\d+) % \|", text, re.MULTILINE)
    counts = [
        sum(int(share) >= bar for share in column)
        for column, bar in zip(zip(*rows, strict=True), (95, 90, 90), strict=True)
    ]
    (said,) = re.findall(sentence, PAGE)
    assert [int(count) for count in said] == counts


def names(coverage: ModuleType) -> list[str]:
    return [case.name for case in coverage.hugging_face.cases()]


def test_the_suite_has_39_models(coverage: ModuleType) -> None:
    assert len(set(names(coverage))) == 39


def test_the_ops_that_the_page_names_exist(coverage: ModuleType) -> None:
    found = coverage.documented()
    assert len(found) > 10
    assert [op for op in found if not hasattr(torch.ops.aten, op)] == []


@pytest.mark.parametrize("train", [False, True])
def test_a_model_is_counted(coverage: ModuleType, train: bool) -> None:
    outcome = coverage.measure(small(coverage, torch.nn.Linear(8, 4)), train)
    assert outcome.flops == outcome.bytes == outcome.nodes == 1.0
    assert outcome.ops == {}
    assert outcome.predicted_seconds > 0


def test_what_is_off_nki_is_counted_by_op(coverage: ModuleType) -> None:
    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.double().relu().float().relu()

    outcome = coverage.measure(small(coverage, Wide()), False)
    assert outcome.nodes is not None
    assert outcome.nodes < 1
    relu = outcome.ops["aten.relu.default"]
    assert relu.bytes == 2 * 8 * 24
    assert relu.seconds > 0
    assert "float64" in relu.reason


@FORKS
def test_a_model_that_fails_is_listed(coverage: ModuleType) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    outcome = coverage.run(small(coverage, Broken()), False, 100, 8)
    assert outcome.name == "small"
    assert "RuntimeError" in outcome.error
    assert outcome.reaches() == (False, False, False)


@FORKS
def test_outcomes_are_kept(coverage: ModuleType, tmp_path: Path) -> None:
    arguments = coverage.argparse.Namespace(
        train=False, results=tmp_path / "results", seconds=100, gigabytes=8
    )
    case = small(coverage, torch.nn.Linear(8, 4))
    (first,) = coverage.run_all([case], arguments)
    broken = coverage.Case("small", lambda _: 1 / 0)
    (again,) = coverage.run_all([broken], arguments)
    assert again == first
    assert not first.error


@FORKS
def test_the_limit_of_memory_is_beside_what_the_process_has(coverage: ModuleType) -> None:
    with mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE):  # nothing of it is touched
        assert coverage.run_apart(lambda: len(bytearray(1 << 20)), 100, 1) == (1 << 20, "")
        assert coverage.run_apart(lambda: len(bytearray(2 << 30)), 100, 1)[1] == "MemoryError:"


def test_bars(coverage: ModuleType) -> None:
    good = [coverage.Outcome(str(i), False, 1.0, 1.0, 1.0) for i in range(39)]
    assert coverage.bars_hold(good, "models", False)
    few = [*good[:38], coverage.Outcome("x", False, 0.94, 1.0, 1.0)]
    assert not coverage.bars_hold(few, "models", False)
    op = coverage.Op(1, 8, 1e-6, "aten.foo.default has no rule for generated kernels")
    missing = [
        *good[:38],
        coverage.Outcome("x", False, 1.0, 1.0, 1.0, ops={"aten.foo.default": op}),
    ]
    assert coverage.without_kernel(missing) == ["aten.foo.default"]
    assert not coverage.bars_hold(missing, "models", False)


PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, in_channels, pair):
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels, pair[0], 1)
    def forward(self, x):
        return self.conv(x)
batch_size = 128
in_channels = 3
height = width = 512
kernel_shape = (4096, 8)
def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]
def get_init_inputs():
    return [in_channels, kernel_shape]
"""


ROWS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return x * y
batch_size = 32768
input_shape = (4096,)
def get_inputs():
    return [torch.rand(batch_size, *input_shape), torch.rand(input_shape)]
def get_init_inputs():
    return []
"""


def test_a_batch_of_rows_is_larger(coverage: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    (folder / "1_rows.py").write_text(ROWS)
    for small, shape in ((False, (1024, 1024)), (True, (16, 128))):
        (case,) = coverage.kernelbench.cases(tmp_path, small=small)
        assert case.build(False).args[0].shape == shape


def test_problems_are_cut_to_sizes_that_run(coverage: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    (folder / "12_conv.py").write_text(PROBLEM)
    (folder / "2_conv.py").write_text(PROBLEM)
    cases = coverage.kernelbench.cases(tmp_path)
    assert [case.name for case in cases] == ["level1/2_conv", "level1/12_conv"]
    built = cases[0].build(False)
    assert built.args[0].shape == (4, 3, 64, 64)
    assert built.model.conv.weight.shape == (1024, 3, 1, 1)
    assert not built.model.training
