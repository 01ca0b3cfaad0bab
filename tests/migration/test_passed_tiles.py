"""Tiles that functions hand to each other, names that are bound anew, and PSUM that is moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import trnx.simulator
from trnx.migration.migrate import migrate

HEAD = """\
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


"""


class Case(NamedTuple):
    """A file behind `HEAD`, the inputs of its kernel, and what that gives."""

    source: str
    inputs: tuple[Any, ...]
    expected: Any


def _array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


_X = _array(128, 40)
_W = _array(128, 128) / 8
_ROWS = _array(300, 40)
CASES = {
    "operators on a parameter and on a result": Case(
        """\
def cube(t):
    return t * t * t


def parts(t, factor):
    positive = nl.maximum(t, 0.0)
    return positive * factor, t - positive


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    cubed = cube(tile)
    above, below = parts(cubed + 1.0, 3)
    nl.store(out, value=above - below)
    return out
""",
        (_X,),
        3 * np.maximum(_X**3 + 1, 0) - np.minimum(_X**3 + 1, 0),
    ),
    "a number in one call, a tile in another": Case(
        """\
def doubled(a):
    return a + a


@nki.jit
def kernel(x):
    size = doubled(20)
    out = nl.ndarray((128, size), dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(x[0:128, 0:size]))
    return out
""",
        (_X,),
        _X,
    ),
    "a name that its own value reads": Case(
        """\
@nki.jit
def kernel(x):
    out = nl.ndarray((100, 40), dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = nl.mgrid[0:128, 0:40]
    t = nl.load(x)
    t = nisa.tensor_scalar(t, nl.multiply, 2.0)
    t = nisa.activation(op=nl.square, data=t)
    x = nl.load(x[rows, columns], mask=rows < 100)
    t = nisa.tensor_tensor(t[0:100, 0:40], x[0:100, 0:40], op=nl.add)
    nl.store(out, value=t)
    return out
""",
        (_X,),
        ((2 * _X) ** 2 + _X)[:100],
    ),
    "a transpose into a tile of a list": Case(
        """\
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    turned = nl.ndarray((2, nl.par_dim(128), 128), dtype=x.dtype, buffer=nl.sbuf)
    tile = nl.load(x)
    for i in nl.affine_range(2):
        turned[i] = nisa.nc_transpose(tile)
    total = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(2):
        total += nisa.nc_matmul(turned[i], tile)
    nl.store(out, value=nl.copy(total))
    return out
""",
        (_W,),
        2 * _W @ _W,
    ),
    "sums of products that have names": Case(
        """\
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    total = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum)
    for i in nl.sequential_range(3):
        product = nisa.nc_matmul(tile, tile)
        total += product
    both = total + product
    nl.store(out, value=both)
    return out
""",
        (_W,),
        4 * _W.T @ _W,
    ),
    "products and selections of what is in PSUM": Case(
        """\
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    turned = nisa.nc_transpose(tile)
    square = nisa.nc_matmul(turned, tile)
    total = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum)
    total += nisa.nc_matmul(stationary=tile, moving=turned[0:128, 0:128])
    rows, columns = nl.mgrid[0:128, 0:128]
    lower = nisa.affine_select(pred=rows >= columns, on_true_tile=square, on_false_value=0.0)
    nl.store(out, value=lower + total)
    return out
""",
        (_W,),
        np.tril(_W @ _W) + _W.T @ _W.T,
    ),
    "a data class of options": Case(
        """\
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    factor: float = 3.0


@nki.jit
def kernel(x, options=None):
    options = options or Options()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(x) * options.factor)
    return out
""",
        (_X,),
        3 * _X,
    ),
    "a masked load of whole rows": Case(
        """\
@nki.jit
def kernel(x):
    rows, columns = x.shape
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range((rows + 127) // 128):
        at = i * 128 + nl.arange(128)[:, None]
        tile = nl.load(x[at, :], mask=at < rows)
        part = nl.load(x[at, 8:24], mask=at < rows)
        nl.store(out[at, :], tile * 2.0, mask=at < rows)
        nl.store(out[at, 8:24], part, mask=at < rows)
        odd = nl.load(x[at, 25:columns:2], mask=at < rows)
        nl.store(out[at, 25:columns:2], odd, mask=at < rows)
    return out
""",
        (_ROWS,),
        _ROWS * np.where(np.isin(np.arange(40), [*range(8, 24), *range(25, 40, 2)]), 1, 2),
    ),
}


_BRANCHES = """\
def kernel(x, out, is_late, is_on):
    rows, columns = nl.mgrid[0:128, 0:40]
    if is_late:
        at = rows + 128
        inside = rows >= columns
    else:
        at = rows
        inside = columns >= rows
    {line}
"""


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("t = nisa.affine_select(inside, x, 0.0)", "a mask that is no comparison"),
        ("t = nl.load(x[at, columns])", ""),
        ("t = nisa.activation(np.exp, x, mask=is_on)", "a mask that is no comparison"),
    ],
)
def test_what_an_if_decides_stays(line: str, advice: str) -> None:
    found = migrate(HEAD + _BRANCHES.format(line=line))
    assert advice in " ".join(note for _, note in found.notes)
    if "is_on" in line:
        assert line.replace("np.exp", "nl.exp") in found.new or line in found.new
        return
    assert "nl.mgrid[0:128, 0:40]" in found.new
    name = "inside" if "inside" in line else "at"
    assert found.new.count(f"        {name} = ") == 2
    assert "128 : " not in found.new


def test_branches_have_their_own_indices() -> None:
    copied = "nl.store(out[at, columns], nl.load(x[at, columns]))"
    body = _BRANCHES.format(line="pass")
    body = body.replace("inside = rows >= columns", copied)
    body = body.replace("inside = columns >= rows", copied)
    new = migrate(HEAD + body).new
    assert "nl.store(out[128 : 256, 0:40], nl.load(x[128 : 256, 0:40]))" in new
    assert "nl.store(out[0:128, 0:40], nl.load(x[0:128, 0:40]))" in new
    assert "mgrid" not in new


def test_a_flag_as_a_mask_is_an_if() -> None:
    body = """\
def kernel(x, i, rows):
    t = nl.ndarray((128, 40), dtype=x.dtype, buffer=nl.sbuf)
    is_on = i * 128 < rows
    t[...] = nisa.activation(nl.exp, x, mask=is_on)
    u = nisa.activation(nl.exp, x, mask=is_on)
"""
    found = migrate(HEAD + body)
    assert "    if is_on:\n        nisa.activation(t, nl.exp, x)\n" in found.new
    assert "u = nisa.activation(nl.exp, x, mask=is_on)" in found.new
    assert len(found.notes) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_migrated_file_gives_its_references_values(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    found = migrate(HEAD + case.source)
    assert found.notes == ()
    file = tmp_path / "new.py"
    file.write_text(found.new)
    kernel = trnx.simulator.load_module(file).kernel
    result = np.asarray(trnx.simulator.simulate(kernel, target="trn2")(*case.inputs))
    np.testing.assert_allclose(result, case.expected, rtol=2e-4, atol=2e-4)
    assert migrate(found.new).new == found.new, "a second time changes nothing"


@pytest.mark.parametrize("part", ["..., at", "0:4, at", "at, 0:8:step", "at, -8:"])
def test_a_masked_load_whose_size_is_not_known_is_commented(part: str) -> None:
    body = f"""\
def kernel(x, rows, step):
    at = nl.arange(128)[:, None]
    tile = nl.load(x[{part}], mask=at < rows)
"""
    notes = [note for _, note in migrate(HEAD + body).notes]
    assert notes == ["a load with a mask and a slice: make its tile, and load a part of it"]


def test_the_level_that_the_import_made() -> None:
    old = "import logging\nimport neuronxcc.nki.language as nl\n\nlogging.disable(logging.OFF)\n"
    new = migrate(old).new
    assert "logging.disable(logging.CRITICAL)\n" in new
    assert "logging.OFF" in migrate(old.replace("neuronxcc.nki", "nki")).new
