"""The user's line behind a node, for the ledger and for error messages."""

from __future__ import annotations

import re
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths["purelib"], paths["platlib"], paths["stdlib"], paths["platstdlib"]}
    roots.add(str(Path(torch.__file__).parent))
    return tuple(sorted(roots))


def source_line(node: fx.Node) -> str:
    """`file:line in function` of the innermost frame in the user's code.

    Where all frames are in libraries (a model of `transformers`), the innermost one outside torch;
    an empty string where the node has no stack trace.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    torch_root = str(Path(torch.__file__).parent)
    outside_torch = [frame for frame in frames if not frame[0].startswith(torch_root)]
    users = [frame for frame in frames if not frame[0].startswith(_library_roots())]
    file, line, function = (users or outside_torch or frames)[-1]
    return f"{file}:{line} in {function}"
