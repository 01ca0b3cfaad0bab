"""Source text as a syntax tree, from any thread.

In Python 3.11, two threads that build trees at once may raise SystemError ("AST constructor
recursion depth mismatch"): the depth is counted for the whole interpreter. Trees are built one
after the other here, and again where somebody else's thread came in between.
"""

from __future__ import annotations

import ast
import sys
import threading

from trnx.simulator.fork_locks import fork_lock

_lock = fork_lock(sys.modules[__name__], threading.Lock)
_ATTEMPTS = 8


def parse(source: str | bytes, file: str = "<unknown>") -> ast.Module:
    """`ast.parse`. Raises SyntaxError."""
    for _ in range(_ATTEMPTS):
        try:
            with _lock:
                return ast.parse(source, file)
        except SystemError:
            continue
    with _lock:
        return ast.parse(source, file)
