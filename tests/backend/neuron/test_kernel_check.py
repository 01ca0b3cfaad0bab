"""`trnx check-kernels` and `trnx check` where `nki` is installed: its simulator runs the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SOFTMAX = Path(__file__).resolve().parents[3] / "nki_kernels" / "kernels" / "softmax.py"


@pytest.mark.parametrize("change", ["nothing", "differ", "refuse"])
def test_against_nki_simulate(on_fakes: Any, change: str) -> None:
    found = on_fakes("checked_kernels", str(SOFTMAX), change)
    assert found["simulators"] == ["trnx", "nki.simulate"]
    ran = [sample for sample in found["samples"] if sample["status"] != "refused"]
    assert len(ran) > 10
    # `trnx check` asks nki.simulate too.
    state = "FAILS" if change == "refuse" else "ok"
    assert found["tried"]["checks"]["nki.simulate"]["trn2"].startswith(state)
    assert (found["tried"]["native"] > 0.2) == (change == "differ")
    assert found["ok"] == (change != "refuse")
    if change == "refuse":
        assert all("[NKI-1] " in sample["message"] for sample in ran)
        return
    differing = [sample["native"] for sample in ran if sample["native"]]
    assert (len(differing) > 10) == (change == "differ")
    assert differing == pytest.approx([0.25] * len(differing), abs=5e-3)  # bfloat16 rounds
    assert ("nki.simulate differs by up to 0.25" in found["text"]) == (change == "differ")
