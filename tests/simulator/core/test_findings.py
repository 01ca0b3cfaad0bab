"""Findings as warnings, by choice; what the capacity finding says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import (
    CapacityError,
    FindingWarning,
    IllegalInstructionError,
    UninitialisedReadError,
)
from trnx.simulator.findings import CHECKS, DISPUTED
from trnx.simulator.frontend.options import UnknownCheckError, is_check
from trnx.simulator.frontend.run_script import run_script

BUGS = Path(__file__).parent.parent / "bugs"
X = TensorSpec.dense((128, 64), torch.float32)


@pytest.fixture(scope="module")
def legality() -> ModuleType:
    return load_module(BUGS / "legality.py")


@pytest.fixture(scope="module")
def memory() -> ModuleType:
    return load_module(BUGS / "memory.py")


def test_a_check_can_be_made_a_warning(legality: ModuleType) -> None:
    kernel = legality.starts_at_partition_16
    with pytest.raises(IllegalInstructionError):
        trace(kernel, [X], warn=("capacity",))
    with pytest.warns(FindingWarning, match="starts at partition 16"):
        assert trace(kernel, [X], warn=("start-partition",)).instruction_count == 1
    with pytest.warns(FindingWarning, match="starts at partition 16"):
        trace(kernel, [X], strict=False)


def test_a_check_that_does_not_exist_is_named(legality: ModuleType) -> None:
    for warn in (("capacity", "capcity"), "capcity"):
        with pytest.raises(UnknownCheckError, match="capcity: no such check; there are address"):
            trace(legality.starts_at_partition_16, [X], warn=warn)
    # One name as it is, an instruction's own, a collective's, and the disputed rules.
    for warn in ("start-partition", ("start-partition", "nc_matmul", "all_reduce")):
        with pytest.warns(FindingWarning, match="starts at partition 16"):
            trace(legality.starts_at_partition_16, [X], warn=warn)
    assert all(is_check(name) for name in (DISPUTED, *CHECKS))


def test_findings_become_warnings_one_by_one(memory: ModuleType) -> None:
    x = torch.randn(128, 64)
    with pytest.warns(FindingWarning) as caught:
        got = simulate(memory.writes_even_columns_alone, strict=False)(x)
    assert [str(w.message).split("]")[0] for w in caught] == ["[uninitialised-read"]
    assert torch.equal(got[:, ::2], x[:, ::2])
    assert bool(got[:, 1::2].isnan().all())


def test_what_cannot_be_executed_is_raised_in_any_case(legality: ModuleType) -> None:
    with pytest.raises(IllegalInstructionError, match="must be equal"):
        trace(legality.adds_unequal_tiles, [X], strict=False)


def test_the_capacity_finding_has_a_map(memory: ModuleType) -> None:
    with pytest.raises(CapacityError) as caught:
        trace(memory.holds_too_much_sbuf, [X])
    rows = str(caught.value).splitlines()[1:-1]
    assert len(rows) == 3
    assert all("81920 bytes" in row and "memory.py" in row for row in rows)


def test_manual_tensors_may_take_turns(kernels: ModuleType) -> None:
    x = torch.randn(64, 8)
    assert torch.equal(simulate(kernels.takes_turns)(x), x * 4)
    # What they cover together counts once.
    assert trace(kernels.takes_turns, [TensorSpec.of(x)]).peak_sbuf_bytes == 48


def test_an_overwritten_tensor_is_no_uninitialised_one(memory: ModuleType) -> None:
    with pytest.warns(FindingWarning, match="has the same address") as caught:
        trace(memory.overwrites_a_neighbour, [X], warn=("address-overlap",))
    assert len(caught) == 1
    with pytest.raises(UninitialisedReadError):
        trace(memory.reads_an_unwritten_tile, [X], warn=("address-overlap",))


def test_interleaved_halves_are_ordered_enough(kernels: ModuleType) -> None:
    x = torch.randn(4, 6)
    assert torch.equal(simulate(kernels.writes_interleaved_columns[2])(x), x)


CLIPS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def copies(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[0], 128):
        rows = x[start : start + 128, :]
        tile = nl.ndarray(rows.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=rows)
        nisa.dma_copy(dst=out[start:, :], src=tile) if start else nisa.dma_copy(
            dst=out[start : start + rows.shape[0], :], src=tile
        )
    return out
"""


def test_slices_that_end_behind_the_tensor_are_told_on_request(tmp_path: Path) -> None:
    file = tmp_path / "copies.py"
    file.write_text(CLIPS)
    kernel = load_module(file).copies
    whole, ragged = torch.randn(256, 3), torch.randn(200, 3)
    # Warnings are errors here: without the name, and for slices that fit, there are none.
    assert torch.equal(simulate(kernel)(ragged), ragged)
    assert torch.equal(simulate(kernel, strict=False)(ragged), ragged)
    assert torch.equal(simulate(kernel, warn="clipped-slice")(whole), whole)
    with pytest.warns(FindingWarning) as caught:
        assert torch.equal(simulate(kernel, warn="clipped-slice")(ragged), ragged)
    (message,) = [str(one.message) for one in caught]
    assert message.startswith("[clipped-slice] the slice 128:256 of dimension 0, of size 200,")
    assert "copies.py:11 in copies" in message


def test_a_script_is_told_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "script.py"
    file.write_text(CLIPS + "\nimport numpy\nprint(copies(numpy.ones((200, 3), 'f4')).sum())\n")
    monkeypatch.delenv("NKI_PRECISE_FP", raising=False)
    run_script(str(file))
    assert capsys.readouterr().out == "600.0\n"
    with pytest.warns(FindingWarning, match="the slice 128:256"):
        run_script(str(file), warn=["clipped-slice"])
    with pytest.raises(UnknownCheckError, match="clipped: no such check"):
        run_script(str(file), warn=["clipped"])
