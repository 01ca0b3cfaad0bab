"""Training: gradients equal eager's, mutation of buffers is right, little is saved for backward."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Attention(torch.nn.Module):
    """Embedding, attention, norms and an MLP: what a transformer trains."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, width)
        self.first = torch.nn.LayerNorm(width)
        self.second = torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, 2, width // 2)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + self.down(F.silu(self.up(self.second(x))))
        return x @ self.table.weight.t()


def loss_of(model: Callable[..., torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("runner", ["simulator", "reference"])
@pytest.mark.parametrize("select", ["profit", "legal"])
def test_a_training_step_equals_eager(runner: str, select: str) -> None:
    torch.manual_seed(0)
    ours = Attention()
    theirs = copy.deepcopy(ours)
    tokens = torch.randint(0, 50, (3, 12))
    options = {"runner": runner, "select": select}
    compiled = torch.compile(ours, backend="trnx", fullgraph=True, options=options)
    got, want = loss_of(compiled, tokens), loss_of(theirs, tokens)
    got.backward()
    want.backward()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=name)
        assert p.grad.stride() == q.grad.stride()


def test_several_optimiser_steps_equal_eager() -> None:
    torch.manual_seed(0)
    ours = Attention()
    theirs = copy.deepcopy(ours)
    compiled = torch.compile(ours, backend="trnx")
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (ours, theirs)]
    for _ in range(3):
        tokens = torch.randint(0, 50, (2, 9))
        losses = []
        for model, optimiser in zip((compiled, theirs), optimisers, strict=True):
            optimiser.zero_grad()
            loss = loss_of(model, tokens)
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)


class WritesItsBuffer(torch.nn.Module):
    """Multiplies by something computed from a buffer that it then changes."""

    buf: torch.Tensor

    def __init__(self, of_buffer: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("buf", torch.full((4,), 2.0))
        self._of_buffer = of_buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self._of_buffer(self.buf)
        self.buf.add_(1)
        return y


@pytest.mark.parametrize(
    "of_buffer",
    [torch.clone, lambda b: b * 1, lambda b: b.view(2, 2).t().reshape(-1), lambda b: b.exp()],
    ids=["clone", "product", "views", "exp"],
)
def test_a_buffer_read_before_its_write_gives_the_right_gradient(
    of_buffer: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    ours, theirs = WritesItsBuffer(of_buffer), WritesItsBuffer(of_buffer)
    compiled = torch.compile(ours, backend="trnx")
    for _ in range(2):
        x = torch.randn(4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x).sum().backward()
        theirs(y).sum().backward()
        assert torch.equal(ours.buf, theirs.buf)
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("how", ["no_grad", "data", "view"])
def test_a_buffer_written_behind_autograd_gives_the_right_gradient(how: str) -> None:
    class Model(torch.nn.Module):
        buf: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("buf", torch.full((4,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.buf.clone()
            if how == "no_grad":
                with torch.no_grad():
                    self.buf.add_(1)
            elif how == "data":
                self.buf.data.add_(1)
            else:
                self.buf[1:].mul_(3)
            return y

    ours, theirs = Model(), Model()
    x = torch.randn(4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    torch.compile(ours, backend="trnx")(x).sum().backward()
    theirs(y).sum().backward()
    assert torch.equal(ours.buf, theirs.buf)
    torch.testing.assert_close(x.grad, y.grad)


def test_an_input_that_is_written_gives_the_right_gradient() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        y = x * state.clone()
        state.mul_(x.detach())
        return y * state.exp()

    compiled = torch.compile(function, backend="trnx")
    results = []
    for run in (compiled, function):
        x, state = torch.linspace(0.5, 2, 4, requires_grad=True), torch.ones(4)
        run(x, state).sum().backward()
        results.append((x.grad, state))
    torch.testing.assert_close(results[0], results[1])


def test_dropout_drops_the_same_in_backward() -> None:
    compiled = torch.compile(lambda x: F.dropout(x * 2, 0.5), backend="trnx")
    x = torch.ones(256, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert 0 < int((y == 0).sum()) < 256


def test_attention_dropout_draws_what_eager_draws() -> None:
    def function(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3)

    compiled = torch.compile(function, backend="trnx")
    results = []
    for run in (compiled, function):
        torch.manual_seed(5)
        q = torch.linspace(-1, 1, 2 * 2 * 8 * 4).view(2, 2, 8, 4).requires_grad_()
        out = run(q)
        out.square().sum().backward()
        results.append((out.detach(), q.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_a_saved_buffer_that_is_written_raises_as_in_eager() -> None:
    compiled = torch.compile(WritesItsBuffer(lambda b: b), backend="trnx")
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        compiled(x).sum().backward()


def test_batch_norm_updates_its_statistics() -> None:
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8))
    theirs = copy.deepcopy(ours)
    compiled = torch.compile(ours, backend="trnx")
    for _ in range(2):
        x = torch.randn(5, 6)
        compiled(x).square().sum().backward()
        theirs(x).square().sum().backward()
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def saved_bytes(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> int:
    """Bytes of the distinct storages that autograd keeps for backward."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*args)
    return sum(storages.values())


def test_no_more_is_saved_than_by_aot_eager() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (F.gelu(x @ w) * torch.sigmoid(x)).cos().sum()

    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    ours = saved_bytes(torch.compile(function, backend="trnx"), x, w)
    torch._dynamo.reset()
    theirs = saved_bytes(torch.compile(function, backend="aot_eager"), x, w)
    assert 0 < ours <= theirs


def test_autocast() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    compiled = torch.compile(model, backend="trnx")
    x = torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = compiled(x), model(x)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    got.float().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
