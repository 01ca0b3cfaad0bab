"""`gated_mlp`: `(activation(x @ gate.T) * (x @ up.T)) @ down.T + residual` as one kernel: the MLP
of Llama and its kin.

x `[..., K]`, gate and up `[I, K]`, down `[N, I]`, residual `[..., N]`, of one dtype: float32,
bfloat16 or float16. Weights are the stationary operands of the first two products, so that their
results have I on the partitions, as the third one reads it, and stay in SBUF. Weights are read once
for up to 512 rows. Sums, activation and product are float32; what down multiplies is rounded to the
dtype once.

Both cores of a logical core share the rows, or, where they are few, I (of gate and up) and N (of
down): then they exchange their parts of what lies between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    COLUMN_UNIT,
    STREAM,
    leading_dims_merge,
    operand_layout,
    weight_layout,
    weight_layout_beside,
)
from trnx.nki_kernels.kernels._cores import share_of, share_of_program
from trnx.nki_kernels.kernels._matmul import multiply
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue, activation_function
from trnx.nki_kernels.kernels._operands import MatmulOperand, load_operand, piece_rows, segments_of
from trnx.nki_kernels.kernels._streamed import (
    AHEAD,
    load_few_rows,
    load_transposed,
    loads_of,
    multiply_loaded,
    stream_product,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

# Rows of a block: one bank of PSUM. From so many on, cores share them.
_MOST_ROWS = 512
# I is cut between cores at multiples of this, a quadrant of the partitions.
_INNER_UNIT = 32
_LEAST_INNER = 128
# Bytes of down's weights that are loaded before the cores exchange what it multiplies, so that DMA
# does not wait for that; 16 us of loads.
_BYTES_AHEAD = 6 * 1024 * 1024
_GATES = {name: function for name, function in ACTIVATIONS.items() if name != "none"}


class _Weights(NamedTuple):
    """gate and up `[I, K]`, down `[N, I]`."""

    gate: MatmulOperand
    up: MatmulOperand
    down: MatmulOperand


class _Share(NamedTuple):
    """A program's part: of N, and of I where `exchanges`, by core; else all of I."""

    columns: tuple[int, int]
    inner: list[tuple[int, int]]
    exchanges: bool


class _Loaded(NamedTuple):
    """Tiles of weights in SBUF, in the order in which they are used."""

    gate: list[nl.NkiTensor]
    up: list[nl.NkiTensor]
    down: list[nl.NkiTensor]


@nki.jit
def gated_mlp_kernel(
    x: nl.NkiTensor,
    gate: nl.NkiTensor,
    up: nl.NkiTensor,
    down: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    activation: str,
    x_layout: str,
    x_merged: bool,
    gate_layout: str,
    up_layout: str,
    down_layout: str,
    block_rows: int,
    keep: bool,
    by_rows: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[..., K]`, gate, up `[I, K]`, down `[N, I]`, residual `[..., N]` -> `[..., N]`;
    `keep`: weights stay in SBUF for all blocks of rows. `cores` share rows (`by_rows`), or I and N.
    """
    columns = down.shape[0]
    out = nl.ndarray(x.shape[:-1] + (columns,), dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.size // x.shape[-1]
    flat = out.reshape((rows, columns))
    if residual is not None:
        residual = residual.reshape((rows, columns))
    operand = MatmulOperand(segments_of(x, x_merged), x_layout)
    weights = _Weights(
        MatmulOperand([gate], gate_layout),
        MatmulOperand([up], up_layout),
        MatmulOperand([down], down_layout),
    )
    row, end_row = 0, rows
    share = _Share((0, columns), [(0, gate.shape[0])], False)
    if by_rows or nl.program_id(0) >= cores:
        row, end_row = share_of(rows, cores)
    elif cores > 1:
        parts = []
        for core in range(cores):
            parts.append(share_of_program(gate.shape[0], cores, _INNER_UNIT, core))
        share = _Share(share_of(columns, cores, COLUMN_UNIT), parts, True)
    if gate_layout == STREAM:
        if row < end_row:
            data = load_few_rows(x.reshape((rows, x.shape[-1])))
            hidden = _streamed_hidden(data, gate, up, activation)
            if down_layout == STREAM:
                stream_product(flat, hidden, down, Epilogue(None, residual, "none"), (0, columns))
            else:
                _down(flat, residual, row, [hidden], weights, _Loaded([], [], []), share)
        return out
    loaded = _Loaded([], [], [])
    for first in range(row, end_row, block_rows):
        count = min(block_rows, end_row - first)
        data = load_operand(operand, first, count, 0, x.shape[-1])
        if not keep:
            loaded = _Loaded([], [], [])
        _block(flat, residual, first, data, weights, loaded, activation, share)
    return out


def _streamed_hidden(
    data: nl.NkiTensor, gate: nl.NkiTensor, up: nl.NkiTensor, activation: str
) -> nl.NkiTensor:
    """`activation(gate) * up`, `[128, chunks of I, rows]`, of few rows `data[128, chunks of K,
    rows]`; gate and up are loaded in turns."""
    inner, depth = gate.shape
    pmax = nl.tile_size.pmax
    rows = data.shape[2]
    shape = (pmax, (inner + pmax - 1) // pmax, rows)
    hidden = nl.ndarray(shape, dtype=data.dtype, buffer=nl.sbuf)
    loads = loads_of((0, inner), depth)
    weights = (gate, up)
    tiles = []  # type: list[nl.NkiTensor]
    banks = []  # type: list[nl.NkiTensor]
    for number in range(2 * len(loads) + AHEAD):
        if number < 2 * len(loads):
            tiles.append(load_transposed(weights[number % 2], loads[number // 2]))
        if number < AHEAD:
            continue
        done = number - AHEAD
        load = loads[done // 2]
        if load.k == 0 and done % 2 == 0:
            banks = []
            for _ in range(2):
                banks.append(nl.ndarray((load.cols, rows), dtype=nl.float32, buffer=nl.psum))
        multiply_loaded(banks[done % 2], tiles[done], data, load.k)
        if load.k + load.ks == depth and done % 2 == 1:
            target = hidden[0 : load.cols, load.col // pmax, :]
            _gate(target, banks[0], banks[1], activation)
    return hidden


def _gate(dst: nl.NkiTensor, gated: nl.NkiTensor, upped: nl.NkiTensor, activation: str) -> None:
    """`dst = activation(gated) * upped`, sums in PSUM, rounded once."""
    active = nl.ndarray(gated.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=active, op=activation_function(activation), data=gated)
    nisa.tensor_tensor(dst=dst, data1=active, data2=upped, op=nl.multiply)


def _block(
    out: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    row: int,
    data: nl.NkiTensor,
    weights: _Weights,
    loaded: _Loaded,
    activation: str,
    share: _Share,
) -> None:
    """Rows `row ..` of the result, from `data[128, chunks of K, rows]` of x."""
    if not share.exchanges:
        hidden = _hidden(data, weights, loaded, activation, share.inner[0], share.inner[0])
        _down(out, residual, row, [hidden], weights, loaded, share)
        return
    core = nl.program_id(0)
    own = _hidden(data, weights, loaded, activation, share.inner[core], share.inner[0])
    _load_down(loaded, weights, share, _BYTES_AHEAD)
    other = nl.ndarray(own.shape, dtype=own.dtype, buffer=nl.sbuf)
    nisa.sendrecv(src=own, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    parts = [own, other] if core == 0 else [other, own]
    _down(out, residual, row, parts, weights, loaded, share)


def _hidden(
    data: nl.NkiTensor,
    weights: _Weights,
    loaded: _Loaded,
    activation: str,
    inner: tuple[int, int],
    longest: tuple[int, int],
) -> nl.NkiTensor:
    """`activation(gate) * up` of the indices `inner` of I, `[128, chunks, rows]`, with room for as
    many chunks as `longest` has.
    """
    pmax = nl.tile_size.pmax
    depth = weights.gate.segments[0].shape[1]
    rows = data.shape[2]
    most = longest[1] - longest[0]
    shape = (min(most, pmax), (most + pmax - 1) // pmax, rows)
    hidden = nl.ndarray(shape, dtype=data.dtype, buffer=nl.sbuf)
    step = piece_rows(weights.gate, depth, pmax)
    for first in range(inner[0], inner[1], step):
        count = min(step, inner[1] - first)
        piece = (first - inner[0]) // step
        if len(loaded.gate) == piece:
            loaded.gate.append(load_operand(weights.gate, first, count, 0, depth))
            loaded.up.append(load_operand(weights.up, first, count, 0, depth))
        for start in range(0, count, pmax):
            width = min(pmax, count - start)
            gated = nl.ndarray((width, rows), dtype=nl.float32, buffer=nl.psum)
            upped = nl.ndarray((width, rows), dtype=nl.float32, buffer=nl.psum)
            multiply(gated, loaded.gate[piece], start, data, 0, depth)
            multiply(upped, loaded.up[piece], start, data, 0, depth)
            target = hidden[0:width, (first - inner[0] + start) // pmax, :]
            _gate(target, gated, upped, activation)
    return hidden


def _down_steps(weights: _Weights, share: _Share) -> tuple[int, int]:
    """Columns and indices of I of a tile of down."""
    longest = share.inner[0][1] - share.inner[0][0]
    inner = min(longest, piece_rows(weights.down, nl.tile_size.psum_bank_fmax, nl.tile_size.pmax))
    return piece_rows(weights.down, inner, nl.tile_size.psum_bank_fmax), inner


def _load_down(loaded: _Loaded, weights: _Weights, share: _Share, nbytes: int) -> None:
    """The next tiles of down's weights, about `nbytes` of them."""
    columns, inner = _down_steps(weights, share)
    moved = 0
    number = 0
    for col in range(share.columns[0], share.columns[1], columns):
        cols = min(columns, share.columns[1] - col)
        for part in share.inner:
            for first in range(part[0], part[1], inner):
                count = min(inner, part[1] - first)
                if number == len(loaded.down) and (moved < nbytes):
                    loaded.down.append(load_operand(weights.down, col, cols, first, count))
                    moved = moved + cols * count * 2
                number = number + 1


def _down(
    out: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    row: int,
    parts: list[nl.NkiTensor],
    weights: _Weights,
    loaded: _Loaded,
    share: _Share,
) -> None:
    """`out[row ..] = hidden @ down.T + residual`, of the share's columns; `parts` of hidden lie
    next to each other in I.
    """
    pmax = nl.tile_size.pmax
    rows = parts[0].shape[2]
    columns, inner = _down_steps(weights, share)
    number = 0
    for col in range(share.columns[0], share.columns[1], columns):
        cols = min(columns, share.columns[1] - col)
        tiles = []
        for core in range(len(parts)):
            part = share.inner[core]
            for first in range(part[0], part[1], inner):
                count = min(inner, part[1] - first)
                if number == len(loaded.down):
                    loaded.down.append(load_operand(weights.down, col, cols, first, count))
                chunk = (first - part[0]) // pmax
                tiles.append((parts[core][:, chunk:, :], loaded.down[number], count))
                number = number + 1
        for start in range(0, rows, pmax):
            count = min(pmax, rows - start)
            place = (row + start, count, col, cols)
            _finish(out, residual, place, tiles, start)


def _finish(
    out: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    place: tuple[int, int, int, int],
    tiles: list[tuple[nl.NkiTensor, nl.NkiTensor, int]],
    start: int,
) -> None:
    """A tile of the result: first row, rows, first column and columns of it are `place`."""
    row, rows, col, cols = place
    result = nl.ndarray((rows, cols), dtype=out.dtype, buffer=nl.sbuf)
    added = None
    if residual is not None:
        added = nl.ndarray((rows, cols), dtype=residual.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=added, src=residual[row : row + rows, col : col + cols])
    bank = nl.tile_size.psum_bank_fmax
    for left in range(0, cols, bank):
        width = min(bank, cols - left)
        total = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
        for tile in tiles:
            multiply(total, tile[0], start, tile[1], left, tile[2])
        target = result[:, left : left + width]
        if added is not None:
            more = added[:, left : left + width]
            nisa.tensor_tensor(dst=target, data1=total, data2=more, op=nl.add)
        elif left // bank % 2 == 0:
            nisa.tensor_copy(dst=target, src=total)
        else:  # ScalarE has as much time
            nisa.activation(dst=target, op=nl.copy, data=total)
    nisa.dma_copy(dst=out[row : row + rows, col : col + cols], src=result)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Any sizes but zero that leave room in SBUF for a block of rows; one dtype for all."""
    if reject := reject_dtypes(b, "x"):
        return reject
    for name in ("gate", "up", "down", "residual"):
        if b[name] is not None and b[name].dtype != b.x.dtype:
            return Reject(f"{name} is {b[name].dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.x.ndim < 1 or {b.gate.ndim, b.up.ndim, b.down.ndim} != {2}:
        return Reject(f"x{b.x.shape} has no rows, or a weight is no matrix")
    if b.x.numel == 0 or b.down.numel == 0:
        return Reject(f"an empty product: x{b.x.shape}, down{b.down.shape}")
    wanted = (b.down.shape[1], b.x.shape[-1])
    if (b.gate.shape, b.up.shape) != (wanted, wanted):
        return Reject(f"gate{b.gate.shape} and up{b.up.shape} are not {wanted}")
    result = (*b.x.shape[:-1], b.down.shape[0])
    if b.residual is not None and b.residual.shape != result:
        return Reject(f"the added tensor has shape {b.residual.shape}, the result {result}")
    if not _blocks(b, hw)[0]:
        return Reject(f"128 rows of {wanted[1]} and {wanted[0]} elements do not fit in SBUF")
    return None


def _blocks(b: Bindings, hw: Hardware) -> tuple[int, bool, bool]:
    """Rows of a block (0 where none fits), whether weights stay, and whether cores share rows."""
    size, rows = b.x.dtype.itemsize, b.x.numel // b.x.shape[-1]
    inner, depth = (-(-count // hw.partitions) for count in b.gate.shape)
    by_rows = rows >= _MOST_ROWS or b.gate.shape[0] < _LEAST_INNER
    own_rows = -(-rows // hw.cores) if by_rows else rows
    room = hw.sbuf_partition_bytes * 7 // 8
    # Two tiles each of gate and up, of a chunk at least, and three of 8 KiB of down.
    piece = max(depth * hw.partitions * size, 8192)
    all_weights = (2 * depth * b.gate.shape[0] + inner * b.down.shape[0]) * size
    for block in (_MOST_ROWS, _MOST_ROWS // 2, hw.partitions):
        block = min(block, own_rows)
        # x of two blocks, what lies between, and four float32 tiles of one bank.
        needed = (2 * depth + 2 * inner) * block * size + 4 * hw.psum_bank_bytes
        if needed + 4 * piece + 4 * 8192 <= room:
            return block, own_rows > block and needed + all_weights <= room, by_rows
    return 0, False, by_rows


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides allow, and the blocks of rows."""
    layouts = [weight_layout_beside(b.x, spec, hw) for spec in (b.gate, b.up)]
    if layouts == [STREAM, STREAM]:
        layouts.append(weight_layout(b.x.numel // b.x.shape[-1], b.down, hw))
    else:
        layouts = [operand_layout(spec, hw) for spec in (b.gate, b.up, b.down)]
    names = ("x", "gate", "up", "down", "residual", "activation")
    given = (operand_layout(b.x, hw), leading_dims_merge(b.x), *layouts, *_blocks(b, hw))
    return Launch.of(gated_mlp_kernel, b, names, *given)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; every operand crosses HBM once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    tensors = (b.x, b.gate, b.up, b.down, b.residual)
    result = rows * b.down.shape[0]
    return Cost(
        matmul_flops=2 * rows * (b.gate.numel + b.up.numel + b.down.numel),
        vector_flops=3 * rows * b.gate.shape[0] + result * (1 + (b.residual is not None)),
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None) + result * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    residual: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    """The same in float32; what down multiplies is rounded, and the result."""
    active = _GATES[activation](F.linear(x.float(), gate.float()))
    hidden = (active * F.linear(x.float(), up.float())).to(x.dtype)
    result = F.linear(hidden.float(), down.float())
    if residual is not None:
        result = result + residual.float()
    return result.to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, both layouts of weights, every activation, several blocks of rows."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        sizes: tuple[int, int, int],
        activation: str = "silu",
        dtype: torch.dtype = torch.float32,
        residual: bool = False,
        turned: bool = False,
    ) -> Sample:
        def values(*shape: int) -> torch.Tensor:
            scaled = torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
            return scaled.to(dtype)

        def weight(*shape: int) -> torch.Tensor:
            return values(*shape).mT.contiguous().mT if turned else values(*shape)

        depth, inner, columns = sizes
        x = torch.randn((*rows, depth), generator=generator).to(dtype)
        gate, up, down = weight(inner, depth), weight(inner, depth), weight(columns, inner)
        more = torch.randn((*rows, columns), generator=generator).to(dtype) if residual else None
        named = {"x": x, "gate": gate, "up": up, "down": down, "residual": more}
        # A value between the products may round to either neighbour, and so may all of a sum.
        hidden = F.linear(x.float(), gate.float()).abs() * F.linear(x.float(), up.float()).abs()
        spread = F.linear(hidden + 1e-3, down.float().abs()).max().item()
        error = torch.finfo(dtype).eps * spread
        return Sample({**named, "activation": activation}, note, error)

    for rows in (1, 2, 127, 128, 129, 513):
        yield sample(f"{rows} rows", (rows,), (65, 66, 67))
    for size in (1, 127, 129, 513):
        yield sample(f"K = {size}", (3,), (size, 70, 66))
        yield sample(f"I = {size}", (3,), (66, size, 70), turned=True)
        yield sample(f"N = {size}", (3,), (66, 70, size), residual=True)
    for activation in _GATES:
        yield sample(activation, (2, 5), (64, 160, 64), activation)
    for dtype in (torch.bfloat16, torch.float16):
        for rows in (1, 129):
            yield sample(f"{dtype}, {rows} rows", (rows,), (200, 300, 140), dtype=dtype)
        yield sample(f"{dtype}, residual", (2, 70), (200, 300, 140), "gelu", dtype, True, True)
    yield sample("one dimension", (), (64, 96, 64))
    yield sample("blocks of rows", (1100,), (64, 130, 66), residual=True, turned=True)
    yield sample("long K and I", (4,), (2200, 1300, 600), dtype=torch.bfloat16, turned=True)


def _with_activation(activation: str) -> tuple[Pattern, Pattern]:
    def product(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Any:
        gated = _GATES[activation](aten.linear.default(x, gate, None))
        return aten.linear.default(
            aten.mul.Tensor(gated, aten.linear.default(x, up, None)), down, None
        )

    def with_residual(
        x: torch.Tensor,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        residual: torch.Tensor,
    ) -> Any:
        return aten.add.Tensor(product(x, gate, up, down), residual)

    constants = {"activation": activation}
    return Pattern(product, {"residual": None, **constants}), Pattern(with_residual, constants)


register(
    KernelSpec(
        name="gated_mlp",
        patterns=tuple(pattern for name in _GATES for pattern in _with_activation(name)),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=gated_mlp_kernel,
        launch=launch,
        strided=frozenset({"x", "gate", "up", "down"}),
        fuses=True,
    )
)
