"""`trnx.bisect` and the option `check`: the wrong region is named, and its program fails alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trnx
from trnx.backend.errors import OptionError, RegionDiffersError, ReproError
from trnx.backend.options import make_options
from trnx.backend.region_check import Tolerance
from trnx.nki_kernels import registry

# For erfinv, which no hand-written kernel of trnx takes: tanh in its place.
WRONG = """
import nki, nki.isa as nisa, nki.language as nl
import torch, trnx
from trnx.nki_kernels.spec import Cost, KernelSpec, Pattern, Sample
aten = torch.ops.aten

@nki.jit
def wrong(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.activation(dst=tile, op=nl.tanh, data=tile)
    nisa.dma_copy(dst=out, src=tile)
    return out

def samples(generator):
    yield Sample({"x": torch.randn(4, 8, generator=generator)})

trnx.register_kernel(KernelSpec(
    "wrong", (Pattern(lambda x: aten.erfinv.default(x)),), lambda b, hw: None,
    lambda x: torch.erfinv(x), lambda b: Cost(hbm_bytes=2 * b.x.nbytes), samples, wrong))
"""


class Block(nn.Module):
    """Linear, norm and an op in the middle."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.norm = nn.LayerNorm(32)
        self.last = nn.Linear(32, 8)
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.norm(self.first(x))))


def _erfinv(x: torch.Tensor) -> torch.Tensor:
    return torch.erfinv(x / 8)


MODELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "alone": _erfinv,
    "before a product": lambda x: _erfinv(x) @ torch.ones(32, 32),
    "after a softmax": lambda x: torch.erfinv(torch.softmax(x, -1) * 0.5),
    "between pointwise ops": lambda x: torch.tanh(_erfinv(x.sigmoid())) * 2,
    "before a norm": lambda x: F.layer_norm(_erfinv(x), (32,)),
    "of a view": lambda x: _erfinv(x.reshape(-1, 64)).reshape(x.shape),
    "of a transposed tensor": lambda x: _erfinv(x.t().contiguous()).t(),
    "before a reduction": lambda x: _erfinv(x) - _erfinv(x).mean(-1, keepdim=True),
    "before XLA": lambda x: _erfinv(x).cumsum(-1),
    "twice": lambda x: _erfinv(_erfinv(x).tanh()),
}


@pytest.fixture
def wrong_kernel(tmp_path: Path) -> Iterator[Path]:
    """A kernel that gives wrong values, registered from a file."""
    path = (tmp_path / "wrong.py").resolve()
    path.write_text(WRONG)
    torch._dynamo.reset()
    trnx.load_kernels(path)
    yield path
    registry._registry.replace(path, ())
    registry._loaded.pop(path, None)
    torch._dynamo.reset()


def _x() -> torch.Tensor:
    return torch.randn(6, 24, generator=torch.Generator().manual_seed(0))


def _runs_alone(folder: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(folder / "repro.py")]
    return subprocess.run(program, capture_output=True, text=True, check=False, cwd=folder.parent)


@pytest.mark.parametrize("name", MODELS)
def test_the_wrong_region_is_the_first_to_differ(
    name: str, wrong_kernel: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "programs"
    with torch.no_grad():
        found = trnx.bisect(Block(MODELS[name]), _x(), folder=folder, options={"select": "legal"})

    assert found.first is not None
    assert found.first.kernel == "wrong"
    assert {one.kernel for one in found.differences} == {"wrong"}
    assert "test_bisect.py" in found.first.source
    assert found.whole_call is not None
    assert found.whole_call > 1e-3
    program = found.programs[0]
    assert (program / wrong_kernel.name).read_text() == WRONG
    assert "nisa.activation" in (program / "kernel_source.txt").read_text()
    assert json.loads(json.dumps(found.to_dict()))["differences"][0]["kernel"] == "wrong"


@pytest.mark.parametrize("name", ["of a view", pytest.param("twice", marks=pytest.mark.slow)])
def test_the_program_of_a_region_fails_alone(name: str, wrong_kernel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    with torch.no_grad():
        found = trnx.bisect(Block(MODELS[name]), _x(), folder=folder, options={"select": "legal"})
    wrong_kernel.unlink()

    done = _runs_alone(found.programs[0])

    assert done.returncode == 1, done.stderr
    assert "first to differ" in done.stdout
    assert "wrong" in done.stdout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_model_and_its_gradients_do_not_differ(dtype: torch.dtype) -> None:
    model = Block(F.gelu).to(dtype)
    buffers = [p.detach().clone() for p in model.parameters()]
    x = _x().to(dtype).requires_grad_()

    found = trnx.bisect(model, x, options={"select": "legal"})

    assert found.differences == ()
    assert found.compared >= 4
    assert x.grad is None
    for before, after in zip(buffers, model.parameters(), strict=True):
        assert torch.equal(before, after)
        assert after.grad is None


def test_what_is_not_compared_is_listed() -> None:
    found = trnx.bisect(lambda x: torch.sort(torch.dropout(x, 0.5, True) @ x.t())[0], _x())

    assert found.skipped
    assert all(reason for reason in found.skipped.values())
    assert found.differences == ()


def test_the_option_raises_where_a_region_differs(wrong_kernel: Path) -> None:
    for reference in ("eager", "float64"):
        torch._dynamo.reset()
        options = {"select": "legal", "check": reference}
        compiled = torch.compile(Block(_erfinv), backend="trnx", options=options)
        with torch.no_grad(), pytest.raises(RegionDiffersError, match=r"wrong.*test_bisect\.py"):
            compiled(_x())
    wrong_kernel.touch()


def test_the_option_leaves_right_values_alone() -> None:
    model = Block(F.silu)
    compiled = torch.compile(model, backend="trnx", options={"check": "eager"})
    torch.testing.assert_close(compiled(_x()), model(_x()), rtol=1e-5, atol=1e-5)


def test_the_option_compares_in_host_memory() -> None:
    assert make_options({"check": "eager"}).runner == "simulator"
    assert make_options({"check": "eager", "runner": "reference"}).runner == "reference"
    with pytest.raises(OptionError, match="host memory"):
        make_options({"check": "eager", "runner": "neuron"})


def test_a_folder_that_holds_something_is_refused_before_the_run(tmp_path: Path) -> None:
    calls: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + 1

    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "file"):
        with pytest.raises(ReproError, match="not an empty folder"):
            trnx.bisect(function, _x(), folder=folder)
    assert calls == []
    assert (tmp_path / "file").read_text() == "mine"


def test_a_script_is_bisected(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "script.py").write_text(
        "import torch, trnx\n"
        "trnx.load_kernels('wrong.py')\n"
        "f = torch.compile(lambda x: torch.erfinv(x / 8), backend='trnx',\n"
        "                  options={'select': 'legal'})\n"
        "f(torch.randn(4, 8))\n"
    )
    command = [sys.executable, "-m", "trnx.cli", "bisect", "--json", "script.py"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [one["kernel"] for one in found["differences"]] == ["wrong"]
    assert found["differences"][0]["source"].startswith("script.py:3")
    assert (tmp_path / "trnx_bisect").is_dir()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "expected", "differs"),
    [
        ([1.0, 2.0], [1.0, 2.00001], 0),
        ([1.0, 2.0], [1.0, 2.1], 1),
        ([NAN, INF], [NAN, INF], 0),
        ([NAN, 1.0], [1.0, 1.0], 1),
        ([1.0, 1.0], [NAN, 1.0], 1),
        ([INF, 1.0], [-INF, 1.0], 1),
        ([1e30, 1.0], [INF, 1.0], 1),
        ([0.0, 1.0], [1e-7, 1.0], 0),
        ([], [], 0),
    ],
)
def test_what_differs(found: list[float], expected: list[float], differs: int) -> None:
    excess = Tolerance().exceeded(torch.tensor(found), torch.tensor(expected))
    assert (excess.elements if excess else 0) == differs


def test_integers_have_to_be_equal_and_shapes_too() -> None:
    ones = torch.ones(2, 3, dtype=torch.int64)
    assert Tolerance().exceeded(ones, ones) is None
    assert Tolerance(rtol=1.0).exceeded(ones, ones + 1) is not None
    excess: Any = Tolerance().exceeded(ones, ones[0])
    assert "shape" in excess.text


def test_regions_have_their_names_in_the_profiler() -> None:
    compiled = torch.compile(Block(F.relu), backend="trnx", options={"select": "legal"})
    compiled(_x())
    with torch.profiler.profile() as profile:
        compiled(_x())
    names = [event.name for event in profile.events() if event.name.startswith("trnx::")]
    assert any("linear" in name for name in names)
