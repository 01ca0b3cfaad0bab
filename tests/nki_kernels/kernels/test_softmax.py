"""What is special to `softmax`: long rows, instruction counts, extreme values, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

SOFTMAX = registry.kernels()["softmax"]


def bindings(x: torch.Tensor, **changes: Any) -> Bindings:
    values = {"dim": x.ndim - 1, "half_to_float": False, "is_log": False, **changes}
    return Bindings({"x": TensorSpec.of(x), **values})


def traced(x: torch.Tensor, target: str = "trn2", **changes: Any) -> Program:
    launch = SOFTMAX.launch(bindings(x, **changes), hardware(target))
    return simulator.trace(launch.kernel, launch.arguments, target=target)


def test_a_row_is_loaded_once_where_it_fits() -> None:
    x = torch.empty(512, 3000)
    program = traced(x)
    assert program.hbm_bytes == 2 * x.nbytes
    assert program.instruction_count == 2 + 4 * 6  # the table of exponentials, and four tiles


def test_narrow_rows_share_instructions() -> None:
    """Of one tile; those that are wide enough have their own, each with its sum."""
    assert traced(torch.empty(8, 256, 32)).instruction_count == 2 + 4 * 8
    assert traced(torch.empty(8, 256, 64)).instruction_count == 2 + 4 * (4 + 2 * 4)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("is_log", [False, True])
def test_a_vocabulary_fits(target: str, is_log: bool) -> None:
    x = torch.randn(3, 50_257, generator=torch.Generator().manual_seed(0)) * 5
    program = traced(x, target, is_log=is_log)
    assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes
    (result,) = program.run([x])
    expected = x.log_softmax(-1) if is_log else x.softmax(-1)
    torch.testing.assert_close(result, expected)


def test_a_piece_of_nothing_but_minus_infinity_adds_nothing() -> None:
    x = torch.randn(3, 50_257, generator=torch.Generator().manual_seed(0))
    x[0, :10_000] = -math.inf
    x[1] = -math.inf
    x[2, 4096:] = 1e30
    torch.testing.assert_close(traced(x).run([x])[0], x.softmax(-1), equal_nan=True)
    logs = traced(x, is_log=True).run([x])[0]
    torch.testing.assert_close(logs, x.log_softmax(-1), equal_nan=True)


@pytest.mark.parametrize("is_log", [False, True])
def test_a_row_in_pieces_is_read_once_where_they_fit(is_log: bool) -> None:
    x = torch.empty(130, 32_000)
    assert traced(x, is_log=is_log).hbm_bytes == 2 * x.nbytes
    x = torch.empty(130, 100_000)
    assert traced(x, is_log=is_log).hbm_bytes == 3 * x.nbytes


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_logits_cost_no_more_than_in_eager(is_log: bool, dtype: torch.dtype) -> None:
    x = (torch.randn(130, 700, generator=torch.Generator().manual_seed(1)) * 3 + 1e4).to(dtype)
    function = torch.log_softmax if is_log else torch.softmax
    exact = function(x.double(), -1)
    error = (traced(x, is_log=is_log).run([x])[0] - exact).abs().max()
    assert error <= 2 * (function(x, -1) - exact).abs().max()


def test_extreme_values() -> None:
    x = torch.tensor([[1e30, 1.0], [-math.inf, 0.0], [-math.inf, -math.inf], [math.nan, 1.0]])
    torch.testing.assert_close(traced(x).run([x])[0], x.softmax(-1), equal_nan=True)
    logs = traced(x, is_log=True).run([x])[0]
    torch.testing.assert_close(logs, x.log_softmax(-1), equal_nan=True)


def test_half_to_float() -> None:
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).half()
    (result,) = traced(x, half_to_float=True).run([x])
    torch.testing.assert_close(result, x.float().softmax(-1))


@pytest.mark.parametrize(
    ("x", "changes", "reason"),
    [
        (torch.empty(3, 4, dtype=torch.float64), {}, "float64"),
        (torch.empty(3, 0), {}, "no rows"),
        (torch.empty(3, 4), {"dim": 0}, "not the last"),
    ],
)
def test_refusals(x: torch.Tensor, changes: dict[str, Any], reason: str) -> None:
    refusal = SOFTMAX.supports(bindings(x, **changes), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
