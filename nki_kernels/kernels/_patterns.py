"""Patterns of ops that take a list of tensors: one pattern for each length."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trnx.nki_kernels.spec import Pattern


def pattern_of(
    function: Callable[..., Any],
    names: Iterable[str],
    kinds: Mapping[str, Any],
    absent: Iterable[str],
) -> Pattern:
    """`function(*values)` as a pattern with the parameters `names`, of which `kinds` annotates
    those that are no tensors or may be None; the bindings `absent` are None."""
    parameter = inspect.Parameter
    signature = inspect.Signature([parameter(n, parameter.POSITIONAL_OR_KEYWORD) for n in names])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = dict(kinds)
    return Pattern(function, dict.fromkeys(absent))
