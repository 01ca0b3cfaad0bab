"""What is special to `rope`: eager's bits, layouts of models, one region, values that are not
finite, refusals.
"""

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
from trnx.simulator.timing.profile import profile_program

ROPE = registry.kernels()["rope"]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return (x * cos) + (rotate_half(x) * sin)


def queries_and_keys(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As in models of the Llama family: heads before positions, a view of what the product gave."""
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return rope(q, cos, sin), rope(k, cos, sin)


def values(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **changes: Any) -> dict[str, Any]:
    numbers = {"dim": x.ndim - 1, "half": x.shape[-1] // 2, "end": 2**63 - 1, "cat_dim": -1}
    return {"x": x, "cos": cos, "sin": sin, **numbers, **changes}


def bindings(given: dict[str, Any]) -> Bindings:
    return Bindings(
        {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_are_those_of_eager(dtype: torch.dtype) -> None:
    q, k = draw(2, 130, 6, 64, dtype=dtype), draw(2, 130, 2, 64, dtype=dtype)
    cos, sin = draw(2, 130, 64, dtype=dtype), draw(2, 130, 64, dtype=dtype) * 3
    compiled = torch.compile(queries_and_keys, backend="trnx")
    with trnx.collect_reports() as reports:
        results = compiled(q, k, cos, sin)
    assert [r.kernel for report in reports for r in report.regions] == ["rope", "rope"]
    for result, eager in zip(results, queries_and_keys(q, k, cos, sin), strict=True):
        assert torch.equal(result, eager)
        assert result.stride() == eager.stride()


def test_one_position_that_is_not_finite_leaves_the_others_alone() -> None:
    x = draw(1, 3, 140, 32)
    x[0, 0, 5, 3] = torch.nan
    x[0, 1, 7, 30] = torch.inf
    given = values(x, draw(140, 32), draw(140, 32))
    launch = ROPE.launch(bindings(given), hardware("trn2"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2")
    (result,) = program.run([x, given["cos"], given["sin"]])
    eager = rope(x, given["cos"], given["sin"])
    assert eager.isfinite().logical_not().sum() == 4
    torch.testing.assert_close(result, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("special", [None, torch.nan, -torch.inf])
def test_sums_by_products_are_those_of_eager(
    special: float | None, dtype: torch.dtype, target: str
) -> None:
    """What is not finite stays where it is, whatever the sums of TensorE make of it."""
    x, tables = draw(2, 9, 1030, 64, dtype=dtype), [draw(1030, 64, dtype=dtype) for _ in range(2)]
    if special is not None:
        x[1, 8, 1029, 63] = special
    given = values(x, *tables)
    launch = ROPE.launch(bindings(given), hardware(target))
    assert launch.unknown_trips == 0
    result = simulator.simulate(launch.kernel, target=target)(
        *(given[n] for n in launch.tensor_names), *launch.arguments[3:]
    )
    eager = rope(x, *tables)
    assert eager.isfinite().logical_not().sum() == (0 if special is None else 2)
    torch.testing.assert_close(result, eager, rtol=0, atol=0, equal_nan=True)


def test_sums_by_products_are_as_fast_as_loads_and_stores() -> None:
    x, tables = draw(1, 32, 2048, 128).bfloat16(), [draw(2048, 128).bfloat16() for _ in range(2)]
    launch = ROPE.launch(bindings(values(x, *tables)), hardware("trn2"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
    profile = profile_program(program, hardware("trn2"), launch.unknown_trips)
    assert profile.mbu > 0.88


def test_heads_share_one_load_of_cos_and_sin() -> None:
    def instructions(heads: int) -> int:
        x, tables = draw(1, heads, 512, 128), (draw(512, 128), draw(512, 128))
        launch = ROPE.launch(bindings(values(x, *tables)), hardware("trn2"))
        program = simulator.trace(launch.kernel, launch.arguments, target="trn2")
        return program.instruction_count

    # A tile more: a load, three products, a sum, a store.
    assert instructions(32) - instructions(28) == 6


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"half": 3}, "half of the last"),
        ({"dim": 0}, "half of the last"),
        ({"end": 7}, "cut at 7"),
        ({"cos": draw(3, 8)}, "differ"),
        ({"cos": draw(3, 8), "sin": draw(3, 8)}, "does not broadcast"),
        ({"cos": draw(5, 1), "sin": draw(5, 1)}, "last dimension"),
        ({"cos": draw(5, 8).bfloat16()}, "bfloat16"),
        ({"x": draw(0, 8)}, "elements"),
        ({"x": draw(1, 1, 1, 5, 8)}, "dimensions"),
    ],
)
def test_refusals_have_a_reason(changes: dict[str, Any], reason: str) -> None:
    given = {**values(draw(5, 8), draw(5, 8), draw(5, 8)), **changes}
    refusal = ROPE.supports(bindings(given), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


def test_an_odd_cut_is_left_to_others() -> None:
    """Halves in another place are no rotary embedding; the values are eager's all the same."""

    def uneven(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return x * cos + torch.cat((-x[..., 3:], x[..., :3]), dim=-1) * sin

    x, cos, sin = draw(4, 8), draw(4, 8), draw(4, 8)
    with trnx.collect_reports() as reports:
        result = torch.compile(uneven, backend="trnx")(x, cos, sin)
    assert "rope" not in [r.kernel for report in reports for r in report.regions]
    torch.testing.assert_close(result, uneven(x, cos, sin))
