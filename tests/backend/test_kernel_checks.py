"""`trnx check`: ten kernels with one mistake each are found and named; a right one passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trnx.backend.kernel_checks.engine import TARGETS, check_file
from trnx.backend.kernel_checks.report import CHECKS, CheckReport
from trnx.cli import app
from trnx.nki_kernels import registry
from trnx.nki_kernels.errors import KernelCheckError

# x / (2 * sqrt(mean(x^2) + eps)) * weight + bias over the last axis, right.
NORM = """
import nki, nki.isa as nisa, nki.language as nl
import torch, trnx
from trnx.nki_kernels.spec import Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
aten = torch.ops.aten

@nki.jit
def norm(x, weight, bias, eps):
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scale = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
    shift = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
    epsilon = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale, src=weight.ap(pattern=[[0, 128], [1, columns]]))
    nisa.dma_copy(dst=shift, src=bias.ap(pattern=[[0, 128], [1, columns]]))
    nisa.memset(dst=epsilon, value=eps)
    for start in range(0, rows, 128):
        count = min(128, rows - start)
        tile = nl.ndarray((count, columns), dtype=x.dtype, buffer=nl.sbuf)
        work = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        rstd = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + count, :])
        nisa.tensor_tensor(dst=work, data1=tile, data2=tile, op=nl.multiply)
        nisa.tensor_reduce(dst=total, op=nl.add, data=work, axis=(1,))
        nisa.activation(
            dst=rstd, op=nl.rsqrt, data=total, scale=1.0 / columns, bias=epsilon[0:count]
        )
        nisa.tensor_scalar(
            dst=work, data=tile, op0=nl.multiply, operand0=rstd, op1=nl.multiply, operand1=0.5
        )
        nisa.tensor_tensor(dst=work, data1=work, data2=scale[0:count], op=nl.multiply)
        nisa.tensor_tensor(dst=tile, data1=work, data2=shift[0:count], op=nl.add)
        nisa.dma_copy(dst=out[start : start + count, :], src=tile)
    return out

def pattern(x, weight, bias, eps: float):
    mean = aten.mean.dim(aten.mul.Tensor(x, x), [1], True)
    half = aten.mul.Tensor(aten.rsqrt.default(aten.add.Tensor(mean, eps)), 0.5)
    scaled = aten.mul.Tensor(x, half)
    return aten.add.Tensor(aten.mul.Tensor(scaled, weight), bias)

def supports(b, hw):
    for name in ("x", "weight", "bias"):
        if b[name].dtype is not torch.float32:
            return Reject(f"dtype {b[name].dtype} of {name} is not float32")
    if b.x.ndim != 2 or b.weight.shape != b.x.shape[1:] or b.bias.shape != b.x.shape[1:]:
        return Reject(f"x{b.x.shape} is no matrix with a weight and a bias for each column")
    if b.x.shape[1] > 4096:
        return Reject(f"{b.x.shape[1]} columns are more than 4096")
    return None

def reference(x, weight, bias, eps):
    return x * (torch.rsqrt((x * x).mean(1, keepdim=True) + eps) * 0.5) * weight + bias

def cost(b):
    return Cost(vector_flops=6 * b.x.numel, hbm_bytes=2 * b.x.nbytes)

def samples(generator):
    for rows, columns in ((128, 60), (256, 70)):
        x = torch.randn(rows, columns, generator=generator)
        weight, bias = torch.randn(2, columns, generator=generator)
        yield Sample({"x": x, "weight": weight, "bias": bias, "eps": 1e-5}, f"{rows} rows")

trnx.register_kernel(
    KernelSpec("seeded_norm", (Pattern(pattern),), supports, reference, cost, samples, norm)
)
"""

# Running sums of x over a dim, which is the last one in the kernel, right.
SUMS = """
import nki, nki.isa as nisa, nki.language as nl
import torch, trnx
from trnx.nki_kernels.spec import Cost, KernelSpec, Pattern, Sample
from trnx.simulator.errors import Reject
aten = torch.ops.aten

@nki.jit
def sums(x, dim):
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        count = min(128, rows - start)
        ones = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
        tile = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
        found = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ones, value=1.0)
        nisa.dma_copy(dst=tile, src=x[start : start + count, :])
        nisa.tensor_tensor_scan(
            dst=found, data0=ones, data1=tile, initial=0.0, op0=nl.multiply, op1=nl.add
        )
        nisa.dma_copy(dst=out[start : start + count, :], src=found)
    return out

def pattern(x, dim: int):
    return aten.cumsum.default(x, dim)

def supports(b, hw):
    if b.x.dtype not in (torch.float32, torch.bfloat16):
        return Reject(f"dtype {b.x.dtype} is not float32 or bfloat16")
    if b.x.ndim != 2 or b.x.shape[1] > 4096:
        return Reject(f"x{b.x.shape} is no matrix of at most 4096 columns")
    if b.dim != 1:
        return Reject(f"dim {b.dim} is not the last")
    return None

def reference(x, dim):
    return torch.cumsum(x.float(), dim).to(x.dtype)

def cost(b):
    return Cost(vector_flops=2 * b.x.numel, hbm_bytes=2 * b.x.nbytes)

def samples(generator):
    for columns in (40, 64):
        x = torch.randn(128, columns, generator=generator)
        yield Sample({"x": x, "dim": 1}, f"{columns} columns", 2e-5)

trnx.register_kernel(
    KernelSpec("seeded_sums", (Pattern(pattern),), supports, reference, cost, samples, sums)
)
"""

Check = Callable[..., CheckReport]

# Mistake -> the right file, what is wrong in it, the check and words of its message, its targets.
SEEDED = {
    "epsilon": (
        NORM, [("value=eps", "value=1e-5")], "numbers", "eps=0.04096", TARGETS
    ),
    "wrong axis": (
        SUMS, [("if b.dim != 1:", "if b.dim > 1:")],
        "axis", "dim=0, x[128, 40] float32", TARGETS,
    ),
    "dtype": (
        SUMS, [("x.shape, dtype=x.dtype", "x.shape, dtype=nl.float32")],
        "dtypes", "is float32, and bfloat16 is expected", TARGETS,
    ),
    "ragged edge": (
        NORM, [("range(0, rows, 128)", "range(0, rows - rows % 128, 128)")],
        "ragged edges", "x[1, 60] float32", TARGETS,
    ),
    "guard": (
        SUMS, [("for start in range(0, rows, 128)", "for start in range(0, 1)"),
               ("count = min(128, rows - start)", "count = rows")],
        "guard", "supports accepts it, and the kernel fails", TARGETS,
    ),
    "binding": (
        NORM, [("samples, norm)", "samples, norm, launch=lambda b, hw: Launch.of("
                                  "norm, b, (\"x\", \"bias\", \"weight\"), b.eps))")],
        "bindings", "it is right with weight and bias exchanged", TARGETS,
    ),
    "capacity on one target": (
        # Three rows in float32: 193 KiB of 192 on trn1, of 224 on trn2, of 256 on trn3.
        SUMS, [("b.x.shape[1] > 4096", "b.x.shape[1] > 17000"),
               ("in (40, 64)", "in (40, 16500)"), ("2e-5", "2e-2")],
        "capacity", "x[128, 16500] float32", ("trn1",),
    ),
    "non-contiguous input": (
        NORM, [("samples, norm)", "samples, norm, strided=frozenset({\"x\"}))"),
               ("src=x[start : start + count, :]",
                "src=x.ap(pattern=[[columns, count], [1, columns]], offset=start * columns)")],
        "strides", "x every second element", TARGETS,
    ),
    "aliasing": (
        NORM, [("out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)", "out = x")],
        "aliasing", "the kernel writes to its input x", TARGETS,
    ),
    "race": (
        # The second core's tiles lie across those of the first one.
        NORM, [("samples, norm)", "samples, norm[2])"),
               ("range(0, rows, 128)", "range(64 * nl.program_id(), rows, 128)"),
               ("if b.x.ndim != 2", "if hw.target == \"trn1\" or b.x.ndim != 2")],
        "races", "program 1 writes", ("trn2", "trn3"),
    ),
}  # fmt: skip


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Check]:
    """Writes a kernel file and checks it; its kernels leave with the test."""
    file = tmp_path / "mine.py"

    def write_and_check(source: str, targets: tuple[str, ...] = TARGETS) -> CheckReport:
        file.write_text(source)
        return check_file(file, targets)

    yield write_and_check
    registry.kernels().replace(file.resolve(), [])


def replaced(source: str, changes: list[tuple[str, str]]) -> str:
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize("source", [NORM, SUMS])
def test_a_right_kernel_passes(source: str, check: Check) -> None:
    found = check(source)
    assert found.findings == []
    (kernel,) = found.kernels
    assert all(kernel.cases["selection", target] == 1 for target in TARGETS)
    assert {time.target for time in kernel.times} == set(TARGETS)
    assert all(time.seconds > 0 for time in kernel.times)


@pytest.mark.parametrize("mistake", SEEDED)
def test_a_seeded_mistake_is_found_and_named(mistake: str, check: Check) -> None:
    source, changes, name, words, targets = SEEDED[mistake]
    found = check(replaced(source, changes))
    named = [finding for finding in found.findings if finding.check == name]
    assert named, str(found)
    assert words in named[0].message
    assert sorted(t for finding in named for t in finding.targets) == sorted(targets)
    # Nothing else is blamed for it.
    assert {finding.check for finding in found.findings} == {name}, str(found)


def test_the_guard_may_refuse_a_target(check: Check) -> None:
    found = check(NORM.replace("if b.x.ndim != 2", 'if hw.target == "trn1" or b.x.ndim != 2'))
    assert found.findings == []
    assert found.kernels[0].state("samples", "trn1") == "refused"
    assert found.kernels[0].state("samples", "trn2") == "ok (2)"


@pytest.mark.parametrize(
    ("source", "old", "new", "name", "words"),
    [
        (SUMS, "b.x.ndim != 2", "b.x.ndim != 7", "guard", "refuses every sample: x(128, 40)"),
        (SUMS, "if b.dim != 1", "if b.dims != 1", "guard", "no binding 'dims'"),
        (SUMS, "x.float(), dim", "x.float(), 0", "reference", "by the pattern in eager"),
        (SUMS, "for columns in (40, 64)", "for columns in ()", "samples", "there are none"),
        (SUMS, "generator=generator", "generator=1", "samples", "samples raised TypeError"),
        (SUMS, '"dim": 1', '"dims": 1', "samples", "no pattern has the bindings ['dims', 'x']"),
        (SUMS, "def reference(x, dim)", "def reference(x)", "spec", "reference(x) cannot be"),
        (SUMS, "import nki,", "import nik,", "spec", "No module named 'nik'"),
        (SUMS, "    rows, columns = x.shape", "    rows, columns = [n for n in x.shape]", "source",
         "comprehension"),
        (NORM, "aten.mul.Tensor(x, x)", "aten.square.default(x)", "selection", "aten.mul.Tensor"),
        (SUMS, "def pattern(x, dim: int)", "def pattern(x, dim)", "selection", "no annotation"),
        (SUMS, "b.x.ndim != 2 or b.x.shape[1]", "b.x.shape[-1]", "guard", "3 dimensions"),
        (NORM, "work = nl.ndarray((count, columns), dtype=nl.float32",
         "work = nl.ndarray((count, columns), dtype=nl.bfloat16", "dtypes", "half precision"),
        (NORM, "value=eps", "value=1e-12", "values", "constants such as eps"),
    ],
)  # fmt: skip
def test_other_mistakes_are_named(
    source: str, old: str, new: str, name: str, words: str, check: Check
) -> None:
    found = check(replaced(source, [(old, new)]), ("trn2",))
    assert {finding.check for finding in found.findings} == {name}, str(found)
    assert words in found.findings[0].message


def test_a_file_without_kernels_is_refused(check: Check, tmp_path: Path) -> None:
    with pytest.raises(KernelCheckError, match="registers no kernel"):
        check("import nki")
    with pytest.raises(KernelCheckError, match="is no file"):
        check_file(tmp_path / "none.py")


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SUMS)
    run = CliRunner().invoke
    try:
        good = run(app, ["check", str(file), "--target", "trn2"])
        assert good.exit_code == 0, good.output
        assert "no findings" in good.output
        file.write_text(replaced(SUMS, SEEDED["dtype"][1]))
        bad = run(app, ["check", str(file), "--target", "trn2", "--json"])
        assert bad.exit_code == 1
        (kernel,) = json.loads(bad.output)["kernels"]
        assert list(kernel["checks"]) == list(CHECKS)
        assert kernel["checks"]["dtypes"] == {"trn2": "FAILS"}
        assert [finding["check"] for finding in kernel["findings"]] == ["dtypes"]
    finally:
        registry.kernels().replace(file.resolve(), [])
