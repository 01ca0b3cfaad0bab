"""What a kernel reaches besides its arguments: by globals, defaults and closures, and so do the
functions and classes that it reaches.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

from trnx.simulator.frontend.kernel import Kernel
from trnx.simulator.frontend.twins import IN_TWIN

Owner = FunctionType | type
_MEMBERS = (FunctionType, int, float, bool, str, bytes, type(None))


def reads_of(function: Callable[..., Any]) -> Iterator[tuple[Owner, str, Any]]:
    """Who reads, the name that it reads, and the value; kernels are their functions."""
    if not is_kernel_code(function):
        return
    seen: set[Owner] = {function}
    pending: list[Owner] = [function]
    while pending:
        owner = pending.pop()
        for name, value in _parts_of(owner):
            found = inspect.unwrap(value.function if isinstance(value, Kernel) else value)
            yield owner, name, found
            if is_kernel_code(found) and found not in seen:
                seen.add(found)
                pending.append(found)


def is_kernel_code(found: Any) -> TypeGuard[Owner]:
    """True for functions and classes that are not the simulator's."""
    return isinstance(found, FunctionType | type) and not is_ours(found)


def is_ours(found: Any) -> bool:
    """True for the simulator's own."""
    return str(found.__module__).startswith("trnx.simulator")


def _parts_of(found: Owner) -> Iterator[tuple[str, Any]]:
    if isinstance(found, type):
        members = [(name, getattr(one, "__func__", one)) for name, one in list(vars(found).items())]
        yield from (member for member in members if isinstance(member[1], _MEMBERS))
        return
    code = found.__code__
    defaults = found.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (found.__kwdefaults__ or {}).items()
    for name, cell in zip(code.co_freevars, found.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    scope, names = found.__globals__, _names_in(code)
    for name in names:
        if name not in scope:
            continue
        value = scope[name]
        yield name, value
        if isinstance(value, ModuleType) and IN_TWIN in vars(value):
            yield from ((inner, vars(value)[inner]) for inner in names if inner in vars(value))


@functools.lru_cache(maxsize=1024)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """Names of globals and attributes in a function and those within it, in order."""
    names = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names.update(dict.fromkeys(_names_in(inner)))
    return tuple(names)
