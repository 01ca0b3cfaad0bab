"""The user's line behind a node, for the ledger and for error messages."""

from __future__ import annotations

import os
import re
import site
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import fx

# File, line, function.
Frame = tuple[str, int | str, str]

_TORCH = Path(torch.__file__).parent
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@cache
def _library_roots() -> tuple[str, ...]:
    """The folders of Python's library and of installed packages, each with a separator behind."""
    paths = sysconfig.get_paths()
    roots = {paths["purelib"], paths["platlib"], paths["stdlib"], paths["platstdlib"]}
    roots |= {*site.getsitepackages(), site.getusersitepackages()}
    # Where torch is, other packages are: also in a folder that a .pth file names.
    roots.add(str(_TORCH.parent))
    return tuple(sorted(root + os.sep for root in roots))


def source_line(node: fx.Node) -> str:
    """`file:line in function` of the innermost frame in the user's code.

    Where all frames are in libraries (a model of `transformers`), the innermost one outside torch.
    Where there is none (an `nn.Sequential`), the module, as `module 1 (BatchNorm1d)`. An empty
    string where nothing is known.
    """
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    return _line(found) or _module(node) or innermost_line(found)


def users_name(function: str) -> str:
    """The user's function, where Dynamo made one of its own for what follows a graph break."""
    return _RESUMED.sub(r"\1", function)


def innermost_line(frames: Sequence[Frame]) -> str:
    """`file:line in function` of the user's innermost frame, else of the innermost of all."""
    if not frames:
        return ""
    file, line, function = frames[-1]
    return _line(frames) or f"{file}:{line} in {users_name(function)}"


def _line(frames: Sequence[Frame]) -> str:
    """The innermost frame in the user's code, else outside torch, else an empty string."""
    outside_torch = [frame for frame in frames if not frame[0].startswith(f"{_TORCH}{os.sep}")]
    users = [frame for frame in frames if not frame[0].startswith(_library_roots())]
    best = users or outside_torch
    if not best:
        return ""
    file, line, function = best[-1]
    return f"{file}:{line} in {users_name(function)}"


def module_of(node: fx.Node) -> tuple[str, str]:
    """Path and class of the innermost module that the node belongs to, of the forward pass for a
    gradient's node; empty strings where it belongs to none, an empty path for the model itself."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return "", ""
    name, kind = list(stack.values())[-1]
    return _module_path(name), getattr(kind, "__name__", str(kind))


def _module_path(name: str) -> str:
    """Dynamo's name of a module, `L['self'].layers._modules['0']`, as `named_modules` has it."""
    path = re.sub(r"^[LG]\['[^']*'\]", "", name)
    path = re.sub(r"(?:\._modules)?\['?([^'\]]*)'?\]", r".\1", path)
    return path.strip(".")


def _module(node: fx.Node) -> str:
    path, kind = module_of(node)
    return f"module {path or 'root'} ({kind})" if kind else ""
