"""Check import directions and types of the package as it is installed.

`[tool.setuptools.package-dir]` maps top-level folders to sub-packages (`backend/` is
`trnx.backend`), and no static tool follows that mapping: on an editable install import-linter finds
no package and mypy reports success over two files. So this script lays out a tree of symbolic links
in the installed shape and runs import-linter and mypy there. `--self-test` plants a wrong import
and a wrong type and fails unless both are reported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

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
    trnx.backend
    trnx.fallback
    trnx.fx_passes
    trnx.nki_kernels
    trnx.simulator

[importlinter:contract:eks]
name = trnx.eks imports nothing but errors
type = forbidden
source_modules = trnx.eks
forbidden_modules =
    trnx.backend
    trnx.fallback
    trnx.fx_passes
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
    trnx.nki_kernels
    trnx.simulator
forbidden_modules = trnx.jobs
allow_indirect_imports = True

[importlinter:contract:operators]
name = The table of operators stands alone
type = forbidden
source_modules = trnx.simulator.operators
forbidden_modules =
    trnx.simulator.checks
    trnx.simulator.costs
    trnx.simulator.isa
    trnx.simulator.timing

[importlinter:contract:costs]
name = Costs and instructions know nothing of schedules
type = forbidden
source_modules =
    trnx.simulator.checks
    trnx.simulator.costs
    trnx.simulator.isa
forbidden_modules = trnx.simulator.timing
allow_indirect_imports = True

[importlinter:contract:instructions]
name = Cost rules know nothing of single instructions
type = forbidden
source_modules = trnx.simulator.costs
forbidden_modules =
    trnx.simulator.checks
    trnx.simulator.isa.instruction
    trnx.simulator.isa.specification
allow_indirect_imports = True
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
    """Plant a wrong import and a wrong type; True where both are reported."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        build_tree(ROOT, tree)
        _plant(tree, "trnx/simulator/hardware.py", "\nimport trnx.backend.options\n")
        _plant(tree, "trnx/simulator/spec.py", "\nplanted: int = 'no integer'\n")
        imports_hold, imports = check_imports(tree)
        types_hold, types = check_types(tree)
    seen_import = not imports_hold and "trnx.simulator.hardware" in imports
    seen_type = not types_hold and "trnx/simulator/spec.py" in types
    for name, seen, report in (("import", seen_import, imports), ("type", seen_type, types)):
        print(f"planted wrong {name}: {'reported' if seen else 'NOT reported'}")
        if not seen:
            print(report)
    return seen_import and seen_type


def main() -> int:
    """Command line: 0 where everything holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="check that the checks check")
    if parser.parse_args().self_test:
        return 0 if self_test() else 1
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        build_tree(ROOT, tree)
        results = [("imports", *check_imports(tree)), ("types", *check_types(tree))]
    for name, holds, report in results:
        print(f"== {name}: {'ok' if holds else 'FAILED'}")
        print(report.strip())
    return 0 if all(holds for _, holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
