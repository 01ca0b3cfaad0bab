"""Python's cyclic garbage collector while trnx compiles.

A full collection visits every object of the process, of which torch alone has some hundred
thousand, and compiling makes enough objects to cause several.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def new_objects_only() -> Iterator[None]:
    """Collections inside the block visit only what was made in it: garbage of before is collected
    after it. Blocks of threads may overlap; what the user has frozen stays frozen."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
