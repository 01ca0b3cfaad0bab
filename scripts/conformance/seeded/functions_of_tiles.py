"""Legal kernels of one function of `nl` on two tiles, and of a whole body."""

import numpy as np
from template import Kernel

NL = "nki/api/nki/language/__init__.py"
ISA = "nki/api/nki/isa/__init__.py"
XY = ("x float32 128 64", "y float32 128 64")
CLOSE = 2e-5
INTEGERS = ("x int32 128 64", "y int32 128 64")


def function(
    line: int, name: str, call: str, want: object, setup: str = "", **given: object
) -> Kernel:
    """A function of `nl` on `a` and `b`, tiles [128, 64]."""
    body = f"""
a, b = nl.load(x), nl.load(y)
{setup}
c = {call}
return save(c)
"""
    return Kernel(
        f"nl.{name}",
        f"{NL}:{line}",
        f"{name} as {call}",
        body,
        want=want,
        **({"args": XY, "within": CLOSE} | given),
    )


def program(
    family: str, source: str, what: str, body: str, want: object, **given: object
) -> Kernel:
    return Kernel(family, source, what, body, want=want, **({"args": XY, "within": CLOSE} | given))


def binary(line: int, name: str, ufunc: object) -> tuple[Kernel, ...]:
    """A function of two tiles, of a tile and a number, and of a tile and a column."""
    return (
        function(line, name, f"nl.{name}(a, b)", lambda x, y: ufunc(x, y)),
        function(line, name, f"nl.{name}(a, 2.0)", lambda x, y: ufunc(x, np.float32(2))),
        function(line, name, f"nl.{name}(a, b[:, 0:1])", lambda x, y: ufunc(x, y[:, 0:1])),
    )


def unary(line: int, name: str, reference: object, within: float = 1e-3) -> Kernel:
    positive = name in ("log", "sqrt", "rsqrt", "reciprocal")
    setup = "a = nl.add(nl.abs(a), 1.0)" if positive else ""
    return function(
        line,
        name,
        f"nl.{name}(a)",
        lambda x, y: reference(np.abs(x) + 1 if positive else x),
        setup,
        within=within,
    )


P = np.arange(128)[:, None]
E = np.exp
