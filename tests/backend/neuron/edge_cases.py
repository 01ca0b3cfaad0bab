"""Small functions under the runner `neuron`, run by `worker.py`: edges of the graph's writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import handed_over
import torch
import torch.nn.functional as F

from trnx.backend.errors import InputChangedError
from trnx.backend.report import collect_reports
from trnx.fx_passes.source import source_line


def rows(count: int) -> torch.Tensor:
    return torch.arange(count * 66, dtype=torch.float32).view(count, 66) % 7 - 3


def halves(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16)


_W = torch.arange(66 * 40, dtype=torch.float32).view(66, 40) % 5 - 2

# Name -> function of tensors, and its arguments in host memory.
CASES: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    **{f"{n} rows": (lambda x: F.gelu(x) * 2 + x, [rows(n)]) for n in (1, 127, 128, 129)},
    "no rows": (lambda x: F.gelu(x) * 2 + x, [rows(0)]),
    "no rows in a product": (lambda x, w: x @ w, [rows(0), _W]),
    "bfloat16": (lambda x, w: F.silu(x @ w), [halves(rows(130)), halves(_W)]),
    "transposed weight": (lambda x, w: F.linear(x, w.t()), [rows(5), _W]),
    "transposed rows": (lambda x, w: x.t() @ w, [rows(40).t().contiguous().t(), rows(40)]),
    "every second column": (lambda x: F.softmax(x[:, ::2], -1), [rows(9)]),
    "expanded": (lambda x, y: x.expand(30, 66) + y, [rows(1), rows(30)]),
    "channels last": (
        lambda x: F.relu(x) + 1,
        [rows(8).view(2, 4, 6, 11).contiguous(memory_format=torch.channels_last)],
    ),
    # The kernel takes contiguous operands here, and still returns its dims in another order.
    "copied to channels last": (
        lambda x: ((y := (x * 2).contiguous(memory_format=torch.channels_last)), y + 1, y.sum()),
        [rows(8).view(2, 4, 6, 11)],
    ),
    "bool in": (lambda x, m: torch.where(m, x, -x), [rows(9), rows(9) > 0]),
    "bool out": (lambda x: (x > 0) & (x < 2), [rows(130)]),
    "int64 in": (lambda i, t: F.embedding(i, t), [torch.arange(12).view(3, 4) % 5, rows(5)]),
    "int64 out": (lambda x: x.argmax(-1), [rows(9)]),
    "a number": (lambda x: x.sum(), [rows(9)]),
    "a number in": (lambda x, s: x * s, [rows(9), torch.tensor(2.5)]),
    "two results": (lambda x: (x.relu(), x.relu().sum(-1)), [rows(20)]),
    "an input returned": (lambda x: (x, x + 1), [rows(3)]),
    "a view returned": (lambda x: ((x + 1).view(-1), x.t()), [rows(3)]),
    "a result twice": (lambda x: ((y := x.relu()), y), [rows(3)]),
    "a constant": (lambda x: x + torch.ones(66, device=x.device).cumsum(0), [rows(3)]),
    "a mask made in the graph": (
        lambda x: x.masked_fill(
            torch.ones(66, 66, dtype=torch.bool, device=x.device).tril()[:3], 0.0
        ),
        [rows(3)],
    ),
    "a view alone": (lambda x: x.view(-1)[:5], [rows(3)]),
}


def _same(found: torch.Tensor, expected: torch.Tensor) -> str:
    here = found.detach().cpu()
    if found.device.type != "neuron":
        return f"a result is on {found.device}"
    if (here.dtype, here.shape) != (expected.dtype, expected.shape):
        return f"{here.dtype} {tuple(here.shape)} for {expected.dtype} {tuple(expected.shape)}"
    if found.stride() != expected.stride():
        return f"strides {found.stride()} for {expected.stride()}"
    tolerance = 2e-2 if expected.dtype == torch.bfloat16 else 1e-5
    return (
        "" if torch.allclose(here.double(), expected.double(), tolerance, tolerance) else "values"
    )


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _on_device(value: torch.Tensor) -> torch.Tensor:
    moved = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="neuron")
    return moved.copy_(value)


def edge(name: str, select: str) -> dict[str, Any]:
    """Differences from eager ("" for none), and the number of graphs and NKI ops."""
    function, given = CASES[name]
    expected = _tuple(function(*given))
    compiled = torch.compile(
        function, backend="trnx", options={"runner": "neuron", "select": select}
    )
    arguments = [_on_device(value) for value in given]
    with collect_reports() as reports:
        for _ in range(2):
            found = _tuple(compiled(*arguments))
    return {
        "differences": [_same(a, b) for a, b in zip(found, expected, strict=True)],
        "handed": len(handed_over.graphs),
        "ops": [len(h.nki_ops) for h in handed_over.graphs],
        "regions": [sum(r.engine == "nki" for r in report.regions) for report in reports],
        "runs": [h.runs for h in handed_over.graphs],
    }


def composite(name: str) -> dict[str, Any]:
    """Composites that no kernel takes are ATen ops of the graph."""
    q, k, v = (torch.arange(2 * 4 * 6 * 8.0).view(2, 4, 6, 8).sin() * (i + 1) for i in range(3))
    calls: dict[str, Callable[..., Any]] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "grouped": lambda q, k, v: F.scaled_dot_product_attention(
            q, k[:, :2], v[:, :2], enable_gqa=True
        ),
        "rms_norm": lambda q, k, v: F.rms_norm(q, (8,), v[0, 0, 0]) + k,
    }
    expected = calls[name](q, k, v)
    options = {"runner": "neuron", "select": "none"}
    compiled = torch.compile(calls[name], backend="trnx", options=options)
    found = compiled(*map(_on_device, (q, k, v)))
    nodes = [n for h in handed_over.graphs for n in h.graph_module.graph.nodes]
    return {
        "difference": _same(found, expected),
        "composites": [n.name for n in nodes if getattr(n.target, "namespace", "") == "trnx"],
        "ops": [len(h.nki_ops) for h in handed_over.graphs],
    }


def gradients_of_composites() -> list[str]:
    """Forward and backward of attention, with no kernel."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = F.rms_norm(x, (8,))
        return F.scaled_dot_product_attention(y, x, y, is_causal=True).square().sum()

    here = torch.arange(2 * 4 * 6 * 8.0).view(2, 4, 6, 8).sin().requires_grad_()
    there = _on_device(here.detach()).requires_grad_()
    function(here).backward()
    options = {"runner": "neuron", "select": "none"}
    torch.compile(function, backend="trnx", options=options)(there).backward()
    assert here.grad is not None
    assert there.grad is not None
    return [_same(there.grad, here.grad)]


def recurrent_layer() -> list[str]:
    """A GRU and its gradients, with no kernel."""
    torch._dynamo.config.allow_rnn = True
    here = torch.nn.GRU(5, 6)
    there = torch.nn.GRU(5, 6)
    there.load_state_dict(here.state_dict())
    there = there.to("neuron")
    x = torch.arange(4 * 2 * 5.0).view(4, 2, 5).sin()
    options = {"runner": "neuron", "select": "none"}
    expected = here(x)[0]
    found = torch.compile(there, backend="trnx", options=options)(_on_device(x))[0]
    expected.square().sum().backward()
    found.square().sum().backward()
    pairs = zip(there.parameters(), here.parameters(), strict=True)
    return [_same(found, expected), *(_same(a.grad, b.grad) for a, b in pairs)]


def mutation() -> dict[str, Any]:
    """A buffer and an argument that the function writes to."""

    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.add_(1)
        count += y.sum(0)
        return y + x

    def run(call: Callable[..., Any], place: Callable[..., Any]) -> list[torch.Tensor]:
        x, count = place(rows(5)), place(torch.zeros(66))
        return [call(x, count), call(x, count), x, count]

    expected = run(function, torch.clone)
    found = run(torch.compile(function, backend="trnx", options={"runner": "neuron"}), _on_device)
    return {"differences": list(map(_same, found, expected))}


def lists() -> dict[str, Any]:
    """Lists of tensors of the device that are written to, and their results."""

    def function(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> list[torch.Tensor]:
        sums = torch._foreach_add(xs, ys)
        torch._foreach_mul_(xs, 0.5)
        torch._foreach_addcmul_(xs, sums, ys, value=2)
        return list(sums)

    def run(call: Callable[..., Any], place: Callable[..., Any]) -> list[torch.Tensor]:
        xs = [place(rows(count)) for count in range(1, 9)]
        ys = [place(rows(count) + 1) for count in range(1, 9)]
        return [*call(xs, ys), *xs]

    expected = run(function, torch.clone)
    found = run(torch.compile(function, backend="trnx", options={"runner": "neuron"}), _on_device)
    return {"differences": sorted(set(map(_same, found, expected)))}


def hooks(change: str) -> list[str]:
    """Saved tensors that a hook gives back with other strides, or of another dtype."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x).sin().sum()

    def unpacked(saved: torch.Tensor) -> torch.Tensor:
        if saved.ndim < 2:
            return saved
        return saved.t().contiguous().t() if change == "strides" else saved.to(torch.bfloat16)

    here = rows(5).requires_grad_()
    there = _on_device(rows(5)).requires_grad_()
    function(here).backward()
    options = {"runner": "neuron", "select": "legal"}
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpacked):
        found = torch.compile(function, backend="trnx", options=options)(there)
        try:
            found.backward()
        except InputChangedError as error:
            return [str(error)]
    assert here.grad is not None
    assert there.grad is not None
    return [_same(there.grad, here.grad)]


def sizes(dynamic: bool | None) -> dict[str, Any]:
    """Another size for each call: one graph a size, none with symbols."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x) / x.shape[0]

    options = {"runner": "neuron"}
    compiled = torch.compile(function, backend="trnx", dynamic=dynamic, options=options)
    counts = (3, 5, 9, 5, 3)
    found = [_same(compiled(_on_device(rows(n))), function(rows(n))) for n in counts]
    return {
        "differences": found,
        "runs": sorted(h.runs for h in handed_over.graphs),
        "ops": [len(h.nki_ops) for h in handed_over.graphs],
    }


_NUMBERS: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "float": (lambda x, s: F.relu(x) * s, (0.5, 1.5, -2.25)),
    "int": (lambda x, s: F.relu(x) * s, (3, 5, 7)),
    "bound": (lambda x, s: x.clamp(max=s), (3, 5, 7)),
    "in a call": (lambda x, s: F.leaky_relu(x, 1 / s), (3, 5, 7)),
}


def numbers(name: str) -> dict[str, Any]:
    """A number that changes from call to call."""

    function, values = _NUMBERS[name]
    options = {"runner": "neuron"}
    compiled = torch.compile(function, backend="trnx", dynamic=True, options=options)
    found = [_same(compiled(_on_device(rows(4)), s), function(rows(4), s)) for s in values]
    return {"differences": found, "handed": len(handed_over.graphs)}


def options_handed() -> list[dict[str, Any]]:
    """The options that the Dynamo backend gets."""
    torch.compile(F.relu, backend="trnx", options={"runner": "neuron"})(_on_device(rows(2)))
    return [h.options for h in handed_over.graphs]


def equal_layers() -> dict[str, Any]:
    """Layers of one size share an op; its name is the same in every process."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(66, 66) for _ in range(3)))
    compiled = torch.compile(layers.to("neuron"), backend="trnx", options={"runner": "neuron"})
    with torch.no_grad():
        compiled(_on_device(rows(7)))
    nodes = [n for h in handed_over.graphs for n in h.graph_module.graph.nodes]
    return {
        "ops": [name for h in handed_over.graphs for name in h.nki_ops],
        "nodes": [n.name for n in nodes if getattr(n.target, "namespace", "") == "trnx_nki"],
        "schemas": sorted({str(n.target._schema) for n in nodes if "trnx_nki" in str(n.target)}),
        "lines": [source_line(n) for n in nodes if "trnx_nki" in str(n.target)],
    }
