"""Kernels that users bring: refused where their parts do not fit, reloaded, preferred."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.errors import DuplicateKernelError, KernelSpecError
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

HEAD = """
import nki, nki.isa as nisa, nki.language as nl
import torch, trnx
from trnx.nki_kernels.spec import Cost, KernelSpec, Pattern, Sample
from trnx.simulator.errors import Reject
aten = torch.ops.aten

def samples(generator):
    yield Sample({"x": torch.randn(4, 8, generator=generator)})

def cost(b):
    return Cost(hbm_bytes=2 * b.x.nbytes)

def supports(b, hw):
    return None if b.x.shape[0] <= 128 else Reject(f"{b.x.shape[0]} rows")

def add(name, pattern, kernel, reference, supports=supports, launch=None):
    trnx.register_kernel(KernelSpec(name, (Pattern(pattern),), supports, reference, cost, samples,
                                    kernel, launch))
"""

# A stand-in for erfinv, which no hand-written kernel of trnx takes: `factor` tells the versions
# apart.
SCALED = """
def {name}_pattern(x: torch.Tensor):
    return aten.erfinv.default(x)

@nki.jit
def {name}(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range({times}):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=1.0)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0={factor})
    nisa.dma_copy(dst=out, src=tile)
    return out

add("{name}", {name}_pattern, {name}, lambda x: x * {factor})
"""

SOFTMAX = """
def pattern(x, dim: int, half_to_float: bool):
    return aten._softmax.default(x, dim, half_to_float)

add("zz_softmax", pattern, None, lambda x, dim, half_to_float: torch.softmax(x, dim),
    launch=lambda b, hw: None)
"""


def scaled(factor: float, name: str = "mine", times: int = 0) -> str:
    return SCALED.format(factor=factor, name=name, times=times)


Load = Callable[..., Path]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Writes a kernel file and loads it; its kernels leave with the test."""
    files: set[Path] = set()

    def write_and_load(*parts: str, file: str = "own.py") -> Path:
        path = (tmp_path / file).resolve()
        path.write_text("\n".join((HEAD, *parts)))
        files.add(path)
        torch._dynamo.reset()
        trnx.load_kernels(path)
        return path

    yield write_and_load
    for path in files:
        registry._registry.replace(path, ())
        registry._loaded.pop(path, None)
    torch._dynamo.reset()


def run_erfinv(x: torch.Tensor) -> torch.Tensor:
    compiled = torch.compile(lambda x: torch.erfinv(x), backend="trnx")
    result: torch.Tensor = compiled(x)
    return result


def test_an_edited_file_is_loaded_again(load: Load) -> None:
    x = torch.randn(4, 8)
    load(scaled(2.0))
    torch.testing.assert_close(run_erfinv(x), 2 * x)
    load(scaled(3.0))
    torch.testing.assert_close(run_erfinv(x), 3 * x)
    load(scaled(5.0, name="renamed"))
    assert "mine" not in {spec.name for spec in registry.kernels()}
    torch.testing.assert_close(run_erfinv(x), 5 * x)


def test_a_file_that_did_not_change_is_not_loaded_again(load: Load) -> None:
    path = load(scaled(2.0))
    before = registry.kernels()["mine"]
    trnx.load_kernels(path)
    assert registry.kernels()["mine"] is before


def test_an_edit_of_a_file_beside_it_is_loaded_too(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    beside, x = tmp_path / "trnx_test_beside.py", torch.ones(4, 8)
    source = scaled(2.0).replace("operand0=2.0", "operand0=trnx_test_beside.FACTOR")
    for factor in (2.0, 3.0):
        beside.write_text(f"import nki.language as nl\nFACTOR = {factor}\n")
        load("import trnx_test_beside", source)
        torch.testing.assert_close(run_erfinv(x), factor * x)


def test_a_broken_edit_leaves_the_kernels_as_they_were(load: Load) -> None:
    load(scaled(2.0))
    before = registry.kernels()["mine"]
    with pytest.raises(ZeroDivisionError):
        load(scaled(3.0), "1 / 0")
    assert registry.kernels()["mine"] is before
    load(scaled(4.0))
    torch.testing.assert_close(run_erfinv(torch.ones(4, 8)), torch.full((4, 8), 4.0))


def test_a_name_that_another_file_has_is_refused(load: Load) -> None:
    first = load(scaled(2.0))
    with pytest.raises(DuplicateKernelError, match=str(first)):
        load(scaled(3.0), file="other.py")
    with pytest.raises(DuplicateKernelError, match=r"softmax\.py"):
        load(scaled(3.0, name="softmax"), file="third.py")


def test_the_users_kernel_comes_before_one_of_the_package(load: Load) -> None:
    load(SOFTMAX)
    found = trnx.explain(lambda x: torch.softmax(x, -1), torch.randn(64, 256), options=LEGAL)
    assert [region.kernel for region in found.reports[0].regions] == ["zz_softmax"]
    (miss,) = found.reports[0].near_misses
    assert "kernel softmax matches as much as zz_softmax" in miss.reason
    assert "user's kernel" in miss.reason


LEGAL = {"select": "legal"}


@pytest.mark.parametrize("slow", ["aa", "zz"])
def test_of_two_users_kernels_the_faster_one_runs(load: Load, slow: str) -> None:
    load(scaled(2.0, name=slow, times=200), scaled(2.0, name="mm"))
    found = trnx.explain(lambda x: torch.erfinv(x), torch.randn(4, 8), options=LEGAL)
    assert [region.kernel for region in found.reports[0].regions] == ["mm"]
    (miss,) = found.reports[0].near_misses
    assert f"kernel {slow} matches as much as mm" in miss.reason
    assert "predicted to take" in miss.reason


REFUSED = {
    "its supports returns a bool in line": (
        "def no(b, hw):\n    if b.x.ndim:\n        return False\n",
        "supports=no",
    ),
    "its supports returns a bool in line .*; return": (
        "def no(b, hw):\n    def f(n):\n        return n > 1\n    return not f(b.x.ndim) or "
        "b.x.ndim == 3\n",
        "supports=no",
    ),
    "its supports takes 1 parameters": ("", "supports=lambda b: None"),
    "no parameter of the kernel takes the binding 'dim'": (
        "def pattern(x, dim: int):\n    return aten.cumsum.default(x, dim)\n",
        "reference=lambda x, dim: x",
    ),
    "its parameter 'x' is no binding of the pattern": (
        "def pattern(y):\n    return aten.erfinv.default(y)\n",
        "reference=lambda y: y",
    ),
    r"its reference\(x, dim\) cannot be called": ("", "reference=lambda x, dim: x"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_parts_that_do_not_fit_are_refused(load: Load, message: str) -> None:
    definition, argument = REFUSED[message]
    source = scaled(1.0, name="wrong").replace("\nadd(", "\n# add(")
    call = f"""
pattern = wrong_pattern
{definition}
parts = dict(pattern=pattern, kernel=wrong, reference=lambda x: x)
add("wrong", **{{**parts, **dict({argument})}})
"""
    with pytest.raises(KernelSpecError, match=rf"kernel wrong: {message}"):
        load(source, call)
    assert "wrong" not in {spec.name for spec in registry.kernels()}


def test_a_supports_that_answers_with_a_bool_is_named(load: Load) -> None:
    load(
        scaled(1.0, name="wrong").replace("\nadd(", "\n# add("),
        'add("wrong", wrong_pattern, wrong, lambda x: x, supports=lambda b, hw: b.x.ndim == 2)',
    )
    bindings = Bindings({"x": TensorSpec.dense((4,), torch.float32)})
    with pytest.raises(KernelSpecError, match="supports of kernel wrong returned False"):
        registry.kernels()["wrong"].supports(bindings, hardware("trn2"))


RENAMED = {"guard": "supports", "torch_reference": "reference", "work": "cost", "plan": "launch"}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_of_a_part_is_refused_with_the_new_one(load: Load, old: str) -> None:
    parts = {"patterns": "()", "samples": "samples", "kernel": "None"}
    parts |= dict.fromkeys(RENAMED.values(), "None")
    parts[old] = parts.pop(RENAMED[old])
    written = ", ".join(f"{name}={value}" for name, value in parts.items())
    message = rf"kernel late: KernelSpec has no {old}; write `{RENAMED[old]}=` for `{old}=`"
    with pytest.raises(KernelSpecError, match=message):
        load(f'trnx.register_kernel(KernelSpec(name="late", {written}))')


def test_a_kernel_that_fails_is_not_listed_as_nki(load: Load) -> None:
    source = scaled(1.0).replace("nisa.dma_copy(dst=tile, src=x)", "nl.no_such_function(x)")
    load(source)
    x: Any = torch.rand(4, 8)
    with trnx.collect_reports() as reports:
        torch.testing.assert_close(run_erfinv(x), torch.erfinv(x))
    (region,) = reports[0].regions
    assert region.engine == "eager"
    assert (reports.nodes_on_nki, reports.bytes_on_nki) == (0.0, 0.0)
    assert "kernel mine failed" in reports[0].fallbacks[-1].reason
