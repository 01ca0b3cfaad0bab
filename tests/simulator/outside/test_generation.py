"""A generation of hardware from one file outside of trnx is a target like those within."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.backend.options import Options
from trnx.simulator import TensorSpec, load_module, simulate
from trnx.simulator.costs.constants import TIMINGS, add_timing, timing
from trnx.simulator.errors import CapacityError, TrnxError, UnknownTargetError
from trnx.simulator.hardware import _ALIASES, TRN2, TRN3, add_hardware, hardware, targets

HERE = Path(__file__).parent


@pytest.fixture
def generation() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("next_generation", HERE / "next_generation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("trn9", "gen5"):
        _ALIASES.pop(name, None)
    TIMINGS.pop("trn9", None)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(HERE.parent / "timing" / "timing_kernels.py")


def test_it_is_a_target(generation: ModuleType) -> None:
    assert hardware("gen5") is generation.NEXT
    assert targets() == ("trn1", "trn2", "trn3", "trn9")
    assert timing(generation.NEXT).dma_issue_ns == 100
    assert Options(target="gen5").target == "trn9"
    with pytest.raises(UnknownTargetError, match="trn9"):
        hardware("trn8")


@pytest.mark.usefixtures("generation")
def test_its_capacity_is_checked(kernels: ModuleType) -> None:
    # Two tiles of three fifths of trn3's SBUF.
    x = torch.randn(256, TRN3.sbuf_partition_bytes // 4 * 3 // 5)
    with pytest.raises(CapacityError):
        simulate(kernels.running_sum, "trn3")(x)
    torch.testing.assert_close(simulate(kernels.running_sum, "trn9")(x), x[:128] + x[128:])


@pytest.mark.usefixtures("generation")
def test_its_clocks_make_predictions(kernels: ModuleType) -> None:
    x = TensorSpec.dense((64 * 128, 2048), torch.float32)
    old, new = (trnx.profile(kernels.scale, x, True, target=t) for t in ("trn3", "trn9"))
    assert new.total_seconds == pytest.approx(old.total_seconds / 2, rel=0.1)
    # No measurement judges it.
    assert new.band is None


@pytest.mark.usefixtures("generation")
def test_models_are_compiled_for_it() -> None:
    x, weight = torch.randn(64, 128), torch.randn(256, 128)
    compiled = torch.compile(F.linear, backend="trnx", options={"target": "trn9"})
    torch.testing.assert_close(compiled(x, weight), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    (report,) = trnx.explain(compiled, x, weight).reports
    assert (report.target, report.regions[0].engine) == ("trn9", "nki")


def test_a_name_is_taken_once(generation: ModuleType) -> None:
    add_hardware(generation.NEXT, "gen5")
    with pytest.raises(TrnxError, match="trn2"):
        add_hardware(generation.NEXT, "trn2")
    with pytest.raises(TrnxError, match="trn9"):
        add_timing("trn9", timing(TRN2))
    assert hardware("trn2") is TRN2
