"""trnx's own table of ATen ops as JAX functions. Importing it imports JAX.

A module of this package is a family of ops. An entry takes what the graph node has: JAX arrays for
tensors, Python values for the rest, NumPy dtypes for `dtype=` (arguments that say where and how to
store, such as `device`, are dropped). It returns what the op returns; the translator checks shapes
against the graph's metadata and rounds to its dtype.
"""

from __future__ import annotations

import importlib
import pkgutil

from trnx.fallback.aten_to_jax.table import TABLE, Entry

__all__ = ["TABLE", "Entry"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
