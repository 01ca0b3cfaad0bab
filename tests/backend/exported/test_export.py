"""What a loaded model does: values, buffers, containers, constants; and what is not exported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trnx
from trnx.backend.exported import load as load_module
from trnx.errors import ExportError, FolderVersionError, InputChangedError
from trnx.nki_kernels import registry


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _loaded(
    function: Callable[..., Any], args: tuple[Any, ...], folder: Path, **kwargs: Any
) -> Any:
    trnx.export(_Function(function), args, folder, kwargs=kwargs)
    return trnx.load(folder, runner="simulator")


def _assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert found.stride() == expected.stride()


def test_buffers_are_kept_from_call_to_call(exported: Path, small: nn.Module) -> None:
    model = trnx.load(exported, runner="simulator")
    for _ in range(3):
        x = torch.randn(16, 64)
        with torch.no_grad():
            found, expected = model(x), small(x)
        assert found["calls"] == expected["calls"]
        for one, other in zip(found["y"], expected["y"], strict=True):
            _assert_same(one, other)
    assert trnx.load(exported, runner="simulator")(x)["calls"] == 2


@pytest.mark.parametrize("rows", [1, 127, 128, 129])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ragged_edges(rows: int, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 65).to(dtype)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) + torch.relu(x)

    found = _loaded(function, (x,), tmp_path / "f")(x)
    assert found.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, function(x), rtol=tolerance, atol=tolerance)


def test_strides_nan_and_views(tmp_path: Path) -> None:
    x = torch.randn(8, 16).t()
    x[0, 0] = float("nan")
    x[1, 1] = float("inf")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.exp() * 2.0, x[1:], x, torch.full((2,), float("-inf"))

    model = _loaded(function, (x,), tmp_path / "f")
    found, expected = model(x), function(x)
    assert isinstance(found, tuple)
    for one, other in zip(found, expected, strict=True):
        _assert_same(one, other)
    assert found[2].data_ptr() == x.data_ptr()
    assert found[1].data_ptr() == expected[1].data_ptr()
    with pytest.raises(InputChangedError, match="compiled for"):
        model(torch.randn(17, 8))


def test_no_elements(tmp_path: Path) -> None:
    x = torch.empty(0, 4)
    found = _loaded(lambda x: (x.tanh(), x.sum()), (x,), tmp_path / "f")(x)
    assert found[0].shape == (0, 4)
    assert found[1] == 0


def test_arguments_are_written_to(tmp_path: Path) -> None:
    def function(input: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        cache[0].add_(input)
        return cache[0] * 2

    cache = [torch.zeros(4)]
    model = _loaded(function, (torch.ones(4), [torch.zeros(4)]), tmp_path / "f")
    assert model(torch.ones(4), cache).tolist() == [2.0] * 4
    assert cache[0].tolist() == [1.0] * 4


def test_numbers_and_names_are_constants(tmp_path: Path) -> None:
    def function(x: torch.Tensor, n: int, *, flip: bool, names: dict[str, Any]) -> Any:
        return {"x": -x * n if flip else x * n, "n": n, "none": None, **names}

    given = {"flip": True, "names": {"a": 0.5, "b": torch.ones(2)}}
    model = _loaded(function, (torch.ones(3), 2), tmp_path / "f", **given)
    found = model(torch.ones(3), 2, **given)
    assert found["x"].tolist() == [-2.0] * 3
    assert (found["n"], found["none"], found["a"]) == (2, None, 0.5)
    for args, kwargs, what in [
        ((torch.ones(3), 3), given, "exported for 2"),
        ((torch.ones(3), 2.0), given, "exported for 2"),
        ((1, 2), given, "was a tensor"),
        ((torch.ones(3),), given, "must be a tuple of 2"),
        ((torch.ones(3), 2), {"flip": True}, "must be a dictionary"),
    ]:
        with pytest.raises(InputChangedError, match=what):
            model(*args, **kwargs)


def test_mappings_come_back_as_dictionaries(tmp_path: Path) -> None:
    x = torch.ones(3)
    found = _loaded(lambda x: OrderedDict(a=[x + 1], b=x), (x,), tmp_path / "f")(x)
    assert type(found) is dict
    assert type(found["a"]) is list


def test_a_compiled_model_is_exported_with_its_options(small: nn.Module, tmp_path: Path) -> None:
    compiled = torch.compile(small, backend="trnx", options={"target": "trn1"})
    written = trnx.export(compiled, (torch.randn(4, 64),), tmp_path / "f")
    assert written.manifest.target == "trn1"
    trnx.load(tmp_path / "f", runner="reference")
    assert trnx.report.last().target == "trn1"  # type: ignore[union-attr]


def test_stablehlo(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs the extra xla")
    whole = (exported / "stablehlo" / "model.mlir").read_text()
    assert "stablehlo.dot_general" in whole
    assert "tensor<16x64xf32>" in whole
    x = torch.rand(4, 4) + 2.0
    written = trnx.export(_Function(lambda x: torch.tan(x)), (x,), tmp_path / "f")
    (region,) = (step for step in written.manifest.steps if isinstance(step, dict))
    assert region["engine"] == "xla"
    assert "func.func public @main" in (tmp_path / "f" / region["stablehlo"]).read_text()
    found = trnx.load(tmp_path / "f", runner="simulator")(x)
    torch.testing.assert_close(found, torch.tan(x))


def test_without_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where XLA does not take a region, the manifest says so; where JAX is missing when the folder
    is loaded, eager runs it and the ledger says so."""
    x = torch.rand(4, 4) + 2.0
    trnx.export(_Function(lambda x: torch.tan(x)), (x,), tmp_path / "f")
    monkeypatch.setattr(load_module, "jax_missing", lambda: "JAX is not installed")
    found = trnx.load(tmp_path / "f", runner="simulator")(x)
    torch.testing.assert_close(found, torch.tan(x))
    report = trnx.report.last()
    assert report is not None
    assert [region.engine for region in report.regions] == ["eager"]
    assert "JAX is not installed" in {entry.reason for entry in report.fallbacks}
    monkeypatch.setattr("trnx.fallback.xla.jax_missing", lambda: "JAX is not installed")
    written = trnx.export(_Function(lambda x: torch.tan(x)), (x,), tmp_path / "g")
    (region,) = (step for step in written.manifest.steps if isinstance(step, dict))
    assert "JAX is not installed" in region["reason"]
    assert "stablehlo" not in region
    assert "JAX is not installed" in str(written)


KERNEL = """
import nki, nki.isa as nisa, nki.language as nl
import torch, trnx
from trnx.nki_kernels.spec import Cost, KernelSpec, Pattern, Sample

def pattern(x: torch.Tensor):
    return torch.ops.aten.erfinv.default(x)

@nki.jit
def users_kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out

trnx.register_kernel(KernelSpec(
    "users_kernel", (Pattern(pattern),), lambda b, hw: None, lambda x: x * 2,
    lambda b: Cost(hbm_bytes=2 * b.x.nbytes), lambda generator: [Sample({"x": torch.ones(2, 2)})],
    users_kernel,
))
"""


def test_users_kernels(tmp_path: Path) -> None:
    """A folder names a user's kernel; who loads it has to have loaded the same one."""
    file = tmp_path / "own.py"
    file.write_text(KERNEL)
    trnx.load_kernels(file)
    x = torch.ones(4, 8)
    try:
        trnx.export(_Function(torch.erfinv), (x,), tmp_path / "f", options={"select": "legal"})
        found = trnx.load(tmp_path / "f", runner="simulator")(x)
        assert found.tolist() == [[2.0] * 8] * 4
        file.write_text(KERNEL + "# changed\n")
        trnx.load_kernels(file)
        with pytest.raises(FolderVersionError, match=r"differs in sources/user/own\.py"):
            trnx.load(tmp_path / "f", runner="simulator")
    finally:
        registry.kernels().replace(file.resolve(), [])
    with pytest.raises(FolderVersionError, match=r"no kernel 'users_kernel' .*load_kernels"):
        trnx.load(tmp_path / "f", runner="simulator")


@pytest.mark.parametrize(
    ("model", "args", "what"),
    [
        (torch.relu, (torch.ones(2),), "takes a torch.nn.Module"),
        (_Function(lambda x: x.nonzero()), (torch.ones(2),), "export for fixed sizes"),
        (_Function(lambda x: x * 2 if x.sum() > 0 else x), (torch.ones(2),), "does not take"),
        (
            _Function(lambda x: x.conj() * 2),
            (torch.ones(2, dtype=torch.complex64),),
            "resolve_conj",
        ),
        (_Function(lambda x: x[0]), (({1: torch.ones(2)},),), "keys are not strings"),
        (_Function(lambda x: x), (torch.ones(2, device="meta"),), "export from host memory"),
    ],
)
def test_refused(model: Any, args: tuple[Any, ...], what: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=what):
        trnx.export(model, args, tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there(small: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ExportError, match="there already"):
        trnx.export(small, (torch.randn(4, 64),), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_command(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Linear(64, 64).eval(), (torch.ones(2, 64),)\n"
    )
    command = [sys.executable, "-m", "trnx.cli", "export", f"{example}:make", str(tmp_path / "f")]
    done = subprocess.run(
        [*command, "--target", "trn1", "--json"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["target"], [r["kernel"] for r in found["regions"]]) == ("trn1", ["linear"])
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (again.returncode, "ExportError" in again.stderr) == (1, True)
