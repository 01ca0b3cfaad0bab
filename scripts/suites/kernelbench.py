"""KernelBench's problems (levels 1 to 3) from a checkout, at sizes that a CPU runs.

A problem is a module with `Model`, `get_inputs` and `get_init_inputs`, whose sizes are integers
and tuples at its top level. They are cut to limits by their names; to the second number where the
sizes are to be small:

| names | cut to | small |
|---|---|---|
| batches | 4 | 2 |
| batches of problems that take rows alone | 1024 | 16 |
| images | 64 (volumes 16) | 16 (8) |
| sequences | 512 | 64 |
| channels | 128 | 32 |
| features | 1024 | 128 |

Nothing is made larger, and numbers inside functions stay. A problem that does not run at the small
sizes has the larger ones, and its own where it does not run at these either.
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

_NAMES = (
    (re.compile(r"batch|^b$"), "batch"),
    (re.compile(r"depth|height|width|image_size|resolution|^[ij]$"), "image"),
    (re.compile(r"seq|length"), "sequence"),
    (re.compile(r"channels|embed"), "channels"),
    (
        re.compile(r"features|classes|input_size|hidden_size|output_size|dim|^[nmkl]$|shape"),
        "features",
    ),
)
Limits = dict[str, int]
_LIMITS = {
    "batch": 4, "rows": 1024, "image": 64, "volume": 16, "sequence": 512, "channels": 128,
    "features": 1024,
}  # fmt: skip
_SMALL = {
    "batch": 2, "rows": 16, "image": 16, "volume": 8, "sequence": 64, "channels": 32,
    "features": 128,
}  # fmt: skip
_PROBLEM = re.compile(r"KernelBench/(level[123])/(\d+)_(.*)\.py$")


def _limit(name: str, limits: Limits, is_volume: bool) -> int | None:
    for pattern, kind in _NAMES:
        if pattern.search(name.lower()):
            return limits["volume" if is_volume and kind == "image" else kind]
    return None


def _cut(name: str, value: Any, limits: Limits, is_volume: bool) -> Any:
    limit = _limit(name, limits, is_volume)
    if limit is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return min(value, limit)
    if isinstance(value, tuple) and all(type(item) is int for item in value):
        return tuple(min(item, limit) for item in value)
    return value


def load(source: str, name: str, limits: Limits | None) -> ModuleType:
    """The problem as a module, its sizes cut to `limits`."""
    module = ModuleType(name)
    module.__file__ = name
    is_volume = re.search(r"\bdepth\w*\s*=\s*\d|3[dD]\b", source) is not None
    for statement in ast.parse(source).body:
        code = compile(ast.Module([statement], []), name, "exec")
        exec(code, vars(module))
        if limits is not None and isinstance(statement, ast.Assign):
            names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
            for assigned in names:
                if assigned in vars(module):
                    value = vars(module)[assigned]
                    vars(module)[assigned] = _cut(assigned, value, limits, is_volume)
    return module


def _built(module: ModuleType, train: bool) -> Built:
    torch._dynamo.config.allow_rnn = True  # as users of recurrent layers set it
    torch.manual_seed(0)
    model = module.Model(*module.get_init_inputs()).train(train)
    return Built(model, tuple(module.get_inputs()))


def _limits_of(source: str, name: str, limits: Limits) -> Limits:
    """`limits`, or those of batches of rows where no input has more dimensions."""
    inputs = [x for x in load(source, name, limits).get_inputs() if isinstance(x, torch.Tensor)]
    if any(x.ndim > 2 for x in inputs):
        return limits
    return limits | {"batch": limits["rows"]}


def _build(train: bool, *, source: str, name: str, small: bool) -> Built:
    for given in (_SMALL, _LIMITS) if small else (_LIMITS,):
        try:
            limits = _limits_of(source, name, given)
            built = _built(load(source, name, limits), train)
            with torch.no_grad():
                built.model(*built.args)
        except Exception:  # noqa: BLE001 - whatever does not go at these sizes
            continue
        return _built(load(source, name, limits), train)
    return _built(load(source, name, None), train)


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


def cases(checkout: Path, *, small: bool = False) -> list[Case]:
    """The problems of levels 1 to 3, by level and number."""
    found: list[tuple[str, int, Case]] = []
    for path, source in _sources(checkout):
        if matched := _PROBLEM.search(path):
            level, number, title = matched.groups()
            name = f"{level}/{number}_{title.strip('_')}"
            case = Case(name, partial(_build, source=source, name=name, small=small))
            found.append((level, int(number), case))
    return [case for _, _, case in sorted(found, key=lambda item: item[:2])]
