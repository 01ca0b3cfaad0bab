"""The XLA engine: exchange of tensors, strides, checks, sizes, threads, and life without JAX."""

from __future__ import annotations

import importlib.util
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from trnx.fallback import EagerEngine, XlaEngine
from trnx.fallback.errors import FallbackError

pytest.importorskip("jax")

from trnx.fallback.program import Program  # after the check for JAX
from trnx.fallback.xla import COMPILED_SIZES, SETTLED_AFTER

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
          torch.int8, torch.uint8, torch.bool)  # fmt: skip


def compiled(capture: Any, function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """The region of `function`, which XLA must take as a whole."""
    graph_module = capture(function, *inputs)
    engine = XlaEngine()
    rejected = [engine.supports(n) for n in graph_module.graph.nodes if n.op == "call_function"]
    assert rejected == [None] * len(rejected)
    run = engine.compile(graph_module)
    assert isinstance(getattr(run, "__self__", None), Program)
    return run


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """The same values at an address that is no multiple of 64."""
    base = torch.empty(x.numel() + 1, dtype=x.dtype)
    base[1:] = x.reshape(-1)
    return base[1:].view(x.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_every_dtype_come_back_exactly(capture: Any, dtype: torch.dtype) -> None:
    shapes = [(), (0, 3), (1,), (127,), (128, 3), (129, 2), (3, 513)]
    inputs = [torch.randint(0, 100, shape).to(dtype) for shape in shapes]

    def function(*values: Any) -> Any:
        return (*(v.clone() for v in values), *(torch.cat([v[None], v[None]]) for v in values))

    outputs = compiled(capture, function, *inputs)(inputs)
    for a, e in zip(outputs, function(*inputs), strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=0, check_stride=a.numel() > 0)


def test_large_integers_survive(capture: Any) -> None:
    x = torch.tensor([2**62 + 1, -(2**53) - 1, 2**31])
    run = compiled(capture, lambda v: v + 1, x)
    assert run([x])[0].tolist() == (x + 1).tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x, x])[::2][: x.shape[0]],
        lambda x: x[:1].expand(x.shape),
        misaligned,
        lambda x: torch.nn.Parameter(x),
        lambda x: x.as_strided((8, 8), (8, 1), 0),
    ],
)
def test_inputs_of_any_layout(capture: Any, make: Callable[..., torch.Tensor]) -> None:
    x = make(torch.randn(8, 8)).detach()
    run = compiled(capture, lambda v: (v * 2, v.sum(0)), x)
    for given in (x, torch.randn(8, 8), misaligned(torch.randn(8, 8)), torch.randn(8, 8).t()):
        out, total = run([given])
        torch.testing.assert_close(out, given * 2, check_stride=False)
        torch.testing.assert_close(total, given.sum(0))


def test_a_parameter_written_in_place_is_seen(capture: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(16, 16))
    run = compiled(capture, lambda w: w + 1, weight.detach())
    for write in (
        lambda: weight.data.fill_(3.0),
        lambda: torch.nn.init.zeros_(weight),
        lambda: weight.data.add_(1),
        lambda: setattr(weight, "data", torch.full((16, 16), 9.0)),
        lambda: setattr(weight, "data", torch.arange(256.0).reshape(16, 16).t()),
        lambda: setattr(weight, "data", misaligned(torch.randn(16, 16))),
        lambda: weight.data.mul_(2),
    ):
        write()
        torch.testing.assert_close(run([weight])[0], weight.detach() + 1, check_stride=False)


def test_a_misaligned_parameter_written_through_data_is_seen(capture: Any) -> None:
    weight = torch.nn.Parameter(misaligned(torch.randn(16, 16)))
    run = compiled(capture, lambda w: w + 1, weight.detach())
    for value in (1.0, 2.0, 3.0):
        weight.data.fill_(value)
        assert run([weight])[0].unique().tolist() == [value + 1]


@pytest.mark.parametrize(("calls", "cached"), [(1, False), (2, True), (3, True)])
def test_a_tensor_dies_with_its_last_reference(capture: Any, calls: int, cached: bool) -> None:
    run = compiled(capture, lambda v: v + 1, torch.randn(64, 64))
    x = torch.randn(64, 64)
    for _ in range(calls):
        run([x])
    storage = weakref.ref(x.untyped_storage())
    owner = run.__self__  # type: ignore[attr-defined]
    ((slot, _),) = owner._inputs
    assert (slot._cached is not None) is cached
    del x
    assert slot._cached is None
    assert storage() is None


def test_inputs_in_turn_are_told_apart(capture: Any) -> None:
    run = compiled(capture, lambda v: v + 1, torch.randn(8, 8))
    tensors = [torch.full((8, 8), float(i)) for i in range(3)]
    for i in (0, 0, 1, 0, 1, 1, 2, 2, 0, 0, 0, 1, 2):
        assert run([tensors[i]])[0].unique().tolist() == [i + 1.0]


def test_outputs_are_tensors_of_their_own(capture: Any) -> None:
    x = torch.randn(8, 8)

    def function(v: torch.Tensor) -> Any:
        return v.view(64), v, v.clone(), v + 0, torch.ones(3), v.exp(), v.exp(), v * 1

    run = compiled(capture, function, x)
    kept = x.clone()
    for _ in range(4):  # x is new, then known
        outputs = run([x])
        torch.testing.assert_close(outputs, list(function(x)))
        assert len({t.data_ptr() for t in (x, *outputs)}) == len(outputs) + 1
        for out in outputs:
            out.fill_(7)
        assert torch.equal(x, kept)


@pytest.mark.parametrize(
    "function",
    [
        lambda v: v.permute(2, 0, 1) * 1,
        lambda v: v.relu().transpose(0, 2),
        lambda v: (v + 1)[:, ::2],
        lambda v: (v + 1)[:, :1].expand(v.shape),
        lambda v: (v + 1)[1:],
        lambda v: (v + 1).unfold(2, 3, 1),
        lambda v: torch.empty_permuted(v.shape, (1, 2, 0)).fill_(0) + v,
    ],
)
def test_outputs_have_the_strides_of_the_metadata(
    capture: Any, function: Callable[..., torch.Tensor]
) -> None:
    x = torch.randn(3, 4, 5)
    out_graph = capture(torch.func.functionalize(function), x)
    (out,) = XlaEngine().compile(out_graph)([x])
    (node,) = out_graph.graph.output_node().args[0]
    assert out.stride() == node.meta["val"].stride()
    torch.testing.assert_close(out, function(x), check_stride=False)


def test_tensor_attributes_are_read_at_each_call(capture: Any) -> None:
    table = torch.randn(4)
    run = compiled(capture, lambda v: v, torch.randn(4))
    assert run is not None
    graph = fx.Graph()
    x = graph.placeholder("x")
    attribute = graph.get_attr("table")
    out = graph.call_function(torch.ops.aten.add.Tensor, (x, attribute))
    for node in (x, attribute, out):
        node.meta["val"] = torch.empty(4, device="meta")
    graph.output((out,))
    root = torch.nn.Module()
    root.register_buffer("table", table)
    add = XlaEngine().compile(fx.GraphModule(root, graph))
    given = torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(add([given])[0], given + table)
        table.add_(1)


# ------------------------------------------------------------------------------- checks on values


@pytest.mark.parametrize(
    ("function", "bad"),
    [
        (lambda t, i: torch.ops.aten.embedding(t, i), 8),
        (lambda t, i: torch.ops.aten.embedding(t, i), -1),
        (lambda t, i: t[i], 8),
        (lambda t, i: t[i], -9),
        (lambda t, i: t.index_select(0, i), 9),
        (lambda t, i: torch.gather(t, 0, i[:, None]), 8),
        (lambda t, i: t.scatter(0, i[:, None], 1.0), 8),
        (lambda t, i: t.index_add(0, i, t[:2]), 8),
    ],
)
def test_an_index_out_of_range_raises(capture: Any, function: Any, bad: int) -> None:
    table, good = torch.randn(8, 4), torch.tensor([0, 7])
    run = compiled(capture, function, table, good)
    torch.testing.assert_close(run([table, good])[0], function(table, good))
    wrong = torch.tensor([0, bad])
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(table, wrong)
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        run([table, wrong])
    torch.testing.assert_close(run([table, good])[0], function(table, good))


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_integer_division_by_zero_raises(capture: Any, mode: str) -> None:
    x, y = torch.tensor([-7, 7, 5]), torch.tensor([2, -2, 3])
    run = compiled(capture, lambda a, b: torch.div(a, b, rounding_mode=mode), x, y)
    assert torch.equal(run([x, y])[0], torch.div(x, y, rounding_mode=mode))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run([x, torch.tensor([1, 0, 1])])


def test_nan_and_infinity_as_in_eager(capture: Any) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -2.5])
    y = torch.tensor([1.0, -2.0, 0.0, 0.0, 3.0, float("nan"), -1.0])

    def function(a: Any, b: Any) -> Any:
        return (torch.maximum(a, b), torch.fmin(a, b), a.clamp(-1, 1), a.relu(), a.sign(), a % b,
                torch.div(a, b, rounding_mode="floor"), torch.fmod(a, b), a.max(), a.argmax(),
                a.round(), torch.copysign(a, b), torch.atan2(a, b),
                torch.cummax(a, 0)[0])  # fmt: skip

    for a, e in zip(compiled(capture, function, x, y)([x, y]), function(x, y), strict=True):
        torch.testing.assert_close(a, e, equal_nan=True)


def test_promotion_as_in_eager(capture: Any) -> None:
    values = [
        torch.tensor([1, 2, 3]),
        torch.tensor(2.5),
        torch.tensor([1.5, 2, 3]).bfloat16(),
        torch.tensor([True, False, True]),
        torch.tensor(3),
        torch.tensor([1, 2, 250]).byte(),
    ]

    def function(*tensors: Any) -> Any:
        pairs = [(a, b) for a in tensors for b in tensors]
        return (
            *(a + b for a, b in pairs),
            *(a * 2.5 for a in tensors),
            *(a > 1 for a in tensors),
            *(a / 2 for a in tensors),
            *(torch.where(tensors[3], a, b) for a, b in pairs),
        )

    for a, e in zip(compiled(capture, function, *values)(values), function(*values), strict=True):
        torch.testing.assert_close(a, e)


# -------------------------------------------------------------------------- refusals and fallback


def only_node(graph_module: fx.GraphModule) -> fx.Node:
    return next(n for n in graph_module.graph.nodes if n.op == "call_function")


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda v: torch.bernoulli(v), (torch.rand(3),), "random"),
        (lambda v: torch.linalg.qr(v)[0], (torch.rand(3, 3),), "no JAX function"),
        (lambda v: v * 2, (torch.rand(3).to(torch.complex64),), "dtype torch.complex64"),
        (lambda v: v.sort(stable=False)[0], (torch.tensor([1.0, 1.0, 2.0]),), "equal elements"),
        (lambda v: v.cumprod(0), (torch.rand(3),), "overflows"),
        (lambda v: torch.gcd(v, v), (torch.rand(3),), "eager refuses"),
        (lambda v: v.pow(-1), (torch.tensor([1, 2]),), "negative integer powers"),
    ],
)
def test_refusals_say_why(capture: Any, function: Any, inputs: Any, reason: str) -> None:
    node = only_node(capture(function, *inputs))
    rejected = XlaEngine().supports(node)
    assert rejected is not None
    assert rejected.node is node
    assert reason in rejected.reason


def test_errors_of_eager_are_seen_under_a_fake_mode(capture: Any) -> None:
    """Graphs may be planned under one, where eager's checks of values do not run."""
    node = only_node(capture(lambda v: v.pow(-1), torch.arange(1, 8)))
    with FakeTensorMode():
        rejected = XlaEngine().supports(node)
    assert rejected is not None
    assert "negative integer powers" in rejected.reason


def test_boolean_masks_are_refused() -> None:
    graph = fx.Graph()
    x, mask = graph.placeholder("x"), graph.placeholder("mask")
    node = graph.call_function(torch.ops.aten.index_put.default, (x, [mask], x))
    x.meta["val"] = torch.empty(4, device="meta")
    mask.meta["val"] = torch.empty(4, dtype=torch.bool, device="meta")
    node.meta["val"] = torch.empty(4, device="meta")
    rejected = XlaEngine().supports(node)
    assert rejected is not None
    assert "mask" in rejected.reason


def test_without_jax(monkeypatch: pytest.MonkeyPatch, capture: Any) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "jax" else find(name, *a)
    )
    engine = XlaEngine()
    graph_module = capture(lambda v: v + 1, torch.randn(3))
    rejected = engine.supports(only_node(graph_module))
    assert rejected is not None
    assert "install trnx[xla]" in rejected.reason
    with pytest.raises(FallbackError, match=r"install trnx\[xla\]"):
        engine.compile(graph_module)


def test_a_region_that_xla_cannot_compile_runs_eagerly(
    capture: Any, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(4, 4)
    graph_module = capture(lambda v: torch.linalg.qr(v)[1], x)
    refused: list[str] = []
    out = XlaEngine().compile(graph_module, refuse=lambda reason, _: refused.append(reason))([x])
    torch.testing.assert_close(out[0], graph_module(x)[0])
    assert "runs eagerly" in caplog.text
    assert len(refused) == 1
    assert refused[0].startswith("XLA does not compile the region: ")


def test_sizes_that_xla_cannot_compile_run_eagerly(
    capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_module = capture(lambda v: v + 1, torch.randn(3, 4), symbolic=True)
    refused: list[str] = []
    run = XlaEngine().compile(graph_module, refuse=lambda reason, _: refused.append(reason))
    monkeypatch.setattr("trnx.fallback.program.jax_function", None)
    for size in (3, *[5] * (SETTLED_AFTER + 2), 3):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run([x])[0], x + 1)
    assert [reason.partition(":")[0] for reason in refused] == [
        "XLA compiles every set of sizes anew",
        "XLA does not compile the region",
    ]


# ------------------------------------------------------------------------------- sizes and threads


def test_sizes_that_keep_changing_compile_nothing(capture: Any, compilations: list[int]) -> None:
    graph_module = capture(
        lambda v: (v.reshape(-1) * 2, v.t() + v.shape[0]), torch.randn(3, 4), symbolic=True
    )
    refused: list[str] = []
    run = XlaEngine().compile(graph_module, refuse=lambda reason, _: refused.append(reason))
    assert len(compilations) == 1  # the sizes of the capture
    for size in range(1, 40):
        x = torch.randn(size, 3)
        flat, turned = run([x]) if len(_placeholders(graph_module)) == 1 else run([x, size])
        torch.testing.assert_close(flat, x.reshape(-1) * 2)
        torch.testing.assert_close(turned, x.t() + size, check_stride=True)
    assert len(compilations) == 1
    assert len(refused) == 1


def test_sizes_that_settle_are_compiled_once_and_are_bounded(
    capture: Any, compilations: list[int]
) -> None:
    run = XlaEngine().compile(capture(lambda v: v * 2, torch.randn(3, 4), symbolic=True))
    for _ in range(SETTLED_AFTER - 1):
        run([torch.randn(5, 4)])
    assert len(compilations) == 1
    for _ in range(SETTLED_AFTER):
        x = torch.randn(5, 4)
        torch.testing.assert_close(run([x])[0], x * 2)
    assert len(compilations) == 2
    for size in range(6, 6 + COMPILED_SIZES):
        for _ in range(SETTLED_AFTER + 1):
            x = torch.randn(size, 4)
            torch.testing.assert_close(run([x])[0], x * 2)
    assert len(compilations) == COMPILED_SIZES


def _placeholders(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in graph_module.graph.nodes if n.op == "placeholder"]


def test_threads_share_a_region(capture: Any) -> None:
    weight = torch.randn(32, 32)
    run = compiled(capture, lambda v, w: (v @ w).relu(), torch.randn(32, 32), weight)
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(32, 32, generator=generator)
            if not torch.allclose(run([x, weight])[0], (x @ weight).relu(), atol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_global_setting_of_jax_changes(capture: Any) -> None:
    import jax

    before = jax.config.jax_enable_x64
    run = compiled(capture, lambda v: v + 1, torch.ones(3, dtype=torch.float64))
    run([torch.ones(3, dtype=torch.float64)])
    assert jax.config.jax_enable_x64 == before


def test_one_launch_is_cheaper_than_many(capture: Any) -> None:
    nodes = list(capture(lambda v: ((v + 1) * 2).relu().exp(), torch.randn(8, 8)).graph.nodes)
    assert XlaEngine().cost(nodes) < EagerEngine().cost(nodes)


def test_division_is_rounded_once(capture: Any) -> None:
    """XLA's simplifier replaces quotients by products with reciprocals, one unit off."""

    def function(x: Any, y: Any) -> Any:
        row = y.amax(1, keepdim=True)
        chained = torch.div(torch.div(x, y), x)
        floor = torch.div(x, 0.1, rounding_mode="floor")
        return x / 3.0, x / 15, 1.5 / x, x / row, chained, floor, x.reciprocal()

    x, y = torch.randn(2, 300, 100, generator=torch.Generator().manual_seed(0))
    outputs = compiled(capture, function, x, y)([x, y])
    for a, e in zip(outputs, function(x, y), strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=0)


def test_storage_stays_resizable(capture: Any) -> None:
    """FSDP frees parameters between calls, and restores them."""
    x = torch.randn(8, 8)
    run = compiled(capture, lambda t: t + 1, x)
    for dtype_view in (x, x.view(torch.int32)):
        run([x])
        dtype_view.untyped_storage().resize_(0)
        x.untyped_storage().resize_(256)
        x.fill_(2.0)
        assert torch.equal(run([x])[0], x + 1)


def test_negative_bits_are_seen(capture: Any) -> None:
    x = torch._neg_view(torch.randn(8, 8))
    run = compiled(capture, lambda t: t * 2, torch.randn(8, 8))
    for _ in range(3):  # a tensor that comes again is handed over in another way
        torch.testing.assert_close(run([x])[0], x * 2)
