"""Legal kernels of one instruction on two tiles, and what NumPy makes of them."""

import numpy as np
from template import Kernel

ISA = "nki/api/nki/isa/__init__.py"
XY = ("x float32 128 64", "y float32 128 64")
BF16 = 2.0**-7
CLOSE = 2e-5


def call(
    line: int, what: str, call: str, want: object = None, setup: str = "", **given: object
) -> Kernel:
    """`a`, `b` are tiles [128, 64] in SBUF, `d` an unwritten one; the result is `d`."""
    result = given.pop("result", "d")
    body = f"""
a, b, d = load(x), load(y), sb((128, 64))
{setup}
{call}
return save({result})
"""
    family = call.partition("(")[0].removeprefix("nisa.").strip()
    return Kernel(
        family, f"{ISA}:{line}", what, body, want=want, **({"args": XY, "within": CLOSE} | given)
    )


def reference(operator: str) -> dict[str, object]:
    return {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
        "minimum": np.minimum, "less": np.less, "greater_equal": np.greater_equal,
        "equal": np.equal, "not_equal": np.not_equal, "divide": np.divide,
    }[operator]  # fmt: skip


def each(make: object, *names: str) -> tuple[Kernel, ...]:
    """A kernel for each name; its values depend on it."""
    return tuple(make(name) for name in names)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


ACTIVATIONS = {
    "exp": np.exp, "tanh": np.tanh, "square": np.square, "copy": lambda x: x, "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0), "sigmoid": sigmoid, "silu": lambda x: x * sigmoid(x),
    "sign": np.sign, "softplus": lambda x: np.log1p(np.exp(x)),
}  # fmt: skip
INTEGERS = ("x int32 128 64", "y int32 128 64")
