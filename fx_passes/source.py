"""The user's line behind a node, for the ledger and for error messages."""

from __future__ import annotations

import os
import re
import site
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import fx

_TORCH = Path(torch.__file__).parent
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
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    outside_torch = [frame for frame in frames if not frame[0].startswith(f"{_TORCH}{os.sep}")]
    users = [frame for frame in frames if not frame[0].startswith(_library_roots())]
    best = users or outside_torch
    if not best:
        described = _module(node)
        if described or not frames:
            return described
        best = frames
    file, line, function = best[-1]
    return f"{file}:{line} in {function}"


def _module(node: fx.Node) -> str:
    """The innermost module that the node belongs to, of the forward pass for a gradient's node."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    name = re.sub(r"^L\[[^]]*\]\.?", "", path)
    return f"module {name or 'root'} ({getattr(kind, '__name__', kind)})"
