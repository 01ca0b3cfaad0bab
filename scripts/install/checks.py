"""What an installed trnx must do: for pytest, in the environment of recipe.py, with no checkout.

scripts/test_install.sh puts beside this file a page of the docs, the examples of job files, and
`rendered/`, what the checkout makes of them. `IMAGE` names the image whose recipe was followed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGES = Path(sysconfig.get_path("purelib"))
TRNX = Path(sysconfig.get_path("scripts")) / "trnx"

KERNEL_SCRIPT = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out

x = np.arange(60, dtype=np.float32).reshape(5, 12)
assert np.array_equal(doubled(x), x * 2)
print("doubled", x.shape)
"""
MODEL = """
import torch

def chain(x, y):
    return (torch.nn.functional.gelu(x * 2 + y) * torch.sigmoid(y)).sum(-1) / 3

def example():
    generator = torch.Generator().manual_seed(0)
    return chain, tuple(torch.randn(130, 257, generator=generator) for _ in range(2))
"""
COMPILE = """
import torch, trnx
from model import chain, example

_, arguments = example()
with trnx.collect_reports() as reports:
    got = torch.compile(chain, backend="trnx", options={"select": "legal"})(*arguments)
torch.testing.assert_close(got, chain(*arguments), rtol=1e-5, atol=1e-4)
[kernel] = {region.kernel for report in reports for region in report.regions}
assert kernel.startswith("fused_"), kernel
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def python(file: Path) -> str:
    return run(sys.executable, "-W", "error", file, cwd=file.parent)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    return file


def test_every_module_has_its_place_in_site_packages() -> None:
    assert not any("editable" in repr(finder).lower() for finder in sys.meta_path)
    assert importlib.metadata.distribution("trnx").locate_file("") == PACKAGES
    found = importlib.util.find_spec("trnx")
    assert found is not None
    assert found.origin == str(PACKAGES / "trnx" / "__init__.py")
    rooms = {module.name for module in pkgutil.iter_modules(found.submodule_search_locations)}
    assert rooms >= {"backend", "eks", "fallback", "fx_passes", "jobs", "nki_kernels", "simulator"}
    for room in sorted(rooms):
        spec = importlib.util.find_spec(f"trnx.{room}")
        assert spec is not None
        assert Path(str(spec.origin)).is_relative_to(PACKAGES / "trnx")
    assert (PACKAGES / "trnx" / "py.typed").is_file()


def test_the_command_of_the_image_runs() -> None:
    name, *arguments = json.loads((HERE / os.environ["IMAGE"] / "command.json").read_text())
    out = run(Path(sysconfig.get_path("scripts")) / name, *arguments, cwd=HERE)
    assert "usage" in out.lower()


def test_demo_equals_eager(tmp_path: Path) -> None:
    result = json.loads(run(TRNX, "demo", "--json", cwd=tmp_path).splitlines()[-1])
    assert result["max_abs_diff"] < 1e-5
    assert result["ranking"] == result["ranking_eager"]
    assert result["flops_on_nki"] == 1.0


def test_sim_runs_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KERNEL_SCRIPT)
    assert run(TRNX, "sim", "script.py", cwd=tmp_path) == "doubled (5, 12)\n"
    (tmp_path / "wrong.py").write_text(KERNEL_SCRIPT.replace("x * 2", "x * 3"))
    done = subprocess.run([TRNX, "sim", "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


def test_a_kernel_of_the_users(tmp_path: Path) -> None:
    """The guide's kernel, from a file, and from an installed package with a helper module."""
    page = (HERE / "adding_a_kernel.md").read_text()
    kernel, use = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "cumulative_sum.py").write_text(kernel)
    (tmp_path / "use.py").write_text(use)
    python(tmp_path / "use.py")

    package = PACKAGES / "their_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    start, end = kernel.index("@nki.jit"), kernel.index("def pattern")
    (package / "scans.py").write_text(
        "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n" + kernel[start:end]
    )
    imported = "from their_kernels.scans import cumulative_sum\n"
    (package / "sums.py").write_text(f"{kernel[:start]}{imported}{kernel[end:]}")
    load = f"import their_kernels\ntrnx.load_kernels({str(package / 'sums.py')!r})"
    (tmp_path / "use.py").write_text(use.replace('trnx.load_kernels("cumulative_sum.py")', load))
    python(tmp_path / "use.py")


def test_generated_kernels_equal_eager(model: Path) -> None:
    file = model.with_name("compile.py")
    file.write_text(COMPILE)
    python(file)


def test_explain_says_what_goes_where(model: Path) -> None:
    command = [TRNX, "explain", "model.py:example", "--json", "--fail-under", "bytes=99"]
    found = json.loads(run(*command, cwd=model.parent))
    assert found["nodes_on_nki"] == 1.0
    model.write_text(MODEL.replace("/ 3", "/ 3 + torch.kthvalue(x[:, 0], 1)[0]"))
    found = json.loads(run(*command, cwd=model.parent))
    [region] = [r for graph in found["graphs"] for r in graph["regions"] if r["engine"] != "nki"]
    assert region["ops"] == ["aten.kthvalue.default"]
    assert region["source"] == "model.py:5 in chain"
    model.write_text(MODEL.replace("x * 2", "x.double() @ y.double().T @ x.double()"))
    done = subprocess.run(command, cwd=model.parent, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["flops_on_nki"] == 0.0


def test_profile_predicts_a_script(model: Path) -> None:
    file = model.with_name("compile.py")
    file.write_text(COMPILE)
    [target] = json.loads(run(TRNX, "profile", "--json", file, cwd=file.parent))["targets"]
    assert target["target"] == "trn2"
    assert target["total_seconds"] > target["seconds"]["nki"] > 0
    assert any(region["kernel"].startswith("fused_") for region in target["regions"])


@pytest.mark.parametrize("job", ["kernel", "serve", "train", "train-trainjob", "warm-cache"])
def test_eks_renders_an_example(job: str, tmp_path: Path) -> None:
    example = HERE / "examples" / f"{job}.yaml"
    rendered = run(TRNX, "eks", "render", example, cwd=tmp_path)
    assert rendered == (HERE / "rendered" / f"{job}.yaml").read_text()
    assert "manifests hold" in run(TRNX, "eks", "validate", example, cwd=tmp_path)
