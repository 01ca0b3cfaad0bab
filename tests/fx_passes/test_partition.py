"""Regions, their order, the policies, profit and the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.backend.prediction import PREDICTIONS
from trnx.fx_passes.canonicalise import canonicalise
from trnx.fx_passes.errors import FallbackForbiddenError, UnsupportedOpError
from trnx.fx_passes.grow import joined
from trnx.fx_passes.partition import partition
from trnx.fx_passes.region import Plan
from trnx.fx_passes.verify import verify_plan
from trnx.nki_kernels import generator
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Cost
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
X, Y = torch.randn(4, 6), torch.randn(4, 6)


def exp(x: torch.Tensor) -> Any:
    return aten.exp.default(x)


@pytest.fixture
def plan(trnx: Any) -> Callable[..., Plan]:
    """The verified plan of a function, whose results are compared with eager's."""

    def make(function: Callable[..., Any], *args: Any, **options: Any) -> Plan:
        options = {
            "kernels": (),
            "engines": [trnx.FakeEngine()],
            "generator": None,
            "select": "legal",
            **options,
        }
        gm = canonicalise(make_fx(function, tracing_mode="fake")(*args))
        made = partition(gm, hardware=hardware("trn2"), **options)
        verify_plan(made)
        want = function(*args)
        wanted = want if isinstance(want, tuple) else (want,)
        have = trnx.execute(made, args)
        for h, w in zip(have if isinstance(have, list) else [have], wanted, strict=True):
            trnx.compare(h, w)
        return made

    return make


def _names(plan: Plan) -> list[tuple[str, int]]:
    return [(region.engine, len(region.nodes)) for region in plan.regions]


def _tuple(*values: Any) -> tuple[Any, ...]:
    return values


def test_what_no_kernel_takes_is_one_region(plan: Any) -> None:
    made = plan(lambda x, y: _tuple(torch.cumsum(x, 0) + y.sort(0)[0]), X, Y)

    assert _names(made) == [("eager", 4)]
    assert [entry.op for entry in made.ledger] == [
        "aten.cumsum.default",
        "aten.sort.default",
        "aten.add.Tensor",
    ]


def test_a_kernel_cuts_the_fallback(plan: Any, trnx: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        return _tuple(torch.cumsum(torch.exp(torch.cumsum(x, 0)), 0))

    made = plan(function, X, kernels=[trnx.FakeKernel("exp", exp)])

    assert _names(made) == [("eager", 1), ("nki", 1), ("eager", 1)]
    assert made.regions[1].match.bindings == {"x": made.regions[0].outputs[0]}


def test_independent_fallback_ops_wait_for_each_other(plan: Any, trnx: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        first = torch.cumsum(x, 0)
        middle = torch.exp(y)
        return _tuple(first + 1, torch.cumsum(middle, 0))

    made = plan(function, X, Y, kernels=[trnx.FakeKernel("exp", exp)])

    assert [region.engine for region in made.regions] == ["nki", "eager"]


def test_generated_regions_are_grown_over_pointwise_chains(
    plan: Any, trnx: Any, coverage: Any
) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = torch.sin(x) * y
        return _tuple(a + torch.cos(y) * 2, a.mean(-1, True))

    made = plan(function, X, Y, generator=trnx.FakeGenerator())

    assert _names(made) == [("nki", 6)]
    assert coverage(made).share == 1.0
    assert made.ledger == ()


def test_a_region_that_is_refused_is_halved(plan: Any, trnx: Any, coverage: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        return _tuple(x.sin().cos().tanh().exp().sin().cos())

    made = plan(function, X, generator=trnx.FakeGenerator(limit=2))

    assert all(len(region.nodes) <= 2 for region in made.regions)
    assert coverage(made).share == 1.0


def test_a_reduced_axis_and_another_one_are_no_region(plan: Any, trnx: Any) -> None:
    """Together they would run over 4 x 6 x 6, where none of the ops does."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return _tuple((x.sin() + 1).mean(1) + y.cos())

    made = plan(function, X, torch.randn(6, 1), generator=trnx.FakeGenerator())

    assert _names(made) == [("nki", 3), ("nki", 2)]


def test_regions_stay_convex(plan: Any, trnx: Any) -> None:
    """A path that leaves a region and comes back would make it wait for itself."""

    def function(x: torch.Tensor) -> Any:
        a = x.sin()
        b = torch.cumsum(a, 0)
        return _tuple(a + b, a * 2, b.cos() + a)

    made = plan(function, X, generator=trnx.FakeGenerator())

    engines = [region.engine for region in made.regions]
    assert engines == ["nki", "eager", "nki"] or engines.count("eager") == 1


def test_two_regions_do_not_wait_for_each_other(plan: Any, trnx: Any, coverage: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.sin(), y.cos()
        c = torch.cumsum(a, 0) + b
        d = torch.cumsum(b, 0) + a
        return _tuple(c, d, c * d)

    made = plan(function, X, Y, generator=trnx.FakeGenerator())

    assert coverage(made).on_nki == 5


def test_views_are_steps_of_their_own(plan: Any, trnx: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        raised = torch.exp(x)
        return _tuple(raised.view(24), raised.t())

    made = plan(function, X, kernels=[trnx.FakeKernel("exp", exp)])

    assert len(made.steps) == 3
    assert [n.target for n in made.steps if isinstance(n, fx.Node)] == [
        aten.view.default,
        aten.transpose.int,
    ]


def test_glue_is_kept_in_the_region_that_it_stands_in(plan: Any) -> None:
    made = plan(lambda x: _tuple(torch.cumsum(torch.cumsum(x, 0).t(), 0)), X)

    assert _names(made) == [("eager", 3)]
    assert made.steps == made.regions


def test_a_value_that_is_read_through_a_view_leaves_its_region(
    plan: Any, trnx: Any, coverage: Any
) -> None:
    def function(x: torch.Tensor) -> Any:
        turned = torch.cumsum(x, 0).t()
        return _tuple(torch.cumsum(turned, 0), torch.exp(turned))

    made = plan(function, X, kernels=[trnx.FakeKernel("exp", exp)])

    assert coverage(made).on_nki == 1


def test_random_ops_keep_their_order(trnx: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        late = torch.bernoulli(torch.exp(x) * 0, 0.5)
        return _tuple(torch.bernoulli(x, 0.5) * 2, late)

    gm = canonicalise(make_fx(function, tracing_mode="fake")(X))
    made = partition(
        gm,
        kernels=[trnx.FakeKernel("exp", exp)],
        hardware=hardware("trn2"),
        engines=[trnx.FakeEngine()],
        select="legal",
    )
    torch.manual_seed(0)
    want = function(X)
    torch.manual_seed(0)

    assert all(map(torch.equal, trnx.execute(made, [X]), want))


def test_writes_to_inputs_come_after_their_readers(trnx: Any) -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        old = torch.exp(state) + torch.cumsum(state, 0)
        state.copy_(x)
        return old

    gm = canonicalise(make_fx(function, tracing_mode="fake")(X, Y))
    made = partition(
        gm,
        kernels=[trnx.FakeKernel("exp", exp)],
        hardware=hardware("trn2"),
        engines=[trnx.FakeEngine()],
        select="legal",
    )
    verify_plan(made)
    state = Y.clone()
    out = made.graph_module.graph.output_node()
    out.args = ((out.args[0],),)

    assert torch.equal(trnx.execute(made, [X, state])[0], Y.exp() + Y.cumsum(0))
    assert torch.equal(state, X)


def test_a_guard_that_rejects_is_in_the_ledger(plan: Any, trnx: Any) -> None:
    kernel = trnx.FakeKernel("exp", exp, refuse=lambda b: Reject(f"shape {b.x.shape} is odd"))

    made = plan(lambda x: _tuple(torch.exp(x)), X, kernels=[kernel])

    (entry,) = made.ledger
    assert (entry.op, entry.engine) == ("aten.exp.default", "eager")
    assert entry.reason == "kernel exp: shape (4, 6) is odd"


def test_the_policy_chooses_the_engine(plan: Any, trnx: Any) -> None:
    xla = trnx.FakeEngine("xla", refused=[aten.sort.default])

    def function(x: torch.Tensor) -> Any:
        return _tuple(torch.cumsum(x, 0).sort(0)[0])

    both = [xla, trnx.FakeEngine("eager")]
    by_xla = plan(function, X, engines=both, policy="xla")
    by_eager = plan(function, X, engines=both, policy="eager")

    assert [r.engine for r in by_xla.regions] == ["xla", "eager"]
    assert [r.engine for r in by_eager.regions] == ["eager"]
    assert "xla: aten.sort.default is not for xla" in by_xla.ledger[1].reason


def test_auto_takes_the_cheaper_engine(plan: Any, trnx: Any) -> None:
    engines = [trnx.FakeEngine("xla", seconds=1.0), trnx.FakeEngine("eager", seconds=0.1)]

    made = plan(lambda x: _tuple(torch.cumsum(x, 0)), X, engines=engines, policy="auto")

    assert [r.engine for r in made.regions] == ["eager"]
    assert [e.engine for e in made.ledger] == ["eager"]


def test_the_error_policy_lists_every_op(plan: Any) -> None:
    with pytest.raises(FallbackForbiddenError, match="2 op") as caught:
        plan(lambda x: _tuple(torch.cumsum(x, 0).sort(0)[0]), X, policy="error")

    assert [e.op for e in caught.value.entries] == ["aten.cumsum.default", "aten.sort.default"]
    assert "aten.sort.default" in str(caught.value)


def test_an_op_that_no_engine_takes_is_an_error(plan: Any, trnx: Any) -> None:
    engine = trnx.FakeEngine(refused=[aten.cumsum.default])

    with pytest.raises(UnsupportedOpError, match="cumsum"):
        plan(lambda x: _tuple(torch.cumsum(x, 0)), X, engines=[engine])


def test_a_kernel_that_does_not_pay_is_refused(plan: Any, trnx: Any) -> None:
    slow = trnx.FakeKernel("exp", exp, work=Cost(hbm_bytes=1 << 40))
    options = {"kernels": [slow], "engines": [trnx.FakeEngine(seconds=1e-3)]}

    by_profit = plan(lambda x: _tuple(torch.exp(x)), X, select="profit", **options)
    by_legality = plan(lambda x: _tuple(torch.exp(x)), X, select="legal", **options)

    assert [r.engine for r in by_profit.regions] == ["eager"]
    assert "kernel exp is predicted to take" in by_profit.ledger[0].reason
    assert [r.engine for r in by_legality.regions] == ["nki"]


@pytest.mark.parametrize(("seconds", "is_asked"), [(1e-3, True), (1e3, False)])
def test_an_engine_that_is_no_faster_is_not_asked(
    plan: Any, trnx: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, is_asked: bool
) -> None:
    engine, asked = trnx.FakeEngine(seconds=seconds), []
    supports = type(engine).supports

    def noting(self: Any, node: fx.Node) -> Any:
        asked.append(node.target)
        return supports(self, node)

    monkeypatch.setattr(type(engine), "supports", noting)
    slow = trnx.FakeKernel("exp", exp, work=Cost(hbm_bytes=1 << 40))
    made = plan(
        lambda x: _tuple(torch.exp(x)), X, select="profit", kernels=[slow], engines=[engine]
    )

    assert [r.engine for r in made.regions] == ["eager" if is_asked else "nki"]
    assert bool(asked) == is_asked


def test_every_entry_has_the_users_line(check: Any) -> None:
    seen = check(lambda x: torch.cumsum(x, 0), X)

    (entry,) = seen.plans[0].ledger
    assert "test_partition.py" in entry.source


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ((4, 6), (4, 6), (4, 6)),
        ((4, 1), (4, 6), (4, 6)),
        ((6,), (4, 6), (4, 6)),
        ((4,), (4, 6), (4, 6)),
        ((4, 6), (4, 5), None),
        ((), (4, 6), (4, 6)),
        ((4, 1), (1, 6), (4, 6)),
    ],
)
def test_iteration_spaces(a: Any, b: Any, wanted: Any) -> None:
    assert joined(a, b) == wanted
    assert joined(b, a) == wanted


def test_a_large_graph(trnx: Any, coverage: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        total = x
        for step in range(400):
            side = torch.cumsum(total, 0) if step % 3 else total.cos()
            total = (total.sin() * 0.5 + side).tanh() + x
        return total

    gm = canonicalise(make_fx(function, tracing_mode="fake")(X))
    made = partition(
        gm,
        kernels=(),
        hardware=hardware("trn2"),
        engines=[trnx.FakeEngine()],
        generator=trnx.FakeGenerator(),
        select="legal",
    )
    verify_plan(made)

    assert coverage(made).total > 2000
    assert coverage(made).on_nki == coverage(made).total - 266


def test_glue_that_an_engine_lacks_ends_its_region(plan: Any, trnx: Any) -> None:
    engine = trnx.FakeEngine(refused=[aten.transpose.int])

    made = plan(lambda x: _tuple(torch.cumsum(torch.cumsum(x, 0).t(), 0)), X, engines=[engine])

    assert _names(made) == [("eager", 1), ("eager", 1)]
    assert len(made.steps) == 3


def test_select_none_leaves_every_op_to_the_engines_and_says_so(plan: Any, trnx: Any) -> None:
    made = plan(lambda x: _tuple((x * 2).tanh()), X, generator=trnx.FakeGenerator(), select="none")

    assert _names(made) == [("eager", 2)]
    assert [entry.reason for entry in made.ledger] == ["select='none'"] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: aten.empty.memory_format([4, 6]),
        lambda: aten.empty_strided.default([4, 6], [6, 1]),
        lambda: aten.empty_permuted.default([4, 6], [0, 1]),
    ],
    ids=["empty", "empty_strided", "empty_permuted"],
)
def test_unfilled_tensors_are_glue_and_stay_apart(
    make: Callable[[], torch.Tensor], trnx: Any, coverage: Any
) -> None:
    gm = canonicalise(make_fx(lambda x: (make() + x, make() - x), tracing_mode="fake")(X))
    options: dict[str, Any] = {"kernels": (), "engines": [trnx.FakeEngine()], "select": "none"}
    made = partition(gm, hardware=hardware("trn2"), **options)

    factories = [node for node in gm.graph.nodes if "empty" in node.name]
    assert len(factories) == 2
    assert coverage(made).total == 2


def _kernels_of(function: Callable[..., Any], *args: Any) -> list[str]:
    """The kernels, by name, of a plan for trn2 with the real kernels, generator and predictor."""
    chip = hardware("trn2")
    gm = canonicalise(make_fx(function, tracing_mode="fake")(*args))
    made = partition(
        gm, kernels=kernels(), hardware=chip, engines=[],
        generator=generator, predictor=lambda match: PREDICTIONS.of(match, chip).seconds,
    )  # fmt: skip
    verify_plan(made)
    return [region.match.kernel.name for region in made.regions if region.match]


def test_a_sum_is_left_to_the_kernel_that_computes_its_operand() -> None:
    """Not where the operand comes from memory: there the kernel of the registry is taken."""
    x = torch.randn(1500, 256)
    assert _kernels_of(lambda x: x.sum(0), x) == ["column_sum"]
    assert _kernels_of(lambda x: (x * 2).tanh().sum(0), x) == ["fused_mul_tanh_sum"]


def test_a_norm_a_residual_and_a_norm_are_one_kernel_where_that_is_faster() -> None:
    """The registry has kernels of a norm, and of a residual with its norm."""

    def function(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        total = residual + torch.ops.trnx.rms_norm(x, weight, 1e-6, 1.0)
        return total, torch.ops.trnx.rms_norm(total, weight, 1e-6, 1.0)

    x = torch.randn(256, 512, dtype=torch.bfloat16)
    found = _kernels_of(function, x, x.clone(), x[0])
    assert found == ["fused_rms_norm_add_rms_norm"]
    alone = _kernels_of(lambda x, w: torch.ops.trnx.rms_norm(x, w, 1e-6, 1.0), x, x[0])
    assert alone == ["rms_norm"]


def test_a_residual_stays_in_the_chain_that_gives_it_where_that_is_faster() -> None:
    """The registry's kernel of a residual with its layer norm would cut it off."""

    def norm(total: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.native_layer_norm(total, [1024], weight, weight, 1e-5)[0]

    x = torch.randn(256, 1024, dtype=torch.bfloat16)
    found = _kernels_of(lambda x, y, w: norm(x + y, w), x, x.clone(), x[0])
    assert found == ["layer_norm"]
    found = _kernels_of(lambda x, y, w: norm(x * 8.0 + y, w), x, x.clone(), x[0])
    assert found == ["fused_mul_add", "layer_norm"]


def test_a_kernel_of_several_ops_keeps_its_last_op_where_that_is_faster() -> None:
    """The way of RoPE's result through memory takes less time than a kernel more."""

    def rope(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        turned = torch.cat([-x[..., 32:], x[..., :32]], -1)
        return x * table + turned * table

    def scaled(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return rope(x, table).float() * 0.125

    for heads in (1, 8):
        x = torch.randn(2, heads, 160, 64, dtype=torch.bfloat16)
        assert _kernels_of(rope, x, x[:1, :1]) == ["rope"]
        assert _kernels_of(scaled, x, x[:1, :1]) == ["rope", "fused_to_copy_mul"]


@pytest.mark.parametrize(
    ("kernel", "one_op", "names"), [(2.0, 1.0, ["eager", "exp"]), (8.0, 3.3, ["generated"])]
)
def test_an_op_is_left_to_a_generated_kernel_by_the_time_of_the_whole_plan(
    plan: Any,
    trnx: Any,
    monkeypatch: pytest.MonkeyPatch,
    kernel: float,
    one_op: float,
    names: list[str],
) -> None:
    """Together 10 seconds; apart a kernel and an op of the fallback, as no generated kernel of one
    op pays."""
    engine = trnx.FakeEngine()
    monkeypatch.setattr(engine, "cost", lambda nodes: one_op if len(nodes) == 1 else 4.0)
    times = {"exp": kernel, "generated": 10.0}
    made = plan(
        lambda x: _tuple((x * 2).exp()), X, kernels=[trnx.FakeKernel("exp", exp)],
        engines=[engine], generator=trnx.FakeGenerator(), select="profit",
        predictor=lambda match: times[match.kernel.name],
    )  # fmt: skip

    found = [r.match.kernel.name if r.match else r.engine for r in made.regions]
    assert found == names


@pytest.mark.parametrize(("seconds", "names"), [(1.9, ["both"]), (2.1, ["exp", "exp"])])
def test_a_kernel_that_fuses_is_chosen_by_its_time(
    plan: Any, trnx: Any, seconds: float, names: list[str]
) -> None:
    def twice(x: torch.Tensor) -> Any:
        return aten.exp.default(aten.exp.default(x))

    kernels = [trnx.FakeKernel("both", twice, fuses=True), trnx.FakeKernel("exp", exp)]
    times = {"both": seconds, "exp": 1.0}
    made = plan(
        lambda x: _tuple(twice(x)), X, kernels=kernels, engines=[trnx.FakeEngine(seconds=9.0)],
        select="profit", predictor=lambda match: times[match.kernel.name],
    )  # fmt: skip

    assert [region.match.kernel.name for region in made.regions] == names
    reasons = " ".join(entry.reason for entry in made.ledger)
    assert ("kernels that it fuses" in reasons) == (len(names) == 2)


@pytest.mark.parametrize(
    ("chain", "names"), [(4.0, ["linear", "generated"]), (6.0, ["both", "exp"])]
)
def test_a_kernel_leaves_its_last_op_to_one_that_a_generated_kernel_computes_with_it(
    plan: Any, trnx: Any, chain: float, names: list[str]
) -> None:
    """Another kernel runs what reads the op, if alone."""

    def linear(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.linear.default(x, weight)

    def both(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> Any:
        return aten.add.Tensor(aten.linear.default(x, weight), y)

    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        total = aten.linear.default(x, weight) + x
        return total, total.exp()

    registered = {"both": both, "linear": linear, "exp": exp}
    times = {"both": 5.0, "linear": 5.0, "exp": 5.0, "generated": chain}
    made = plan(
        function, X, torch.randn(6, 6), engines=[trnx.FakeEngine(seconds=9.0)],
        kernels=[trnx.FakeKernel(*kernel) for kernel in registered.items()],
        generator=trnx.FakeGenerator(), select="profit",
        predictor=lambda match: times[match.kernel.name],
    )  # fmt: skip

    assert [region.match.kernel.name for region in made.regions] == names
