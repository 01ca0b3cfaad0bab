"""MX formats against an independent NumPy decoder."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from trnx.simulator import load_module, simulate, trace
from trnx.simulator.errors import FindingError
from trnx.simulator.isa.mx import scales_before_0_5

# Exponent bits, mantissa bits, bias, bits of a word.
FORMATS = {
    "float8_e4m3fn_x4": (4, 3, 7, 32),
    "float8_e5m2_x4": (5, 2, 15, 32),
    "float4_e2m1fn_x4": (2, 1, 1, 16),
}


@pytest.fixture(scope="module")
def mx() -> ModuleType:
    return load_module(Path(__file__).with_name("mx_kernels.py"))


def decode(words: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """[P, F] words -> float64 [P, F, 4]."""
    exponents, mantissas, bias, bits = FORMATS[dtype]
    width = bits // 4
    wide = words.astype(np.int64)[..., None] >> (np.arange(4) * width) & (2**width - 1)
    mantissa = wide & (2**mantissas - 1)
    exponent = (wide >> mantissas) & (2**exponents - 1)
    normal = (1 + mantissa / 2**mantissas) * 2.0 ** (exponent - bias)
    subnormal = mantissa / 2**mantissas * 2.0 ** (1 - bias)
    magnitude = np.where(exponent == 0, subnormal, normal)
    return np.where(wide >> (width - 1) & 1, -magnitude, magnitude)


def dequantise(
    words: np.ndarray[Any, Any], scales: np.ndarray[Any, Any], dtype: str
) -> np.ndarray[Any, Any]:
    """[P * 4, F] values: scale of partition p in row 32 * (p // 32) + p % 32 // 8."""
    values = decode(words, dtype)
    for p in range(words.shape[0]):
        row = 32 * (p // 32) + p % 32 // 8
        values[p] *= 2.0 ** (scales[row].astype(np.float64) - 127)[:, None]
    return values.transpose(0, 2, 1).reshape(-1, words.shape[1])


def words_of(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> torch.Tensor:
    """Random finite packed values."""
    if dtype == "float4_e2m1fn_x4":
        return torch.from_numpy(rng.integers(-(2**15), 2**15, shape).astype(np.int16))
    codes = rng.integers(0, 256, (*shape, 4)).astype(np.uint8)
    # Without the codes of infinity and NaN.
    codes[(codes & 0x7C) == 0x7C] ^= 0x40
    return torch.from_numpy(codes.view(np.int32)[..., 0].copy())


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize(("rows", "m", "n"), [(32, 2, 1), (64, 16, 33), (128, 128, 513)])
def test_nc_matmul_mx(mx: ModuleType, dtype: str, rows: int, m: int, n: int) -> None:
    rng = np.random.default_rng(rows + n)
    a, b = words_of(rng, (rows, m), dtype), words_of(rng, (rows, n), dtype)
    height = rows if rows > 32 else 4
    scales = [rng.integers(117, 137, (height, size)).astype(np.uint8) for size in (m, n)]
    arguments = [a, torch.from_numpy(scales[0]), b, torch.from_numpy(scales[1]), dtype]
    left, right = dequantise(a.numpy(), scales[0], dtype), dequantise(b.numpy(), scales[1], dtype)
    # Each of the 4 * rows additions rounds once.
    bound = 4 * rows * 2.0**-24 * (np.abs(left.T) @ np.abs(right))
    got = simulate(mx.product, target="trn3")(*arguments, 1).numpy()
    assert (np.abs(got - left.T @ right) <= bound).all()
    twice = simulate(mx.product, target="trn3")(*arguments, 2).numpy()
    assert (np.abs(twice - 2 * (left.T @ right)) <= 2 * bound).all()
    program = trace(mx.product, [*arguments, 1], target="trn3")
    assert np.array_equal(program.run([a, arguments[1], b, arguments[3]])[0].numpy(), got)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn_x4", "float8_e5m2_x4"])
@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16])
def test_quantised_on_chip(mx: ModuleType, dtype: str, out: torch.dtype) -> None:
    x = torch.randn(128, 64).to(torch.bfloat16)
    y = torch.randn(128, 128).to(torch.bfloat16) * 100
    got = simulate(mx.quantised_product, target="trn3")(x, y, dtype, str(out)[6:])
    assert got.dtype is out
    left = x.double().view(128, 16, 4).permute(0, 2, 1).reshape(512, 16)
    right = y.double().view(128, 32, 4).permute(0, 2, 1).reshape(512, 32)
    # Half a step of the element type at the largest value of a block, on both sides.
    step = 2.0**-4 if dtype == "float8_e4m3fn_x4" else 2.0**-3
    bound = 2.2 * step * left.abs().amax() * right.abs().sum(0)
    assert bool(((got.double() - left.T @ right).abs() <= bound).all())
    assert float((got.double() - left.T @ right).norm() / (left.T @ right).norm()) < step


@pytest.mark.parametrize("dtype", ["float8_e4m3fn_x4", "float8_e5m2_x4"])
@pytest.mark.parametrize("rows", [32, 128])
def test_scales_have_as_many_free_dimensions_as_the_data(
    mx: ModuleType, dtype: str, rows: int
) -> None:
    x = torch.randn(rows, 48).to(torch.bfloat16)
    y = torch.randn(rows, 60).to(torch.bfloat16) * 100
    program = trace(mx.quantised_product_of_blocks, [x, y, dtype, 3], target="trn3")
    for values in (x, -x, x * 64):
        want = simulate(mx.quantised_product, target="trn3")(values, y, dtype, "float32")
        assert torch.equal(program.run([values, y])[0], want)


def test_columns_that_nothing_wrote_are_undefined_in_the_product_alone(mx: ModuleType) -> None:
    x, y = torch.randn(64, 16).to(torch.bfloat16), torch.randn(64, 4).to(torch.bfloat16)
    want = simulate(mx.quantised_product, target="trn3")(x, y, "float8_e4m3fn_x4", "float32")
    assert torch.equal(simulate(mx.padded_product, target="trn3")(x, y, 4, 1), want)
    with pytest.raises(FindingError, match=r"moving .* has elements that nothing has written"):
        trace(mx.padded_product, [x, y, 4, 2], target="trn3")


def test_scale_rules(mx: ModuleType) -> None:
    x = torch.zeros(32, 8, dtype=torch.bfloat16)
    x[0, 0], x[1, 1] = 448.0, 3.0
    x[8, 4] = 500.0
    words, scales = simulate(mx.quantised, target="trn3")(x)
    # floor(log2(448)) is 8: the exponent is 8 - 7 = 1, before 0.5 it was 8 - 8 = 0.
    assert scales.tolist() == [[128, 0], [0, 128], [0, 0], [0, 0]]
    assert decode(words.numpy(), "float8_e4m3fn_x4")[0, 0, 0] == 224
    with scales_before_0_5():
        words, scales = simulate(mx.quantised, target="trn3")(x)
    assert scales.tolist() == [[127, 0], [0, 127], [0, 0], [0, 0]]
    values = decode(words.numpy(), "float8_e4m3fn_x4")
    assert (values[0, 0, 0], values[1, 0, 1], values[8, 1, 0]) == (448, 3, 448)


@pytest.mark.parametrize(
    ("what", "target", "message"),
    [
        ("start", "trn3", "0, 4, 8 or 12"),
        ("shape", "trn3", r"expected \(64, 16\)"),
        ("type", "trn3", "stationary is uint8"),
        ("partitions", "trn3", "multiple of 32"),
        ("odd", "trn3", "even"),
        ("columns", "trn3", "columns cannot be tiled"),
        ("unwritten", "trn3", "nothing has written"),
        ("plain", "trn2", "needs trn3"),
    ],
)
def test_limits(mx: ModuleType, what: str, target: str, message: str) -> None:
    with pytest.raises(FindingError, match=message):
        trace(mx.breaks, [torch.zeros(4, 4), what], target=target)
