"""Kernels with one fault in a function of `nl`."""

from template import MARK, NEW, OLD, Kernel

_NL = "nki/api/nki/language/__init__.py"
_ISA = "nki/api/nki/isa/__init__.py"
_CC = "nki/api/nki/collectives/__init__.py"
_GUIDE = "nki/get-started/nki-language-guide.rst"
_LNC = "nki/get-started/about/lnc.rst"
_XY = ("x float32 128 64", "y float32 128 64")
_INTEGERS = ("x int32 128 64", "y int32 128 64")


def _function(line: int, what: str, call: str, setup: str = "", **given: object) -> Kernel:
    """A function of `nl` on the tiles `a`, `b` [128, 64]."""
    body = f"""
a, b = nl.load(x), nl.load(y)
{setup}
c = {call}  {MARK}
return save(a)
"""
    family = call.partition("(")[0]
    return Kernel(family, f"{_NL}:{line}", what, body, **({"args": _XY} | given))


KERNELS = (
    *(
        _function(1012, "no operand is a tile", f"nl.{name}(1.0, 2.0)")
        for name in ("equal", "less", "greater_equal", "logical_and")
    ),
    *(
        _function(1117, "bits of floats", f"nl.{name}(a, b)")
        for name in ("bitwise_and", "bitwise_xor", "left_shift", "right_shift")
    ),
    _function(1168, "bits of floats", "nl.invert(a)"),
    *(
        _function(
            line, "the partition axis", f"nl.{name}(a, axis=$axis)", vary={"axis": ("0", "[0, 1]")}
        )
        for line, name in (
            (1814, "sum"),
            (1832, "max"),
            (1868, "mean"),
            (1905, "var"),
            (1940, "softmax"),
        )
    ),
    *(
        _function(line, "an inner axis is kept", f"nl.{name}(a.reshape((128, 4, 16)), axis=1)")
        for line, name in ((1814, "sum"), (1850, "min"), (1887, "prod"))
    ),
    _function(846, "abs_max before NeuronCore-v4", "nl.abs_max(a, b)", on=OLD),
    _function(890, "abs_min before NeuronCore-v4", "nl.abs_min(a, 2.0)", on=OLD),
    _function(651, "tiles of other sizes", "nl.add(a, b[:, 0:$n])", vary={"n": ("2", "32")}),
    _function(720, "a tile in HBM", "nl.multiply(a, x)"),
    _function(2177, "another rank", "nl.broadcast_to(a[:, 0:1], (128, 4, 64))"),
    _function(
        2178,
        "sizes that do not broadcast",
        "nl.broadcast_to(a, (128, $n))",
        vary={"n": ("128", "32")},
    ),
    _function(
        2116,
        "a seed of several elements",
        "nl.random_seed(load(z)[:, 0:2])",
        args=(*_XY, "z int32 1 64"),
    ),
    _function(
        2278,
        "a tile on chip is loaded",
        "nl.load_transpose2d($tile)",
        vary={"tile": ("a", "a[0:32, 0:32]", "in_psum(x)")},
    ),
    _function(
        2621,
        "cores with other constants",
        "nl.shared_constant(np.full((4, 4), $value, np.float32))",
        "k = nl.program_id(0)",
        cores=2,
        on=NEW,
        vary={"value": ("k", "3.0 * k + 1")},
    ),
    _function(2671, "a prefix that is no string", "nl.device_print(3, a)"),
    _function(2595, "an axis that the grid has not", "nl.program_id(1)", cores=2, on=NEW),
)
