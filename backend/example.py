"""The example of `trnx explain`: MODULE:FUNCTION or FILE.py:FUNCTION -> model, args, kwargs."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnx.backend.errors import ExampleError


def _function(example: str) -> Callable[[], Any]:
    place, colon, name = example.rpartition(":")
    if not colon or not place or not name:
        raise ExampleError(
            f"{example!r} names no example: write MODULE:FUNCTION or FILE.py:FUNCTION"
        )
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise ExampleError(f"there is no file {place!r}; the path is relative to this folder")
        _let_import_from(Path(place).resolve().parent)
        names = runpy.run_path(place)
    else:
        _let_import_from(Path.cwd())
        try:
            names = vars(importlib.import_module(place))
        except ModuleNotFoundError as error:
            raise ExampleError(f"cannot import {place!r}: {error}") from error
    if not callable(names.get(name)):
        raise ExampleError(f"{place} defines no function {name!r}")
    function: Callable[[], Any] = names[name]
    return function


def _let_import_from(folder: Path) -> None:
    """As Python's command line does, which an installed command does not; for later imports too."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def load_example(example: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The model or function, its positional and its keyword arguments. Raises ExampleError."""
    returned = _function(example)()
    match returned:
        case (model, tuple() | list() as args) if callable(model):
            return model, tuple(args), {}
        case (model, tuple() | list() as args, dict() as kwargs) if callable(model):
            return model, tuple(args), kwargs
    raise ExampleError(
        f"{example} returned {type(returned).__name__}; it must return (model, args) or "
        "(model, args, kwargs)"
    )
