"""Kernels of one faulty call on two tiles."""

from template import MARK, Kernel

ISA = "nki/api/nki/isa/__init__.py"


def call(line: int, what: str, call: str, setup: str = "", **given: object) -> Kernel:
    """`a`, `b` are tiles [128, 64] in SBUF, `d` an unwritten one; the result is `d`."""
    body = f"""
a, b, d = load(x), load(y), sb((128, 64))
{setup}
{call}  {MARK}
return save(d)
"""
    args = ("x float32 128 64", "y float32 128 64")
    family = call.partition("(")[0].removeprefix("nisa.").strip()
    return Kernel(family, f"{ISA}:{line}", what, body, **({"args": args} | given))


INT = ("x int32 128 64", "y int32 128 64")
