"""torch's process-wide settings and Python's debugging do not change what a kernel computes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from trnx.simulator import simulate, trace
from trnx.simulator.precision import FullPrecision, is_full


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    matmul = torch.backends.mkldnn.matmul
    before = torch.get_float32_matmul_precision(), matmul.fp32_precision
    yield
    torch.set_float32_matmul_precision(before[0])
    matmul.fp32_precision = before[1]


def setting() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)


@pytest.mark.parametrize("how", ["medium", "high", "bf16", "tf32"])
def test_products_stay_float32(kernels: ModuleType, how: str) -> None:
    a, b = torch.randn(256, 128), torch.randn(256, 512)
    program = trace(kernels.matmul, [a, b])
    want = program.run([a, b])[0].clone()
    if how in ("medium", "high"):
        torch.set_float32_matmul_precision(how)
    else:
        torch.backends.mkldnn.matmul.fp32_precision = how
    before = setting()
    assert before in ("bf16", "tf32")
    assert torch.equal(program.run([a, b])[0], want)
    assert torch.equal(simulate(kernels.matmul)(a, b), want)
    assert setting() == before


def test_the_setting_is_exact_while_a_program_runs() -> None:
    torch.set_float32_matmul_precision("medium")
    with FullPrecision():
        assert setting() == "ieee"
        with FullPrecision():
            assert setting() == "ieee"
        assert setting() == "ieee"
    assert setting() == "bf16"


def test_an_inherited_setting_stays_inherited() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    # The context manager: test utilities of torch forbid plain assignment for their process.
    with torch.backends.flags(fp32_precision="bf16"):
        with FullPrecision():
            assert setting() == "ieee"
        assert setting() == "bf16"
    with torch.backends.flags(fp32_precision="ieee"):
        assert setting() != "bf16"


def test_the_last_of_two_threads_restores() -> None:
    torch.set_float32_matmul_precision("medium")
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with FullPrecision():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with FullPrecision():
        thread.start()
        assert entered.wait(10)
    assert setting() == "ieee"
    leave.set()
    thread.join()
    assert setting() == "bf16"


def test_a_setting_that_another_has_replaced_does_not_count_as_the_process_s_own() -> None:
    """It returns when that one ends."""
    assert is_full()
    torch.set_float32_matmul_precision("medium")
    assert not is_full()
    with FullPrecision():
        assert setting() == "ieee"
        assert not is_full()
    assert not is_full()
    torch.set_float32_matmul_precision("highest")
    assert is_full()
    with FullPrecision():
        assert is_full()


def test_a_kernel_that_fails_restores(kernels: ModuleType) -> None:
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(AssertionError, match="two"):
        simulate(kernels.prints_and_stops)(torch.zeros(2, 3), "fails")
    assert setting() == "bf16"


def test_print_and_breakpoint_work_in_the_first_run(
    kernels: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = []

    def hook() -> None:
        frame = sys._getframe(1)
        stops.append((frame.f_code.co_name, frame.f_locals["x"].shape))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    x = torch.zeros(2, 3)
    assert torch.equal(simulate(kernels.prints_and_stops)(x, "stops"), x)
    assert stops == [("prints_and_stops", (2, 3))]
    assert "shape (2, 3)" in capsys.readouterr().out
    program = trace(kernels.prints_and_stops, [x, "prints"])
    capsys.readouterr()
    program.run([x])
    assert capsys.readouterr().out == ""


def test_breakpoint_works_on_every_core(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(1))
    x = torch.zeros(2, 3)
    trace(kernels.prints_and_stops, [x, "stops"], grid=2)
    assert stops == [1, 1]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"])
def test_numpy_takes_dtypes_of_nki_before_any_kernel_ran(name: str) -> None:
    code = (
        "import numpy as np\n"
        "from trnx.simulator.memory import dtypes\n"
        f"print(np.ones((2, 3), dtype=dtypes.resolve({name!r})).itemsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2" if name == "bfloat16" else "1"], done.stderr
