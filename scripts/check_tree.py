"""Check import directions and types of the package as it is installed.

`[tool.setuptools.package-dir]` maps top-level folders to sub-packages (`backend/` is
`trnx.backend`), and no static tool follows that mapping: on an editable install import-linter finds
no package and mypy reports success over two files. So this script lays out a tree of symbolic links
in the installed shape and runs import-linter, `deferred_imports` and mypy there. `--self-test`
plants wrong imports and a wrong type and fails unless all are reported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from deferred_imports import check_sources

ROOT = Path(__file__).resolve().parent.parent

LINT_CONFIG = """\
[importlinter]
root_package = trnx

[importlinter:contract:layers]
name = Imports point left
type = layers
layers =
    trnx.cli
    trnx.errors
    trnx.device
    trnx.backend
    trnx.fallback
    trnx.fx_passes
    trnx.nki_kernels | trnx.migration
    trnx.simulator

[importlinter:contract:eks]
name = trnx.eks imports nothing but errors
type = forbidden
source_modules = trnx.eks
forbidden_modules =
    trnx.backend
    trnx.fallback
    trnx.fx_passes
    trnx.migration
    trnx.nki_kernels
    trnx.jobs
    trnx.cli

[importlinter:contract:jobs]
name = Nobody but trnx.errors imports trnx.jobs
type = forbidden
source_modules =
    trnx.backend
    trnx.cli
    trnx.fallback
    trnx.fx_passes
    trnx.migration
    trnx.nki_kernels
    trnx.simulator
forbidden_modules = trnx.jobs
allow_indirect_imports = True

[importlinter:contract:rooms]
name = Rooms of the simulator import downwards
type = layers
containers = trnx.simulator
exhaustive = True
layers =
    frontend
    isa | checks | timing
    multicore
    program
    costs
    language
    memory
    precision : source
    lru_cache
    findings : fork_locks : hardware : kernel_lines : older_dialects
    errors
"""


def package_folders(root: Path) -> dict[str, Path]:
    """Package name -> source folder, read from pyproject.toml; parents come before children."""
    setuptools = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapping: dict[str, str] = setuptools["package-dir"]
    folders = {}
    for package in sorted(setuptools["packages"]):
        prefix = package
        while prefix not in mapping:
            prefix = prefix.rpartition(".")[0]
        rest = package.removeprefix(prefix).strip(".").replace(".", "/")
        folders[package] = root / mapping[prefix] / rest
    return folders


def build_tree(root: Path, destination: Path) -> None:
    """Lay out links to every source file under `destination` as the packages are installed."""
    for package, folder in package_folders(root).items():
        if not (folder / "__init__.py").is_file():
            raise SystemExit(f"{package}: pyproject.toml lists it, but {folder} is no package")
        target = destination / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for file in [*folder.glob("*.py"), *folder.glob("*.pyi"), *folder.glob("py.typed")]:
            (target / file.name).symlink_to(file)
    unlisted = {
        path.parent
        for folder in package_folders(root).values()
        for path in folder.rglob("__init__.py")
        if "__pycache__" not in path.parts
    } - set(package_folders(root).values())
    if unlisted:
        raise SystemExit(f"packages missing from pyproject.toml: {sorted(map(str, unlisted))}")


def _run(command: list[str], tree: Path) -> tuple[bool, str]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def check_imports(tree: Path) -> tuple[bool, str]:
    """Run import-linter over the tree; (holds, report)."""
    (tree / ".importlinter").write_text(LINT_CONFIG)
    lint = Path(sys.executable).parent / "lint-imports"
    return _run([str(lint), "--config", ".importlinter", "--no-cache"], tree)


def check_types(tree: Path) -> tuple[bool, str]:
    """Run mypy over the tree with the options of pyproject.toml; (holds, report)."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    return _run([*command, "--cache-dir", str(ROOT / ".mypy_cache"), "-p", "trnx"], tree)


def _plant(tree: Path, module: str, code: str) -> None:
    path = tree / module
    text = path.read_text()
    path.unlink()
    path.write_text(text + code)


def self_test() -> bool:
    """Plant wrong imports and a wrong type; True where all are reported."""
    upwards = "\nimport trnx.simulator.isa.instruction\n"
    deferred = "\ndef planted() -> None:\n    import trnx.simulator.errors\n"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        build_tree(ROOT, tree)
        _plant(tree, "trnx/simulator/hardware.py", "\nimport trnx.backend.options\n")
        _plant(tree, "trnx/simulator/memory/tensor_spec.py", "\nplanted: int = 'no integer'\n")
        _plant(tree, "trnx/simulator/memory/views.py", upwards)
        _plant(tree, "trnx/simulator/memory/arrays.py", deferred)
        reports = {
            "import of another package": ("trnx.simulator.hardware", *check_imports(tree)),
            "import of a room above": ("trnx.simulator.memory.views", *check_imports(tree)),
            "import in a function": ("trnx.simulator.memory.arrays", *check_sources(tree)),
            "type": ("trnx/simulator/memory/tensor_spec.py", *check_types(tree)),
        }
    seen = True
    for name, (where, holds, report) in reports.items():
        is_reported = not holds and where in report
        seen &= is_reported
        print(f"planted wrong {name}: {'reported' if is_reported else 'NOT reported'}")
        if not is_reported:
            print(report)
    return seen


def count_lines(folder: Path) -> int:
    """Lines of the Python files under a folder."""
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))


def main() -> int:
    """Command line: 0 where everything holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="check that the checks check")
    if parser.parse_args().self_test:
        return 0 if self_test() else 1
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        build_tree(ROOT, tree)
        results = [
            ("imports", *check_imports(tree)),
            ("deferred imports", *check_sources(tree)),
            ("types", *check_types(tree)),
        ]
    for name, holds, report in results:
        print(f"== {name}: {'ok' if holds else 'FAILED'}")
        print(report.strip())
    shipped = ("simulator", "migration", "nki_kernels", "fx_passes", "fallback", "backend", "trnx")
    lines = {folder: count_lines(ROOT / folder) for folder in (*shipped, "scripts")}
    print(f"== lines of code: {sum(lines.values())}: {lines}")
    return 0 if all(holds for _, holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
