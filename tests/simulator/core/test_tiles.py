"""Tile maths of nki.language against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import FindingWarning, IllegalInstructionError
from trnx.simulator.program.listing import listing


@pytest.fixture(scope="module")
def tiles() -> ModuleType:
    return load_module(Path(__file__).with_name("tile_kernels.py"))


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "square": torch.square,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "mish": torch.nn.functional.mish,
    "erf": torch.erf,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "arctan": torch.atan,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "trunc": torch.trunc,
    "negative": torch.neg,
    "sign": torch.sign,
    "copy": torch.clone,
    "logical_not": lambda x: (x == 0).float(),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions(tiles: ModuleType, name: str) -> None:
    x = torch.randn(129 // 3, 17) * 3
    torch.testing.assert_close(simulate(tiles.unary)(x, name, None), UNARY[name](x))
    narrow = simulate(tiles.unary)(x.bfloat16(), name, "float32")
    torch.testing.assert_close(narrow, UNARY[name](x.bfloat16().float()))


def test_derivatives_are_those_of_autograd(tiles: ModuleType) -> None:
    x = torch.randn(5, 7, requires_grad=True)
    for name, function in (("gelu", torch.nn.functional.gelu), ("silu", torch.nn.functional.silu)):
        (want,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(simulate(tiles.unary)(x.detach(), f"{name}_dx", None), want)


@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "divide", "maximum", "minimum", "fmod"]
)
def test_binary_operators(tiles: ModuleType, name: str) -> None:
    x, y, column = torch.randn(9, 5), torch.randn(9, 5), torch.randn(9, 1)
    function = getattr(torch, name)
    kernel = simulate(tiles.binary)
    torch.testing.assert_close(kernel(x, y, name), function(x, y))
    torch.testing.assert_close(kernel(x, column, name), function(x, column))
    torch.testing.assert_close(kernel(x, 2.5, name), function(x, torch.tensor(2.5)))
    torch.testing.assert_close(kernel(2.5, x, name), function(torch.tensor(2.5), x))
    assert kernel(x, y.bfloat16(), name).dtype is torch.float32


def test_comparisons_and_bits(tiles: ModuleType) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert simulate(tiles.binary)(x, 2.0, "less_equal").tolist() == [[1.0, 1.0, 0.0]]
    bits = torch.tensor([[0b1100, -1, 7]], dtype=torch.int32)
    assert simulate(tiles.binary)(bits, 0b1010, "bitwise_and").tolist() == [[0b1000, 0b1010, 2]]
    assert simulate(tiles.unary)(bits, "invert", None).tolist() == [[-13, 0, -8]]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "prod", "var", "all"])
def test_reductions(tiles: ModuleType, name: str, keepdims: bool) -> None:
    x = torch.randn(6, 3, 4)
    flat = x.flatten(1)
    want = {
        "max": flat.amax(1),
        "min": flat.amin(1),
        "var": flat.var(1, correction=0),
        "all": torch.ones(6),
    }.get(name)
    if want is None:
        want = getattr(torch, name)(flat, 1)
    got = simulate(tiles.reduction)(x, name, (1, 2), keepdims)
    assert got.shape == ((6, 1, 1) if keepdims or name == "var" else (6, 1))
    torch.testing.assert_close(got.flatten(), want)
    with pytest.raises(IllegalInstructionError, match="last free dimensions"):
        trace(tiles.reduction, [TensorSpec.of(x), name, 1, keepdims])


def test_normalisations(tiles: ModuleType) -> None:
    x, w = torch.randn(6, 8), torch.randn(6, 8)
    rms, soft = simulate(tiles.normalised)(x, w)
    torch.testing.assert_close(rms, torch.nn.functional.rms_norm(x, (8,), eps=1e-6) * w)
    torch.testing.assert_close(soft, torch.softmax(x, 1))


def test_matmul_and_movement(tiles: ModuleType) -> None:
    x, y = torch.randn(40, 100), torch.randn(100, 33)
    torch.testing.assert_close(simulate(tiles.product)(x, y, False), x @ y)
    torch.testing.assert_close(simulate(tiles.product)(x.t().contiguous(), y, True), x @ y)
    for shape in ((3, 7), (100, 90), (64, 1)):
        z = torch.randn(shape)
        for got in simulate(tiles.moved)(z):
            assert torch.equal(got, z.t())


def test_where(tiles: ModuleType) -> None:
    x = torch.randn(5, 6)
    a, b = simulate(tiles.chosen)(x)
    assert torch.equal(a, torch.where(x > 0, x, -1.0))
    assert torch.equal(b, torch.where(x > 0, 2.0, x))
    # A Program holds memory that steps use, and no tiles.
    assert not any("NkiTensor" in line for line in listing(trace(tiles.chosen, [TensorSpec.of(x)])))


def test_a_sine_of_a_tile_is_of_any_angle_and_that_of_scalar_engine_is_not(
    tiles: ModuleType,
) -> None:
    x = torch.tensor([[0.5, 3.0, 9.0]])
    on_tiles = simulate(tiles.unary)(x, "sin", None)
    torch.testing.assert_close(on_tiles, torch.sin(x))
    with pytest.warns(FindingWarning, match="activation-range"):
        activated = simulate(tiles.sine_of_scalar_engine)(x)
    torch.testing.assert_close(activated[:, :2], torch.sin(x[:, :2]))
    assert activated[0, 2].item() == pytest.approx(27.65, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16])
def test_creation(tiles: ModuleType, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    program = trace(tiles.filled, [name])
    for results in (simulate(tiles.filled)(name), program.run([]), program.run([])):
        full, identity, zeros, ones = results
        assert torch.equal(full, torch.full((3, 130), 2, dtype=dtype))
        assert torch.equal(identity, torch.eye(5, dtype=dtype))
        assert torch.equal(zeros, torch.zeros(5, 5, dtype=dtype))
        assert torch.equal(ones, torch.ones(4, 2, dtype=dtype))


def test_rand_is_uniform(tiles: ModuleType) -> None:
    x = simulate(tiles.random)((64, 64))
    assert 0.0 <= float(x.min()) <= float(x.max()) < 1.0
    assert abs(float(x.mean()) - 0.5) < 0.05


def test_assignment(tiles: ModuleType) -> None:
    x = torch.randn(5, 6)
    got = simulate(tiles.assigned)(x)
    assert torch.equal(got[:, 1:], x[:, 1:])
    assert torch.equal(got[:, 0], torch.full((5,), 5.0))


def test_a_number_is_no_operand_of_a_function_of_one_tile(tiles: ModuleType) -> None:
    with pytest.raises(IllegalInstructionError, match=r"nl\.sqrt takes a tile, not 4\.0; .*math"):
        trace(tiles.root_of_number, [TensorSpec.of(torch.zeros(4, 3))])


def test_a_number_is_no_tile_to_store(tiles: ModuleType) -> None:
    with pytest.raises(IllegalInstructionError, match=r"use nl\.full\(shape, 7\.0, dtype\)"):
        trace(tiles.stored_number, [TensorSpec.of(torch.zeros(4, 3))])


# Function, inputs for which it is valid, inputs for which it is not.
RANGES = [
    ("log", [2.0**-64, 1.0, 2.0**64, 0.0, float("inf")], [2.0**-65, 2.0**65]),
    ("sqrt", [2.0**-116, 2.0**118, 0.0, float("nan")], [2.0**-117, 2.0**119]),
    ("rsqrt", [2.0**-87, 2.0**97, 0.0], [2.0**-88, 2.0**98]),
    ("reciprocal", [2.0**-42, -(2.0**42), 0.0], [2.0**-43, -(2.0**43)]),
    ("sin", [math.pi, -math.pi, float("inf")], [3.15, -9.0]),
    ("arctan", [math.pi / 2, -1.0], [1.58, -2.0]),
    ("exp", [-1e30, 80.0], []),
]


@pytest.mark.parametrize(("name", "inside", "outside"), RANGES)
def test_inputs_out_of_the_documented_range_are_warned_of(
    tiles: ModuleType, name: str, inside: list[float], outside: list[float]
) -> None:
    asked = simulate(tiles.activated, warn=("activation-range",))
    asked(torch.tensor([inside]), name, 1.0)
    for value in outside:
        for row, scale in (([*inside, value], 1.0), ([value / 4], 4.0)):
            with pytest.warns(FindingWarning, match=rf"\[activation-range\] op={name} gets inputs"):
                asked(torch.tensor([row]), name, scale)
        if name in ("sin", "arctan"):
            with pytest.warns(FindingWarning, match="activation-range"):
                simulate(tiles.activated)(torch.tensor([[value]]), name, 1.0)
        else:
            simulate(tiles.activated)(torch.tensor([[value]]), name, 1.0)
