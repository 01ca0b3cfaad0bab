"""What the compiler makes of a kernel on its way to the chip: passes over a Program, each of which
can be switched off.

The compiler may re-order, too (SDK nki/api/nki/language/__init__.py, `no_reorder`). What it prefers
is not published, and the order tried came nearer to some measurements and left others:
instructions stay in order (`docs/timing.md`).
"""

from __future__ import annotations

from enum import Enum


class Pass(Enum):
    """A pass, and the published evidence that the compiler has it."""

    forward_copies = (
        "results go where a copy puts them: engine shares of KDA's kernels (bmm, bmm_softmax, "
        "silu_v2_k4)"
    )
    rename_tiles = (
        "tiles that are written anew get copies: nki-library's kernels with published latencies"
    )
    drop_unread = "values that nothing reads are not computed: the same kernels"


PROGRAM_ORDER: frozenset[Pass] = frozenset()
EVERY = frozenset(Pass)
