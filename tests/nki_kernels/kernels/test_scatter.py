"""What is special to `scatter`: equal indices, special values, layouts, indices out of range, the
choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
INF, NAN = float("inf"), float("nan")
Function = Callable[..., torch.Tensor]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).mul(9)


def at(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(size, shape, generator=torch.Generator().manual_seed(size))


def compiled(function: Function, *operands: torch.Tensor, **options: Any) -> torch.Tensor:
    torch._dynamo.reset()
    options = {**ALL_ON_NKI, **options}
    result: torch.Tensor = torch.compile(function, backend="trnx", options=options)(*operands)
    return result


WRITES: dict[str, Function] = {
    "scatter_add": lambda x, i, y: x.scatter_add(1, i, y),
    "amax": lambda x, i, y: x.scatter_reduce(1, i, y, "amax"),
    "amin": lambda x, i, y: x.scatter_reduce(1, i, y, "amin"),
    "number": lambda x, i, y: x.scatter(1, i, 2.5),  # noqa: ARG005
    "put": lambda x, i, y: x.scatter(1, i, y),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_equal_indices_and_special_values(name: str, target: str) -> None:
    x, i, y = draw(9, 6, 5), at(6, 9, 20, 5), draw(9, 20, 5)
    x[0, 0], x[1, 1], x[2, 2, 0] = INF, -INF, NAN
    y[3, 3], y[4, 4], y[5, 5], y[0, :, 1] = INF, -INF, NAN, -INF
    kept = [t.clone() for t in (x, i, y)]
    result, expected = compiled(WRITES[name], x, i, y, target=target), WRITES[name](x, i, y)
    assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(result, expected, equal_nan=True)
    for found, before in zip((x, i, y), kept, strict=True):
        torch.testing.assert_close(found, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["scatter_add", "number"])
@pytest.mark.parametrize("layout", ["transposed", "larger values", "expanded index"])
def test_layouts(name: str, layout: str) -> None:
    x, i, y = draw(9, 7, 5), at(7, 9, 4, 5), draw(9, 4, 5)
    if layout == "transposed":
        x, i, y = draw(5, 7, 9).permute(2, 1, 0), at(7, 5, 4, 9).permute(2, 1, 0), y.mT.clone().mT
    elif layout == "larger values":
        y = draw(12, 6, 8)
    else:
        i = at(7, 9, 4, 1).expand(9, 4, 5)
    result, expected = compiled(WRITES[name], x, i, y), WRITES[name](x, i, y)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()


def test_sums_at_few_rows_that_many_add_to() -> None:
    i, y = at(5, 700, 1).expand(700, 33), draw(700, 33)
    result = compiled(lambda i, y: torch.zeros(6, 33).scatter_add(0, i, y), i, y)
    torch.testing.assert_close(
        result, torch.zeros(6, 33).scatter_add(0, i, y), rtol=1e-5, atol=1e-3
    )


def test_masks_of_chosen_experts_run_on_nki() -> None:
    def mask(scores: torch.Tensor) -> torch.Tensor:
        chosen = scores.topk(4, -1)[1]
        return torch.zeros_like(scores).scatter(1, chosen, 1.0)

    x = draw(1024, 64)
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        result = torch.compile(mask, backend="trnx")(x)
    assert {"topk", "scatter"} <= {region.kernel for region in reports[0].regions}
    assert torch.equal(result, mask(x))


@pytest.mark.parametrize("wrong", [6, -1, 2**40])
def test_indices_out_of_range_are_errors(wrong: int) -> None:
    x, i, y = draw(9, 6), at(6, 9, 4), draw(9, 4)
    i[3, 2] = wrong
    for function in (WRITES["put"], WRITES["scatter_add"], WRITES["number"]):
        with pytest.raises((IndexError, RuntimeError)) as caught:
            compiled(function, x, i, y)
        assert "out of" in str(caught.value)


def test_gradients() -> None:
    grads = []
    for run in (WRITES["scatter_add"], torch.compile(WRITES["scatter_add"], backend="trnx")):
        x, y = draw(9, 6).requires_grad_(), draw(9, 4).requires_grad_()
        run(x, at(6, 9, 4), y).square().sum().backward()
        grads.append((x.grad, y.grad))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("shape", "dtype", "reduce", "reason"),
    [
        ((9, 6), torch.float32, "mean", "reduction mean"),
        ((9, 6), torch.int32, "sum", "int32"),
        ((9, 60000), torch.float32, "amax", "too long"),
        ((), torch.float32, "", "no dimensions"),
    ],
)
def test_refusals(shape: tuple[int, ...], dtype: torch.dtype, reduce: str, reason: str) -> None:
    spec = TensorSpec.dense(shape, dtype)
    given = {"base": spec, "values": spec, "dim": max(0, len(shape) - 1), "number": None}
    given["index"] = TensorSpec.dense(shape, torch.int64)
    refusal = registry.kernels()["scatter"].supports(
        Bindings({**given, "reduce": reduce}), hardware("trn2")
    )
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


@pytest.mark.parametrize("number", [2**24, 2**24 + 1, -(2**31), 2**31 - 1])
def test_integers_that_float32_does_not_have_are_left_to_others(number: int) -> None:
    x, i = torch.zeros(9, 6, dtype=torch.int32), at(6, 9, 4)
    result = compiled(lambda x, i: x.scatter(1, i, number), x, i, fallback="xla")
    assert torch.equal(result, x.scatter(1, i, number))
