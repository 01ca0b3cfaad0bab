"""Whether the parts of a kernel's spec fit together, checked when it is registered.

The bindings of its patterns, the parameters of its kernel (where no `launch` computes its
arguments) and those of its `reference` must have the same names; `supports` may not return a bool.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trnx.nki_kernels.errors import KernelSpecError
from trnx.nki_kernels.spec import (
    CORES,
    Bindings,
    KernelSpec,
    LaunchByName,
    LaunchOnCores,
    Pattern,
    kernel_parameters,
)
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def checked_spec(spec: KernelSpec, reads_source: bool = True) -> KernelSpec:
    """`spec`, with a `supports` that raises where it returns a bool.

    Without `reads_source` it does so in a call alone. Raises KernelSpecError with the kernel's name
    and the argument that is wrong.
    """
    if not spec.patterns:
        raise KernelSpecError(f"kernel {spec.name} has no pattern; nothing would select it")
    _check_supports(spec, reads_source)
    for pattern in spec.patterns:
        names = _binding_names(pattern)
        _check_reference(spec, names)
        if isinstance(spec.launch, LaunchOnCores) and isinstance(spec.launch.given, LaunchByName):
            _check_kernel(spec, names)
    return replace(spec, supports=_with_checked_answer(spec))


def _binding_names(pattern: Pattern) -> set[str]:
    return {*inspect.signature(pattern.function).parameters, *pattern.constants}


def _check_kernel(spec: KernelSpec, names: set[str]) -> None:
    parameters = set(kernel_parameters(spec.kernel)) - {CORES}
    if missing := sorted(parameters - names):
        raise KernelSpecError(
            f"kernel {spec.name}: its parameter {missing[0]!r} is no binding of the pattern, which "
            f"has {sorted(names)}; name it like one, or give a `launch`"
        )
    if unused := sorted(names - parameters):
        raise KernelSpecError(
            f"kernel {spec.name}: no parameter of the kernel takes the binding {unused[0]!r}, so "
            "its value would be ignored; add the parameter, or give a `launch`"
        )


def _check_reference(spec: KernelSpec, names: set[str]) -> None:
    signature = inspect.signature(spec.reference)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise KernelSpecError(
            f"kernel {spec.name}: its reference{signature} cannot be called with the bindings "
            f"{sorted(names)}: {error}"
        ) from None


def _check_supports(spec: KernelSpec, reads_source: bool) -> None:
    parameters = inspect.signature(spec.supports).parameters.values()
    positional = [p for p in parameters if p.kind not in _VARIADIC]
    if len(positional) != 2:
        raise KernelSpecError(
            f"kernel {spec.name}: its supports takes {len(positional)} parameters; it must take "
            "the bindings and the hardware"
        )
    if reads_source and (line := _returns_a_bool(spec.supports)):
        raise KernelSpecError(
            f"kernel {spec.name}: its supports returns a bool in line {line}; return "
            "Reject(reason), or None where the kernel takes the bindings"
        )


def _with_checked_answer(spec: KernelSpec) -> Callable[[Bindings, Hardware], Reject | None]:
    @functools.wraps(spec.supports)
    def supports(b: Bindings, hw: Hardware) -> Reject | None:
        found = spec.supports(b, hw)
        if found is not None and not isinstance(found, Reject):
            raise KernelSpecError(
                f"supports of kernel {spec.name} returned {found!r}; it must return "
                "Reject(reason), or None where the kernel takes the bindings"
            )
        return found

    return supports


def _returns_a_bool(function: Callable[..., Any]) -> int:
    """The line of a `return` of what is a bool for certain, 0 where there is none or no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return 0
    waiting: list[ast.AST] = list(tree.body[0].body) if isinstance(tree.body[0], _FUNCTION) else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None and _is_bool(node.value):
            return first + node.lineno - 1
        if not isinstance(node, _FUNCTION):  # a function inside returns what it likes
            waiting += ast.iter_child_nodes(node)
    return 0


_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_PREDICATES = ("bool", "isinstance", "issubclass", "all", "any", "hasattr", "callable")


def _is_bool(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, bool)
    if isinstance(value, ast.BoolOp):
        return all(map(_is_bool, value.values))
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.Not)
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in _PREDICATES
    return isinstance(value, ast.Compare)
