"""The tree check lists exactly the packages of pyproject.toml, and fails on one that is missing."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check_tree() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_tree", ROOT / "scripts" / "check_tree.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        spec.loader.exec_module(module)
    return module


def test_tree_holds_every_source_file(check_tree: ModuleType, tmp_path: Path) -> None:
    check_tree.build_tree(ROOT, tmp_path)
    linked = {path.resolve() for path in tmp_path.rglob("*.py")}
    folders = ("trnx", "backend", "fallback", "fx_passes", "nki_kernels", "simulator")
    sources = {p for f in folders for p in (ROOT / f).rglob("*.py") if "__pycache__" not in p.parts}
    assert sources <= linked


def test_a_package_that_pyproject_forgot_is_an_error(
    check_tree: ModuleType, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    ignore = shutil.ignore_patterns(".git", ".venv", ".mypy_cache", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignore)
    (copy / "simulator" / "forgotten").mkdir()
    (copy / "simulator" / "forgotten" / "__init__.py").write_text("")
    with pytest.raises(SystemExit, match=r"missing from pyproject\.toml"):
        check_tree.build_tree(copy, tmp_path / "tree")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "def f() -> None:\n    import trnx.errors\n",
            "trnx.cli imports trnx.errors in a function",
        ),
        ("import trnx.errors\n", "imports form a cycle"),
        ("if TYPE_CHECKING:\n    import trnx.errors\n", ""),
    ],
)
def test_deferred_imports_and_cycles_are_found(
    check_tree: ModuleType, tmp_path: Path, code: str, problem: str
) -> None:
    package = tmp_path / "trnx"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "errors.py").write_text("import trnx.cli\n")
    (package / "cli.py").write_text(code)
    holds, report = check_tree.check_sources(tmp_path, {})
    assert holds == (not problem)
    assert problem in report
