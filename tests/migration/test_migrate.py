"""`trnx migrate`: old kernels run with the values of their references, the rest is commented."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import trnx.simulator
from trnx.cli import app
from trnx.migration.migrate import MARK, NotPythonError, migrate
from trnx.simulator.errors import FindingError, TrnxError
from trnx.simulator.older_dialects import GUIDE, NAMES, PARAMETERS

_OLD = runpy.run_path(str(Path(__file__).with_name("old_kernels.py")))
CASES, HEAD = _OLD["CASES"], _OLD["HEAD"]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("name", CASES)
def test_a_migrated_kernel_gives_its_references_values(
    tmp_path: Path, name: str, target: str
) -> None:
    case = CASES[name]
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(HEAD + case.source)
    found = migrate(old.read_text())
    new.write_text(found.new)
    assert found.notes == ()
    assert "neuronxcc" not in found.new
    with pytest.raises((FindingError, TrnxError, TypeError)):
        _run(old, target, case.inputs)
    result = _run(new, target, case.inputs)
    np.testing.assert_allclose(result, case.expected(*case.inputs), rtol=2e-4, atol=2e-4)
    assert migrate(found.new).new == found.new, "a second time changes nothing"


def _run(file: Path, target: str, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
    kernel = trnx.simulator.load_module(file).kernel
    return np.asarray(trnx.simulator.simulate(kernel, target=target)(*inputs))


def test_comments_and_formatting_stay() -> None:
    new = migrate(HEAD + CASES["arange"].source).new
    assert "        # of this turn\n" in new
    assert "    for i in nl.affine_range(2):\n" in new
    assert migrate(HEAD + CASES["results"].source).new.count("# of all columns") == 1


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("tile = nl.load(x[table[ip, 0], iy])", "is no arange on one axis"),
        ("tile = nl.load(x[ip * ip, iy])", "is no sum of aranges"),
        ("tile = nl.load(x[ip, iy], mask=(ip < iy))", "a mask that is no upper bound"),
        ("nl.atomic_rmw(x, x, op=np.add)", "gone since NKI 0.2: nki.isa.dma_compute"),
        ("tile = use(ip)", "`ip` is an index expression"),
        ("tile = nisa.tensor_reduce(np.add, x, axis=axes)", "make a tile for its result"),
    ],
)
def test_what_is_left_to_the_author_is_commented(line: str, advice: str) -> None:
    body = f"def kernel(x, table, axes):\n    ip, iy = nl.mgrid[0:128, 0:8]\n    {line}\n"
    found = migrate(HEAD + body)
    (above, below) = found.new.splitlines()[-2:]
    assert above.startswith(f"    {MARK}")
    assert advice in above
    assert below.startswith("    ")
    assert found.notes
    assert found.notes[0][0] == (HEAD + body).count("\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@nki.jit(mode='baremetal')\ndef k(): pass\n", "@nki.jit\ndef k(): pass\n"),
        ("nki.simulate_kernel(k, a, b=1)\n", "nki.simulate(k)(a, b=1)\n"),
        ("nki.baremetal(k)(a, b=1)\n", "nki.simulate(k)(a, b=1)\n"),
        ("run = nki.baremetal(artifacts_dir='x')(k)\n", "run = nki.simulate(k)\n"),
        ("def k(x: nki.tensor) -> nki.tensor: pass\n",
         "def k(x: nl.NkiTensor) -> nl.NkiTensor: pass\n"),
        ("nisa.sendrecv(a, b, use_gpsimd_dma=True)\n",
         "nisa.sendrecv(a, b, dma_engine=nisa.dma_engine.gpsimd_dma)\n"),
        ("run = nki.baremetal(k)\nnki.simulate_kernel(run, a, b=1)\n",
         "run = nki.simulate(k)\nrun(a, b=1)\n"),
        ("run = nki.baremetal(k)\nnki.simulate_kernel(run[2], a)\nrun[2](a)\n",
         "run = nki.simulate(k)\nnki.simulate(k[2])(a)\nnki.simulate(k[2])(a)\n"),
        ("run = nki.baremetal(k)\nrun = k\nnki.simulate_kernel(run, a)\n",
         "run = nki.simulate(k)\nrun = k\nnki.simulate(run)(a)\n"),
        ("nisa.dma_copy(a, b, dge_mode=2, oob_mode=1)\n",
         "nisa.dma_copy(a, b, dge_mode=nisa.dge_mode.hwdge, oob_mode=nisa.oob_mode.skip)\n"),
        ("nisa.nc_matmul(c, a, b, perf_mode='double_row_gen3')\n",
         "nisa.nc_matmul(c, a, b, perf_mode=nisa.matmul_perf_mode.double_row)\n"),
        ("a = nl.ndarray((2, 3), nl.int8, buffer='psum')\n",
         "a = nl.ndarray((2, 3), nl.int8, buffer=nl.psum)\n"),
        ("a = sbuf.view(dtype=nl.int8, shape=x.shape)\nb = x.view(dtype=nl.int8, shape=y)\n",
         "a = nl.ndarray(x.shape, dtype=nl.int8, buffer=nl.sbuf)\n"
         "b = x.view(dtype=nl.int8, shape=y)\n"),
        ("hbm = a\na = hbm.view(dtype=nl.int8, shape=(1, 2))\n",) * 2,
        ("nisa.register_move(r, imm=42)\n",
         "nisa.register_move(r, src=nisa.register_alloc(42))\n"),
    ],
)  # fmt: skip
def test_changes_of_later_versions(old: str, new: str) -> None:
    head = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
    assert migrate(head + old).new == head + new


def test_what_is_gone_gets_no_dtype() -> None:
    body = """\
def kernel(x):
    tiles = nl.ndarray((2, nl.par_dim(64), 40), dtype=nl.bfloat16, buffer=nl.sbuf)
    tiles[0] = nl.exp(x)
    tiles[1] = nl.loop_reduce(x, nl.add, loop_indices=[0])
"""
    new = migrate(HEAD + body).new
    assert "    tiles[0] = nl.exp(x, dtype=tiles[0].dtype)\n" in new
    assert "    tiles[1] = nl.loop_reduce(x, nl.add, loop_indices=[0])\n" in new


def test_products_that_accumulate_keep_their_mode() -> None:
    body = """\
def kernel(a, b):
    acc = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
    acc += nisa.nc_matmul(a, b, perf_mode="double_row_gen3", tile_size=(32, 32))
"""
    assert migrate(HEAD + body).new.splitlines()[-1] == (
        "    nisa.nc_matmul(acc, a, b, perf_mode=nisa.matmul_perf_mode.double_row, "
        "tile_size=(32, 32))"
    )


def test_an_index_that_is_still_read_stays() -> None:
    head = "import neuronxcc.nki.language as nl\n\n\n"
    kernel = """\
def kernel(x, table):
    rows = nl.arange(32)[:, None]
    columns = nl.arange(8)[None, :]
    t = nl.load(x[rows, columns])
    u = nl.load(x[table[rows, 0], 0:8])
"""
    new = migrate(head + kernel).new
    assert "rows = nl.arange(32)[:, None]" in new
    assert "columns" not in new
    assert "t = nl.load(x[0:32, 0:8])" in new


def test_arrays_of_the_host_are_cast_by_numpy() -> None:
    head = "import neuronxcc.nki.language as nl\nimport numpy as np\n\n\n"
    host = "def test_it(dtype):\n    a = np.ones((2, 3))\n    b = nl.static_cast(a, dtype)\n"
    assert "b = a.astype(dtype)" in migrate(head + host).new
    nested = host.replace("(a, dtype)", "(a + 1, dtype)")
    assert "b = (a + 1).astype(dtype)" in migrate(head + nested).new
    kernel = "def kernel(a, dtype):\n    t = nl.load(a)\n    u = nl.static_cast(t, dtype)\n"
    assert "u = nl.copy(t, dtype=dtype)" in migrate(head + kernel).new


def test_an_identity_matrix_is_copied() -> None:
    head = "import neuronxcc.nki.language as nl\n\n\n"
    kernel = """\
def kernel(a):
    i = nl.shared_identity_matrix(n=128, dtype=nl.bfloat16)
    t = nl.load(i, dtype=a.dtype)
    i = a
    u = nl.load(i)
"""
    new = migrate(head + kernel).new
    assert "t = nl.copy(i, dtype=a.dtype)" in new
    assert "u = nl.load(i)" in new


def test_what_is_gone_is_imported_where_it_is_still_used() -> None:
    old = "from neuronxcc.nki import benchmark, trace\n\n\n@trace\ndef k(x): pass\n"
    assert "import benchmark" not in migrate(old).new
    used = migrate(f"{old}\n\nrun = benchmark(warmup=1)(k)\n").new
    assert used.startswith("from nki import benchmark\n")
    assert "trace" not in used
    assert "nki.benchmark is gone" in used


def test_other_files_stay_as_they_are() -> None:
    for text in ("import numpy as np\nx = np.arange(3)\n", "", "import nki\n\n\nprint(nki)\n"):
        assert migrate(text).new == text
    with pytest.raises(NotPythonError, match=r"kernel\.py:1"):
        migrate("def (", "kernel.py")


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(HEAD + CASES["arange"].source)
    run = CliRunner().invoke
    shown = run(app, ["migrate", str(file)])
    assert shown.exit_code == 0
    assert "-import neuronxcc.nki as nki" in shown.output
    assert file.read_text() == HEAD + CASES["arange"].source
    assert run(app, ["migrate", "--check", str(file)]).exit_code == 1
    data = json.loads(run(app, ["migrate", "--write", "--json", str(file)]).output)
    assert data["written"]
    assert data["files"][0]["changed"]
    assert "neuronxcc" not in file.read_text()
    assert run(app, ["migrate", "--check", str(file)]).exit_code == 0


def test_the_table_says_what_to_write() -> None:
    changes = [c for group in (*NAMES.values(), *PARAMETERS.values()) for c in group.values()]
    for change in changes:
        assert change.instead
        assert f"{GUIDE}#{change.section}" in str(change)


def test_a_mask_without_an_arange_is_a_condition() -> None:
    head = "import neuronxcc.nki.isa as nisa\nimport neuronxcc.nki.language as nl\n\n\n"
    kernel = """\
def kernel(x, out, rows, i):
    t = nl.ndarray((nl.par_dim(128), 8), dtype=x.dtype, buffer=nl.sbuf)
    u = nl.ndarray((nl.par_dim(128), 8), dtype=x.dtype, buffer=nl.sbuf)
    t[...] = nl.load(x[i], mask=i * 128 < rows)
    u[...] = nl.copy(t)
    nl.store(out[i], value=u, mask=i * 128 < rows)
    v = nl.load(x[i, 0:128], mask=i * 128 < rows)
"""
    found = migrate(head + kernel)
    lines = [line.strip() for line in found.new.splitlines()]
    for start in ("nisa.dma_copy(dst=t", "u[...] = nl.copy(t)", "nl.store(out[i], value=u)"):
        (at,) = [n for n, line in enumerate(lines) if line.startswith(start)]
        assert lines[at - 1] == "if i * 128 < rows:"
    assert any("is an `if` around the statement" in note for _, note in found.notes)


def test_masks_cut_plain_slices() -> None:
    head = "import neuronxcc.nki.isa as nisa\nimport neuronxcc.nki.language as nl\n\n\n"
    kernel = """\
def kernel(x, rows, i):
    ip = nl.arange(128)[:, None] + i
    t = nl.ndarray((nl.par_dim(128), 8), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t[0:128, 0:8], src=x[i : i + 128, 0:8], mask=ip < rows)
    s = nl.sum(t[:, 0:8], axis=1, mask=ip < rows)
"""
    new = migrate(head + kernel).new
    assert "dst=t[0:128, 0:8][0:min(128, rows - i)]" in new
    assert "src=x[i : i + 128, 0:8][0:min(128, rows - i)]" in new
    assert "nl.sum(t[:, 0:8][0:min(128, rows - i)], axis=1)" in new
