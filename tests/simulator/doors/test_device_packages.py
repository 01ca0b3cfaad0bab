"""What tutorials use of torch_xla where it is not installed: a device, steps, named errors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.errors import TrnxError
from trnx.simulator import install, uninstall
from trnx.simulator.frontend.device_packages import (
    DeviceIndexError,
    MissingDeviceModuleError,
    MissingDeviceNameError,
)

TUTORIAL = """\
import nki
import nki.language as nl


@nki.jit
def add(a_input, b_input):
    out = nl.ndarray(a_input.shape, dtype=a_input.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.add(nl.load(a_input), nl.load(b_input)))
    return out


if __name__ == "__main__":
    import torch
    import torch_xla
    from torch_xla.core import xla_model as xm

    device = torch_xla.device()
    a = torch.ones((4, 3), dtype=torch.float16).to(device=device)
    b = torch.ones((4, 3), dtype=torch.float16, device=xm.xla_device())
    xm.mark_step()
    c = add(a, b)
    torch_xla.sync()
    print(c.sum().item())
"""


@pytest.fixture
def installed() -> Iterator[None]:
    if importlib.util.find_spec("torch_xla") is not None:
        pytest.skip("torch_xla is installed, and is used")
    install()
    yield
    uninstall()


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_a_tutorial_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "add.py").write_text(TUTORIAL)
    command = [sys.executable, "-m", "trnx.cli", "sim", str(tmp_path / "add.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "24.0\n"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "call",
    [
        "import torch_xla\nx = torch_xla.device()",
        "import torch_xla\nx = torch_xla.device(0)",
        "import torch_xla\nx = torch_xla.core.xla_model.xla_device()",
        "import torch_xla.core.xla_model as xm\nx = xm.xla_device(n=0, devkind='NEURON')",
        "from torch_xla.core.xla_model import xla_device\nx = xla_device()",
    ],
)
def test_the_device_is_the_host(call: str) -> None:
    assert run(call)["x"] == torch.device("cpu")


@pytest.mark.usefixtures("installed")
def test_another_device_is_refused() -> None:
    with pytest.raises(DeviceIndexError, match="one device, 0; run ranks with"):
        run("import torch_xla; torch_xla.device(1)")


@pytest.mark.usefixtures("installed")
def test_steps_have_nothing_to_wait_for() -> None:
    run("import torch_xla; torch_xla.sync(wait=True)")
    run("import torch_xla.core.xla_model as xm; xm.mark_step(); xm.mark_step(True)")
    run("import torch_neuronx")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("import torch_xla.runtime", "torch_xla.runtime"),
        ("import torch_xla.core.functions as f", "torch_xla.core.functions"),
        ("from torch_xla.core.xla_model import all_reduce", "torch_xla.core.xla_model.all_reduce"),
        ("from torch_xla import runtime", "torch_xla.runtime"),
        ("from torch_neuronx.xla_impl import ops", "torch_neuronx.xla_impl"),
        ("import torch_xla; torch_xla.compile", "torch_xla.compile"),
        ("import torch_neuronx; torch_neuronx.trace", "torch_neuronx.trace"),
    ],
)
def test_what_is_missing_is_named(code: str, missing: str) -> None:
    """Whoever expects Python's own errors finds them."""
    is_name = ";" in code
    expected = MissingDeviceNameError if is_name else MissingDeviceModuleError
    with pytest.raises(expected, match=rf"^{missing} is not there without a device; ") as caught:
        run(code)
    assert isinstance(caught.value, TrnxError)
    assert isinstance(caught.value, AttributeError if is_name else ImportError)


@pytest.mark.usefixtures("installed")
def test_an_old_decorator_has_its_successor_named() -> None:
    with pytest.raises(MissingDeviceModuleError, match=r"decorate the kernel with nki\.jit"):
        run("from torch_neuronx import nki_jit")


@pytest.mark.usefixtures("installed")
def test_a_question_whether_it_is_installed_has_the_true_answer() -> None:
    assert importlib.util.find_spec("torch_xla") is None
    assert importlib.util.find_spec("torch_neuronx") is None
    assert run("import torch_xla; x = hasattr(torch_xla, 'runtime')")["x"] is False


def test_nothing_is_left_behind() -> None:
    finders = list(sys.meta_path)
    install()
    install()
    assert len(sys.meta_path) == len(finders) + 1
    run("import torch_xla.core.xla_model")
    uninstall()
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.startswith(("torch_xla", "torch_neuronx"))]
    with pytest.raises(ModuleNotFoundError, match="No module named 'torch_xla'"):
        run("import torch_xla")
    uninstall()


def test_an_installed_package_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch_xla"
    package.mkdir()
    (package / "__init__.py").write_text("def device():\n    return 'the real one'\n")
    monkeypatch.syspath_prepend(tmp_path)
    install()
    try:
        assert run("import torch_xla; x = torch_xla.device()")["x"] == "the real one"
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'torch_xla\.runtime'"):
            run("import torch_xla.runtime")
    finally:
        uninstall()
        assert sys.modules.pop("torch_xla").__file__ == str(package / "__init__.py")
