"""What is special to `linear`: layouts, traffic, transposes, refusals, agreement with eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program
from trnx.simulator.timing.profile import predicted_seconds

LINEAR = registry.kernels()["linear"]


def bindings(x: torch.Tensor, weight: torch.Tensor, **more: Any) -> Bindings:
    values = {"x": x, "weight": weight, "bias": None, "residual": None, "activation": "none"}
    values |= more
    return Bindings(
        {k: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    )


def traced(b: Bindings, target: str = "trn2") -> Program:
    launch = LINEAR.launch(b, hardware(target))
    program = simulator.trace(launch.kernel, launch.arguments, target=target, values=False)
    assert isinstance(program, Program)
    return program


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_every_weight_block_is_transposed_once() -> None:
    program = traced(bindings(meta(1024, 768), meta(3072, 768), bias=meta(3072)), "trn1")
    counts = program.rows.opcode_counts()
    assert counts["nc_transpose"] == (1024 // 128 + 3072 // 128) * (768 // 128)
    assert counts["nc_matmul"] == (1024 // 128) * (3072 // 512) * (768 // 128)


def test_operands_cross_hbm_once_where_one_fits_in_sbuf() -> None:
    b = bindings(meta(512, 768), meta(8000, 768))
    assert traced(b).hbm_bytes == LINEAR.cost(b).hbm_bytes


def test_flops_are_those_of_the_cost() -> None:
    for shapes in (((129, 513), (65, 513)), ((1, 2), (3, 2)), ((300, 8200), (66, 8200))):
        b = bindings(*(meta(*shape) for shape in shapes))
        assert traced(b).matmul_flops == LINEAR.cost(b).matmul_flops


def test_weight_gradient_needs_no_transposes() -> None:
    program = traced(bindings(meta(256, 300).mT, meta(256, 400).mT))
    counts = program.rows.opcode_counts()
    assert "nc_transpose" not in counts
    assert "dma_transpose" not in counts


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_dma_engines_transpose_from_trn2_on(target: str) -> None:
    counts = traced(bindings(meta(256, 256), meta(512, 256)), target).rows.opcode_counts()
    assert ("nc_transpose" in counts) == (target == "trn1")
    assert ("dma_transpose" in counts) == (target != "trn1")


@pytest.mark.parametrize("target", ["trn1", "trn3"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(64, 20000, 768), (2000, 1000, 5000), (1, 3000, 16000)]
)
def test_large_products_fit(target: str, rows: int, columns: int, depth: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        b = bindings(meta(rows, depth, dtype=dtype), meta(columns, depth, dtype=dtype))
        program = traced(b, target)
        assert program.matmul_flops == 2 * rows * columns * depth
        assert program.hbm_bytes <= 2 * LINEAR.cost(b).hbm_bytes


def test_a_program_runs_on_other_tensors() -> None:
    generator = torch.Generator().manual_seed(0)
    program = traced(bindings(meta(70, 200), meta(130, 200), bias=meta(130)))
    for _ in range(2):
        x, weight, bias = (
            torch.randn(shape, generator=generator) for shape in ((70, 200), (130, 200), (130,))
        )
        (result,) = program.run((x, weight, bias))
        torch.testing.assert_close(result, F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": meta(4, 8, dtype=torch.float64)}, "float64"),
        ({"weight": meta(6, 8, dtype=torch.bfloat16)}, "weight is torch.bfloat16"),
        ({"bias": meta(6, dtype=torch.bfloat16)}, "bias is torch.bfloat16"),
        ({"x": meta(0, 8)}, "empty"),
        ({"x": meta(4, 0), "weight": meta(6, 0)}, "empty"),
        ({"bias": meta(1)}, "bias has shape"),
        ({"residual": meta(6)}, "added tensor"),
        ({"weight": meta(6, 9)}, "last dimension"),
        ({"x": meta()}, "dimensions"),
    ],
)
def test_refusals(change: dict[str, torch.Tensor], reason: str) -> None:
    b = bindings(**({"x": meta(4, 8), "weight": meta(6, 8)} | change))
    refusal = LINEAR.supports(b, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


def test_products_start_with_the_first_piece_of_the_weights() -> None:
    """A matrix that takes 87 us to read is multiplied while it arrives."""
    b = bindings(*(meta(*shape, dtype=torch.bfloat16) for shape in ((4, 4096), (4096, 4096))))
    chip = hardware("trn2")
    seconds = predicted_seconds(traced(b), chip)
    assert seconds < 1.15 * b.weight.nbytes / (0.9 * chip.dma_bytes_per_second)


def test_a_bias_that_is_added_is_the_products() -> None:
    x, weight, bias = torch.randn(2, 40, 129).mT, torch.randn(40, 66), torch.randn(1, 66)

    def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ weight + bias)

    with trnx.collect_reports() as reports:
        found = torch.compile(project, backend="trnx")(x, weight, bias)
    assert [region.kernel for report in reports for region in report.regions] == ["linear"]
    torch.testing.assert_close(found, project(x, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 2048, 129), (3, 512, 2100)])
def test_few_rows_by_neighbouring_k_equal_eager(
    rows: int, depth: int, columns: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, rows, depth, generator=generator).to(dtype)
    weight = (torch.randn(depth, columns, generator=generator) / depth**0.5).to(dtype).mT
    bias = torch.randn(columns, generator=generator).to(dtype)
    residual = torch.randn(2, rows, columns, generator=generator).to(dtype)
    given = {"bias": bias, "residual": residual}
    launch = LINEAR.launch(bindings(x, weight, **given), hardware("trn1"))
    assert "neighbours" in launch.arguments
    program = simulator.trace(launch.kernel, launch.arguments, target="trn1")
    values = {"x": x, "weight": weight, **given}
    (found,) = program.run([values[name] for name in launch.tensor_names])
    wanted = F.linear(x.float(), weight.float(), bias.float()) + residual.float()
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted.to(dtype))


@pytest.mark.parametrize(("columns", "depth"), [(512, 8192), (896, 8192), (8192, 896)])
def test_few_rows_load_laid_out_weights_in_long_runs_on_trn1(columns: int, depth: int) -> None:
    """The time of the weights at the rate of the DMA engines, and what comes before and after."""
    chip = hardware("trn1")
    b = bindings(
        meta(1, depth, dtype=torch.bfloat16), meta(depth, columns, dtype=torch.bfloat16).mT
    )
    seconds = predicted_seconds(traced(b, "trn1"), chip)
    assert seconds < 12e-6 + depth * columns * 2 / chip.dma_bytes_per_second
