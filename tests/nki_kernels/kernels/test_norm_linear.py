"""An RMS norm and the products of it as one kernel: chosen by torch.compile, rows that are odd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

SPEC = registry.kernels()["norm_linear"]


class Projected(nn.Module):
    """What stands in front of attention."""

    def __init__(self, hidden: int, *columns: int, bias: bool = False) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.products = nn.ModuleList(nn.Linear(hidden, one, bias=bias) for one in columns)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed = self.norm(x)
        return tuple(product(normed) for product in self.products)


def compiled_kernels(model: nn.Module, x: torch.Tensor, **options: Any) -> list[str | None]:
    """The kernels of the plan; results are compared with eager's."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options=options)(x)
        wanted = model(x)
    rounding = 16 * torch.finfo(x.dtype).eps
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            have, want, rtol=rounding, atol=rounding, check_stride=True, equal_nan=True
        )
    return [region.kernel for report in reports for region in report.regions]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("rows", [1, 127, 128])
def test_query_key_and_value_are_one_kernel(rows: int, lnc: int) -> None:
    torch.manual_seed(0)
    model = Projected(256, 512, 130, 128).bfloat16()
    x = torch.randn(1, rows, 256).bfloat16()
    assert compiled_kernels(model, x, lnc=lnc) == ["norm_linear"]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_one_product_with_a_bias(target: str) -> None:
    torch.manual_seed(0)
    model = Projected(300, 129, bias=True)
    assert compiled_kernels(model, torch.randn(2, 5, 300), target=target) == ["norm_linear"]


@pytest.mark.parametrize("lnc", [1, 2])
def test_query_key_and_value_with_biases(lnc: int) -> None:
    torch.manual_seed(0)
    model = Projected(256, 512, 130, 128, bias=True).bfloat16()
    assert compiled_kernels(model, torch.randn(1, 3, 256).bfloat16(), lnc=lnc) == ["norm_linear"]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [(768,), (128, 66, 64)])
def test_a_layer_norm(columns: Any, dtype: torch.dtype, lnc: int) -> None:
    torch.manual_seed(0)
    model = Projected(300, *columns, bias=True)
    model.norm = nn.LayerNorm(300)
    nn.init.uniform_(model.norm.bias)
    x = torch.randn(2, 3, 300)
    # Whether or not a layer norm and a product apart are faster, here and below.
    found = compiled_kernels(model.to(dtype), x.to(dtype), lnc=lnc, select="legal")
    assert found == ["norm_linear"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_of_rows_that_cancel_are_those_of_eager(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    model = Projected(300, 768, bias=True).to(dtype)
    model.norm = nn.LayerNorm(300, dtype=dtype)
    x = (torch.randn(6, 300) + 5.0).to(dtype)
    x[0, 0], x[1] = 1e3, x[1] + 100.0
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options={"select": "legal"})(x)[0]
        wanted = model(x)[0]
        exact = model.double()(x.double())[0]
    assert [region.kernel for report in reports for region in report.regions] == ["norm_linear"]
    ours, eager = ((y.double() - exact).abs().amax(-1) for y in (found, wanted))
    # Roundings on the way of each term: the difference to the mean, its square, their sum, the mean
    # of it, the root, the scale, the weight and the product. Eager's own error is below them on
    # some CPUs. In float32 rows far from zero keep them, where eager's mean loses more.
    with torch.no_grad():
        terms = F.linear(model.norm(x.double()).abs(), model.products[0].weight.abs())
    rounded = 8 * torch.finfo(dtype).eps / 2 * terms.amax(-1)
    assert (ours <= 2 * torch.maximum(eager, rounded)).all()
    assert dtype is not torch.float32 or (ours[1:] <= rounded[1:]).all()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_an_activation_behind_the_product(norm: type[nn.Module]) -> None:
    class Activated(Projected):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (F.gelu(self.products[0](self.norm(x))),)

    torch.manual_seed(0)
    model = Activated(256, 640, bias=True)
    model.norm = norm(256)
    assert compiled_kernels(model, torch.randn(3, 256), select="legal") == ["norm_linear"]


def test_rows_of_a_layer_norm_that_are_not_finite() -> None:
    torch.manual_seed(0)
    model = Projected(200, 66)
    model.norm = nn.LayerNorm(200)
    x = torch.randn(5, 200)
    x[0, 3], x[1, 7], x[3] = math.nan, math.inf, 2.0
    assert compiled_kernels(model, x, select="legal") == ["norm_linear"]


class LlamaNorm(nn.Module):
    """Written out, as Hugging Face's Llama, Qwen and Mistral have it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(hidden) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


class GemmaNorm(LlamaNorm):
    """Written out, as Hugging Face's Gemma has it: the weight is the distance from 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * (1.0 + self.weight.float())).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [LlamaNorm, GemmaNorm])
@pytest.mark.parametrize("columns", [(129,), (128, 66, 64)])
def test_a_norm_written_out(norm: type[LlamaNorm], dtype: torch.dtype, columns: Any) -> None:
    torch.manual_seed(0)
    model = Projected(192, *columns)
    model.norm = norm(192)
    model.to(dtype)
    assert compiled_kernels(model, torch.randn(2, 1, 192).to(dtype)) == ["norm_linear"]
    assert "rms_norm" in compiled_kernels(model, torch.randn(130, 1, 192).to(dtype))


def test_a_norm_written_out_and_its_gradients() -> None:
    torch.manual_seed(0)
    model, x = Projected(64, 32), torch.randn(5, 64, requires_grad=True)
    model.norm = LlamaNorm(64)
    leaves = [x, *model.parameters()]
    wanted = torch.autograd.grad(model(x)[0].square().sum(), leaves)
    compiled = torch.compile(model, backend="trnx")
    found = torch.autograd.grad(compiled(x)[0].square().sum(), leaves)
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-4)


def test_more_rows_or_products_stay_apart() -> None:
    torch.manual_seed(0)
    many = compiled_kernels(Projected(64, 96), torch.randn(129, 64))
    two = compiled_kernels(Projected(64, 96, 32), torch.randn(4, 64))
    assert "norm_linear" not in many
    assert "norm_linear" not in two


def test_odd_rows_stay_among_themselves() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 200)
    x[0, 3], x[1, 7], x[2] = math.nan, math.inf, 3e19  # the squares of the last overflow
    x[3] = 0.0
    assert compiled_kernels(Projected(200, 66), x) == ["norm_linear"]


def test_refusals_name_the_limit() -> None:
    def bindings(rows: int, depth: int, bias: int = 64) -> Bindings:
        def spec(*shape: int) -> TensorSpec:
            return TensorSpec.dense(shape, torch.float32)

        given: dict[str, Any] = {"x": spec(rows, depth), "norm_weight": spec(depth)}
        names = ("weight_1", "weight_2", "bias_1", "bias_2", "norm_bias", "normalized_shape")
        absent = dict.fromkeys(names)
        given |= {"weight": spec(64, depth), "bias": spec(bias)}
        return Bindings({**given, **absent, "centres": False})

    cases = ((bindings(129, 64), "rows"), (bindings(0, 64), "empty"), (bindings(4, 64, 1), "bias"))
    for b, word in (*cases, (bindings(128, 65536), "SBUF")):
        reject = SPEC.supports(b, hardware("trn2"))
        assert isinstance(reject, Reject)
        assert word in reject.reason


def test_functional_norm_without_weight() -> None:
    class Plain(Projected):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (self.products[0](F.rms_norm(x, (x.shape[-1],))),)

    torch.manual_seed(0)
    assert compiled_kernels(Plain(128, 64), torch.randn(3, 128)) == ["norm_linear"]
