"""Generated source on disk: the folder is the user's, the content what was just generated."""

from __future__ import annotations

import ast
import stat
from pathlib import Path

import pytest
import torch

from trnx.nki_kernels.generator import kernel, source_cache
from trnx.simulator import TensorSpec, trace
from trnx.simulator.errors import KernelSubsetError
from trnx.simulator.frontend.subset import check_subset


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_file_is_named_by_its_content(home: Path) -> None:
    path = source_cache.write("fused_add", "x = 1\n")
    assert path.parent == home / "trnx" / "generated"
    assert path.name.startswith("fused_add_")
    assert source_cache.write("fused_add", "x = 1\n") == path
    assert source_cache.write("fused_add", "x = 2\n") != path
    assert ast.parse(path.read_text())
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".py", ".py"]


def test_the_folder_is_private() -> None:
    folder = source_cache.folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert stat.S_IMODE(source_cache.folder().stat().st_mode) == 0o700


def test_a_changed_file_is_written_anew() -> None:
    path = source_cache.write("fused_add", "x = 1\n")
    path.write_text("x = 'evil'\n")
    assert source_cache.write("fused_add", "x = 1\n").read_text() == "x = 1\n"


def test_a_link_is_replaced(home: Path) -> None:
    path = source_cache.write("fused_add", "x = 1\n")
    other = home / "other.py"
    other.write_text("x = 1\n")
    path.unlink()
    path.symlink_to(other)
    assert not source_cache.write("fused_add", "x = 1\n").is_symlink()


def test_a_folder_of_somebody_else_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: -1)
    path = source_cache.write("fused_add", "x = 1\n")
    assert home not in path.parents
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "belongs to another user" in caplog.text


@pytest.mark.parametrize("place", ["/dev/null", "/proc/1"])
def test_a_home_that_cannot_be_written_is_not_needed(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    path = source_cache.write("fused_add", "x = 1\n")
    assert path.read_text() == "x = 1\n"
    assert source_cache.write("fused_add", "x = 1\n") == path
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_folder_that_others_can_replace_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = home / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "mine"))
    path = source_cache.write("fused_add", "x = 1\n")
    assert shared not in path.parents
    assert f"{shared} can be changed by other users" in caplog.text
    shared.chmod(0o1777)  # in a folder with the sticky bit nobody else can remove what is ours
    assert shared in source_cache.write("fused_add", "x = 1\n").parents


def test_what_was_generated_is_recorded_unread() -> None:
    lines = [
        "import nki", "import nki.isa as nisa", "import nki.language as nl", "", "", "@nki.jit",
        "def copies(x):", "    unused = 0", "    del unused",
        "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)",
        "    nisa.dma_copy(dst=out, src=x)", "    return out", "",
    ]  # fmt: skip
    copies = kernel._kernel_of(source_cache.write("copies", "\n".join(lines)), "copies")
    assert len(trace(copies, [TensorSpec.dense((4, 4), torch.float32)]).steps) == 1
    with pytest.raises(KernelSubsetError, match="has del"):
        check_subset(copies)
