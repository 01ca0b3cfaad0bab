"""Twins: kernel files and their helpers run privately; sys.modules stays as it is."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import load, load_module, simulate
from trnx.simulator.errors import IllegalInstructionError
from trnx.simulator.frontend.kernel import Kernel
from trnx.simulator.frontend.twins import KernelSourceError

HELPER = """
    import nki.isa as nisa
    import nki.language as nl
    import twin_numbers

    def copy_tile(x):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        return tile
    """
NUMBERS = """
    LOADED = []
    LOADED.append(1)
    """
KERNEL = """
    import nki
    import nki.isa as nisa
    import nki.language as nl
    import twin_helper
    from twin_helper import copy_tile
    from nki.isa.constants import oob_mode
    import neuronxcc.nki.language as old_nl

    class Config(nl.NKIObject):
        scale: float
        rows: int = 4

    @nki.jit
    def inner(x, out):
        nisa.dma_copy(dst=out, src=copy_tile(x))

    @nki.jit(mode="torch")
    def kernel(x: nl.ndarray, y: nl.ndarray | None = None):
        config = Config(scale=2.0)
        assert config.rows == 4 and old_nl.float32 is nl.float32
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        inner(x, out)
        return out

    @nki.jit
    def broken(x):
        nl.ndarray((200, 1), dtype=nl.float32)
        return x
    """


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (
        ("twin_helper", HELPER),
        ("twin_numbers", NUMBERS),
        ("twin_kernel", KERNEL),
    ):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path  # type: ignore[misc]
    sys.modules.pop("twin_numbers", None)


def test_a_twin_leaves_sys_modules_alone(folder: Path) -> None:
    before = set(sys.modules)
    twin = load_module(folder / "twin_kernel.py")
    added = set(sys.modules) - before
    # What is no kernel code is imported as usual, once.
    assert {name for name in added if name.startswith(("twin_", "nki"))} == {"twin_numbers"}
    x = torch.randn(3, 4)
    assert torch.equal(simulate(twin.kernel)(x), x)
    assert torch.equal(twin.kernel(x), x)


def test_a_helper_is_executed_once_per_load(folder: Path) -> None:
    one, two = load_module(folder / "twin_kernel.py"), load_module(folder / "twin_kernel.py")
    assert one.twin_helper.copy_tile is one.copy_tile
    assert one.copy_tile is not two.copy_tile
    assert one.twin_helper.twin_numbers is sys.modules["twin_numbers"]
    assert sys.modules["twin_numbers"].LOADED == [1]


def test_tools_see_the_source(folder: Path) -> None:
    twin = load_module(folder / "twin_kernel.py")
    assert isinstance(twin.kernel, Kernel)
    assert twin.kernel.__name__ == "kernel"
    assert list(inspect.signature(twin.kernel).parameters) == ["x", "y"]
    assert "copy_tile(x)" in inspect.getsource(twin.inner.function)
    with pytest.raises(IllegalInstructionError, match="200 partitions") as caught:
        simulate(twin.broken)(torch.randn(2, 2))
    location = caught.value.location
    assert location is not None
    assert (Path(location.file).name, location.function) == ("twin_kernel.py", "broken")
    text = "".join(traceback.format_exception(caught.value))
    assert "nl.ndarray((200, 1), dtype=nl.float32)" in text


def test_relative_imports_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "twin_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 3\n")
    (package / "parts.py").write_text("import nki.language as nl\nfrom .sizes import WIDTH\n")
    (package / "main.py").write_text(
        "import nki\nfrom . import parts\nfrom .parts import WIDTH, nl\nfrom . import sizes\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    twin = load_module(package / "main.py")
    assert twin.WIDTH == twin.sizes.WIDTH == 3
    assert twin.__name__ == "twin_package.main"
    assert twin.parts.nl is twin.nl
    assert "twin_package.parts" not in sys.modules
    for name in ("twin_package", "twin_package.sizes"):
        sys.modules.pop(name, None)


def test_a_kernel_of_an_installed_nki_gets_a_twin(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS's package, seen here as empty modules, stays in place; the twin runs on the simulator."""
    fakes = {}
    for name in ("nki", "nki.language", "nki.isa", "nki.isa.constants"):
        fakes[name] = ModuleType(name)
        fakes[name].__path__ = []
        monkeypatch.setitem(sys.modules, name, fakes[name])
    fakes["nki"].jit = lambda function: function  # type: ignore[attr-defined]
    source = folder / "twin_installed.py"
    source.write_text(
        textwrap.dedent(
            """
            import nki
            import nki.language as nl

            @nki.jit
            def kernel(x):
                return nl.broken_if_this_is_not_the_simulator if False else x
            """
        )
    )
    import importlib

    module = importlib.import_module("twin_installed")
    twin = load(module.kernel)
    assert isinstance(twin, Kernel)
    assert load(module.kernel) is twin
    x = torch.randn(2, 2)
    assert torch.equal(simulate(module.kernel)(x), x)
    assert sys.modules["nki"] is fakes["nki"]
    sys.modules.pop("twin_installed")


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelSourceError, match="no kernel file"):
        load_module(tmp_path / "absent.py")
    (tmp_path / "wrong.py").write_text("def (:\n")
    with pytest.raises(KernelSourceError, match="no valid Python"):
        load_module(tmp_path / "wrong.py")
    with pytest.raises(KernelSourceError, match="not a kernel function"):
        load(3)
    (tmp_path / "unknown.py").write_text("import nki.something\n")
    with pytest.raises(ModuleNotFoundError, match=r"nki\.something"):
        load_module(tmp_path / "unknown.py")


def test_importing_the_simulator_is_cheap() -> None:
    code = "import sys, trnx.simulator; print('torch' in sys.modules, 'nki' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
