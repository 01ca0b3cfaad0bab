"""`recurrent`: all steps of one direction of one layer of nn.RNN, nn.LSTM or nn.GRU.

The weights and the states stay in SBUF for the whole sequence. A step is one product of the weights
(stationary) with the state `[H on the partitions, B]`, whose result lies as the next step needs the
state. Both sigmoid and tanh are `tanh` of ScalarE, of whose tables one is loaded at a time:
sigmoid(x) = tanh(x / 2) / 2 + 1 / 2. Factors of two are in the weights and biases, which is exact:
the states of an LSTM are kept doubled. float32, bfloat16, float16, with gates and cell states in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.kernels._blocking import ROWS
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._operands import MatmulOperand, fill_operand
from trnx.nki_kernels.kernels._recurrence import (
    Block,
    add_product,
    chunks_of,
    counter,
    halve,
    load_state,
    load_steps,
    move,
    store_state,
    store_steps,
    zeros,
)
from trnx.nki_kernels.kernels._recurrence_host import block_sizes, reject_recurrence
from trnx.nki_kernels.recurrent_ops import SAVED
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_op = torch.ops.trnx.recurrent.default


class Cell(NamedTuple):
    """A kind of cell: torch's gates in the order of the tiles, how many of them are sigmoids (they
    are first), and whether states are doubled."""

    name: str
    slots: tuple[int, ...]
    sigmoids: int
    is_doubled: bool


class Tiles(NamedTuple):
    """What stays in SBUF: weights `[P, chunks, slots * chunks * P]`, biases `[P, slots, chunks, 1]`
    (of inputs and state together), that of the state in a GRU's new gate, hidden and cell state."""

    weight: nl.NkiTensor
    bias: nl.NkiTensor
    new_bias: nl.NkiTensor
    h: nl.NkiTensor
    c: nl.NkiTensor | None


class Results(NamedTuple):
    """The results in HBM, those that nobody reads are None; and H."""

    hidden: int
    out: nl.NkiTensor | None
    c_n: nl.NkiTensor | None
    cells: nl.NkiTensor | None
    acts: nl.NkiTensor | None


def _cell(name: str) -> Cell:
    if name == "lstm":
        return Cell(name, (0, 1, 3, 2), 3, True)
    if name == "gru":
        return Cell(name, (0, 1, 2), 2, False)
    return Cell(name, (0,), 0, False)


@nki.jit
def recurrent_kernel(
    gates: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias_ih: nl.NkiTensor | None,
    bias_hh: nl.NkiTensor | None,
    h0: nl.NkiTensor,
    c0: nl.NkiTensor | None,
    cell: str,
    reverse: bool,
    gives_out: bool,
    gives_c: bool,
    saves: bool,
    block: int,
    columns: int,
    cores: int = 1,
) -> tuple[nl.NkiTensor, ...]:
    """gates `[G * H, T, B]`, weight `[G * H, H]` -> with `gives_out` hidden states `[H, T, B]`,
    with `gives_c` the last cell state, with `saves` what gradients need (see `recurrent_ops.py`);
    `block` steps in a turn of the loop, `columns` sequences at a time. `cores` share the sequences.
    """
    kind = _cell(cell)
    results = _results(gates, weight.shape[1], kind, gives_out, gives_c, saves)
    first, end = share_of(gates.shape[2], cores)
    if first < end:
        fixed = _load_weights(kind, weight, bias_ih, bias_hh)
        for column in range(first, end, columns):
            count = min(columns, end - column)
            h = load_state(h0, column, count, h0.dtype)
            c = None
            if c0 is not None:
                c = load_state(c0, column, count, nl.float32)
                nisa.tensor_scalar(dst=h, data=h, op0=nl.multiply, operand0=2.0)
                nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=2.0)
            tiles = Tiles(fixed[0], fixed[1], fixed[2], h, c)
            _all_steps(kind, gates, tiles, results, reverse, block, column)
    returned = []  # type: list[nl.NkiTensor]
    for result in (results.out, results.c_n, results.cells, results.acts):
        if result is not None:
            returned.append(result)
    return returned[0] if len(returned) == 1 else tuple(returned)


def _results(
    gates: nl.NkiTensor, hidden: int, kind: Cell, gives_out: bool, gives_c: bool, saves: bool
) -> Results:
    _, steps, batch = gates.shape
    out = None
    c_n = None
    cells = None
    acts = None
    if gives_out:
        out = nl.ndarray((hidden, steps, batch), dtype=gates.dtype, buffer=nl.shared_hbm)
    if gives_c:
        c_n = nl.ndarray((hidden, batch), dtype=gates.dtype, buffer=nl.shared_hbm)
    if saves and kind.is_doubled:
        cells = nl.ndarray((hidden, steps, batch), dtype=gates.dtype, buffer=nl.shared_hbm)
    if saves:
        acts = nl.ndarray((4 * hidden, steps, batch), dtype=gates.dtype, buffer=nl.shared_hbm)
    return Results(hidden, out, c_n, cells, acts)


def _factor(kind: Cell, slot: int) -> float:
    return 0.5 if slot < kind.sigmoids else 1.0


def _load_weights(
    kind: Cell, weight: nl.NkiTensor, bias_ih: nl.NkiTensor | None, bias_hh: nl.NkiTensor | None
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """The first three of `Tiles`, multiplied by their factors."""
    hidden = weight.shape[1]
    p, chunks, count = min(hidden, nl.tile_size.pmax), chunks_of(hidden), len(kind.slots)
    turned = zeros((p, chunks, count, chunks * p), weight.dtype)
    bias = zeros((p, count, chunks, 1), nl.float32)
    new_bias = zeros((p, 1, chunks, 1), nl.float32)
    operand = MatmulOperand([weight], ROWS)
    for s in range(count):
        row = kind.slots[s] * hidden
        gate = turned[:, :, s, 0:hidden]
        fill_operand(gate, operand, row, 0, hidden)
        factor = _factor(kind, s)
        scale = factor * 0.5 if kind.is_doubled else factor
        if scale != 1.0:
            nisa.tensor_scalar(dst=gate, data=gate, op0=nl.multiply, operand0=scale)
        is_new = kind.name == "gru" and s == 2
        _add_bias(bias[:, s : s + 1], bias_ih, row, hidden, factor)
        _add_bias(new_bias if is_new else bias[:, s : s + 1], bias_hh, row, hidden, factor)
    return turned.reshape((p, chunks, count * chunks * p)), bias, new_bias


def _add_bias(
    dst: nl.NkiTensor, bias: nl.NkiTensor | None, row: int, hidden: int, factor: float
) -> None:
    """`dst[P, 1, chunks, 1]` += factor * H elements of a bias, from `row` on."""
    if bias is None:
        return
    column = bias.reshape((bias.shape[0], 1, 1))
    block = Block(0, 1, 0, 1, None)
    rows = column[row : row + hidden]
    loaded = load_steps(rows, (0,), hidden, block)
    nisa.scalar_tensor_tensor(
        dst=dst,
        data=loaded[:, :, :, 0, :],
        op0=nl.multiply,
        operand0=factor,
        op1=nl.add,
        operand1=dst,
    )


def _all_steps(
    kind: Cell,
    gates: nl.NkiTensor,
    tiles: Tiles,
    results: Results,
    reverse: bool,
    block: int,
    column: int,
) -> None:
    """The sequences from `column` on: whole blocks in a loop of the device, then the rest."""
    steps, columns = gates.shape[1], tiles.h.shape[2]
    turns, rest = steps // block, steps % block
    if turns > 0:
        first = steps - block if reverse else 0
        loads, stores = counter(first), counter(first)
        stride = -block if reverse else block
        for _ in nl.dynamic_range(turns):
            source = Block(0, block, column, columns, loads)
            inputs = _load_inputs(kind, gates, tiles, source)
            move(loads, stride)
            _steps(kind, inputs, tiles, results, reverse, Block(0, block, column, columns, stores))
            move(stores, stride)
    if rest > 0:
        last = Block(0 if reverse else steps - rest, rest, column, columns, None)
        inputs = _load_inputs(kind, gates, tiles, last)
        _steps(kind, inputs, tiles, results, reverse, last)
    if results.c_n is not None and tiles.c is not None:
        end = nl.ndarray(tiles.c.shape, dtype=results.c_n.dtype, buffer=nl.sbuf)
        halve(end, tiles.c)
        store_state(results.c_n, column, end)


def _load_inputs(kind: Cell, gates: nl.NkiTensor, tiles: Tiles, block: Block) -> nl.NkiTensor:
    """`[P, slots, chunks, steps, columns]`: (products with the inputs + bias) * factor."""
    loaded = load_steps(gates, kind.slots, gates.shape[0] // len(kind.slots), block)
    inputs = nl.ndarray(loaded.shape, dtype=nl.float32, buffer=nl.sbuf)
    p, count, chunks, steps, columns = loaded.shape
    flat = (p, count, chunks, steps * columns)
    for first, end in ((0, kind.sigmoids), (kind.sigmoids, count)):
        if first == end:
            continue
        nisa.scalar_tensor_tensor(
            dst=inputs.reshape(flat)[:, first:end],
            data=loaded.reshape(flat)[:, first:end],
            op0=nl.multiply,
            operand0=_factor(kind, first),
            op1=nl.add,
            operand1=tiles.bias[:, first:end].broadcast(3, steps * columns),
        )
    return inputs


def _steps(
    kind: Cell, inputs: nl.NkiTensor, tiles: Tiles, results: Results, reverse: bool, block: Block
) -> None:
    """One block: its steps, and its results to HBM."""
    p, count, chunks, steps, columns = inputs.shape
    shape = (p, chunks, steps, columns)
    states = nl.ndarray(shape, dtype=tiles.h.dtype, buffer=nl.sbuf)
    cells = None
    acts = None
    if results.cells is not None:
        cells = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    if results.acts is not None:
        acts = nl.ndarray((p, 4, chunks, steps, columns), dtype=nl.float32, buffer=nl.sbuf)
    before = tiles.h
    for i in range(steps):
        t = steps - 1 - i if reverse else i
        x = inputs[:, :, :, t, :].reshape((p, count * chunks, columns))
        after = states[:, :, t, :]
        own = None if acts is None else acts[:, :, :, t, :]
        if kind.name == "lstm":
            _lstm_step(after, x, before, tiles, own)
            if cells is not None:
                nisa.tensor_copy(dst=cells[:, :, t, :], src=tiles.c, engine=nisa.engine.gpsimd)
        elif kind.name == "gru":
            _gru_step(after, x, before, tiles, own)
        else:
            _plain_step(after, x, before, tiles, kind.name)
        before = after
    nisa.tensor_copy(dst=tiles.h, src=before)
    _store(kind, states, cells, acts, results, block)


def _store(
    kind: Cell,
    states: nl.NkiTensor,
    cells: nl.NkiTensor | None,
    acts: nl.NkiTensor | None,
    results: Results,
    block: Block,
) -> None:
    """The results of a block, without the factors that its steps left in them."""
    hidden, dtype = results.hidden, states.dtype
    if results.out is not None and not kind.is_doubled:
        store_steps(results.out, 0, hidden, block, states)
    elif results.out is not None:
        halves = nl.ndarray(states.shape, dtype=dtype, buffer=nl.sbuf)
        halve(halves, states)
        store_steps(results.out, 0, hidden, block, halves)
    if cells is not None:
        rounded = nl.ndarray(cells.shape, dtype=dtype, buffer=nl.sbuf)
        halve(rounded, cells)
        store_steps(results.cells, 0, hidden, block, rounded)
    if acts is not None:
        slots = (0, 1, 3, 2) if kind.name == "lstm" else (0, 1, 2, 3)
        saved = nl.ndarray(acts.shape, dtype=dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=saved[:, 0 : kind.sigmoids],
            data=acts[:, 0 : kind.sigmoids],
            op0=nl.multiply,
            operand0=0.5,
            op1=nl.add,
            operand1=0.5,
        )
        rest = saved[:, kind.sigmoids : 4]
        nisa.tensor_copy(dst=rest, src=acts[:, kind.sigmoids : 4], engine=nisa.engine.gpsimd)
        for s in range(4):
            store_steps(results.acts, slots[s], hidden, block, saved[:, s])


def _tile(x: nl.NkiTensor, count: int) -> nl.NkiTensor:
    """A float32 tile `[P, count, columns]` for values beside `x[P, n, columns]`."""
    return nl.ndarray((x.shape[0], count, x.shape[2]), dtype=nl.float32, buffer=nl.sbuf)


def _scaled(
    dst: nl.NkiTensor, data: nl.NkiTensor, op0: str, number: float, op1: str, other: nl.NkiTensor
) -> None:
    """`dst = (data <op0> number) <op1> other`."""
    nisa.scalar_tensor_tensor(dst=dst, data=data, op0=op0, operand0=number, op1=op1, operand1=other)


def _lstm_step(
    after: nl.NkiTensor,
    x: nl.NkiTensor,
    h: nl.NkiTensor,
    tiles: Tiles,
    acts: nl.NkiTensor | None,
) -> None:
    """2 c = ((f' + 1) 2 c) / 2 + (i' + 1) g and 2 h = (o' + 1) tanh(c), where i' is 2 i - 1."""
    chunks = h.shape[1]
    z = _tile(x, 4 * chunks)
    add_product(z, tiles.weight, 0, h, x)
    t = _tile(x, 4 * chunks)
    nisa.activation(dst=t, op=nl.tanh, data=z)
    i, f = t[:, 0:chunks], t[:, chunks : 2 * chunks]
    o, g = t[:, 2 * chunks : 3 * chunks], t[:, 3 * chunks : 4 * chunks]
    kept, new, top = _tile(x, chunks), _tile(x, chunks), _tile(x, chunks)
    _scaled(kept, f, nl.add, 1.0, nl.multiply, tiles.c)
    _scaled(new, i, nl.add, 1.0, nl.multiply, g)
    _scaled(tiles.c, kept, nl.multiply, 0.5, nl.add, new)
    nisa.activation(dst=top, op=nl.tanh, data=tiles.c, scale=0.5)
    _scaled(after, o, nl.add, 1.0, nl.multiply, top)
    if acts is not None:
        _keep(acts, t)


def _gru_step(
    after: nl.NkiTensor,
    x: nl.NkiTensor,
    h: nl.NkiTensor,
    tiles: Tiles,
    acts: nl.NkiTensor | None,
) -> None:
    """n = tanh(xn + r hn) and h = (h - n) z + n, where hn has its bias."""
    p, chunks, columns = h.shape
    z, hn = _tile(x, 2 * chunks), _tile(x, chunks)
    add_product(z, tiles.weight, 0, h, x[:, 0 : 2 * chunks])
    bias = tiles.new_bias.reshape((p, chunks, 1)).broadcast(2, columns)
    add_product(hn, tiles.weight, 2 * chunks, h, bias)
    t = _tile(x, 2 * chunks)
    nisa.activation(dst=t, op=nl.tanh, data=z)
    n, moved = _tile(x, chunks), _tile(x, chunks)
    _scaled(n, t[:, 0:chunks], nl.add, 1.0, nl.multiply, hn)
    _scaled(n, n, nl.multiply, 0.5, nl.add, x[:, 2 * chunks : 3 * chunks])
    new = _tile(x, chunks)
    nisa.activation(dst=new, op=nl.tanh, data=n)
    nisa.tensor_tensor(dst=moved, data1=h, data2=new, op=nl.subtract)
    _scaled(moved, t[:, chunks : 2 * chunks], nl.add, 1.0, nl.multiply, moved)
    _scaled(after, moved, nl.multiply, 0.5, nl.add, new)
    if acts is not None:
        _keep(acts[:, 0:2], t)
        _keep(acts[:, 2:3], new)
        _keep(acts[:, 3:4], hn)


def _plain_step(
    after: nl.NkiTensor, x: nl.NkiTensor, h: nl.NkiTensor, tiles: Tiles, name: str
) -> None:
    z = _tile(x, h.shape[1])
    add_product(z, tiles.weight, 0, h, x)
    nisa.activation(dst=after, op=nl.relu if name == "relu" else nl.tanh, data=z)


def _keep(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """`dst[P, slots, chunks, columns]` <- `src[P, slots * chunks, columns]`, on GpSimdE."""
    slots = src.reshape((dst.shape[0], dst.shape[1], dst.shape[2], dst.shape[3]))
    nisa.tensor_copy(dst=dst, src=slots, engine=nisa.engine.gpsimd)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, no empty tensors, weights that fit into SBUF."""
    return reject_recurrence(b, "gates", ("bias_ih", "bias_hh", "h0", "c0"), hw)


def cost(b: Bindings) -> Cost:
    """A product with the weights each step; gates are read once, results written once."""
    rows, hidden = b.weight.shape
    _, steps, batch = b.gates.shape
    saved = (SAVED[b.cell] + (b.c0 is not None)) * b.saves
    size = b.gates.dtype.itemsize
    return Cost(
        matmul_flops=2 * rows * hidden * steps * batch,
        vector_flops=4 * rows * steps * batch,
        hbm_bytes=b.gates.nbytes + b.weight.nbytes + (1 + saved) * hidden * steps * batch * size,
    )


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The sizes of blocks for what a core gets."""
    rows, hidden = b.weight.shape
    _, steps, batch = b.gates.shape
    names = (
        "gates", "weight", "bias_ih", "bias_hh", "h0", "c0", "cell", "reverse", "gives_out",
        "gives_c", "saves",
    )  # fmt: skip
    block, columns = block_sizes(rows // hidden, hidden, steps, -(-batch // hw.cores))
    return Launch.of(recurrent_kernel, b, names, block, columns)


def reference(gives_out: bool, gives_c: bool, saves: bool, **arguments: Any) -> Any:
    """The op in float32, rounded to the dtype of the results."""
    out, c_n, cells, acts = _op(**arguments)
    is_lstm = arguments["cell"] == "lstm"
    returned = [
        *[out] * gives_out,
        *[c_n] * gives_c,
        *[cells] * (saves and is_lstm),
        *[acts] * saves,
    ]
    return returned[0] if len(returned) == 1 else tuple(returned)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each cell, both directions, ragged sizes of states, steps and batches, dtypes."""

    def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def sample(
        note: str,
        cell: str,
        sizes: tuple[int, int, int],
        dtype: torch.dtype = torch.float32,
        reverse: bool = False,
        biased: bool = True,
        saves: bool = False,
        gives_c: bool = False,
        gives_out: bool = True,
    ) -> Sample:
        hidden, steps, batch = sizes
        rows = {"lstm": 4, "gru": 3}.get(cell, 1) * hidden
        values: dict[str, Any] = {
            "gates": draw(rows, steps, batch, dtype=dtype),
            "weight": draw(rows, hidden, dtype=dtype) / (2 * hidden**0.5),
            "bias_ih": draw(rows, dtype=dtype) if biased else None,
            "bias_hh": draw(rows, dtype=dtype) if biased else None,
            "h0": draw(batch, hidden, dtype=dtype),
            "c0": draw(batch, hidden, dtype=dtype) if cell == "lstm" else None,
            "cell": cell, "reverse": reverse, "gives_out": gives_out, "gives_c": gives_c,
            "saves": saves,
        }  # fmt: skip
        # A state that is rounded the other way goes on through the next steps, damped; the biases
        # are added in another order.
        error = 16 * torch.finfo(dtype).eps
        return Sample(values, f"{cell}, {note}", error)

    for cell in ("tanh", "relu", "lstm", "gru"):
        yield sample("one of everything", cell, (1, 1, 1))
        yield sample("blocks and a rest", cell, (20, 37, 3))
        yield sample("backwards", cell, (127, 18, 2), reverse=True)
        yield sample("129 rows, no bias", cell, (129, 3, 5), biased=False)
        yield sample("bfloat16", cell, (128, 5, 4), torch.bfloat16)
    for cell in ("lstm", "gru"):
        is_lstm = cell == "lstm"
        yield sample("for gradients", cell, (130, 19, 3), saves=True, gives_c=is_lstm)
        yield sample("for gradients, backwards", cell, (7, 20, 2), reverse=True, saves=True)
        yield sample("float16", cell, (40, 6, 2), torch.float16, saves=True)
    yield sample("the last cell state", "lstm", (64, 5, 2), gives_c=True)
    yield sample("nothing else", "lstm", (64, 18, 2), gives_c=True, gives_out=False)
    yield sample("many sequences", "lstm", (16, 2, 1100))


def _pattern(cell: str, read: tuple[int, ...]) -> Pattern:
    """A call of which the results `read` are used."""

    def function(
        gates: torch.Tensor,
        weight: torch.Tensor,
        bias_ih: torch.Tensor | None,
        bias_hh: torch.Tensor | None,
        h0: torch.Tensor,
        c0: torch.Tensor | None,
        reverse: bool,
    ) -> Any:
        results = _op(gates, weight, bias_ih, bias_hh, h0, c0, cell, reverse)
        return results[read[0]] if len(read) == 1 else tuple(results[i] for i in read)

    constants = {"cell": cell, "gives_out": 0 in read, "gives_c": 1 in read, "saves": 3 in read}
    return Pattern(function, constants)


_READ = {
    "relu": ((0,),),
    "tanh": ((0,),),
    "gru": ((0,), (0, 3)),
    "lstm": ((0,), (1,), (0, 1), (0, 2, 3), (0, 1, 2, 3)),
}

register(
    KernelSpec(
        name="recurrent",
        patterns=tuple(_pattern(cell, read) for cell, every in _READ.items() for read in every),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=recurrent_kernel,
        launch=launch,
    )
)
