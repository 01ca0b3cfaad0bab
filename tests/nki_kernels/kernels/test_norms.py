"""What is special to `layer_norm` and `rms_norm`: accuracy, instructions, refusals, residuals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trnx
from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

LAYER_NORM = registry.kernels()["layer_norm"]
LAYER_NORM_BACKWARD = registry.kernels()["layer_norm_backward"]
RMS_NORM = registry.kernels()["rms_norm"]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def layer_values(x: torch.Tensor, **changes: Any) -> dict[str, Any]:
    width = [x.shape[-1]]
    values = {"x": x, "residual": None, "normalized_shape": width, "eps": 1e-5}
    return {**values, "weight": draw(*width), "bias": draw(*width), **changes}


def backward_values(grad: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
    width = [x.shape[-1]]
    weight, bias = draw(*width).to(x.dtype), draw(*width).to(x.dtype)
    _, mean, rstd = torch.ops.aten.native_layer_norm.default(x, width, weight, bias, 1e-5)
    values = {"grad": grad, "x": x, "normalized_shape": width, "mean": mean, "rstd": rstd}
    return {**values, "weight": weight, "bias": bias, "output_mask": [True] * 3}


def rms_values(x: torch.Tensor, **changes: Any) -> dict[str, Any]:
    values = {"x": x, "residual": None, "weight": draw(x.shape[-1]), "eps": 1e-6}
    return {**values, "offset": 0.0, "rounds": False, "returns_sum": False, **changes}


def bindings(values: dict[str, Any]) -> Bindings:
    return Bindings(
        {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    )


def traced(spec: Any, values: dict[str, Any], target: str = "trn2") -> tuple[Program, list[Any]]:
    launch = spec.launch(bindings(values), hardware(target))
    program = simulator.trace(launch.kernel, launch.arguments, target=target)
    return program, [values[name] for name in launch.tensor_names]


def test_a_large_mean_costs_no_more_than_in_eager() -> None:
    x = draw(64, 600) + 1000.0
    values = layer_values(x, weight=None, bias=None)
    program, inputs = traced(LAYER_NORM, values)
    exact = torch.nn.functional.layer_norm(x.double(), (600,))
    eager = torch.nn.functional.layer_norm(x, (600,))
    error = (program.run(inputs)[0] - exact).abs().max()
    assert error < 4 * (eager - exact).abs().max()
    assert error < 1e-3


def test_layer_norm_needs_few_instructions_a_tile() -> None:
    program, _ = traced(LAYER_NORM, layer_values(draw(1280, 1024)))
    assert program.instruction_count == 4 + 10 * 12  # two of them for 512 columns' statistics each
    program, _ = traced(LAYER_NORM, layer_values(draw(1280, 1024), bias=None))
    assert program.instruction_count == 4 + 10 * 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "width"), [(130, 39), (2100, 40), (6300, 72), (130, 300), (130, 1030), (6300, 700)]
)
def test_layer_norm_is_as_accurate_as_in_eager(dtype: torch.dtype, rows: int, width: int) -> None:
    """On usual rows, on constant ones, large and tiny ones, on outliers, and on large means; with
    one row in a partition, and with several."""
    x = draw(rows, width)
    x[1] = 3.0
    x[2] *= 1e4
    x[3] *= 1e-4
    x[4, 7] = 3e4
    x[100:130] += 50.0
    x[9] = 0.0
    x = x.to(dtype)
    values = layer_values(x, weight=draw(width).to(dtype), bias=(draw(width) * 3).to(dtype))
    program, inputs = traced(LAYER_NORM, values)
    names = ("x", "weight", "bias")
    eager = torch.nn.functional.layer_norm(x, (width,), *(values[n] for n in names[1:]))
    wide = [values[n].double() for n in names]
    exact = torch.nn.functional.layer_norm(wide[0], (width,), *wide[1:])
    ours, theirs = ((r.double() - exact).abs() for r in (program.run(inputs)[0], eager))
    # Where eager is exact by chance, half a unit in the last place is as near as the dtype allows.
    half = torch.finfo(dtype).eps / 2
    usual = [*range(10, 100), *range(130, rows)]
    for part in ([1], [2], [3], [4], [9], list(range(100, 130)), usual):
        least = half * exact[part].abs().max()
        assert ours[part].max() <= 2 * max(theirs[part].max(), least)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "width"), [(130, 1030), (6300, 700), (130, 8190)])
def test_statistics_of_rows_with_an_outlier(dtype: torch.dtype, rows: int, width: int) -> None:
    """Wherever it stands: the sums of half precision are distances from some elements' mean."""
    x = draw(rows, width)
    places = (0, 1, width // 2, width - 1)
    for i, column in enumerate(places):
        x[10 + 2 * i : 12 + 2 * i, column] = 3e4
    x = x.to(dtype)
    program, inputs = traced(LAYER_NORM, layer_values(x))
    mean, rstd = (moment[10 : 10 + 2 * len(places), 0] for moment in program.run(inputs)[1:])
    wide = x[10 : 10 + 2 * len(places)].double()
    exact = 1 / (wide.var(1, correction=0) + 1e-5).sqrt()
    assert mean.dtype == rstd.dtype == torch.float32
    assert ((mean - wide.mean(1)) * exact).abs().max() < 2e-6
    assert (rstd / exact - 1).abs().max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [300, 1030])
def test_a_row_that_is_not_finite_leaves_the_others_alone(dtype: torch.dtype, width: int) -> None:
    x = draw(130, width, dtype=dtype)
    x[3, 0] = x[5, width - 1] = torch.nan
    x[7, 9] = torch.inf
    x[9, width // 2 + 3] = -torch.inf
    values = layer_values(x, weight=draw(width).to(dtype), bias=draw(width).to(dtype))
    program, inputs = traced(LAYER_NORM, values)
    result = program.run(inputs)[0]
    eager = torch.nn.functional.layer_norm(x, (width,), values["weight"], values["bias"])
    assert set(eager.isnan().any(1).nonzero().flatten().tolist()) == {3, 5, 7, 9}
    torch.testing.assert_close(result, eager, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [300, 1030])
def test_weights_and_biases_that_are_not_finite_stay_in_their_columns(
    dtype: torch.dtype, width: int
) -> None:
    """In the columns of each engine, first and last."""
    x = draw(130, width).to(dtype)
    weight, bias = draw(width).to(dtype), draw(width).to(dtype)
    weight[0], weight[-1] = torch.inf, -torch.inf
    bias[1], bias[-2], bias[-3] = -torch.inf, torch.inf, torch.nan
    program, inputs = traced(LAYER_NORM, layer_values(x, weight=weight, bias=bias))
    result = program.run(inputs)[0]
    eager = torch.nn.functional.layer_norm(x, (width,), weight, bias)
    assert eager.isinf().any(0).nonzero().flatten().tolist() == [0, 1, width - 2, width - 1]
    torch.testing.assert_close(result, eager, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lone", [1000.0, 1004.0])
def test_half_rows_of_about_one_value_are_as_accurate_as_in_eager(
    dtype: torch.dtype, lone: float
) -> None:
    """Where the mean is 16,000 times the deviation, or there is none."""
    x = torch.full((130, 4096), 1000.0)
    x[:, 7] = lone
    x, weight, bias = x.to(dtype), draw(4096).to(dtype), draw(4096).to(dtype)
    program, inputs = traced(LAYER_NORM, layer_values(x, weight=weight, bias=bias))
    eager = torch.nn.functional.layer_norm(x, (4096,), weight, bias).double()
    wide = [t.double() for t in (x, weight, bias)]
    exact = torch.nn.functional.layer_norm(wide[0], (4096,), *wide[1:])
    ours = (program.run(inputs)[0].double() - exact).abs()
    assert ours.max() <= 2 * (eager - exact).abs().max()
    assert ours.square().mean() <= 4 * (eager - exact).square().mean()


# Tiles of rows of the second width overlap less, those of the third do not.
@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        *((dtype, width) for dtype in (torch.float32, torch.bfloat16) for width in (260, 4000)),
        (torch.bfloat16, 6500),
    ],
)
@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_gradients_of_layer_norm_are_as_accurate_as_in_eager(
    dtype: torch.dtype, width: int, shift: float
) -> None:
    """Over more tiles than overlap, the last of them ragged."""
    x, grad = (draw(900, width) + shift).to(dtype), draw(900, width).to(dtype) * 2
    values = backward_values(grad, x)
    program, inputs = traced(LAYER_NORM_BACKWARD, values)
    backward = torch.ops.aten.native_layer_norm_backward.default
    eager = backward(*values.values())
    wide = {n: v.double() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    exact = backward(*wide.values())
    for ours, theirs, wanted in zip(program.run(inputs), eager, exact, strict=True):
        least = torch.finfo(dtype).eps / 2 * wanted.abs().max()
        error, allowed = (ours - wanted).abs().max(), (theirs - wanted).abs().max()
        assert error <= 2 * max(allowed, least)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [260, 4000])
def test_gradients_of_rows_that_are_not_finite_stay_where_eager_has_them(
    dtype: torch.dtype, width: int
) -> None:
    x, grad = draw(300, width, dtype=dtype), draw(300, width, dtype=dtype)
    grad[3, 7] = torch.nan
    grad[200, 150] = torch.inf
    values = backward_values(grad, x)
    program, inputs = traced(LAYER_NORM_BACKWARD, values)
    expected = LAYER_NORM_BACKWARD.reference(**values)
    for ours, wanted in zip(program.run(inputs), expected, strict=True):
        assert 0 < wanted.isfinite().logical_not().sum() <= 2 * width
        assert torch.equal(ours.isfinite(), wanted.isfinite())
        # Which of inf and NaN a sum with infinities is depends on its order.
        finite = wanted.isfinite()
        torch.testing.assert_close(ours[finite], wanted[finite], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wide_rows_of_the_backward_pass_fit(target: str, dtype: torch.dtype) -> None:
    for width in (768, 4096):
        x = draw(520, width, dtype=dtype)
        program, _ = traced(LAYER_NORM_BACKWARD, backward_values(x, x), target)
        assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes


def test_narrow_rows_share_instructions() -> None:
    """Of one tile; those that are wide enough have their own, each with its sum."""
    for width, each in ((32, 7), (64, 3 + 2 * 8)):
        program, _ = traced(RMS_NORM, rms_values(draw(2, 8, 256, width)))
        assert program.instruction_count == 3 + 4 * each


def test_residual_is_added_in_its_own_dtype() -> None:
    x, residual = draw(130, 70, dtype=torch.bfloat16), draw(130, 70, dtype=torch.bfloat16)
    values = layer_values(x, residual=residual, weight=None, bias=None)
    program, inputs = traced(LAYER_NORM, values)
    expected = torch.ops.aten.native_layer_norm.default(x + residual, [70], None, None, 1e-5)
    for result, wanted in zip(program.run(inputs), expected, strict=True):
        assert result.shape == wanted.shape
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("width", [4096, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wide_rows_fit(target: str, width: int, dtype: torch.dtype) -> None:
    program, _ = traced(LAYER_NORM, layer_values(draw(130, width, dtype=dtype)), target)
    assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (layer_values(draw(2, 3, dtype=torch.float64)), "float64"),
        (layer_values(torch.empty(0, 3)), "no rows"),
        (layer_values(draw(2, 3), weight=draw(4)), "normalized shape"),
        (layer_values(draw(2, 3), residual=draw(1, 3)), "residual"),
        (layer_values(torch.empty(2, 60_000)), "does not fit"),
    ],
)
def test_layer_norm_refuses(values: dict[str, Any], reason: str) -> None:
    refusal = LAYER_NORM.supports(bindings(values), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        (draw(2, 3, dtype=torch.float64), None, "float64"),
        (torch.empty(0, 3), None, "no rows"),
        (draw(2, 3), draw(1, 3), "last dimension"),
        (torch.empty(2, 60_000), None, "does not fit"),
    ],
)
def test_rms_norm_refuses(x: torch.Tensor, weight: torch.Tensor | None, reason: str) -> None:
    refusal = RMS_NORM.supports(bindings(rms_values(x, weight=weight)), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_residual_and_its_norm_are_one_region(keeps: bool, dtype: torch.dtype) -> None:
    def block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        total = residual + x
        normal = torch.nn.functional.rms_norm(total, (600,), weight, 1e-6)
        return (normal, total) if keeps else (normal,)

    torch._dynamo.reset()
    values = draw(129, 600, dtype=dtype), draw(129, 600, dtype=dtype) * 2, draw(600, dtype=dtype)
    compiled = torch.compile(block, backend="trnx", options={"select": "legal"})
    with trnx.collect_reports() as reports:
        results = compiled(*values)
    for result, wanted in zip(results, block(*values), strict=True):
        torch.testing.assert_close(result, wanted)
    (graph,) = reports
    assert len(graph.regions) == 1
    assert not graph.fallbacks
    assert not graph.near_misses


def test_a_residual_of_other_shape_is_refused() -> None:
    values = rms_values(draw(3, 8), residual=draw(1, 8))
    refusal = RMS_NORM.supports(bindings(values), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert "residual" in refusal.reason
