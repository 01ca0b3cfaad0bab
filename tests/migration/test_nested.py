"""Functions inside of kernels, which `trnx migrate` moves to the module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trnx.simulator
from trnx.migration.migrate import MARK, migrate

HEAD = """\
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

def scale():
    return 1


@nki.jit
def kernel(x):
"""
MOVED = (
    HEAD
    + '''\
    ROWS = 64
    rows = nl.arange(ROWS)[:, None]
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)

    def scale(tile, by=2.0):
        """Times a number
        and the place."""
        return nl.multiply(tile, by * place)

    def one(i,
            shift,):
        """As `rows` are bound outside."""
        cols = nl.arange(40)[None, :]
        tile = nl.load(x[i * ROWS + rows, cols])
        nl.store(out[i * ROWS + rows, cols], value=nl.add(scale(tile), shift))

    for i in range(2):
        place = i + 1
        one(i, 3.0,)
    place = 5
    one(2, shift=4.0  # the last one
        )
    return out
'''
)


def test_functions_inside_move_with_what_they_read(tmp_path: Path) -> None:
    """Also calls of one another, and variables that are bound again between two calls."""
    file = tmp_path / "new.py"
    found = migrate(MOVED)
    file.write_text(found.new)
    assert found.notes == ()
    signatures = (
        "def kernel_scale(tile, by=2.0, place=None):\n",
        "def one(i,\n        shift, ROWS",
    )
    assert all(one in found.new for one in signatures)
    assert '    """Times a number\n        and the place."""\n' in found.new
    x = np.random.default_rng(0).standard_normal((192, 40)).astype(np.float32)
    kernel = trnx.simulator.load_module(file).kernel
    by = np.repeat([2.0, 4.0, 10.0], 64)[:, None].astype(np.float32)
    shift = np.repeat([3.0, 3.0, 4.0], 64)[:, None].astype(np.float32)
    np.testing.assert_allclose(trnx.simulator.simulate(kernel)(x), x * by + shift, rtol=1e-6)
    assert migrate(found.new).new == found.new


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("def f(a=x.shape[0]):\n    return nl.load(x)\nf()", "a default of it is computed"),
        ("def f(*a):\n    return nl.load(x)\nf(x)", "takes any number of arguments"),
        ("n = 1\ndef f():\n    nonlocal n\n    n = 2\nf()", "assigns to a variable"),
        ("def f(a):\n    return nl.load(x)\nf(*[x])", "spreads its arguments"),
        ("def f():\n    return n\nf = f()\nn = 1", "its name is bound again"),
        ("def f():\n    return n\nif x is None:\n    f()\nn = 1", "called before `n` is bound"),
    ],
)
def test_what_stays_inside_is_commented(body: str, why: str) -> None:
    text = HEAD + "".join(f"    {line}\n" for line in [*body.split("\n"), "return nl.load(x)"])
    found = migrate(text)
    [(line, advice)] = found.notes
    assert why in advice
    assert text.splitlines()[line - 1].startswith("    def f(")
    assert f"    {MARK} move `f` to the module: " in found.new
    before = found.new.splitlines()
    assert before[before.index(f"    {MARK} {advice}") + 1].startswith("    def f(")


def test_those_that_depend_on_one_that_stays_stay_too() -> None:
    text = HEAD + (
        "    def f(*a):\n        return nl.load(x)\n"
        "    def g():\n        return f()\n    g()\n    return x\n"
    )
    assert [advice for _, advice in migrate(text).notes] == [
        "move `f` to the module: it has a decorator, or takes any number of arguments",
        "move `g` to the module: it calls `f`, which stays",
    ]


def test_bodies_of_register_loops_stay() -> None:
    text = HEAD + (
        "    def body(i):\n        nisa.memset(x[i], 0.0)\n"
        "    nl.fori_loop(0, 4, body)\n    return x\n"
    )
    found = migrate(text)
    assert "    def body(i):\n" in found.new
    assert found.notes == ()
