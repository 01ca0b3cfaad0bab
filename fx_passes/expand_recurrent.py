"""Calls of `torch.lstm`, `torch.gru`, `torch.rnn_tanh` and `torch.rnn_relu` in Dynamo's graph (with
`torch._dynamo.config.allow_rnn`) become, for each layer and direction, one product with the inputs
of all steps and one `trnx::recurrent`.

AOTAutograd would write every step out, thousands of nodes. A call stays as it is where torch has to
raise its own error or `trnx::recurrent` does not mean the same: packed sequences, LSTMs with
projections, dtypes other than float32, bfloat16 and float16 or, without autocast, more than one,
and no elements.

Under autocast the weights are rounded as eager's products round them. LSTMs and nn.RNNs have their
results in autocast's dtype and GRUs in that of their state, with which a step computes; what eager
rounds within a step of a GRU is not rounded.

Results lie in memory as eager's: steps, then the batch, whatever `batch_first` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from trnx.fx_passes.metadata import EXAMPLE_VALUE
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.rewrite import COMPUTED, is_transformed, may_be_autocast, plain_tensor
from trnx.fx_passes.symbolic import known_equal, same_number

Tensors = Sequence[torch.Tensor]


def _direction(
    x: torch.Tensor,
    parameters: Tensors,
    state: Tensors,
    cell: str,
    reverse: bool,
    lower: torch.dtype | None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One direction of a layer of inputs [K, T, B]: hidden states [H, T, B], the last states
    [B, H]. `lower` is the dtype of products under autocast."""
    working = state[0].dtype
    of_inputs = parameters[0]
    of_state, *biases = (one.to(lower or working).to(working) for one in parameters[1:])
    steps, batch = x.shape[1:]
    columns = x.permute(1, 2, 0).flatten(0, 1)
    gates = F.linear(of_inputs, columns).to(working).view(of_inputs.shape[0], steps, batch)
    cells = state[1] if len(state) > 1 else None
    out, c_n, _, _ = torch.ops.trnx.recurrent(
        gates, of_state, *(biases or (None, None)), state[0], cells, cell, reverse
    )
    last = [out[:, 0 if reverse else -1].t()]
    return out, last if cells is None else [*last, c_n.t()]


def _autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of products under autocast; None without autocast."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _dropped(x: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout of [K, T, B], which draws in the order of eager's [T, B, K]."""
    return F.dropout(x.permute(1, 2, 0).contiguous(), p, training=True).permute(2, 0, 1)


def _network(
    cell: str,
    input: torch.Tensor,
    states: Tensors,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """All layers, with torch's arguments and results; `states` are hx or (hx, cx)."""
    lower = _autocast_dtype(input.device.type)
    if lower is not None:
        working = torch.promote_types(states[0].dtype, lower) if cell == "gru" else lower
        states = [state.to(working) for state in states]
    x = input.permute(2, 1, 0) if batch_first else input.permute(2, 0, 1)
    directions, count = (2 if bidirectional else 1), (4 if has_biases else 2)
    last: list[list[torch.Tensor]] = []
    for layer in range(num_layers):
        outs = []
        for side in range(directions):
            place = layer * directions + side
            own = params[place * count : (place + 1) * count]
            state = [s[place] for s in states]
            out, final = _direction(x, own, state, cell, side == 1, lower)
            outs.append(out)
            last.append(final)
        x = torch.cat(outs) if bidirectional else outs[0]
        if train and dropout > 0 and layer < num_layers - 1:
            x = _dropped(x, dropout)
    # A clone: where sizes are 1, `contiguous` would keep other strides than eager's.
    out = x.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    finals = [torch.stack(every) for every in zip(*last, strict=True)]
    return (out.transpose(0, 1) if batch_first else out, *finals)


def lstm(input: torch.Tensor, hx: Tensors, *rest: Any) -> tuple[torch.Tensor, ...]:
    """`torch.lstm`."""
    return _network("lstm", input, hx, *rest)


def gru(input: torch.Tensor, hx: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """`torch.gru`."""
    return _network("gru", input, [hx], *rest)


def rnn_tanh(input: torch.Tensor, hx: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """`torch.rnn_tanh`."""
    return _network("tanh", input, [hx], *rest)


def rnn_relu(input: torch.Tensor, hx: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """`torch.rnn_relu`."""
    return _network("relu", input, [hx], *rest)


_EXPANDED: dict[Any, Callable[..., Any]] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
}
_ARGUMENTS = 9


def _is_plain(node: fx.Node) -> bool:
    """Whether the call is one of dense sequences, of the sizes that its arguments promise, and of
    one dtype unless it may be under autocast."""
    if len(node.args) != _ARGUMENTS or node.kwargs or not isinstance(node.args[2], (list, tuple)):
        return False
    arguments: Any = node.args
    input, hx, params, has_biases, layers, _, _, bidirectional, _ = arguments
    is_lstm = node.target is torch.lstm
    if isinstance(hx, (list, tuple)) != is_lstm or (is_lstm and len(hx) != 2):
        return False
    states: Any = hx if is_lstm else [hx]
    tensors = [plain_tensor(one) for one in (input, *states, *params)]
    if any(t is None or known_equal(t.numel(), 0) for t in tensors):
        return False
    known = [t for t in tensors if t is not None]
    dtypes = {*(t.dtype for t in known), _result(node)}
    if not dtypes <= set(COMPUTED) or (len(dtypes) > 1 and not may_be_autocast(node.graph)):
        return False
    if known[0].ndim != 3 or (is_lstm and not same_number(known[1].shape[2], known[2].shape[2])):
        return False
    wanted: int = layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    return len(params) == wanted


def _result(node: fx.Node) -> torch.dtype | None:
    value = node.meta.get(EXAMPLE_VALUE)
    return value[0].dtype if isinstance(value, (list, tuple)) else None


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule) or is_transformed(module.graph):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target in _EXPANDED and _is_plain(node):
                node.target = _EXPANDED[node.target]
        module.recompile()
    return gm


EXPAND_RECURRENT = Pass("expand_recurrent", _run, ensures=("recurrent_whole",))
