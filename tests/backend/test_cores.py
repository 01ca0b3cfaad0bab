"""The option `lnc`: both cores of a logical core, and what says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.backend.cache.graphs import GraphText
from trnx.backend.cache.plans import plan_key
from trnx.backend.cache.predictions import prediction_key
from trnx.backend.cores import choose
from trnx.backend.errors import SharedResultError
from trnx.backend.options import Options, make_options, on_cores
from trnx.backend.programs import ProgramCache, launch_key, traced
from trnx.errors import OptionError
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, Cost, Launch
from trnx.simulator import load_module
from trnx.simulator.hardware import TRN2
from trnx.simulator.memory.tensor_spec import TensorSpec

TWO = on_cores("trn2", 2)
SOFTMAX = Bindings(
    {
        "x": TensorSpec.dense((300, 70), torch.float32),
        "dim": 1,
        "half_to_float": False,
        "is_log": False,
    }
)

KERNELS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def double_in_memory(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=out, src=x)
    nisa.dma_copy(dst=tile, src=out)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="trnx", options={"runner": "simulator", **options})


def test_the_option() -> None:
    assert make_options({"lnc": 2}, {}).hardware == TWO
    assert make_options({}, {"TRNX_LNC": "2"}).lnc == 2
    assert make_options({"lnc": 1}, {"TRNX_LNC": "2"}).hardware == TRN2
    assert make_options({"lnc": 2, "target": "trn3"}, {}).hardware.cores == 2


@pytest.mark.parametrize("value", [0, 3, "many", True, None, 1.5])
def test_a_wrong_value_is_named(value: Any) -> None:
    with pytest.raises(
        OptionError, match=f"lnc on trn2={value!r} is not valid; choose one of 1, 2"
    ):
        make_options({"lnc": value}, {})


def test_trn1_has_no_logical_cores_of_two() -> None:
    with pytest.raises(OptionError, match="lnc on trn1=2 is not valid; choose one of 1"):
        make_options({"lnc": 2, "target": "trn1"}, {})
    with pytest.raises(OptionError, match="TRNX_LNC='both' is not valid"):
        make_options({}, {"TRNX_LNC": "both"})


def _chain(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = F.gelu(a + b) * b
    return total, total.sum(-1)


@pytest.mark.parametrize("rows", [1, 127, 128, 129])
def test_generated_kernels_equal_those_of_one_core(rows: int) -> None:
    a, b = (torch.randn(rows, 70).bfloat16() for _ in range(2))
    b[0, 0] = float("inf")
    one, two = (compiled(_chain, lnc=lnc, select="legal")(a, b) for lnc in (1, 2))
    for alone, both in zip(one, two, strict=True):
        torch.testing.assert_close(both, alone, rtol=0, atol=0, equal_nan=True)


def test_generated_kernels_share_what_is_looped_over_and_rows_that_are_not_contiguous() -> None:
    x = torch.randn(3, 40, 129).transpose(0, 1)

    def reduced(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).amax(1) + 1

    found = compiled(reduced, lnc=2, select="legal")(x)
    torch.testing.assert_close(found, reduced(x), rtol=0, atol=0)


def test_explain_says_which_kernels_are_on_both_cores() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return F.softmax(F.linear(x, weight), -1).index_add(0, index, x)

    inputs = torch.randn(300, 70), torch.randn(70, 70), torch.randint(0, 300, (300,))
    found = trnx.explain(compiled(function, lnc=2, select="legal"), *inputs)
    text = str(found)
    assert "logical cores of 2: 2 of 3 kernels on both" in text
    assert "one core of two: index_add 300x70: " in text
    regions = {r["kernel"]: r for r in found.to_dict()["graphs"][0]["regions"]}
    assert regions["softmax"]["cores"] == 2
    assert regions["index_add"]["cores"] == 1
    assert regions["index_add"]["alone"]
    alone = trnx.explain(compiled(function, select="legal"), *inputs)
    assert "logical cores" not in str(alone)


def test_the_profile_is_that_of_the_logical_core() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    x = torch.zeros(4096, 2048, dtype=torch.bfloat16)
    one, two = (trnx.profile(compiled(function, lnc=lnc), x) for lnc in (1, 2))
    assert 1.5 < one.regions[0].seconds / two.regions[0].seconds < 1.75  # the HBM stack is shared
    assert two.chip.cores == 2
    assert two.mbu <= 1


def test_caches_tell_cores_apart() -> None:
    spec = kernels()["softmax"]
    one, two = spec.launch(SOFTMAX, TRN2), spec.launch(SOFTMAX, TWO)
    alone = spec.launch_on_one(SOFTMAX, TWO)
    assert (one.grid, one.cores) == (1, 1)
    assert (two.grid, two.cores) == (2, 2)
    assert (alone.grid, alone.cores) == (2, 1)
    launches = (one, two, alone)
    assert len({launch_key(launch, "trn2") for launch in launches}) == 3
    assert len({str(prediction_key(launch, "trn2")) for launch in launches}) == 3
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    keys = [plan_key(GraphText.of(graph), Options(lnc=lnc), kernels()) for lnc in (1, 2)]
    assert keys[0] != keys[1]


@pytest.mark.parametrize(("two", "one", "cores"), [(5.0, 9.0, 2), (9.0, 5.0, 1), (5.0, 5.0, 2)])
def test_the_faster_launch_is_chosen(two: float, one: float, cores: int) -> None:
    spec = kernels()["softmax"]
    launches = spec.launch(SOFTMAX, TWO), spec.launch_on_one(SOFTMAX, TWO)
    times = {2: two * 1e-6, 1: one * 1e-6}
    found = choose(launches, Cost(), TWO, lambda launch: times[launch.cores])
    assert found.launch.cores == cores
    assert found.reason == ("" if cores == 2 else "it takes 5.0 us, and both would take 9.0 us")


@pytest.mark.parametrize(
    ("times", "chosen"), [((5.0, 4.0, 9.0), 1), ((4.0, 4.0, 9.0), 0), ((5.0, 4.0, 3.0), 2)]
)
def test_the_fastest_of_several_shares_is_chosen(times: tuple[float, ...], chosen: int) -> None:
    spec = kernels()["softmax"]
    shared = spec.launch(SOFTMAX, TWO)
    other = replace(shared, unknown_trips=0)
    launches = shared, other, spec.launch_on_one(SOFTMAX, TWO)
    found = choose(launches, Cost(), TWO, lambda launch: times[launches.index(launch)] * 1e-6)
    assert found.launch == launches[chosen]
    assert found.reason == ("" if chosen < 2 else "it takes 3.0 us, and both would take 4.0 us")


def test_one_core_is_not_scheduled_where_it_cannot_be_as_fast() -> None:
    spec = kernels()["softmax"]
    launches = spec.launch(SOFTMAX, TWO), spec.launch_on_one(SOFTMAX, TWO)
    asked = []

    def seconds(launch: Launch) -> float:
        asked.append(launch.cores)
        return 1e-6

    choose(launches, Cost(hbm_bytes=10**9), TWO, seconds)
    assert asked == [2]


def _user_launch(folder: Path, name: str) -> Launch:
    (folder / "user.py").write_text(KERNELS)
    kernel = getattr(load_module(folder / "user.py"), name)
    return Launch(kernel, (TensorSpec.dense((100, 30), torch.float32),), ("x",)).on(2, 2)


def test_a_kernel_that_knows_nothing_of_cores_runs_on_each(tmp_path: Path) -> None:
    launch = _user_launch(tmp_path, "double")
    assert (launch.grid, launch.cores, launch.knows_cores) == (2, 1, False)
    program = ProgramCache().get(launch, "trn2")
    x = torch.randn(100, 30)
    [found] = program.run([x])
    assert torch.equal(found, x * 2)


def test_one_that_reads_its_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SharedResultError, match="double_in_memory reads what it writes"):
        traced(_user_launch(tmp_path, "double_in_memory"), "trn2")


def test_estimates_are_those_of_the_cores() -> None:
    one, two = (replace(TRN2, cores=cores).roofline_seconds(10**9, 0, 0) for cores in (1, 2))
    assert two == one / 2
    bytes_ = [replace(TRN2, cores=cores).roofline_seconds(0, 0, 10**9) for cores in (1, 2)]
    assert bytes_[0] / bytes_[1] == pytest.approx(655 / 362, rel=0.01)


def test_an_exported_folder_keeps_the_cores(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(x * 2, -1)

    x = torch.randn(129, 70)
    trnx.export(compiled(Model(), lnc=2, select="legal"), (x,), tmp_path / "out")
    loaded = trnx.load(tmp_path / "out", runner="simulator")
    assert '"lnc": "2"' in (tmp_path / "out" / "manifest.json").read_text()
    torch.testing.assert_close(loaded(x), F.softmax(x * 2, -1))


def test_kernels_of_a_graph_are_launched_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnx.backend import prediction

    seen: list[Launch] = []
    launch = prediction.PREDICTIONS.launch
    monkeypatch.setattr(
        prediction.PREDICTIONS, "launch", lambda *a: seen.append(launch(*a)) or seen[-1]
    )
    x = torch.randn(300, 70)
    torch.testing.assert_close(compiled(F.softmax, lnc=2)(x, -1), F.softmax(x, -1))
    assert [(one.grid, one.cores) for one in seen] == [(2, 2)]
