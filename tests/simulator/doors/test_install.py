"""`install`, `trnx sim`, and `load` beside another package `nki`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import numpy as np
import pytest

from trnx.simulator import install, load, simulate, uninstall
from trnx.simulator.errors import UnknownNkiNameError
from trnx.simulator.frontend.installation import AlreadyImportedError
from trnx.simulator.frontend.nki_modules import nki_modules
from trnx.simulator.frontend.run_script import ScriptError, run_script

SCRIPT = """\
import sys
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl
from nki.typing import tensor
from scale_helper import FACTOR


@nki.jit
def scale(a: tensor):
    tile = nl.load(a)
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=FACTOR)
    nl.store(out, value=tile)
    return out


if __name__ == "__main__":
    print(sys.argv[1:], scale(np.ones((2, 3), np.float32)).sum())
"""

FAKE = """\
class Kernel:
    def __init__(self, function):
        self.__wrapped__ = function
        self.__name__ = function.__name__

    def __call__(self, *args):
        raise RuntimeError("this needs a device")


def jit(function):
    return Kernel(function)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "scale_helper.py").write_text("FACTOR = 3.0\n")
    file = tmp_path / "scale.py"
    file.write_text(SCRIPT)
    return file


@pytest.fixture
def fake_nki(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another package `nki`, installed and not ours."""
    package = tmp_path / "nki"
    package.mkdir()
    (package / "__init__.py").write_text(FAKE)
    (package / "language.py").write_text("def load(x):\n    raise RuntimeError('device')\n")
    (package / "isa.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("nki", "nki.language", "nki.isa", "beside", "scale_helper"):
        sys.modules.pop(name, None)


def test_install_and_uninstall() -> None:
    before = set(sys.modules)
    install()
    install()
    import nki.isa

    assert nki.isa is nki_modules()["nki.isa"]
    uninstall()
    assert "nki" not in sys.modules
    assert {
        name for name in set(sys.modules) - before if name.startswith(("nki", "neuron"))
    } == set()


def test_sim_runs_a_script_with_arguments(script: Path) -> None:
    command = [sys.executable, "-m", "trnx.cli", "sim", "--target", "trn1", str(script), "--x", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "['--x', '1'] 18.0\n"


def test_trace_names_instructions_operands_and_lines(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, path = list(sys.argv), list(sys.path)
    run_script(str(script), trace=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4] for line in lines[:3]] == ["dma_copy", "tensor_scalar", "dma_copy"]
    assert "(2, 3) float32 in sbuf <- (2, 3) float32 in shared_hbm" in lines[0]
    assert lines[1].endswith(f"# {script}:14")
    assert (sys.argv, sys.path) == (argv, path)
    assert "nki" not in sys.modules
    sys.modules.pop("scale_helper", None)


def test_a_script_that_is_absent() -> None:
    with pytest.raises(ScriptError, match="no_such_script"):
        run_script("no_such_script.py")


@pytest.mark.parametrize("place", ["script", "module"])
def test_a_script_that_is_no_python(script: Path, place: str) -> None:
    wrong = script if place == "script" else script.with_name("scale_helper.py")
    wrong.write_text("x = 1\ny = (2,\n")
    with pytest.raises(ScriptError, match=rf"{wrong.name} is no valid Python: correct line 2\n"):
        run_script(str(script))
    assert "nki" not in sys.modules


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("from neuronxcc.nki.language import par_dim", "gone since NKI 0.2: the partition"),
        ("import neuronxcc.nki.kernels.attention", "live in nki-library"),
        ("from nki.isa import tensor_tenso", "did you mean nki.isa.tensor_tensor"),
        ("from neuronxcc.nki.kernels import attention", "live in nki-library"),
    ],
)
def test_an_import_of_a_name_that_is_gone(script: Path, line: str, meant: str) -> None:
    script.write_text(f"{line}\n")
    with pytest.raises(UnknownNkiNameError, match=meant) as found:
        run_script(str(script))
    assert isinstance(found.value.__cause__, ImportError)


@pytest.mark.parametrize("line", ["from math import tensor", "import no_such_module.part"])
def test_other_imports_fail_as_they_do(script: Path, line: str) -> None:
    script.write_text(f"{line}\n")
    with pytest.raises(ImportError):
        run_script(str(script))


def test_text_that_a_script_compiles_itself(script: Path) -> None:
    script.write_text("compile('(', 'made', 'exec')\n")
    with pytest.raises(SyntaxError, match="never closed"):
        run_script(str(script))


def test_load_gives_a_twin_beside_another_package(fake_nki: Path) -> None:
    (fake_nki / "scale_helper.py").write_text("FACTOR = 3.0\n")
    source = SCRIPT.replace("from nki.typing import tensor\n", "").replace(": tensor", "")
    (fake_nki / "beside.py").write_text(source)
    import beside  # type: ignore[import-not-found]
    import nki

    before = {name: id(module) for name, module in sys.modules.items()}
    with pytest.raises(RuntimeError, match="needs a device"):
        beside.scale(None)
    twin = load(beside.scale)
    assert twin is not beside.scale
    result = simulate(twin)(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(result, 3)
    np.testing.assert_array_equal(simulate(beside.scale)(np.ones((2, 3), np.float32)), 3)
    assert sys.modules["nki"] is nki
    assert nki.__file__ == str(fake_nki / "nki" / "__init__.py")
    changed = {n for n, m in sys.modules.items() if n in before and id(m) != before[n]}
    assert changed == set()
    assert not any(name.startswith(("nki", "neuronxcc")) for name in set(sys.modules) - set(before))


def test_install_refuses_to_mix_two_packages(fake_nki: Path) -> None:
    import nki

    assert nki.__file__ == str(fake_nki / "nki" / "__init__.py")
    with pytest.raises(AlreadyImportedError, match=r"trnx\.simulator\.load"):
        install()
    assert sys.modules["nki"] is nki


def test_an_empty_placeholder_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    placeholder = ModuleType("nki")
    monkeypatch.setitem(sys.modules, "nki", placeholder)
    install()
    assert sys.modules["nki"] is nki_modules()["nki"]
    uninstall()


def test_load_after_install_does_not_run_the_script_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "once.py"
    file.write_text(
        dedent(
            """\
            import numpy as np
            import nki
            import nki.language as nl

            print("once")

            def plain(a):
                out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
                nl.store(out, value=nl.load(a))
                return out

            print(nki.simulate(plain)(np.ones((1, 1), np.float32)))
            """
        )
    )
    run_script(str(file))
    assert capsys.readouterr().out == "once\n[[1.]]\n"
