"""Do the parts of a kernel's spec fit together? Asked when it is registered.

The bindings of its patterns, the parameters of its kernel (where no `plan` chooses the launch) and
those of its reference must have the same names; a guard may not return a bool.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from trnx.nki_kernels.errors import KernelSpecError
from trnx.nki_kernels.spec import KernelSpec, Pattern, kernel_parameters

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_spec(spec: KernelSpec) -> None:
    """Raises KernelSpecError, which names the kernel and the part."""
    if not spec.patterns:
        raise KernelSpecError(f"kernel {spec.name} has no pattern; nothing would select it")
    _check_guard(spec)
    for pattern in spec.patterns:
        names = _binding_names(pattern)
        _check_names(spec, "reference", spec.torch_reference, names)
        if spec.plan is None:
            _check_kernel(spec, names)


def _binding_names(pattern: Pattern) -> set[str]:
    return {*inspect.signature(pattern.function).parameters, *pattern.constants}


def _check_kernel(spec: KernelSpec, names: set[str]) -> None:
    parameters = set(kernel_parameters(spec.kernel))
    if missing := sorted(parameters - names):
        raise KernelSpecError(
            f"kernel {spec.name}: its parameter {missing[0]!r} is no binding of the pattern, which "
            f"has {sorted(names)}; name it like one, or give a `plan`"
        )
    if unused := sorted(names - parameters):
        raise KernelSpecError(
            f"kernel {spec.name}: no parameter of the kernel takes the binding {unused[0]!r}, so "
            "its value would be ignored; add the parameter, or give a `plan`"
        )


def _check_names(
    spec: KernelSpec, what: str, function: Callable[..., Any], names: set[str]
) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise KernelSpecError(
            f"kernel {spec.name}: its {what}{signature} cannot be called with the bindings "
            f"{sorted(names)}: {error}"
        ) from None


def _check_guard(spec: KernelSpec) -> None:
    parameters = inspect.signature(spec.guard).parameters.values()
    positional = [p for p in parameters if p.kind not in _VARIADIC]
    if len(positional) != 2:
        raise KernelSpecError(
            f"kernel {spec.name}: its guard takes {len(positional)} parameters; it must take the "
            "bindings and the hardware"
        )
    if line := _returns_a_bool(spec.guard):
        raise KernelSpecError(
            f"kernel {spec.name}: its guard returns a bool in line {line}; return Reject(reason), "
            "or None where the kernel takes the bindings"
        )


def _returns_a_bool(function: Callable[..., Any]) -> int:
    """The line of a `return True` or `return False`, 0 where there is none or no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return 0
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Return) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            return first + value.lineno - 1
    return 0
