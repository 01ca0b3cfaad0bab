"""A sample of the OpInfo run (`scripts/conformance/opinfo.py`), small enough for every change."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import SampleInput

SCRIPT = Path(__file__).parents[2] / "scripts" / "conformance" / "opinfo.py"
OPS, SEED = 25, 3
# The share of NKI ops that the whole run has to reach, in this sample.
NKI_OPS = OPS * 380 // 702


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("opinfo_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def outcomes(script: ModuleType) -> Iterator[list[Any]]:
    found = []
    for position in script.choose(sample=OPS, seed=SEED):
        op = script.op_db[position]
        found.append(script.run_cases(op, script.Outcome(script.full_name(op)), samples=1))
    yield found
    torch._dynamo.reset()


def test_sampled_ops_agree_with_eager(outcomes: list[Any]) -> None:
    assert len(outcomes) == OPS
    assert sum(outcome.samples for outcome in outcomes) >= OPS
    assert not [failure for outcome in outcomes for failure in outcome.failures]


@pytest.mark.parametrize("select", ["profit", "legal"])
def test_sampled_ops_run_on_nki(outcomes: list[Any], select: str) -> None:
    assert sum(outcome.nki.get(select, False) for outcome in outcomes) >= NKI_OPS


@pytest.mark.parametrize(
    ("actual", "expected", "reason"),
    [
        ([torch.ones(2)], [torch.ones(2)], None),
        ([torch.ones(2)], [torch.ones(2), 1], "1 results in place of 2"),
        ([torch.ones(2)], [torch.ones(3)], "in place of"),
        ([torch.ones(2)], [torch.ones(2, dtype=torch.float64)], "in place of"),
        ([torch.ones(2, 2).t()[:, :1]], [torch.ones(2, 1)], "stride"),
        ([torch.ones(2) * 1.001], [torch.ones(2)], "not close"),
        ([float("nan"), 2], [float("nan"), 3], "value 2 in place of 3"),
    ],
)
def test_differences_are_seen(
    script: ModuleType, actual: list[Any], expected: list[Any], reason: str | None
) -> None:
    found = script.differs(actual, expected, False)
    assert found == reason if reason is None else reason in found


def test_results_come_with_gradients(script: ModuleType) -> None:
    op = next(o for o in script.op_db if o.name == "sin")
    (case, *_) = script.cases(op, 1, mode="backward")
    result, gradient = script.call(op.op, case)
    x = case.make().input
    assert x.requires_grad
    assert not result.requires_grad
    tangent = torch.randn(x.shape, generator=torch.Generator().manual_seed(script.SEED))
    torch.testing.assert_close(gradient, tangent * x.detach().cos())
    doubled = script.call(lambda x: op.op(x) + (x - x.detach()), case)
    assert script.differs(doubled, [result, gradient], False) is not None


def test_gradients_of_compiled_ops_are_those_of_eager(script: ModuleType) -> None:
    op = next(o for o in script.op_db if o.name == "erfinv")
    outcome = script.run_cases(op, script.Outcome("erfinv"), samples=1, mode="backward")
    assert outcome.samples == 1
    assert outcome.failures == []
    assert outcome.nki["legal"]


def test_special_values_are_among_the_inputs(script: ModuleType) -> None:
    op = next(o for o in script.op_db if o.name == "sin")
    found = {case.special: case.make().input for case in script.cases(op, 1, mode="special")}
    assert list(found) == list(script.SPECIAL)
    count = found["nan"].numel()
    assert found["nan"].isnan().sum() == found["infinite"].isinf().sum() == -(-count // 4)
    assert found["extreme"].max() == torch.tensor(3e38)


@pytest.mark.parametrize(("special", "reason"), [("infinite", "close"), ("extreme", None)])
def test_only_overflow_may_be_of_another_class(
    script: ModuleType, special: str, reason: str | None
) -> None:
    op = next(o for o in script.op_db if o.name == "sum")
    case = script.Case(torch.float32, 0, lambda: SampleInput(torch.ones(3)), False, special)
    wanted = [torch.tensor(torch.inf)]
    found = script.attempt(op, case, wanted, lambda *_: lambda *_: (torch.tensor(torch.nan),))
    assert found is None if reason is None else reason in found


def test_ops_without_gradients_have_no_backward_cases(script: ModuleType) -> None:
    op = next(o for o in script.op_db if o.name == "argmax")
    assert list(script.cases(op, 2, mode="backward")) == []


def test_what_the_file_of_results_holds_does_not_run_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = script.choose(ops="^(sin|cos)$")
    failure = script.Failure("sin", "legal", "float32", 0, "its values differ")
    first = {p: script.Outcome(script.full_name(script.op_db[p]), samples=2) for p in positions}
    first[positions[0]].failures.append(failure)
    ran = []

    def run(left: list[int], *_: Any) -> Iterator[Any]:
        ran.extend(left)
        yield from (first[p] for p in left)

    monkeypatch.setattr(script, "run_all", run)
    path = tmp_path / "results"
    assert list(script.run_kept(positions[:1], 1, "forward", path)) == [first[positions[0]]]
    assert list(script.run_kept(positions, 1, "forward", path)) == [first[p] for p in positions]
    assert ran == positions


def test_a_backend_error_that_becomes_a_graph_break_counts(script: ModuleType) -> None:
    def broken(*_: Any) -> Any:
        raise torch._subclasses.fake_tensor.DataDependentOutputException(torch.ops.aten.item)

    op = next(o for o in script.op_db if o.name == "sin")
    (case, *_) = script.cases(op, 1)
    reason = script.attempt(op, case, script.call(op.op, case), broken)
    assert reason is not None
    assert reason.startswith(script.COMPILER_BROKE)
