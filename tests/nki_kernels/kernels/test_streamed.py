"""Products of few rows whose weights TensorE and the DMA engines transpose in turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.kernels._blocking import STREAM
from trnx.nki_kernels.spec import Bindings, Launch
from trnx.simulator.hardware import TRN1, TRN2, TRN3, Hardware, hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import predicted_seconds

TWO = replace(TRN2, cores=2)
BF16, F16 = torch.bfloat16, torch.float16


def draw(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, **more: Any) -> dict[str, Any]:
    return {
        "x": x, "weight": weight, "bias": None, "residual": None, "activation": "none", **more,
    }  # fmt: skip


def launch_of(name: str, values: dict[str, Any], chip: Hardware) -> Launch:
    tensors = {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    spec = registry.kernels()[name]
    assert spec.supports(Bindings(tensors), chip) is None
    return spec.launch(Bindings(tensors), chip)


def is_streamed(name: str, values: dict[str, Any], chip: Hardware) -> bool:
    arguments = launch_of(name, values, chip).arguments
    return STREAM in arguments or any(isinstance(a, tuple) and STREAM in a for a in arguments)


def run(name: str, values: dict[str, Any], chip: Hardware = TRN2) -> list[torch.Tensor]:
    launch = launch_of(name, values, chip)
    assert is_streamed(name, values, chip)
    grid = launch.grid if launch.grid > 1 else None
    program = simulator.trace(launch.kernel, launch.arguments, target=chip.target, grid=grid)
    return list(program.run([values[n] for n in launch.tensor_names]))


def check(name: str, values: dict[str, Any], found: torch.Tensor) -> None:
    """Within twice eager's error, or two units in the last place of the largest."""
    rest = {n: v for n, v in values.items() if not isinstance(v, torch.Tensor)}

    def expected(dtype: torch.dtype) -> torch.Tensor:
        wide = {n: v.to(dtype) for n, v in values.items() if isinstance(v, torch.Tensor)}
        given = {**rest, **wide}
        if name == "linear":
            result = F.linear(given["x"], given["weight"], given["bias"])
            result = F.gelu(result) if given["activation"] == "gelu" else result
        else:
            gated = F.silu(F.linear(given["x"], given["gate"])) * F.linear(given["x"], given["up"])
            result = F.linear(gated, given["down"])
        return result if given["residual"] is None else result + given["residual"]

    eager, exact = expected(found.dtype), expected(torch.float64)
    assert (found.shape, found.stride()) == (eager.shape, eager.stride())
    least = torch.finfo(found.dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= 2 * max((eager - exact).abs().max(), least)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        (1, 4096, 1024), (2, 2048, 2049), (7, 2176, 2047), (33, 4096, 1151), (63, 2432, 2000),
        (64, 2048, 2176), (64, 16384, 385), (5, 32768, 128),
    ],
)  # fmt: skip
def test_edges_of_rows_depth_and_columns(
    rows: int, depth: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight = draw(rows, depth, dtype=dtype), draw(columns, depth, dtype=dtype, seed=1)
    values = linear(x, weight / depth**0.5, bias=draw(columns, dtype=dtype, seed=2))
    check("linear", values, run("linear", values)[0])


@pytest.mark.parametrize("more", ["bias", "gelu", "residual", "bias and residual"])
def test_what_follows_the_product(more: str) -> None:
    x, weight = draw(3, 4, 2048), draw(2090, 2048, seed=1) / 45
    values = linear(x, weight)
    if "bias" in more or more == "gelu":
        values["bias"] = draw(2090, seed=2)
    if "residual" in more:
        values["residual"] = draw(3, 4, 2090, seed=3)
    if more == "gelu":
        values["activation"] = "gelu"
    check("linear", values, run("linear", values)[0])


def test_a_bias_of_more_columns_than_one_transpose_holds() -> None:
    x, weight = draw(2, 2048), draw(128 * 128 + 70, 2048, seed=1) / 45
    values = linear(x, weight, bias=draw(128 * 128 + 70, seed=2))
    check("linear", values, run("linear", values)[0])


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    x, weight = draw(9, 2048), draw(2100, 2048, seed=1) / 45
    x[2, 5], x[3, 2047], weight[130, 7], weight[2099, 0] = torch.nan, torch.inf, torch.inf, -3e38
    (found,) = run("linear", linear(x, weight))
    torch.testing.assert_close(found, F.linear(x, weight), rtol=0.02, atol=0.02, equal_nan=True)


def test_rows_and_weights_with_gaps_between_them() -> None:
    x, weight = draw(6, 2100)[:, :2048], draw(2100, 4100, seed=1)[:, 4:2052] / 45
    values = linear(x, weight)
    check("linear", values, run("linear", values)[0])


def test_on_trn3() -> None:
    values = linear(draw(4, 4096), draw(4100, 4096, seed=1) / 64, bias=draw(4100, seed=2))
    check("linear", values, run("linear", values, TRN3)[0])


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_gated_mlp(rows: int) -> None:
    x, gate, up = draw(rows, 2048), draw(2176, 2048, seed=1) / 45, draw(2176, 2048, seed=2) / 45
    values = {
        "x": x, "gate": gate, "up": up, "down": draw(2000, 2176, seed=3) / 45,
        "residual": draw(rows, 2000, seed=4) if rows == 3 else None, "activation": "silu",
    }  # fmt: skip
    check("gated_mlp", values, run("gated_mlp", values)[0])


@pytest.mark.parametrize("rows", [1, 5])
def test_a_gated_mlp_whose_last_weight_is_not_streamed(rows: int) -> None:
    """I has no whole chunks, and is too short for the last product."""
    gate, up = draw(520, 8192, seed=1) / 90, draw(520, 8192, seed=2) / 90
    values = {
        "x": draw(rows, 8192), "gate": gate, "up": up, "down": draw(700, 520, seed=3) / 23,
        "residual": draw(rows, 700, seed=4), "activation": "silu",
    }  # fmt: skip
    arguments = launch_of("gated_mlp", values, TRN2).arguments
    assert arguments.count(STREAM) == 2
    check("gated_mlp", values, run("gated_mlp", values)[0])


@pytest.mark.parametrize("rows", [1, 30])
def test_three_products_of_one_input(rows: int) -> None:
    x, third = draw(rows, 2048), draw(2048, 2048, seed=3) / 45
    values = {
        "x": x, "weight": draw(2100, 2048, seed=1) / 45, "weight_1": draw(2049, 2048, seed=2) / 45,
        "weight_2": third, "bias": draw(2100, seed=4), "bias_1": None, "bias_2": draw(2048, seed=5),
    }  # fmt: skip
    found = run("three_linears", values)
    for number, end in enumerate(("", "_1", "_2")):
        one = linear(x, values[f"weight{end}"], bias=values[f"bias{end}"])
        check("linear", one, found[number])


@pytest.mark.parametrize("kernel", ["norm_linear", "heads_linear"])
def test_inputs_that_a_kernel_makes_or_loads_itself(kernel: str) -> None:
    chip, weight, bias = TRN2, draw(2100, 2048, seed=1) / 45, draw(2100, seed=2)
    x = draw(5, 2048)
    values = {"x": x, "weight": weight, "bias": bias}
    if kernel == "norm_linear":
        values |= {
            "norm_weight": draw(2048, seed=3), "eps": 1e-6, "offset": 0.0, "rounds": True,
            "weight_1": None, "weight_2": None, "bias_1": None, "bias_2": None, "norm_bias": None,
            "normalized_shape": None, "centres": False, "activation": "none",
        }  # fmt: skip
        wide = x.float()
        normed = (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(BF16)
        x = normed * values["norm_weight"]
    else:
        heads = draw(128, 5, 16).permute(1, 2, 0)
        values |= {"x": heads, "shape": [5, 2048]}
        x = heads.reshape(5, 2048)
    check("linear", linear(x, weight, bias=bias), run(kernel, values, chip)[0])


def test_by_the_backend() -> None:
    x, weight = draw(2, 4096), draw(1100, 4096, seed=1) / 64
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(F.linear, backend="trnx", options={"lnc": 1})(x, weight)
    assert [region.kernel for report in reports for region in report.regions] == ["linear"]
    check("linear", linear(x, weight), found)


def test_one_of_two_cores_may_have_all_the_work() -> None:
    values = linear(draw(2, 4096), draw(1100, 4096, seed=1) / 64)
    tensors = {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    launch = registry.kernels()["linear"].launch_on_one(Bindings(tensors), TWO)
    assert STREAM in launch.arguments
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", grid=2)
    (found,) = program.run([values[n] for n in launch.tensor_names])
    check("linear", values, found)


def test_is_taken_where_reading_the_weights_takes_the_time() -> None:
    def taken(
        rows: int, depth: int, columns: int, chip: Hardware = TRN2, dtype: torch.dtype = BF16
    ) -> bool:
        x, weight = (torch.empty(n, depth, dtype=dtype, device="meta") for n in (rows, columns))
        return is_streamed("linear", linear(x, weight), chip)

    assert taken(64, 4096, 4096)
    assert not taken(65, 4096, 4096)
    assert not taken(1, 4096, 512)
    assert not taken(1, 1024, 16384)
    assert not taken(1, 4097, 4096)
    assert not taken(1, 4096, 4096, TRN1)
    assert not taken(1, 4096, 4096, TWO)
    assert not taken(1, 4096, 4096, dtype=torch.float32)
    assert not is_streamed("linear", linear(draw(2, 4096), draw(4096, 1024).mT), TRN2)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("columns", [4096, 14336])
def test_weights_are_read_once_at_the_rate_of_the_dma_engines(rows: int, columns: int) -> None:
    x, weight = (torch.empty(n, 4096, dtype=BF16, device="meta") for n in (rows, columns))
    launch = launch_of("linear", linear(x, weight), TRN2)
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
    nbytes = 2 * (rows * 4096 + 4096 * columns + rows * columns)
    assert program.hbm_bytes == nbytes
    assert program.matmul_flops == 2 * rows * 4096 * columns
    chip = hardware("trn2")
    assert predicted_seconds(program, chip) < nbytes / chip.dma_bytes_per_second / 0.92
