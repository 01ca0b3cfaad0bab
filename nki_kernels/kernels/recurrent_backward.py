"""`recurrent_backward`: the gradients of all steps of one direction of a recurrent layer, from the
last one that was computed to the first.

A step multiplies the gradients of the gates with the weights as they lie in memory, which gives the
gradient of the state before; what else it needs are the `slopes` (see `recurrent_ops.py`). Weights
and gradients stay in SBUF for the whole sequence. float32, bfloat16, float16; what is carried
besides the gradients of the gates is float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._patterns import pattern_of
from trnx.nki_kernels.kernels._recurrence import (
    Block,
    add_product,
    chunks_of,
    counter,
    empty_steps,
    fill_steps,
    load_steps,
    move,
    store_state,
    store_steps,
    zeros,
)
from trnx.nki_kernels.kernels._recurrence_host import block_sizes, reject_recurrence
from trnx.nki_kernels.recurrent_ops import GRADIENTS, SLOPES
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_op = torch.ops.trnx.recurrent_backward.default
_SLOPES = tuple(f"slope{i}" for i in range(max(SLOPES.values())))


class Gradients(NamedTuple):
    """What goes from step to step: the gradients of the gates that the weights have rows of
    `[P, rows, columns]`, and float32 `[P, chunks, columns]`: of the cell state of an LSTM, of the
    state before of a GRU, beside its gates."""

    gates: nl.NkiTensor
    carried: nl.NkiTensor


class Tensors(NamedTuple):
    """In HBM: the operands with steps, and the result with steps."""

    grad_out: nl.NkiTensor
    slopes: list[nl.NkiTensor]
    grads: nl.NkiTensor


def _slots(cell: str) -> tuple[int, ...]:
    """Where the slopes of each kind are in a tile: those of a GRU's state products last, next to
    each other."""
    if cell == "gru":
        return (1, 2, 0, 3, 4)
    return (0, 1, 2, 3, 4, 5) if cell == "lstm" else (0,)


@nki.jit
def recurrent_backward_kernel(
    grad_out: nl.NkiTensor,
    grad_c: nl.NkiTensor | None,
    weight: nl.NkiTensor,
    slope0: nl.NkiTensor,
    slope1: nl.NkiTensor | None,
    slope2: nl.NkiTensor | None,
    slope3: nl.NkiTensor | None,
    slope4: nl.NkiTensor | None,
    slope5: nl.NkiTensor | None,
    cell: str,
    reverse: bool,
    gives_h: bool,
    gives_c: bool,
    block: int,
    columns: int,
    cores: int = 1,
) -> Any:
    """grad_out `[H, T, B]` -> gradients of the gates `[G' * H, T, B]`, and of the states before the
    first step `[H, B]` where they are wanted; `block` steps in a turn of the loop, `columns`
    sequences at a time. `cores` share the sequences."""
    hidden, steps, batch = grad_out.shape
    count = 4 if cell == "lstm" or cell == "gru" else 1
    shape = (count * hidden, steps, batch)
    grads = nl.ndarray(shape, dtype=grad_out.dtype, buffer=nl.shared_hbm)
    returned = [grads]
    for wanted in (gives_h, gives_c):
        if wanted:
            state = nl.ndarray((hidden, batch), dtype=grad_out.dtype, buffer=nl.shared_hbm)
            returned.append(state)
    slopes = []  # type: list[nl.NkiTensor]
    for slope in (slope0, slope1, slope2, slope3, slope4, slope5):
        if slope is not None:
            slopes.append(slope)
    tensors = Tensors(grad_out, slopes, grads)
    first, end = share_of(batch, cores)
    if first < end:
        rows = _load_weight(weight)
        for column in range(first, end, columns):
            width = min(columns, end - column)
            now = _start(grad_c, rows, width, column)
            _all_steps(cell, rows, now, tensors, reverse, block, column)
            if gives_h:
                before = nl.ndarray(now.carried.shape, dtype=grads.dtype, buffer=nl.sbuf)
                rest = now.carried
                if cell != "gru":
                    rest = zeros(now.carried.shape, nl.float32)
                add_product(before, rows, 0, now.gates, rest)
                store_state(returned[1], column, before)
            if gives_c:
                start = nl.ndarray(now.carried.shape, dtype=grads.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=start, src=now.carried)
                store_state(returned[-1], column, start)
    return returned[0] if len(returned) == 1 else tuple(returned)


def _load_weight(weight: nl.NkiTensor) -> nl.NkiTensor:
    """`[P, gates * chunks, chunks * P]`: rows on the partitions, as they lie in memory."""
    rows, hidden = weight.shape
    count, chunks = rows // hidden, chunks_of(hidden)
    p = min(hidden, nl.tile_size.pmax)
    tile = zeros((p, count, chunks, 1, chunks * p), weight.dtype)
    source = weight.reshape((rows, 1, hidden))
    for gate in range(count):
        block = Block(0, 1, 0, hidden, None)
        fill_steps(tile[:, gate, :, :, 0:hidden], source, gate, hidden, block)
    return tile.reshape((p, count * chunks, chunks * p))


def _start(
    grad_c: nl.NkiTensor | None, weight: nl.NkiTensor, columns: int, column: int
) -> Gradients:
    """What the last step gets: no gradients of gates, and that of the last cell state."""
    p, rows, width = weight.shape
    carried = zeros((p, width // p, columns), nl.float32)
    if grad_c is not None:
        hidden, batch = grad_c.shape
        block = Block(0, 1, column, columns, None)
        loaded = load_steps(grad_c.reshape((hidden, 1, batch)), (0,), hidden, block)
        nisa.tensor_copy(dst=carried, src=loaded[:, 0, :, 0, :])
    return Gradients(zeros((p, rows, columns), weight.dtype), carried)


def _all_steps(
    cell: str,
    weight: nl.NkiTensor,
    now: Gradients,
    tensors: Tensors,
    reverse: bool,
    block: int,
    column: int,
) -> None:
    """The sequences from `column` on: whole blocks in a loop of the device, then the rest."""
    steps, columns = tensors.grad_out.shape[1], now.gates.shape[2]
    turns, rest = steps // block, steps % block
    if turns > 0:
        first = 0 if reverse else steps - block
        loads, stores = counter(first), counter(first)
        stride = block if reverse else -block
        for _ in nl.dynamic_range(turns):
            source = _load(cell, tensors, Block(0, block, column, columns, loads))
            move(loads, stride)
            target = Block(0, block, column, columns, stores)
            _steps(cell, weight, now, source, tensors.grads, reverse, target)
            move(stores, stride)
    if rest > 0:
        last = Block(steps - rest if reverse else 0, rest, column, columns, None)
        source = _load(cell, tensors, last)
        _steps(cell, weight, now, source, tensors.grads, reverse, last)


def _load(cell: str, tensors: Tensors, block: Block) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """The gradients and slopes `[P, slopes, chunks, steps, columns]` of a block."""
    hidden = tensors.grad_out.shape[0]
    given = load_steps(tensors.grad_out, (0,), hidden, block)
    slots = _slots(cell)
    slopes = empty_steps(tensors.grads.dtype, len(slots), hidden, block)
    for i in range(len(slots)):
        fill_steps(slopes[:, slots[i]], tensors.slopes[i], 0, hidden, block)
    return given[:, 0], slopes


def _steps(
    cell: str,
    weight: nl.NkiTensor,
    now: Gradients,
    source: tuple[nl.NkiTensor, nl.NkiTensor],
    grads: nl.NkiTensor,
    reverse: bool,
    block: Block,
) -> None:
    """One block: its steps, and the gradients of its gates to HBM."""
    given, slopes = source
    p, chunks, steps, columns = given.shape
    hidden = grads.shape[0]
    slots = _slots(cell)
    count = min(4, len(slots))
    tile = nl.ndarray((p, count, chunks, steps, columns), dtype=grads.dtype, buffer=nl.sbuf)
    used = now.gates.shape[1] // chunks
    before = now.gates
    for i in range(steps):
        t = i if reverse else steps - 1 - i
        dh = nl.ndarray((p, chunks, columns), dtype=nl.float32, buffer=nl.sbuf)
        add_product(dh, weight, 0, before, given[:, :, t, :])
        own = tile[:, :, :, t, :]
        if cell == "lstm":
            _lstm_step(own, dh, now.carried, slopes[:, :, :, t, :])
        elif cell == "gru":
            nisa.tensor_tensor(dst=dh, data1=dh, data2=now.carried, op=nl.add)
            _multiply(own, slopes[:, 0:4, :, t, :], dh)
            nisa.tensor_tensor(
                dst=now.carried, data1=dh, data2=slopes[:, 4, :, t, :], op=nl.multiply
            )
        else:
            _multiply(own, slopes[:, :, :, t, :], dh)
        before = own[:, count - used : count].reshape((p, used * chunks, columns))
    nisa.tensor_copy(dst=now.gates, src=before)
    for s in range(count):
        store_steps(grads, s, hidden // count, block, tile[:, slots[s]])


def _multiply(dst: nl.NkiTensor, slopes: nl.NkiTensor, factor: nl.NkiTensor) -> None:
    """`dst[P, n, chunks, columns] = slopes * factor`, which is one for all n."""
    p, count, chunks, columns = dst.shape
    every = factor.reshape((p, 1, chunks, columns)).broadcast(1, count)
    nisa.tensor_tensor(dst=dst, data1=slopes, data2=every, op=nl.multiply)


def _lstm_step(dst: nl.NkiTensor, dh: nl.NkiTensor, dc: nl.NkiTensor, slopes: nl.NkiTensor) -> None:
    """The hidden state's gradient reaches the output gate, and the other gates by the cell's."""
    through = nl.ndarray(dh.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=through, data1=dh, data2=slopes[:, 4], op=nl.multiply)
    nisa.tensor_tensor(dst=dc, data1=dc, data2=through, op=nl.add)
    _multiply(dst[:, 0:3], slopes[:, 0:3], dc)
    nisa.tensor_tensor(dst=dst[:, 3], data1=dh, data2=slopes[:, 3], op=nl.multiply)
    nisa.tensor_tensor(dst=dc, data1=dc, data2=slopes[:, 5], op=nl.multiply)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, no empty tensors, weights that fit into SBUF."""
    return reject_recurrence(b, "grad_out", ("grad_c", *_SLOPES), hw)


def cost(b: Bindings) -> Cost:
    """A product with the weights each step; operands are read once, gradients written once."""
    rows = b.weight.shape[0]
    states = b.grad_out.numel
    kinds = SLOPES[b.cell] + 1 + GRADIENTS[b.cell]
    return Cost(
        matmul_flops=2 * rows * states,
        vector_flops=3 * GRADIENTS[b.cell] * states,
        hbm_bytes=b.weight.nbytes + kinds * b.grad_out.nbytes,
    )


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The sizes of blocks for what a core gets."""
    hidden, steps, batch = b.grad_out.shape
    gates = b.weight.shape[0] // hidden
    names = ("grad_out", "grad_c", "weight", *_SLOPES, "cell", "reverse", "gives_h", "gives_c")
    block, columns = block_sizes(gates, hidden, steps, -(-batch // hw.cores))
    return Launch.of(recurrent_backward_kernel, b, names, block, columns)


def reference(
    gives_h: bool,
    gives_c: bool,
    grad_out: torch.Tensor,
    grad_c: torch.Tensor | None,
    weight: torch.Tensor,
    cell: str,
    reverse: bool,
    **slopes: torch.Tensor | None,
) -> Any:
    """The op in float32, rounded to the dtype of the results."""
    given = [x for name in _SLOPES if (x := slopes[name]) is not None]
    grads, dh0, dc0 = _op(grad_out, grad_c, given, weight, cell, reverse)
    returned = [grads, *[dh0] * gives_h, *[dc0] * gives_c]
    return returned[0] if len(returned) == 1 else tuple(returned)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each cell, both directions, ragged sizes of states, steps and batches, dtypes."""

    def sample(
        note: str,
        cell: str,
        sizes: tuple[int, int, int],
        dtype: torch.dtype = torch.float32,
        reverse: bool = False,
        gives: bool = False,
    ) -> Sample:
        hidden, _, batch = sizes
        rows = {"lstm": 4, "gru": 3}.get(cell, 1) * hidden

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        slopes = {name: draw(*sizes) / 4 for name in _SLOPES[: SLOPES[cell]]}
        values: dict[str, Any] = {
            **dict.fromkeys(_SLOPES), **slopes,
            "grad_out": draw(*sizes), "weight": draw(rows, hidden) / (2 * hidden**0.5),
            "grad_c": draw(hidden, batch) if cell == "lstm" else None,
            "cell": cell, "reverse": reverse,
            "gives_h": gives, "gives_c": gives and cell == "lstm",
        }  # fmt: skip
        # A gradient that is rounded the other way goes on through the next steps, damped.
        return Sample(values, f"{cell}, {note}", 16 * torch.finfo(dtype).eps)

    for cell in ("tanh", "lstm", "gru"):
        yield sample("one of everything", cell, (1, 1, 1), gives=True)
        yield sample("blocks and a rest", cell, (20, 37, 3))
        yield sample("of a reversed layer", cell, (127, 18, 2), reverse=True, gives=True)
        yield sample("129 rows", cell, (129, 3, 5), gives=True)
        yield sample("300 rows", cell, (300, 17, 2))
        yield sample("bfloat16", cell, (128, 5, 4), torch.bfloat16, gives=True)
        yield sample("float16", cell, (40, 6, 2), torch.float16)
    yield sample("many sequences", "lstm", (16, 2, 1100), gives=True)


def _pattern(cell: str, gives_h: bool, gives_c: bool) -> Pattern:
    """A call for a cell, of which the gradients of the first states are used or not."""
    names = _SLOPES[: SLOPES[cell]]
    read = (0, *[1] * gives_h, *[2] * gives_c)

    def function(grad_out: Any, grad_c: Any, weight: Any, reverse: Any, *slopes: Any) -> Any:
        results = _op(grad_out, grad_c, list(slopes), weight, cell, reverse)
        return results[0] if read == (0,) else tuple(results[i] for i in read)

    kinds = {"reverse": bool, "grad_c": torch.Tensor | None}
    pattern = pattern_of(
        function, ("grad_out", "grad_c", "weight", "reverse", *names), kinds, _SLOPES[len(names) :]
    )
    constants = {**pattern.constants, "cell": cell, "gives_h": gives_h, "gives_c": gives_c}
    return Pattern(pattern.function, constants)


register(
    KernelSpec(
        name="recurrent_backward",
        patterns=tuple(
            _pattern(cell, gives_h, gives_c)
            for cell in GRADIENTS
            for gives_h in (False, True)
            for gives_c in ((False, True) if cell == "lstm" else (False,))
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=recurrent_backward_kernel,
        launch=launch,
    )
)
