"""JAX's settings where trnx traces, compiles and calls: its own, whatever the user has set.

Everything is set for the thread and the block alone, so the user's settings stay as they are.
Settings that only report (`jax_log_compiles`) are left to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np

# What a user may set that changes types, values or shapes, or forbids what a region does.
_OWN: tuple[tuple[Callable[..., Any], Any], ...] = (
    (jax.enable_x64, True),
    (jax.disable_jit, False),
    (jax.no_tracing, False),
    (jax.no_execution, False),
    (jax.debug_nans, False),
    (jax.debug_infs, False),
    (jax.check_tracer_leaks, False),
    (jax.transfer_guard, "allow"),
    (jax.numpy_dtype_promotion, "standard"),
    (jax.numpy_rank_promotion, "allow"),
    (jax.default_matmul_precision, None),
    (jax.set_mesh, jax.sharding.Mesh(np.empty((), object), ())),
)


@contextmanager
def own_settings() -> Iterator[None]:
    """trnx's settings of JAX inside the block."""
    with ExitStack() as stack:
        for setting, value in _OWN:
            stack.enter_context(setting(value))
        yield
