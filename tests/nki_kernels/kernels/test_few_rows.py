"""Norms of few long rows, each of which lies in several partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings, Launch
from trnx.simulator.hardware import TRN2, hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def values_of(name: str, x: torch.Tensor, **changes: Any) -> dict[str, Any]:
    width = x.shape[-1]
    values = {"x": x, "residual": None, "weight": draw(width, dtype=x.dtype, seed=1)}
    if name == "layer_norm":
        bias = draw(width, dtype=x.dtype, seed=2)
        values.update(bias=bias, normalized_shape=[width], eps=1e-5)
    else:
        values.update(eps=1e-6, offset=0.0, rounds=False, returns_sum=False)
    return {**values, **changes}


def launch_of(name: str, values: dict[str, Any], chip: Any) -> Launch:
    tensors = {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    spec = registry.kernels()[name]
    assert spec.supports(Bindings(tensors), chip) is None
    return spec.launch(Bindings(tensors), chip)


def run(name: str, values: dict[str, Any], target: str = "trn2") -> list[torch.Tensor]:
    launch = launch_of(name, values, hardware(target))
    assert launch.kernel.__name__ == f"few_rows_{name}_kernel"
    program = simulator.trace(launch.kernel, launch.arguments, target=target)
    return list(program.run([values[n] for n in launch.tensor_names]))


def expected(name: str, values: dict[str, Any], wide: bool = False) -> list[torch.Tensor]:
    kept = {n: v for n, v in values.items() if n != "residual"}
    if values["residual"] is not None:
        kept["x"] = values["x"] + values["residual"]
    if wide:
        kept = {n: v.double() if isinstance(v, torch.Tensor) else v for n, v in kept.items()}
    x, weight = kept["x"], kept["weight"]
    if name == "layer_norm":
        order = (kept["normalized_shape"], weight, kept["bias"], kept["eps"])
        return list(torch.ops.aten.native_layer_norm.default(x, *order))
    return [torch.nn.functional.rms_norm(x, x.shape[-1:], weight, kept["eps"])]


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 768), (3, 4096), (8, 1032), (33, 4098), (64, 2048)]
)
def test_error_is_within_twice_that_of_eager(
    name: str, dtype: torch.dtype, rows: int, width: int
) -> None:
    """On rows with a large mean, an outlier, and zeros too; each row by itself."""
    x = draw(rows, width)
    for i in range(rows):
        if i % 4 == 1:
            x[i] += 50.0
        if i % 4 == 2:
            x[i, (7 * i) % width] = 3e4
        if i % 8 == 3:
            x[i] = 0.0
    values = values_of(name, x.to(dtype))
    found, eager = run(name, values), expected(name, values)
    for ours, theirs, exact in zip(found, eager, expected(name, values, wide=True), strict=False):
        assert (ours.dtype, ours.shape, ours.stride()) == (
            theirs.dtype, theirs.shape, theirs.stride(),
        )  # fmt: skip
        for kind in range(4):
            part = slice(kind, None, 4)
            if exact[part].numel() == 0:
                continue
            error, allowed = (ours - exact)[part].abs().max(), (theirs - exact)[part].abs().max()
            # Where eager is exact by chance, two units in the last place are near enough.
            least = torch.finfo(theirs.dtype).eps * exact[part].abs().max()
            assert error <= 2 * max(allowed, least)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_is_not_finite_leaves_the_others_alone(name: str, dtype: torch.dtype) -> None:
    x = draw(9, 2048, dtype=dtype)
    x[1, 2047], x[3, 0], x[5, 1024] = torch.nan, torch.inf, -torch.inf
    x[7] *= 1e4 if dtype == torch.float16 else 1e15
    values = values_of(name, x)
    values["weight"][5], values["weight"][6] = torch.inf, torch.nan
    ours, eager = run(name, values)[0], expected(name, values)[0]
    torch.testing.assert_close(ours, eager, equal_nan=True)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("missing", [("weight",), ("bias",), ("weight", "bias")])
def test_layer_norm_without_parameters(target: str, missing: tuple[str, ...]) -> None:
    values = values_of("layer_norm", draw(5, 3072), **dict.fromkeys(missing))
    ours, eager = run("layer_norm", values, target), expected("layer_norm", values)
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_a_sum_with_a_residual(dtype: torch.dtype) -> None:
    x, residual = draw(4, 4096, dtype=dtype), draw(4, 4096, dtype=dtype, seed=5)
    values = values_of("layer_norm", x, residual=residual)
    torch.testing.assert_close(run("layer_norm", values), expected("layer_norm", values))
    values = values_of("rms_norm", x, residual=residual, returns_sum=True, weight=None)
    found = run("rms_norm", values)
    torch.testing.assert_close(found[0], expected("rms_norm", values)[0])
    torch.testing.assert_close(found[1], x + residual, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_is_taken_where_rows_leave_partitions_free(name: str) -> None:
    def kernel(rows: int, width: int, chip: Any = TRN2) -> str:
        kernel_name: str = launch_of(name, values_of(name, draw(rows, width)), chip).kernel.__name__
        return kernel_name

    assert kernel(64, 4096).startswith("few_rows")
    assert kernel(65, 4096) == f"{name}_kernel"
    assert kernel(8, 4095) == f"{name}_kernel"
    assert kernel(64, 768) == f"{name}_kernel"


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_both_cores_give_what_one_gives(name: str, rows: int) -> None:
    values = values_of(name, draw(rows, 2048))
    launch = launch_of(name, values, replace(TRN2, cores=2))
    assert (launch.grid, launch.cores) == (2, 2)
    operands, tensors = [], iter(launch.tensor_names)
    for argument in launch.arguments:
        operands.append(values[next(tensors)] if isinstance(argument, TensorSpec) else argument)
    found = simulator.simulate(launch.kernel, grid=2)(*operands)
    found = found if isinstance(found, (list, tuple)) else [found]
    for ours, one in zip(found, run(name, values), strict=True):
        torch.testing.assert_close(ours, one, rtol=0.0, atol=0.0)
