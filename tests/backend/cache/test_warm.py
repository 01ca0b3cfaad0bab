"""What a second process finds: nothing is planned or scheduled again, and all values are equal.

`fresh()` forgets what the process itself remembers, so that a test is its own second process.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trnx
from trnx.backend import pipeline, prediction, programs
from trnx.backend.cache.current import current
from trnx.backend.cache.identity import file_digest
from trnx.backend.programs import PROGRAMS
from trnx.nki_kernels import registry
from trnx.nki_kernels.generator import kernel as generator
from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.errors import KernelSubsetError
from trnx.simulator.frontend import subset

Model = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRNX_CACHE_DIR", str(folder))
    fresh()
    yield
    fresh()


def fresh() -> None:
    torch.compiler.reset()
    prediction.PREDICTIONS.clear()
    PROGRAMS.clear()
    generated = (generator._SOURCES, generator._NODES, generator._COSTS)
    for known in (*generated, subset._FINDINGS, subset._CHECKED):
        known.clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what a warm process must not do."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    from trnx.simulator.timing import profile

    count(pipeline, "partition")
    count(pipeline, "canonicalise")
    count(programs, "trace")
    count(profile, "predicted_seconds")
    count(generator, "tilings")
    count(generator, "emit")
    count(subset, "_findings")
    return found


def mixed() -> torch.nn.Module:
    """Kernels of the registry, generated ones, fallbacks of XLA and of eager, glue."""

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(64, 64)
            self.norm = torch.nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.gelu(self.first(x))
            z = self.norm(torch.erfinv(y.tanh() * 0.5) * torch.sigmoid(x) + 0.5)
            return (torch.cumsum(z, -1).flip(-1) * 2).transpose(0, 1), z.median(-1).values

    torch.manual_seed(0)
    return Mixed()


def compiled(function: Model, **options: str) -> Model:
    return torch.compile(function, backend="trnx", options=options)


def plan_text(report: Any) -> list[Any]:
    regions = [(r.name, r.engine, r.kernel, r.ops, r.source, r.layer) for r in report.regions]
    return [*regions, *map(str, report.fallbacks), *map(str, report.near_misses)]


def run(model: torch.nn.Module, *inputs: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients, and the plans."""
    fresh()
    model.zero_grad(set_to_none=True)
    with trnx.collect_reports() as reports:
        results = compiled(model)(*inputs)
        outputs = results if isinstance(results, tuple) else (results,)
        sum(one.sum() for one in outputs).backward()
    values = [one.detach() for one in outputs] + [p.grad for p in model.parameters()]
    return values, [plan_text(report) for report in reports]


def test_nothing_is_planned_generated_or_scheduled_again(calls: Counter[str]) -> None:
    model, x = mixed(), torch.randn(40, 64)
    cold, plans = run(model, x)
    done = ("canonicalise", "partition", "predicted_seconds", "tilings", "trace")
    assert min(calls[name] for name in done) > 0
    calls.clear()
    warm, again = run(model, x)
    assert calls == Counter()
    assert again == plans
    assert {engine for plan in plans for _, engine, *_ in plan[:3]} >= {"nki"}
    for first, second in zip(cold, warm, strict=True):
        assert first.dtype == second.dtype
        assert first.stride() == second.stride()
        torch.testing.assert_close(second, first, rtol=0, atol=0, equal_nan=True)


def test_values_are_those_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mixed(), torch.randn(40, 64)
    run(model, x)
    warm, plans = run(model, x)
    monkeypatch.setenv("TRNX_CACHE_DIR", "off")
    assert current() is None
    without, planned = run(model, x)
    assert planned == plans
    for first, second in zip(without, warm, strict=True):
        torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_another_process_finds_everything(folder: Path) -> None:
    code = """
import json, sys, torch, trnx
from trnx.backend.cache.current import current
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
with torch.no_grad():
    y = torch.compile(model, backend="trnx")(torch.randn(3, 8))
assert "torch._inductor.scheduler" not in sys.modules  # some tenths of a second
print(json.dumps([dict(current().counts), y.tolist()]))
"""
    found = [
        json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True,
                                  text=True).stdout.splitlines()[-1])
        for _ in range(2)
    ]  # fmt: skip
    (cold, first), (warm, second) = found
    assert first == second
    assert cold.keys() == {"miss", "written"}
    assert warm.keys() == {"hit"}
    assert (folder / "plan").is_dir()


COPIES = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def copies(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    {line}
    nisa.dma_copy(dst=y, src=x)
    return y
"""


@pytest.mark.parametrize(("line", "kept"), [("pass", True), ("f = lambda i: i", False)])
def test_a_clean_kernel_is_read_once_and_one_with_findings_each_time(
    line: str, kept: bool, tmp_path: Path, folder: Path, calls: Counter[str]
) -> None:
    file = tmp_path / "own_kernel.py"
    file.write_text(COPIES.format(line=line))
    kernel = load_module(file).copies
    for _ in range(2):
        fresh()
        if kept:
            trace(kernel, [TensorSpec.dense((4, 4), torch.float32)])
        else:
            with pytest.raises(KernelSubsetError, match="lambda"):
                trace(kernel, [TensorSpec.dense((4, 4), torch.float32)])
    assert calls["_findings"] == (1 if kept else 2)
    assert len(list((folder / "subset").rglob("*.json"))) == int(kept)


def test_an_edited_kernel_and_a_damaged_entry_are_read_again(
    tmp_path: Path, folder: Path, calls: Counter[str]
) -> None:
    file = tmp_path / "own_kernel.py"
    file.write_text(COPIES.format(line="pass"))
    trace(load_module(file).copies, [TensorSpec.dense((4, 4), torch.float32)])
    (entry,) = (folder / "subset").rglob("*.json")
    entry.write_text("{}")
    fresh()
    trace(load_module(file).copies, [TensorSpec.dense((4, 4), torch.float32)])
    assert calls["_findings"] == 2
    file.write_text(COPIES.format(line="f = lambda i: i"))
    with pytest.raises(KernelSubsetError, match="lambda"):
        trace(load_module(file).copies, [TensorSpec.dense((4, 4), torch.float32)])


@pytest.mark.parametrize(
    "change", ["shape", "dtype", "strides", "op", "constant", "target", "select", "fallback"]
)
def test_every_part_of_the_key_counts(change: str, calls: Counter[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2.0

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x) * 2.0 if change == "op" else torch.sin(x) * 3.0

    x = torch.randn(16, 32)
    compiled(function)(x)
    fresh()
    calls.clear()
    inputs = {"shape": x[:8], "dtype": x.bfloat16(), "strides": x.t().contiguous().t()}
    options = {"target": "trn1", "select": "legal", "fallback": "eager"}
    given = inputs.get(change, x)
    chosen = other if change in ("op", "constant") else function
    asked = {change: options[change]} if change in options else {}
    torch.testing.assert_close(compiled(chosen, **asked)(given), chosen(given))
    assert calls["partition"] == 1


def test_names_and_lines_of_the_user_are_of_the_process_that_asks(calls: Counter[str]) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.digamma(x)

    def second(x: torch.Tensor) -> torch.Tensor:
        return torch.digamma(x)

    x = torch.randn(4, 8)
    compiled(first)(x)
    fresh()
    calls.clear()
    with trnx.collect_reports() as reports:
        compiled(second)(x)
    assert calls["partition"] == 0
    line = second.__code__.co_firstlineno + 1
    assert reports[0].fallbacks[0].source.endswith(f":{line} in second")


def test_dynamic_sizes(calls: Counter[str]) -> None:
    model = mixed().eval()
    inputs = [torch.randn(rows, 64) for rows in (5, 17, 127, 128, 129)]

    def every() -> list[Any]:
        fresh()
        call = torch.compile(model, backend="trnx", dynamic=True)
        with torch.no_grad():
            return [call(x) for x in inputs]

    cold = every()
    calls.clear()
    warm = every()
    assert calls.keys() == {"canonicalise"}  # graphs with symbols are not kept
    for first, second, x in zip(cold, warm, inputs, strict=True):
        torch.testing.assert_close(second, first, rtol=0, atol=0)
        with torch.no_grad():
            # Sums of up to 64 values, which may cancel, in another order than eager's.
            torch.testing.assert_close(second, model(x), rtol=1e-4, atol=64 * 1e-5)


def test_writes_and_random_numbers(calls: Counter[str]) -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.rand_like(x)
        b = torch.randn_like(x)
        state.add_(a.sum())
        return a * x, b + state

    def once(call: Model) -> list[torch.Tensor]:
        torch.manual_seed(3)
        state = torch.ones(4)
        return [*call(torch.arange(4.0), state), state]

    expected = once(function)
    for planned in (1, 0):
        fresh()
        calls.clear()
        for got, wanted in zip(once(compiled(function)), expected, strict=True):
            torch.testing.assert_close(got, wanted)
        assert calls["partition"] == planned


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.inv(x) + 1,
        lambda x: torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,)) + 1,
    ],
    ids=["with_effects", "cond"],
)
def test_operators_of_higher_order(function: Model) -> None:
    """They are objects, without a name of their own as functions have."""
    x = torch.eye(4) * 2 + 0.1
    for _ in range(2):
        fresh()
        torch.testing.assert_close(compiled(function)(x), function(x))


def _entries(folder: Path, kind: str) -> list[Path]:
    return sorted((folder / kind).rglob("*.json"))


def _rewritten(file: Path, change: Callable[[Any], Any]) -> None:
    """Change the value, with a checksum that fits: who can write can do that."""
    from trnx.backend.cache.cache import KINDS
    from trnx.backend.cache.entries import Entry, read_entry

    entry = read_entry(file.read_bytes(), KINDS)
    file.write_bytes(Entry(entry.key, change(entry.value)).to_bytes())


def _other_kernel(value: Any) -> Any:
    for step in value["steps"]:
        if isinstance(step, dict) and step.get("kernel") == "linear":
            step["kernel"] = "layer_norm"
    return value


def _other_binding(value: Any) -> Any:
    for step in value["steps"]:
        if isinstance(step, dict) and step.get("bindings"):
            step["bindings"] = dict.fromkeys(step["bindings"], 1)
    return value


def _first_region(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        change(next(step for step in value["steps"] if isinstance(step, dict)))
        return value

    return run


FORGED: dict[str, Callable[[Any], Any]] = {
    "no steps": lambda value: {**value, "steps": []},
    "reversed": lambda value: {**value, "steps": value["steps"][::-1]},
    "a step less": lambda value: {**value, "steps": value["steps"][1:]},
    "a step twice": lambda value: {**value, "steps": [*value["steps"], value["steps"][0]]},
    "unknown node": lambda value: {**value, "steps": [*value["steps"], "nothing"]},
    "other kernel": _other_kernel,
    "other bindings": _other_binding,
    "unknown engine": _first_region(lambda r: r.update(engine="python")),
    "unknown kernel": _first_region(lambda r: r.update(kernel="os.system", bindings={"a": 1})),
    "fewer nodes": _first_region(lambda r: r.update(nodes=r["nodes"][:-1])),
    "no nodes": _first_region(lambda r: r.update(nodes=[])),
    "numbers for nodes": _first_region(lambda r: r.update(nodes=[1, 2])),
    "no region": _first_region(lambda r: r.clear()),
    "ledger of lists": lambda value: {**value, "ledger": [[[], [], [], []]]},
    "short ledger": lambda value: {**value, "ledger": [["x"]]},
    "a list": lambda _: [1],
    "nothing": lambda _: {},
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_plan_is_told_and_made_anew(
    name: str, folder: Path, caplog: pytest.LogCaptureFixture, calls: Counter[str]
) -> None:
    model, x = mixed().eval(), torch.randn(6, 64)
    with torch.no_grad():
        expected = compiled(model)(x)
        (file,) = _entries(folder, "plan")
        _rewritten(file, FORGED[name])
        fresh()
        calls.clear()
        with caplog.at_level(logging.WARNING, "trnx"):
            got = compiled(model)(x)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert calls["partition"] == 1
    assert str(file) in caplog.text
    assert current().counts["damaged"] == 1


def test_a_forged_order_of_effects_is_told(folder: Path, calls: Counter[str]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.rand(4)
        y = torch.cumsum(x, -1)
        return a, torch.sin(y) + torch.randn(4)

    def swapped(value: Any) -> Any:
        return {**value, "steps": value["steps"][::-1]}

    torch.manual_seed(0)
    expected = compiled(function)(torch.ones(4))
    (file,) = _entries(folder, "plan")
    _rewritten(file, swapped)
    fresh()
    calls.clear()
    torch.manual_seed(0)
    for one, other in zip(compiled(function)(torch.ones(4)), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert calls["partition"] == 1


@pytest.mark.parametrize("seconds", ["nan", "inf", "-0x1p0", "fast", 3, None])
def test_a_forged_time_is_scheduled_again(seconds: Any, folder: Path, calls: Counter[str]) -> None:
    x, weight = torch.randn(16, 32), torch.randn(8, 32)
    compiled(torch.nn.functional.linear)(x, weight)
    (plan,) = _entries(folder, "plan")
    plan.unlink()
    (file,) = _entries(folder, "prediction")
    _rewritten(file, lambda _: {"seconds": seconds})
    fresh()
    calls.clear()
    compiled(torch.nn.functional.linear)(x, weight)
    assert calls["predicted_seconds"] == 1
    assert current().counts["damaged"] == 1


def test_a_plan_is_kept_in_a_folder_of_others_and_code_is_not(
    folder: Path, calls: Counter[str]
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    x = torch.randn(4, 8)
    compiled(function)(x)
    folder.chmod(0o777)
    fresh()
    calls.clear()
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert calls["partition"] == calls["predicted_seconds"] == 0
    assert calls["emit"] > 0
    assert current().counts["foreign"] > 0


def test_a_file_is_told_by_itself_and_what_it_imports_beside_it(tmp_path: Path) -> None:
    helper, file = tmp_path / "helper.py", tmp_path / "mine.py"
    helper.write_text("A = 1\n")
    file.write_text("import math\nimport nki.language as nl\nfrom helper import A\n")
    first = file_digest(file)
    assert first is not None
    assert file_digest(file) == first
    helper.write_text("A = 2\n")
    second = file_digest(file)
    file.write_text("from helper import A  # edited\n")
    assert len({first, second, file_digest(file)}) == 3
    for other in ("import elsewhere", "from elsewhere.a import b", "from ..a import b", "("):
        file.write_text(f"from helper import A\n{other}\n")
        assert file_digest(file) is None, other
    file.write_text("from .helper import A\n")
    assert file_digest(file) is not None


KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl
import torch
from trnx import register_kernel
from trnx.nki_kernels.spec import Cost, KernelSpec, Pattern, Sample


@nki.jit
def mine_kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=FACTOR)
    nisa.dma_copy(dst=out, src=tile)
    return out


register_kernel(KernelSpec(
    name="mine",
    patterns=(Pattern(lambda x: torch.ops.aten.mul.Tensor(x, FACTOR)),),
    supports=lambda b, hw: None,
    reference=lambda x: x * FACTOR,
    cost=lambda b: Cost(vector_flops=b.x.numel, hbm_bytes=2 * b.x.nbytes),
    samples=lambda generator: [Sample({"x": torch.ones(4, 8)})],
    kernel=mine_kernel,
))
"""


def test_an_edited_kernel_of_a_user_is_planned_anew(
    tmp_path: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_load_package", lambda: None)
    file, x = tmp_path / "mine.py", torch.randn(4, 8)

    def planned() -> tuple[int, set[str | None]]:
        fresh()
        calls.clear()
        with trnx.collect_reports() as reports:
            got = compiled(lambda x: x * 2.0, select="legal", fallback="eager")(x)
        torch.testing.assert_close(got, x * 2.0)
        return calls["partition"], {region.kernel for region in reports[0].regions}

    file.write_text(KERNEL.replace("FACTOR", "2.0"))
    trnx.load_kernels(file)
    assert planned() == (1, {"mine"})
    assert planned() == (0, {"mine"})
    file.write_text(KERNEL.replace("FACTOR", "3.0"))
    assert planned() == (1, {"mine"})  # edited and not loaded: nothing is kept
    trnx.load_kernels(file)
    found, kernels = planned()
    assert (found, "mine" in kernels) == (1, False)
