"""What is special to `bmm`: groups of batches, refusals."""

from __future__ import annotations

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

BMM = registry.kernels()["bmm"]


def bindings(a: torch.Tensor, b: torch.Tensor) -> Bindings:
    return Bindings({"a": TensorSpec.of(a), "b": TensorSpec.of(b)})


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_small_matrices_share_instructions() -> None:
    b = bindings(meta(48, 64, 64), meta(48, 64, 64))
    launch = BMM.launch(b, hardware("trn1"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn1", values=False)
    counts = program.rows.opcode_counts()
    assert counts["nc_matmul"] == 48
    assert counts["nc_transpose"] == 24  # two matrices of 64 rows at a time
    assert counts["dma_copy"] <= 9
    assert program.matmul_flops == BMM.cost(b).matmul_flops
    assert program.hbm_bytes == BMM.cost(b).hbm_bytes


def test_transposed_operands_need_no_transposes() -> None:
    b = bindings(meta(4, 64, 40).mT, meta(4, 64, 70))
    launch = BMM.launch(b, hardware("trn2"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
    assert set(program.rows.opcode_counts()) == {"dma_copy", "nc_matmul", "tensor_copy"}


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_large_products_fit(target: str) -> None:
    b = bindings(meta(2, 700, 5000), meta(2, 5000, 1500))
    launch = BMM.launch(b, hardware(target))
    program = simulator.trace(launch.kernel, launch.arguments, target=target, values=False)
    assert program.matmul_flops == BMM.cost(b).matmul_flops


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (meta(2, 3, 4, dtype=torch.float64), meta(2, 4, 5), "float64"),
        (meta(2, 3, 4), meta(2, 4, 5, dtype=torch.bfloat16), "one dtype"),
        (meta(0, 3, 4), meta(0, 4, 5), "empty"),
        (meta(2, 3, 0), meta(2, 0, 5), "empty"),
        (meta(2, 3, 4), meta(3, 4, 5), "equal size"),
        (meta(2, 3, 4), meta(2, 5, 5), "contraction"),
    ],
)
def test_refusals(a: torch.Tensor, b: torch.Tensor, reason: str) -> None:
    refusal = BMM.supports(bindings(a, b), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
