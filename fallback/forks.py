"""Whether XLA can run in this process: JAX's threads do not survive a fork.

A child of a process in which JAX had started its backend has the backend's memory but none of its
threads: a call would wait for them for ever. There, and in its own children, `jax_is_lost` is set,
and regions run in eager. A process that forks before JAX has started can use it in the child.
Importing this module does not import JAX.
"""

from __future__ import annotations

import logging
import os
import sys

REASON = (
    "JAX was running before this process was forked, and its threads do not survive a fork; "
    "start workers with 'spawn' or 'forkserver' to use XLA in them"
)

jax_is_lost = False
_warned = False
_log = logging.getLogger(__name__)


def _jax_has_started() -> bool:
    # JAX has a public function that starts its backends, and none that asks: its private one takes
    # a lock, which another thread may have held at the fork.
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(getattr(bridge, "_backends", True))


def _after_fork() -> None:
    global jax_is_lost, _warned
    jax_is_lost = jax_is_lost or _jax_has_started()
    _warned = False


def warn_once() -> None:
    """Log, once in a process, why regions run in eager here."""
    global _warned
    if not _warned:
        _warned = True
        _log.warning("XLA regions run in eager in process %d: %s", os.getpid(), REASON)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
