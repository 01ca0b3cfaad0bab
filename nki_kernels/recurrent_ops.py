"""One direction of one layer of a recurrent network, from the products with its inputs on.

    trnx::recurrent(gates, weight, bias_ih, bias_hh, h0, c0, cell, reverse)
        -> (out, c_n, cells, acts)
    trnx::recurrent_backward(grad_out, grad_c, slopes, weight, cell, reverse)
        -> (grads, dh0, dc0)

`cell` is "relu", "tanh" (nn.RNN), "lstm" or "gru", with G = 1, 1, 4, 3 gates in torch's order.
gates [G * H, T, B]: the inputs times `weight_ih`, without bias; weight [G * H, H]; biases [G * H]
or None; h0 and, of an LSTM, c0 [B, H]. With `reverse` step T - 1 is the first.
out [H, T, B]: the hidden states; c_n [H, B]: the last cell state. For the gradients, `cells`
[H, T, B] are the cell states, and `acts` [4 * H, T, B] of an LSTM its gates, of a GRU reset, update
and new gate and the hidden part of the new one. What a cell does not have is one zero (a kernel has
no empty outputs). All tensors have the dtype of gates; hidden states are rounded to it at every
step, else a step computes in float32 (float64 for float64).

Time and batch are innermost so that a step is one block of columns: kernels multiply with `weight`
as the stationary operand, and nothing is transposed between the steps.

The backward pass is linear in the gradients. `slopes` [H, T, B] are its coefficients: of the gates
with respect to the hidden state (lstm: output gate) or the cell state (lstm: the other three), then
for an LSTM those of the cell state to the hidden state and to the state before, for a GRU that of
the state before. `grads` [G' * H, T, B] belong to the gates and, behind them, to the hidden part of
a GRU's new gate (G' = 1, 1, 4, 4); dh0 and dc0 are [H, B]. Made by autograd, it has no gradients.
Importing this module registers the ops and does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# Rows, in multiples of H, of what a cell saves and of its gradients.
SAVED = {"relu": 0, "tanh": 0, "lstm": 4, "gru": 4}
GRADIENTS = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 4}
SLOPES = {"relu": 1, "tanh": 1, "lstm": 6, "gru": 5}

Tensors = tuple[torch.Tensor, ...]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _order(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _lstm(x: torch.Tensor, products: torch.Tensor, c: torch.Tensor) -> Tensors:
    """Hidden state, cell state and gates of one step."""
    i, f, g, o = (x + products).chunk(4)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o])


def _gru(x: torch.Tensor, products: torch.Tensor, h: torch.Tensor) -> Tensors:
    """Hidden state and what is saved of one step."""
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3), products.chunk(3)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (h - n) * z + n, torch.cat([r, z, n, hn])


@torch.library.custom_op(
    "trnx::recurrent",
    mutates_args=(),
    schema="(Tensor gates, Tensor weight, Tensor? bias_ih, Tensor? bias_hh, Tensor h0, Tensor? c0, "
    "str cell, bool reverse) -> (Tensor out, Tensor c_n, Tensor cells, Tensor acts)",
)
def recurrent(
    gates: torch.Tensor,
    weight: torch.Tensor,
    bias_ih: torch.Tensor | None,
    bias_hh: torch.Tensor | None,
    h0: torch.Tensor,
    c0: torch.Tensor | None,
    cell: str,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the module's docstring."""
    results = _recurrent_fake(gates, weight, bias_ih, bias_hh, h0, c0, cell, reverse)
    out, c_n, cells, acts = (x.zero_() for x in results)
    x, w = _wide(gates), _wide(weight)
    if bias_ih is not None:
        x = x + _wide(bias_ih)[:, None, None]
    h, c = _wide(h0).t(), None if c0 is None else _wide(c0).t()
    for t in _order(gates.shape[1], reverse):
        products = w @ h if bias_hh is None else w @ h + _wide(bias_hh)[:, None]
        if c is not None:
            out[:, t], c, acts[:, t] = _lstm(x[:, t], products, c)
            cells[:, t] = c
        elif cell == "gru":
            out[:, t], acts[:, t] = _gru(x[:, t], products, h)
        else:
            total = x[:, t] + products
            out[:, t] = total.relu() if cell == "relu" else total.tanh()
        h = _wide(out[:, t])
    if c is not None:
        c_n.copy_(c)
    return out, c_n, cells, acts


@recurrent.register_fake
def _recurrent_fake(
    gates: torch.Tensor,
    weight: torch.Tensor,
    bias_ih: torch.Tensor | None,
    bias_hh: torch.Tensor | None,
    h0: torch.Tensor,
    c0: torch.Tensor | None,
    cell: str,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    del bias_ih, bias_hh, h0, reverse
    hidden, times = weight.shape[1], gates.shape[1:]
    nothing = (1,)
    return (
        gates.new_empty((hidden, *times)),
        gates.new_empty(nothing if c0 is None else (hidden, times[1])),
        gates.new_empty(nothing if c0 is None else (hidden, *times)),
        gates.new_empty((SAVED[cell] * hidden, *times) if SAVED[cell] else nothing),
    )


@torch.library.custom_op(
    "trnx::recurrent_backward",
    mutates_args=(),
    schema="(Tensor grad_out, Tensor? grad_c, Tensor[] slopes, Tensor weight, str cell, "
    "bool reverse) -> (Tensor grads, Tensor dh0, Tensor dc0)",
)
def recurrent_backward(
    grad_out: torch.Tensor,
    grad_c: torch.Tensor | None,
    slopes: Sequence[torch.Tensor],
    weight: torch.Tensor,
    cell: str,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the module's docstring. `grad_c` is None but for an LSTM."""
    results = _recurrent_backward_fake(grad_out, grad_c, slopes, weight, cell, reverse)
    grads, dh0, dc0 = (x.zero_() for x in results)
    turned = _wide(weight).t()
    by_step = [_wide(slope).unbind(1) for slope in slopes]
    dh = _wide(torch.zeros_like(dh0))
    dc = None if grad_c is None else _wide(grad_c)
    for t in _order(grad_out.shape[1], not reverse):
        dh = dh + _wide(grad_out[:, t])
        q = [slope[t] for slope in by_step]
        carried: torch.Tensor | int = 0
        if dc is not None:
            dc = dc + dh * q[4]
            parts = [dc * q[0], dc * q[1], dc * q[2], dh * q[3]]
            dc = dc * q[5]
        else:
            parts = [dh * slope for slope in q[: GRADIENTS[cell]]]
            carried = dh * q[4] if cell == "gru" else 0
        grads[:, t] = torch.cat(parts)
        used = parts if cell != "gru" else [*parts[:2], parts[3]]
        dh = turned @ _wide(torch.cat(used).to(grads.dtype)) + carried
    dh0.copy_(dh)
    if dc is not None:
        dc0.copy_(dc)
    return grads, dh0, dc0


@recurrent_backward.register_fake
def _recurrent_backward_fake(
    grad_out: torch.Tensor,
    grad_c: torch.Tensor | None,
    slopes: Sequence[torch.Tensor],
    weight: torch.Tensor,
    cell: str,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del slopes, weight, reverse
    hidden, steps, batch = grad_out.shape
    return (
        grad_out.new_empty((GRADIENTS[cell] * hidden, steps, batch)),
        grad_out.new_empty((hidden, batch)),
        grad_out.new_empty((1,) if grad_c is None else (hidden, batch)),
    )


def _before(states: torch.Tensor, first: torch.Tensor, reverse: bool) -> torch.Tensor:
    """States [H, T, B] one step earlier; `first` [B, H] is the one before the first step."""
    start = first.t().unsqueeze(1)
    if reverse:
        return torch.cat([states[:, 1:], start], 1)
    return torch.cat([start, states[:, :-1]], 1)


def _slopes(cell: str, out: torch.Tensor, before: torch.Tensor | None, acts: Any) -> Tensors:
    """The coefficients, in float32: `out` are the hidden states of nn.RNN, the cell states of an
    LSTM; `before` the states one step earlier."""
    if cell == "relu":
        return ((out > 0).to(out.dtype),)
    if cell == "tanh":
        return (1 - out * out,)
    if cell == "gru":
        r, z, n, hn = acts.chunk(4)
        new = (1 - z) * (1 - n * n)
        return new * hn * r * (1 - r), (before - n) * z * (1 - z), new, new * r, z
    i, f, g, o = acts.chunk(4)
    top = out.tanh()
    return (
        g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), top * o * (1 - o),
        o * (1 - top * top), f,
    )  # fmt: skip


def _setup(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    _, weight, _, _, h0, c0, ctx.cell, ctx.reverse = inputs
    out, c_n, cells, acts = output
    ctx.mark_non_differentiable(cells, acts, *([] if ctx.cell == "lstm" else [c_n]))
    ctx.save_for_backward(weight, h0, c0, out, cells, acts)


def _gradient(
    ctx: Any, grad_out: torch.Tensor, grad_c: torch.Tensor, *_: Any
) -> tuple[torch.Tensor | None, ...]:
    weight, h0, c0, out, cells, acts = ctx.saved_tensors
    cell, reverse, is_lstm = ctx.cell, ctx.reverse, ctx.cell == "lstm"
    h_before = _before(out, h0, reverse)
    states = cells if is_lstm else out
    before = _before(cells, c0, reverse) if is_lstm else h_before
    slopes = _slopes(cell, _wide(states), _wide(before), _wide(acts))
    grads, dh0, dc0 = torch.ops.trnx.recurrent_backward(
        grad_out.contiguous(), grad_c.contiguous() if is_lstm else None,
        [slope.to(out.dtype) for slope in slopes], weight, cell, reverse,
    )  # fmt: skip
    hidden = weight.shape[1]
    of_inputs = grads[: weight.shape[0]]
    rows = grads.flatten(1)
    parts = [rows[: 2 * hidden], rows[3 * hidden :]] if cell == "gru" else [rows]
    columns = h_before.flatten(1).t()
    dweight = torch.cat([part @ columns for part in parts])
    return (
        of_inputs,
        dweight,
        of_inputs.sum((1, 2)) if ctx.needs_input_grad[2] else None,
        torch.cat([part.sum(1) for part in parts]) if ctx.needs_input_grad[3] else None,
        dh0.t(),
        dc0.t() if is_lstm else None,
        None,
        None,
    )


recurrent.register_autograd(_gradient, setup_context=_setup)
