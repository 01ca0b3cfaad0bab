"""The executable: kernels that refuse or fail, threads, reentrance, shared Programs, memory."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed

import trnx
from trnx.backend import executable, torch_internals
from trnx.backend.programs import PROGRAMS, ProgramCache
from trnx.backend.runners import Prepared, SimulatorRunner
from trnx.errors import KernelFailedError, KernelRefusedError
from trnx.nki_kernels.generator import FusedKernel
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import TRN2
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

LEGAL = {"select": "legal"}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu() + 1


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FusedKernel, "supports", lambda *_: Reject("six rows are too many"))


def fail_at_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Sequence[Any], outputs: Sequence[Any]) -> None:
        outputs[0].fill_(float("nan"))
        raise RuntimeError("the kernel broke half-way")

    monkeypatch.setattr(SimulatorRunner, "prepare", lambda *_: Prepared(run))


def test_a_refusal_at_run_time_is_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    with trnx.collect_reports() as reports:
        compiled = torch.compile(chain, backend="trnx", dynamic=True, options=LEGAL)
        x = torch.randn(4, 8)
        assert torch.equal(compiled(x), chain(x))
        assert not reports.fallbacks
        refuse(monkeypatch)
        x = torch.randn(6, 8)
        assert torch.equal(compiled(x), chain(x))
    (entry,) = reports.fallbacks
    assert "refuses the sizes of this call: six rows are too many" in entry.reason
    assert entry.op == "aten.add.Tensor"
    assert "test_executable.py" in entry.source
    assert entry.engine == "eager"


def test_a_refusal_at_run_time_is_an_error_where_fallback_is_forbidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {**LEGAL, "fallback": "error"}
    compiled = torch.compile(chain, backend="trnx", dynamic=True, options=options)
    compiled(torch.randn(4, 8))
    refuse(monkeypatch)
    with pytest.raises(KernelRefusedError, match=r"add\.Tensor at .*test_executable\.py.*six rows"):
        compiled(torch.randn(6, 8))


def test_a_kernel_that_fails_runs_in_eager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_at_run(monkeypatch)
    x = torch.randn(4, 8)
    kept = x.clone()
    with trnx.collect_reports() as reports, caplog.at_level(logging.WARNING, "trnx"):
        compiled = torch.compile(chain, backend="trnx", options=LEGAL)
        assert torch.equal(compiled(x), chain(x))
        assert torch.equal(compiled(x), chain(x))
    assert torch.equal(x, kept)
    assert len(reports.fallbacks) == 1
    assert "the kernel broke half-way" in reports.fallbacks[0].reason
    assert sum("runs in eager" in record.message for record in caplog.records) == 1


def test_a_kernel_that_fails_is_an_error_where_fallback_is_forbidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_at_run(monkeypatch)
    compiled = torch.compile(chain, backend="trnx", options={**LEGAL, "fallback": "error"})
    with pytest.raises(KernelFailedError, match="the kernel broke half-way"):
        compiled(torch.randn(4, 8))


def test_a_kernel_that_cannot_be_traced_is_named_while_compiling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare(*_: Any) -> Prepared:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(SimulatorRunner, "prepare", prepare)
    compiled = torch.compile(chain, backend="trnx", options={**LEGAL, "fallback": "error"})
    with pytest.raises(BackendCompilerFailed, match="no such instruction"):
        compiled(torch.randn(4, 8))


def test_an_interrupt_is_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatorRunner, "prepare", lambda *_: Prepared(run))
    compiled = torch.compile(chain, backend="trnx", options=LEGAL)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.randn(4, 8))


def two_regions(x: torch.Tensor) -> torch.Tensor:
    y = F.gelu(x @ x)
    return torch.softmax(y @ x, dim=-1).cumsum(0) + y


def test_threads_do_not_meet() -> None:
    compiled = torch.compile(two_regions, backend="trnx", options=LEGAL)
    inputs = [torch.randn(24, 24) for _ in range(4)]
    with torch.no_grad():
        compiled(inputs[0])
    wrong: list[float] = []

    def work(x: torch.Tensor) -> None:
        with torch.no_grad():
            want = two_regions(x)
            for _ in range(5):
                wrong.append(float((compiled(x) - want).abs().max()))

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 20
    assert max(wrong) < 1e-4


def test_a_call_inside_a_call() -> None:
    depth = [0]
    compiled: Any = None

    @torch.library.custom_op("trnx_test::again", mutates_args=())
    def again(x: torch.Tensor) -> torch.Tensor:
        if depth[0]:
            return x.clone()
        depth[0] += 1
        return compiled(x) + 0  # type: ignore[no-any-return]

    @again.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).relu()
        return torch.ops.trnx_test.again(y) + y  # type: ignore[no-any-return]

    compiled = torch.compile(function, backend="trnx", options=LEGAL)
    x = torch.rand(8, 8)
    with torch.no_grad():
        depth[0] = 1
        torch.testing.assert_close(compiled(x), 4 * x)
        depth[0] = 0
        # y = 2x; the inner call gives 2 * 2y; the sum is 8x + 2x.
        torch.testing.assert_close(compiled(x), 10 * x)


def test_users_operators_are_looked_at_in_a_first_call_and_kernels_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @torch.library.custom_op("trnx_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @doubled.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    mode = torch_internals._CUSTOM_OP_CHECK
    look: Any = mode.__torch_dispatch__
    seen: list[Any] = []

    def noted(self: Any, func: Any, *given: Any, **named: Any) -> Any:
        seen.append(func)
        return look(self, func, *given, **named)

    monkeypatch.setattr(mode, "__torch_dispatch__", noted)
    weight, x = torch.randn(64, 64), torch.randn(64, 64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.trnx_test.doubled(x @ weight).relu()  # type: ignore[no-any-return]

    with torch.no_grad(), trnx.collect_reports() as reports:
        result = torch.compile(function, backend="trnx", options=LEGAL)(x)
    assert [region.engine for region in reports[0].regions] == ["nki", "eager", "nki"]
    torch.testing.assert_close(result, function(x), rtol=1e-5, atol=1e-4)
    assert torch.ops.trnx_test.doubled.default in seen
    assert not {torch.ops.aten.mm.out, torch.ops.aten.copy_.default} & set(seen)


def test_equal_layers_share_their_programs() -> None:
    layers = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(4)])
    PROGRAMS.clear()  # a full one would stay as long as it is
    compiled = torch.compile(layers, backend="trnx", options=LEGAL)
    x = torch.randn(3, 40)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layers(x), rtol=1e-5, atol=1e-5)
    assert len(PROGRAMS) == 1


def test_the_cache_of_programs_is_bounded() -> None:
    linear = kernels()["linear"]
    weight = TensorSpec.dense((8, 16), torch.float32)
    cache = ProgramCache(capacity=2)
    for rows in (2, 3, 4, 2):
        x = TensorSpec.dense((rows, 16), torch.float32)
        plain = {"bias": None, "residual": None, "activation": "none"}
        values = Bindings({"x": x, "weight": weight, **plain})
        cache.get(linear.launch(values, TRN2), "trn2")
        assert len(cache) <= 2
    assert len(cache) == 2


def test_the_cache_of_programs_is_bounded_by_bytes() -> None:
    linear = kernels()["linear"]
    weight = TensorSpec.dense((8, 16), torch.float32)
    cache = ProgramCache(capacity_bytes=1)

    def get(rows: int) -> Program:
        x = TensorSpec.dense((rows, 16), torch.float32)
        plain = {"bias": None, "residual": None, "activation": "none"}
        values = Bindings({"x": x, "weight": weight, **plain})
        return cache.get(linear.launch(values, TRN2), "trn2")

    first = get(2)
    assert first.host_bytes > 1
    get(3)
    assert len(cache) == 1
    assert get(2) is first, "a Program that is in use is not traced again"


def test_specialisations_are_bounded_by_the_bytes_of_their_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executable, "SPECIALISATION_BYTES", 1)
    layer = torch.nn.Linear(16, 8)
    compiled = torch.compile(layer, backend="trnx", dynamic=True, options=LEGAL)
    with torch.no_grad(), trnx.collect_reports() as reports:
        for rows in (3, 4, 3, 3):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)
    assert [report.shapes for report in reports] == [3]


def test_inputs_and_results_are_freed() -> None:
    compiled = torch.compile(two_regions, backend="trnx", options=LEGAL)
    with torch.no_grad():
        x = torch.randn(16, 16)
        y = compiled(x)
        watch = [weakref.ref(x.untyped_storage()), weakref.ref(y.untyped_storage())]
        del x, y
        gc.collect()
    assert [ref() for ref in watch] == [None, None]
