"""The gated MLP as one kernel: chosen by torch.compile, values, traffic, and when it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnx
from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import TRN2, Hardware, hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import predicted_seconds

MLP = registry.kernels()["gated_mlp"]
TWO = replace(TRN2, cores=2)


class Gated(nn.Module):
    """Llama's MLP and the residual around it."""

    def __init__(self, hidden: int, inner: int, activation: Any = F.silu) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.activation(self.gate(x)) * self.up(x))


def compiled_kernels(model: nn.Module, x: torch.Tensor, **options: Any) -> list[str | None]:
    """The kernels of the plan; the result is compared with eager's."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options=options)(x)
        wanted = model(x)
    rounding = 64 * torch.finfo(x.dtype).eps
    torch.testing.assert_close(found, wanted, rtol=rounding, atol=rounding, check_stride=True)
    return [region.kernel for report in reports for region in report.regions]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("rows", [1, 127, 128, 129])
def test_the_mlp_of_a_layer_is_one_kernel(rows: int, lnc: int) -> None:
    torch.manual_seed(0)
    model = Gated(128, 320).bfloat16()
    x = torch.randn(1, rows, 128).bfloat16()
    assert compiled_kernels(model, x, lnc=lnc) == ["gated_mlp"]


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_other_generations_and_activations(target: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 64)
    for activation in (F.gelu, torch.sigmoid):
        model = Gated(64, 200, activation)
        assert compiled_kernels(model, x, target=target) == ["gated_mlp"]


def test_rows_that_are_not_adjacent() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 70, 128)[:, 1::2, :64]
    assert compiled_kernels(Gated(64, 200), x) == ["gated_mlp"]


def test_what_else_reads_a_value_in_between_keeps_it_apart() -> None:
    class Read(Gated):
        def forward(self, x: torch.Tensor) -> Any:
            gate = self.gate(x)
            return self.down(F.silu(gate) * self.up(x)) + gate.sum()

    torch.manual_seed(0)
    assert "gated_mlp" not in compiled_kernels(Read(64, 96), torch.randn(3, 64))


def bindings(rows: int, hidden: int, inner: int, dtype: torch.dtype = torch.bfloat16) -> Bindings:
    gate = TensorSpec((inner, hidden), dtype, (1, inner))
    return Bindings(
        {
            "x": TensorSpec.dense((rows, hidden), dtype), "gate": gate, "up": gate,
            "down": TensorSpec((hidden, inner), dtype, (1, hidden)),
            "residual": None, "activation": "silu",
        }
    )  # fmt: skip


def traced(b: Bindings, hw: Hardware) -> Any:
    launch = MLP.launch(b, hw)
    grid = launch.grid if launch.grid > 1 else None
    return simulator.trace(
        launch.kernel, launch.arguments, target=hw.target, grid=grid, values=False
    )


@pytest.mark.parametrize("hw", [TRN2, TWO], ids=["one core", "both cores"])
@pytest.mark.parametrize("rows", [1, 64])
def test_few_rows_read_the_weights_once(rows: int, hw: Hardware) -> None:
    b = bindings(rows, 1024, 512)
    again = (hw.cores - 1) * b.x.nbytes  # each core reads x
    assert traced(b, hw).hbm_bytes == MLP.cost(b).hbm_bytes + again


def test_few_rows_take_the_time_of_reading_the_weights() -> None:
    b = bindings(4, 4096, 1024)
    limit = MLP.cost(b).hbm_bytes / TRN2.dma_bytes_per_second
    assert predicted_seconds(traced(b, TRN2), TRN2) < limit / 0.9


def test_flops_are_those_of_the_cost() -> None:
    for rows in (1, 129, 600):
        b = bindings(rows, 200, 300)
        assert traced(b, TRN2).matmul_flops == MLP.cost(b).matmul_flops


def test_refusals_name_the_limit() -> None:
    huge = bindings(128, 16384, 65536, torch.float32)
    mixed = Bindings({**bindings(4, 64, 64), "up": TensorSpec.dense((64, 64), torch.float32)})
    empty = bindings(0, 64, 64)
    for b, word in ((huge, "SBUF"), (mixed, "dtype"), (empty, "empty")):
        reject = MLP.supports(b, hardware("trn2"))
        assert isinstance(reject, Reject)
        assert word in reject.reason
