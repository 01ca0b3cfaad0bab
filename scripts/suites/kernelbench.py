"""KernelBench's problems (levels 1 to 3) from a checkout, at sizes that a CPU runs.

A problem is a module with `Model`, `get_inputs` and `get_init_inputs`, whose sizes are integers
and tuples at its top level. They are cut to limits by their names: batches to 4, images to 64
(volumes to 16), sequences to 512, features to 1024, channels to 128. Nothing is made larger, and
numbers inside functions stay. A problem that does not run at the smaller sizes keeps its own.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from suites.case import Built, Case

_LIMITS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"batch"), 4),
    (re.compile(r"depth|height|width|image_size|resolution"), 64),
    (re.compile(r"seq|length"), 512),
    (re.compile(r"channels|embed"), 128),
    (re.compile(r"features|classes|input_size|hidden_size|output_size|dim|^[nmkl]$|shape"), 1024),
)
_VOLUME = 16
_PROBLEM = re.compile(r"KernelBench/(level[123])/(\d+)_(.*)\.py$")


def _limit(name: str, is_volume: bool) -> int | None:
    for pattern, limit in _LIMITS:
        if pattern.search(name.lower()):
            return _VOLUME if is_volume and limit == 64 else limit
    return None


def _cut(name: str, value: Any, is_volume: bool) -> Any:
    limit = _limit(name, is_volume)
    if limit is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return min(value, limit)
    if isinstance(value, tuple) and all(type(item) is int for item in value):
        return tuple(min(item, limit) for item in value)
    return value


def load(source: str, name: str, *, shrink: bool) -> ModuleType:
    """The problem as a module, its sizes cut where `shrink` says so."""
    module = ModuleType(name)
    module.__file__ = name
    is_volume = re.search(r"\bdepth\w*\s*=\s*\d|3[dD]\b", source) is not None
    for statement in ast.parse(source).body:
        code = compile(ast.Module([statement], []), name, "exec")
        exec(code, vars(module))
        if shrink and isinstance(statement, ast.Assign):
            names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
            for assigned in names:
                if assigned in vars(module):
                    value = vars(module)[assigned]
                    vars(module)[assigned] = _cut(assigned, value, is_volume)
    return module


def _built(module: ModuleType, train: bool) -> Built:
    torch.manual_seed(0)
    model = module.Model(*module.get_init_inputs()).train(train)
    return Built(model, tuple(module.get_inputs()))


def _build(train: bool, *, source: str, name: str) -> Built:
    try:
        built = _built(load(source, name, shrink=True), train)
        with torch.no_grad():
            built.model(*built.args)
    except Exception:  # noqa: BLE001 - whatever does not go at these sizes
        return _built(load(source, name, shrink=False), train)
    return _built(load(source, name, shrink=True), train)


def _sources(checkout: Path) -> Iterator[tuple[str, str]]:
    """Path and text of every Python file, of a work tree or of a Git directory without one."""
    if (checkout / "KernelBench").is_dir():
        for path in sorted(checkout.glob("KernelBench/level*/*.py")):
            yield str(path.relative_to(checkout)), path.read_text()
        return
    git = ["git", "--git-dir", str(checkout)]
    names = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", "HEAD", "KernelBench/"],
        capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    for name in filter(_PROBLEM.search, names):
        shown = subprocess.run([*git, "show", f"HEAD:{name}"], capture_output=True, check=True)
        yield name, shown.stdout.decode()


def cases(checkout: Path) -> list[Case]:
    """The problems of levels 1 to 3, by level and number."""
    found: list[tuple[str, int, Case]] = []
    for path, source in _sources(checkout):
        if matched := _PROBLEM.search(path):
            level, number, title = matched.groups()
            name = f"{level}/{number}_{title.strip('_')}"
            case = Case(name, partial(_build, source=source, name=name))
            found.append((level, int(number), case))
    return [case for _, _, case in sorted(found, key=lambda item: item[:2])]
