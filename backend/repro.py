"""A region that differs, as a program of its own: a folder with its ops as a module, the values
that it was given, and the source of its kernel to read.

`python FOLDER/repro.py` compiles the module with the same options, compares it as `trnx.bisect`
does, and ends with status 1 while it differs. The values are the user's data.
"""

from __future__ import annotations

import inspect
import json
import math
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trnx.backend.errors import ReproError
from trnx.backend.options import Options
from trnx.backend.prediction import PREDICTIONS
from trnx.backend.region_check import Differences, Failure
from trnx.fx_passes.extract import region_module
from trnx.fx_passes.region import KernelMatch
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.memory.tensor_spec import TensorSpec

_PROGRAM = '''"""{difference}

Run: python {name}/repro.py
"""

import sys
from pathlib import Path

{imports}

FOLDER = Path(__file__).resolve().parent
OPTIONS = {options}


class Region(torch.nn.Module):
{forward}

def main() -> int:
{load}    inputs = torch.load(FOLDER / "inputs.pt", weights_only=True)
    with torch.no_grad():
        found = trnx.bisect(
            Region(), *inputs, options=OPTIONS, against={against!r}, rtol={rtol!r}, atol={atol!r}
        )
    print(found)
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def check_folder(folder: Path) -> None:
    """Raises ReproError where `folder` holds something, or cannot be made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReproError(f"{folder} exists and is not an empty folder: name another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReproError(f"cannot make the folder {folder}: {error.strerror}") from error


def write_repro(folder: Path, failure: Failure, found: Differences, options: Options) -> None:
    """Write the program of `failure` into the new folder `folder`."""
    folder.mkdir(parents=True)
    module = region_module(failure.region)
    code = module.graph.python_code("self", verbose=False)
    match = failure.region.match
    file = None if match is None else kernels().file_of(match.kernel.name)
    load = ""
    if match is not None and file is not None and not kernels()[match.kernel.name].builtin:
        shutil.copy(file, folder / file.name)
        load = f"    trnx.load_kernels(FOLDER / {file.name!r})\n"
    given = {"target": options.target, "fallback": options.fallback, "select": options.select}
    text = _PROGRAM.format(
        difference=str(failure.difference).replace("\\", "/").replace('"""', "'''"),
        name=folder.name,
        imports="\n".join(_imports(code.globals)),
        options=json.dumps({**given, "lnc": options.lnc, "runner": options.runner}),
        forward="\n".join(f"    {line}" for line in code.src.strip("\n").splitlines()) + "\n",
        load=load,
        against=found.against,
        rtol=found.tolerance.rtol,
        atol=found.tolerance.atol,
    )
    (folder / "repro.py").write_text(text)
    torch.save(failure.inputs, folder / "inputs.pt")
    if match is not None:
        (folder / "kernel_source.txt").write_text(_kernel_source(match, failure, options))


def _imports(names: dict[str, Any]) -> list[str]:
    """Statements that define the global names of code that torch.fx generated."""
    lines = {"import torch", "import trnx", "import trnx.nki_kernels.canonical_ops  # noqa: F401"}
    constants = []
    for name, value in names.items():
        if isinstance(value, ModuleType):
            lines.add(
                f"import {value.__name__}" + ("" if name == value.__name__ else f" as {name}")
            )
        elif isinstance(value, float) and not math.isfinite(value):
            constants.append(f"{name} = float({name!r})")
        elif getattr(value, "__module__", None) in ("builtins", None):
            continue
        else:
            lines.add(f"from {value.__module__} import {value.__qualname__} as {name}")
    return [*sorted(lines), *constants]


def _kernel_source(match: KernelMatch, failure: Failure, options: Options) -> str:
    """The file of the kernel that ran, as far as it can be found."""
    values = dict(zip(failure.region.inputs, failure.inputs, strict=True))
    bindings = {
        name: TensorSpec.of(values[value].contiguous())
        if isinstance(values.get(value) if _is_key(value) else None, torch.Tensor)
        else value
        for name, value in match.bindings.items()
    }
    try:
        launch = PREDICTIONS.launch(match.kernel, Bindings(bindings), options.hardware)
        return Path(inspect.getfile(launch.kernel.function)).read_text()
    except Exception as error:  # noqa: BLE001  for reading only; the program above is complete
        return f"the source of {match.kernel.name} was not found: {error}\n"


def _is_key(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)
