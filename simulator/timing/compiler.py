"""What the compiler makes of a kernel on its way to the chip: passes over a Program, each of which
can be switched off.
"""

from __future__ import annotations

from enum import Enum


class Pass(Enum):
    """A pass, and the published evidence that the compiler has it."""

    forward_copies = (
        "results go where a copy puts them: engine shares of KDA's kernels (bmm, bmm_softmax)"
    )
    rename_tiles = (
        "tiles that are written anew get copies: nki-library's kernels with published latencies"
    )
    drop_unread = "values that nothing reads are not computed: the same kernels"
    reorder = (
        "independent instructions start as they are ready: SDK nki/api/nki/language/__init__.py, "
        "no_reorder, and nki/guides/how-to-scheduling-apis.rst"
    )


PROGRAM_ORDER: frozenset[Pass] = frozenset()
# Without the order, of which only that it may change is published: not what the compiler prefers.
USUAL = frozenset(Pass) - {Pass.reorder}
EVERY = frozenset(Pass)
