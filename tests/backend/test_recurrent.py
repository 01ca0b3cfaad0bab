"""nn.RNN, nn.LSTM and nn.GRU run on NKI, forward and backward, and equal eager in values, dtypes
and strides; torch's setting `allow_rnn` is on."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import trnx
from trnx.backend.prediction import PREDICTIONS

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
CELLS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
}


@pytest.fixture(autouse=True)
def _allow_rnn() -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def layer(cell: str, inputs: int, hidden: int, **more: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    made: nn.RNNBase = CELLS[cell](inputs, hidden, **more)
    return made


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def states_of(rnn: nn.RNNBase, batch: int, dtype: torch.dtype = torch.float32) -> Any:
    """Initial states for `rnn`."""
    count = rnn.num_layers * (2 if rnn.bidirectional else 1)
    h, c = (draw(count, batch, rnn.hidden_size, dtype=dtype) for _ in range(2))
    return (h, c.flip(0)) if isinstance(rnn, nn.LSTM) else h


def assert_same(ours: Any, theirs: Any, **tolerance: float) -> None:
    for a, b in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, **tolerance)
        assert a.stride() == b.stride()


def compiled(rnn: Any, **options: Any) -> Any:
    return torch.compile(rnn, backend="trnx", options={**ALL_ON_NKI, **options})


def gradients(results: Any, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Of a sum of all results, each element with a weight of its own."""
    leaves = tree_leaves(results)
    total = sum((leaf * draw(*leaf.shape, dtype=leaf.dtype)).sum() for leaf in leaves)
    return torch.autograd.grad(total, inputs)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [1, 127, 129])
def test_inference(cell: str, hidden: int) -> None:
    rnn = layer(cell, 7, hidden, num_layers=2, bidirectional=True)
    x = draw(19, 3, 7)
    with torch.no_grad():
        assert_same(compiled(rnn)(x), rnn(x), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("more", [{"batch_first": True}, {"bias": False}, {"num_layers": 3}])
def test_inference_with_initial_states(cell: str, more: dict[str, Any]) -> None:
    rnn = layer(cell, 128, 20, **more)
    x = draw(5, 5, 128)
    states = states_of(rnn, 5)
    with torch.no_grad():
        assert_same(compiled(rnn)(x, states), rnn(x, states), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_sequences_without_a_batch_and_of_one_step(cell: str) -> None:
    rnn = layer(cell, 6, 9, bidirectional=True)
    with torch.no_grad():
        assert_same(compiled(rnn)(draw(4, 6)), rnn(draw(4, 6)), rtol=1e-4, atol=2e-6)
        assert_same(compiled(rnn)(draw(1, 1, 6)), rnn(draw(1, 1, 6)), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_operands_with_other_strides(cell: str) -> None:
    rnn = layer(cell, 6, 9)
    x, h = draw(4, 6, 11).permute(2, 0, 1), draw(9, 4, 1).permute(2, 1, 0)
    states = (h, h * 2) if cell == "lstm" else h
    with torch.no_grad():
        assert_same(compiled(rnn)(x, states), rnn(x, states), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(cell: str, dtype: torch.dtype) -> None:
    rnn = layer(cell, 16, 40, num_layers=2, batch_first=True).to(dtype)
    x = draw(3, 33, 16, dtype=dtype)
    wide = layer(cell, 16, 40, num_layers=2, batch_first=True).to(dtype).float()
    with torch.no_grad():
        ours, theirs, exact = compiled(rnn)(x), rnn(x), wide(x.float())
    for a, b, c in zip(*map(tree_leaves, (ours, theirs, exact)), strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        # Eager rounds every intermediate; the kernel the states alone.
        assert (a - c).abs().max() <= 2 * (b - c).abs().max() + torch.finfo(dtype).eps


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [5, 130])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_training(cell: str, hidden: int, bidirectional: bool) -> None:
    rnn = layer(cell, 7, hidden, num_layers=2, bidirectional=bidirectional, batch_first=True)
    x, states = draw(3, 18, 7).requires_grad_(), states_of(rnn, 3)
    given = [one.requires_grad_() for one in tree_leaves(states)]
    inputs = [x, *given, *rnn.parameters()]
    ours, theirs = compiled(rnn)(x, states), rnn(x, states)
    assert_same(ours, theirs, rtol=1e-4, atol=2e-6)
    for a, b in zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))
        assert a.stride() == b.stride()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_training_in_half_precision(cell: str) -> None:
    rnn = layer(cell, 8, 24).bfloat16()
    wide = layer(cell, 8, 24).bfloat16().float()
    x = draw(12, 3, 8, dtype=torch.bfloat16)
    ours = gradients(compiled(rnn)(x)[0], list(rnn.parameters()))
    theirs = gradients(rnn(x)[0], list(rnn.parameters()))
    exact = gradients(wide(x.float())[0], list(wide.parameters()))
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert a.dtype == b.dtype
        scale = torch.finfo(torch.bfloat16).eps * c.abs().max()
        assert (a - c).abs().max() <= 2 * (b - c).abs().max() + scale


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_the_last_states_alone(cell: str) -> None:
    rnn = layer(cell, 7, 12, bidirectional=True)
    x = draw(6, 2, 7).requires_grad_()
    ours, theirs = (gradients(f(x)[1], [x, *rnn.parameters()]) for f in (compiled(rnn), rnn))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def test_dropout_between_layers_draws_as_eager() -> None:
    rnn = layer("gru", 6, 8, num_layers=3, dropout=0.5, batch_first=True).train()
    x = draw(4, 9, 6)
    run = torch.compile(rnn, backend="trnx")
    torch.manual_seed(3)
    ours = run(x)
    torch.manual_seed(3)
    assert_same(ours, rnn(x), rtol=1e-4, atol=2e-6)
    assert_same(torch.compile(rnn.eval(), backend="trnx")(x), rnn(x), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_special_values(cell: str) -> None:
    rnn = layer(cell, 4, 6)
    x = draw(5, 3, 4)
    x[1, 0, 0], x[2, 1, 1], x[3, 2, 2] = 1e30, -1e30, float("nan")
    with torch.no_grad():
        ours, theirs = compiled(rnn)(x), rnn(x)
    for a, b in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("cell", CELLS)
def test_a_long_sequence_is_one_small_program(cell: str) -> None:
    rnn = layer(cell, 32, 64).train(False)
    counts = {}
    for steps in (48, 512):
        torch.compiler.reset()
        with torch.no_grad(), trnx.collect_reports() as reports:
            x = draw(steps, 2, 32)
            assert_same(compiled(rnn, fallback="auto")(x), rnn(x), rtol=1e-4, atol=4e-6)
        kernels = Counter(region.kernel for report in reports for region in report.regions)
        assert kernels["recurrent"] == 1
        assert sum(kernels.values()) < 10
        programs = PREDICTIONS._programs._programs.values()
        counts[steps] = max(len(p.rows) for p in programs if p.name == "recurrent_kernel")
    assert counts[512] == counts[48] < 1000


@pytest.mark.parametrize("wanted", ["h", "c", "out"])
def test_one_result_alone(wanted: str) -> None:
    rnn = layer("lstm", 6, 9, num_layers=2)

    def function(x: torch.Tensor) -> torch.Tensor:
        out, (h, c) = rnn(x)
        return {"out": out, "h": h, "c": c}[wanted]

    with torch.no_grad():
        x = draw(8, 2, 6)
        assert_same(compiled(function)(x), function(x), rtol=1e-4, atol=2e-6)


def test_sizes_that_change() -> None:
    rnn = layer("lstm", 6, 9, batch_first=True)
    run = compiled(rnn)
    with torch.no_grad():
        for batch in (2, 3, 5, 7):
            assert_same(run(draw(batch, 8, 6)), rnn(draw(batch, 8, 6)), rtol=1e-4, atol=2e-6)


def test_a_state_goes_from_call_to_call() -> None:
    rnn = layer("gru", 6, 9)
    run = compiled(rnn)
    ours = theirs = torch.zeros(1, 2, 9)
    with torch.no_grad():
        for x in draw(3, 4, 2, 6):
            ours, theirs = run(x, ours)[1], rnn(x, theirs)[1]
    assert_same(ours, theirs, rtol=1e-4, atol=2e-6)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("more", [{"proj_size": 3}, {"dtype": torch.float64}])
def test_what_the_kernel_does_not_take_equals_eager(more: dict[str, Any]) -> None:
    rnn = layer("lstm", 6, 9, **more)
    x = draw(4, 2, 6, dtype=more.get("dtype", torch.float32))
    with torch.no_grad():
        assert_same(torch.compile(rnn, backend="trnx")(x), rnn(x), rtol=1e-4, atol=2e-6)


def test_packed_sequences_equal_eager() -> None:
    rnn = layer("lstm", 6, 9, batch_first=True)

    def function(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(rnn(packed)[0], batch_first=True)[0] * 2

    x, lengths = draw(3, 5, 6), torch.tensor([5, 3, 1])
    with torch.no_grad():
        ours = torch.compile(function, backend="trnx")(x, lengths)
        assert_same(ours, function(x, lengths), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_equals_eager(cell: str, inside: bool, dtype: torch.dtype) -> None:
    rnn = layer(cell, 6, 9, num_layers=2, bidirectional=True)
    exact = copy.deepcopy(rnn).double()

    def function(x: torch.Tensor) -> Any:
        if not inside:
            return rnn(x)
        with torch.autocast("cpu", torch.bfloat16):
            return rnn(x)

    def with_gradients(called: Any, x: torch.Tensor, rnn: nn.Module) -> list[torch.Tensor]:
        results = called(x)
        leaves = [leaf.detach() for leaf in tree_leaves(results)]
        return [*leaves, *gradients(results, list(rnn.parameters()))]

    x = draw(4, 3, 6).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        ours = with_gradients(compiled(function), x, rnn)
        theirs = _unless_unsupported(with_gradients, function, x, rnn)
    references = with_gradients(exact, x.double(), exact)
    for a, b, reference in zip(ours, theirs or ours, references, strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        # Two roundings of the largest value.
        limit = 2**-7 * max(1, float(reference.abs().max()))
        if theirs:
            limit = max(2 * float((b - reference).abs().max()), limit)
        assert (a - reference).abs().max() <= limit


def _unless_unsupported(function: Callable[..., Any], *args: Any) -> Any:
    """The result in eager mode; None where oneDNN has no bfloat16 LSTM for this processor, which
    torch finds out at the call alone."""
    try:
        return function(*args)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        return None


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")
def test_an_exported_layer_equals_eager(tmp_path: Path) -> None:
    rnn = layer("lstm", 6, 9).eval()
    x = draw(7, 2, 6)
    with torch.no_grad():
        exported = trnx.export(rnn, (x,), tmp_path / "plan")
        assert_same(trnx.load(tmp_path / "plan")(x), rnn(x), rtol=1e-4, atol=2e-6)
    regions = exported.to_dict()["regions"]
    assert "recurrent" in [region.get("kernel") for region in regions]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_both_cores_share_the_sequences(cell: str) -> None:
    rnn = layer(cell, 6, 9, bidirectional=True)
    for batch in (1, 5):
        x = draw(7, batch, 6)
        ours = compiled(rnn, lnc=2)(x)[0]
        assert_same(ours, rnn(x)[0], rtol=1e-4, atol=2e-6)
        parameters = list(rnn.parameters())
        for a, b in zip(gradients(ours, parameters), gradients(rnn(x)[0], parameters), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def test_errors_stay_eagers() -> None:
    rnn = layer("gru", 6, 9)
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
        torch.compile(rnn, backend="trnx")(draw(4, 2, 7))
