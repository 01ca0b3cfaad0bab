"""scripts/device/collect.py with stand-ins for AWS's packages."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "device"


@pytest.fixture
def collect(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("collect", "probes")
    for name in names:
        sys.modules.pop(name, None)
    yield importlib.import_module("collect")
    for name in names:
        sys.modules.pop(name, None)


class _Model:
    """Answers like nrtpy.NrtpyModel: 10 us, and 100 ns for each instruction."""

    def __init__(self, neff: Path) -> None:
        self._instructions = int(neff.read_text())
        self.input_tensors_info = {"x": None, "y": None} if "two" in neff.name else {"x": None}

    @classmethod
    def load_from_neff(cls, neff: Path) -> _Model:
        return cls(neff)

    def benchmark(self, inputs: dict[str, object], **how: object) -> SimpleNamespace:
        assert how["mode"] == "device"
        assert set(inputs) == set(self.input_tensors_info)
        return SimpleNamespace(min_ms=0.010 + self._instructions * 100e-6)


@pytest.fixture
def nrtpy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("nrtpy")
    module.NrtpyModel = _Model  # type: ignore[attr-defined]
    module.NrtpyTensor = SimpleNamespace(  # type: ignore[attr-defined]
        from_numpy=lambda array, name: (name, array.shape)
    )
    monkeypatch.setitem(sys.modules, "nrtpy", module)


def _neffs(collect: ModuleType, folder: Path) -> None:
    for index, probe in enumerate(collect.PROBES):
        for factor in (1, 2):
            own = folder / f"{index}x{factor}"
            own.mkdir(parents=True)
            name = "two.neff" if len(probe.tensors) == 2 else "one.neff"
            (own / name).write_text(str(probe.count * factor))


@pytest.mark.usefixtures("nrtpy")
def test_measures_differences_and_writes_the_table(
    collect: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _neffs(collect, tmp_path / "neffs")
    times = tmp_path / "times.json"
    assert collect.main(["measure", str(tmp_path / "neffs"), "--out", str(times)]) == 0
    rows = json.loads(times.read_text())
    assert [row["name"] for row in rows] == [probe.name for probe in collect.PROBES]
    assert all(row["ns"] == pytest.approx(100) for row in rows)
    assert collect.main(["table", str(times), "--target", "trn2", "--json"]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    points = json.loads(printed[-1])["points"]
    assert len(points) == len(collect.PROBES)
    by_name = {point["what"]: point["predicted_ns"] for point in points}
    # A float32 product of 512 columns takes 2048 cycles of 2.4 GHz, an independent copy 343 ns.
    assert by_name["product, float32 128 x 128 by 512"] == pytest.approx(2048 / 2.4, rel=0.02)
    assert by_name["copy, float32 128 x 512, independent"] == pytest.approx(343, rel=0.02)
    assert "| D-1 | trn2 |" in printed[2]


@pytest.mark.parametrize("step", [["compile", "--out", "x"], ["measure", "x", "--out", "y"]])
def test_without_the_packages_the_error_has_a_name(
    collect: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: list[str],
) -> None:
    for name in ("nki", "nrtpy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert collect.main(step) == 1
    assert "NeuronPackagesError" in capsys.readouterr().err
    # An empty placeholder of a package index is no package.
    for name in ("nki", "nrtpy"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(collect.NeuronPackagesError, match="needs AWS's package"):
        collect._package("nki", "compile")


def test_a_missing_neff_is_named(collect: ModuleType, nrtpy: None, tmp_path: Path) -> None:
    assert nrtpy is None
    with pytest.raises(FileNotFoundError, match=r"run collect\.py compile"):
        collect.measure(tmp_path)


def test_compiles_by_calling_the_kernel(
    collect: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    fake = ModuleType("nki")
    fake.jit = lambda function: function  # type: ignore[attr-defined]
    kernels = ModuleType("kernels")
    for name in ("repeat", "products"):
        setattr(kernels, name, lambda *arguments, name=name: called.append((name, arguments)))
    monkeypatch.setitem(sys.modules, "nki", fake)
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    last = len(collect.PROBES) - 1
    collect.compile_one(0, 2)
    collect.compile_one(last, 1)
    assert [name for name, _ in called] == ["repeat", "products"]
    (x, kind, count, is_chain), (a, b, products) = (arguments for _, arguments in called)
    assert (x.shape, kind, count, is_chain) == ((128, 64), "exp", 512, False)
    assert (a.shape, b.shape, products) == ((128, 128), (128, 64), 512)
