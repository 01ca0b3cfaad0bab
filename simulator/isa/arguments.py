"""Why an instruction's function failed on its arguments: a wrong keyword, a value of a wrong kind.

Instructions look at their operands as if these were what their annotations say; only where that
fails are the arguments compared with the annotations, so that the check costs nothing.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from trnx.simulator.errors import IllegalInstructionError
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.older_dialects import WITHOUT_DST, changed_parameter

if TYPE_CHECKING:
    from trnx.simulator.isa.instruction import Emit


def _is_integer(value: Any) -> bool:
    return isinstance(value, int)


def _is_integers(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(item, int) for item in value)


def _is_tensors(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(item, NkiTensor) for item in value)


# What an annotation allows besides None, and how a message calls it.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "NkiTensor": (lambda value: isinstance(value, NkiTensor), "a tensor"),
    "VirtualRegister": (lambda value: isinstance(value, VirtualRegister), "a register"),
    "int": (_is_integer, "an integer"),
    "float": (lambda value: isinstance(value, int | float), "a number"),
    "tuple[int, ...]": (_is_integers, "a tuple of integers"),
    "Sequence[int]": (_is_integers, "a tuple of integers"),
    "Sequence[NkiTensor]": (_is_tensors, "a list of tensors"),
}


def integer(emit: Emit, value: Any, name: str, end: int = 2**31) -> int:
    """A compile-time integer of 32 bits: below `end`, signed unless that says otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        emit.illegal(f"{name} must be an integer, not {value!r}")
    if not (-(2**31) <= number < end):
        emit.illegal(f"{name}={number} does not fit in 32 bits")
    return number


def integers(emit: Emit, values: Any, name: str) -> tuple[int, ...]:
    """A list or tuple of compile-time integers; one integer counts as a tuple of one."""
    items = values if isinstance(values, tuple | list) else (values,)
    return tuple([integer(emit, item, name) for item in items])


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of nki.isa that records nothing: a wrong keyword is a finding too."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as mismatch:
            message = f"{function.__name__}: {mismatch}; {takes(function, mismatch, kwargs)}"
            raise IllegalInstructionError(function.__name__, message, kernel_location()) from None
        return function(*args, **kwargs)

    return call


def explained(check: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of nki.language: a wrong keyword is a finding named `check`, told after the call
    has failed.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as mismatch:
                message = f"{function.__name__}: {mismatch}; {takes(function, mismatch, kwargs)}"
                raise IllegalInstructionError(check, message, kernel_location()) from None
            raise error

    return call


def takes(function: Callable[..., Any], mismatch: TypeError, given: Mapping[str, Any]) -> str:
    """What a caller may pass, and what became of what an older NKI took."""
    parameters = [name for name in inspect.signature(function).parameters if name != "emit"]
    changes = [
        f"{name} is {change}"
        for name in given
        if name not in parameters
        and (change := changed_parameter(function.__name__, name)) is not None
    ]
    if parameters[:1] == ["dst"] and "missing" in str(mismatch):
        changes.append(f"calls without dst are {WITHOUT_DST}")
    return "; ".join([f"it takes {', '.join(parameters)}", *changes])


def explain_arguments(
    emit: Emit,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> NoReturn:
    """Raise a finding that names the argument; any other error stays what it is."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(emit, *args, **kwargs).arguments
    except TypeError as mismatch:
        emit.illegal(f"{mismatch}; {takes(function, mismatch, kwargs)}")
    for name, value in given.items():
        wanted = str(signature.parameters[name].annotation)
        kind, _, optional = wanted.partition(" | ")
        if kind not in _KINDS or (value is None and optional == "None"):
            continue
        fits, words = _KINDS[kind]
        if not fits(value):
            emit.illegal(f"{name} must be {words}, not {value!r}")
    raise error
