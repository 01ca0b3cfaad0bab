"""`linear_weight_gradient`: the gradients of weight and bias of a linear layer, of one load, or of
three layers with one input, such as query, key and value.

`gradient[R, N]` and `x[R, K]` -> `gradient.T @ x` `[N, K]` and the sums of the gradient's columns,
`[1, N]`; of `gradient_1` and `gradient_2`, if there are such, the same. A gradient is in SBUF for
the product, with its rows on the partitions, which products with ones add up; of 2-byte dtypes
GpSimd adds up the chunks before, where there is time. Sums are float32, rounded once; those of
float32 as exact as `_float_parts` makes them. float32, bfloat16 or float16, one dtype; as many rows
as stay in SBUF.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    COLUMNS,
    block_sizes,
    part_sizes,
    shares_rows,
    stay_in_sbuf,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._float_parts import add_sums, parts_of
from trnx.nki_kernels.kernels._matmul import Blocks, part_of, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand, Pieces, pieces_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
# From this many columns of a product on it takes longer than GpSimd's sums; by schedule.
_MANY_COLUMNS = 768
# Chunks of float32 that are split into parts together: 8 KiB per partition.
_CHUNKS_IN_PARTS = 8
_GRADIENTS = ("gradient", "gradient_1", "gradient_2")


@nki.jit
def linear_weight_gradient_kernel(
    gradient: nl.NkiTensor,
    gradient_1: nl.NkiTensor | None,
    gradient_2: nl.NkiTensor | None,
    x: nl.NkiTensor,
    block_rows: int,
    block_columns: int,
    block_depth: int,
    by_rows: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, ...]:
    """gradients `[R, N]`, x `[R, K]` -> `[N, K]`, `[1, N]` for each gradient; `cores` share N, or
    K, and then the sums."""
    columns = x.shape[1]
    results = []
    turned = []
    outs = []
    lines = []
    for given in (gradient, gradient_1, gradient_2):
        if given is not None:
            rows = given.shape[1]
            outs.append(nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm))
            sums = nl.ndarray((1, rows), dtype=x.dtype, buffer=nl.shared_hbm)
            lines.append(sums.reshape((rows, 1)))
            turned.append(given.permute((1, 0)))
            results.append(outs[len(outs) - 1])
            results.append(sums)
    narrow = nl.bfloat16 if x.dtype == nl.float32 else x.dtype
    ones = nl.ndarray((nl.tile_size.pmax, 1), dtype=narrow, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    part = part_of(len(outs) * gradient.shape[1], columns, by_rows, cores)
    kept = []  # type: list[Any]
    product(
        outs[0],
        MatmulOperand(turned, COLUMNS),
        MatmulOperand([x.permute((1, 0))], COLUMNS),
        Blocks(block_rows, block_columns, block_depth, True),
        Epilogue(None, None, "none", None, None, tuple(outs[1:])),
        part,
        kept,
    )
    depth = gradient.shape[0]
    on_gpsimd = x.dtype != nl.float32 and _adds_chunks(part.end_col - part.col, depth)
    most = nl.tile_size.psum_bank_fmax if on_gpsimd else nl.tile_size.pmax
    every = _columns_of(lines, part.row, kept, most)
    start, end = 0, len(every)
    if not by_rows:
        start, end = share_of(len(every), cores)
    for run in _runs_of(every[start:end], on_gpsimd):
        if on_gpsimd:
            _store_added(run, ones, depth)
        else:
            _store_sums(run, ones, depth, _takes_turns(part.end_col - part.col))
    return tuple(results)


def _adds_chunks(columns: int, depth: int) -> bool:
    """Whether GpSimd adds up the chunks of a 2-byte dtype, which takes less time than the product
    has: TensorE would take 64 cycles for each of them and 128 columns. On NeuronCore-v2 it would
    keep VectorE from SBUF."""
    is_gen2 = nisa.get_nc_version() == nisa.nc_version.gen2
    return not is_gen2 and columns >= _MANY_COLUMNS and depth >= 2 * nl.tile_size.pmax


def _takes_turns(columns: int) -> bool:
    """Whether VectorE splits half of what is float32: GpSimd would take longer than the product. On
    NeuronCore-v2 they would wait for each other."""
    is_gen2 = nisa.get_nc_version() == nisa.nc_version.gen2
    return not is_gen2 and columns < _MANY_COLUMNS


class _Columns(NamedTuple):
    """Columns of a gradient, `[128, chunks, columns]` in SBUF, from `first` of all that have their
    sums in `line`, `[rows, 1]` in HBM, the one of that `number`."""

    number: int
    line: nl.NkiTensor
    first: int
    data: nl.NkiTensor


def _columns_of(
    lines: list[nl.NkiTensor], row: int, kept: list[Pieces], most: int
) -> list[_Columns]:
    """All columns of `kept`, at most so many together, whose sums are those from `row` of the lines
    below each other."""
    found = []  # type: list[_Columns]
    for block in kept:
        for tile in block.tiles:
            done = 0
            for piece in pieces_of(lines, row, tile.shape[2]):
                for start in range(0, piece[2], most):
                    count = min(most, piece[2] - start)
                    data = tile[:, :, done + start : done + start + count]
                    number = (row + done) // piece[0].shape[0]
                    found.append(_Columns(number, piece[0], piece[1] + start, data))
                done = done + piece[2]
            row = row + tile.shape[2]
    return found


def _runs_of(every: list[_Columns], is_ragged: bool) -> list[list[_Columns]]:
    """Columns whose sums are stored together: of one line, and unless `is_ragged` 128 each."""
    pmax = nl.tile_size.pmax
    runs = []  # type: list[list[_Columns]]
    for columns in every:
        joins = False
        if len(runs) > 0:
            run = runs[len(runs) - 1]
            whole = run[0].data.shape[2] == pmax and columns.data.shape[2] == pmax
            joins = run[0].number == columns.number and (whole or is_ragged)
            joins = joins and len(run) < nl.tile_size.psum_bank_fmax
        if joins:
            runs[len(runs) - 1].append(columns)
        else:
            runs.append([columns])
    return runs


def _store_sums(run: list[_Columns], ones: nl.NkiTensor, depth: int, turns: bool) -> None:
    """The sums over the contraction of columns that follow each other, all by TensorE. `turns`:
    VectorE splits half of those of float32."""
    line, first = run[0].line, run[0].first
    count = run[0].data.shape[2]
    shape = (count, len(run))
    total = nl.ndarray(shape, dtype=line.dtype, buffer=nl.sbuf)
    bank = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    if line.dtype == nl.float32:
        more = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
        for place in range(len(run)):
            sums = (bank[:, place : place + 1], more[:, place : place + 1])
            engine = nisa.engine.vector if turns and place % 2 == 1 else nisa.engine.gpsimd
            _add_parts(sums, run[place].data, ones, depth, engine)
        add_sums(total, bank, more)
    else:
        for place in range(len(run)):
            _add_chunks(bank[:, place : place + 1], run[place].data, ones, depth)
        nisa.tensor_copy(dst=total, src=bank)
    dst = line[first : first + len(run) * count].reshape_dim(0, (len(run), count))
    nisa.dma_copy(dst=dst.permute((1, 0, 2)), src=total.expand_dim(2))


def _add_chunks(sums: nl.NkiTensor, data: nl.NkiTensor, ones: nl.NkiTensor, depth: int) -> None:
    """`sums[columns, 1]` in PSUM += those of `data[128, chunks, columns]` over `depth`."""
    pmax = nl.tile_size.pmax
    for k in range(0, depth, pmax):
        part = min(pmax, depth - k)
        nisa.nc_matmul(
            dst=sums,
            stationary=data[0:part, k // pmax],
            moving=ones[0:part],
            is_moving_onezero=True,
        )


def _add_parts(
    sums: tuple[nl.NkiTensor, nl.NkiTensor],
    data: nl.NkiTensor,
    ones: nl.NkiTensor,
    depth: int,
    engine: object,
) -> None:
    """The same of the first parts of float32, and of the others."""
    pmax = nl.tile_size.pmax
    whole = depth // pmax
    pieces = []
    for first in range(0, whole, _CHUNKS_IN_PARTS):
        pieces.append(data[:, first : min(whole, first + _CHUNKS_IN_PARTS)])
    if depth % pmax > 0:
        pieces.append(data[0 : depth % pmax, whole : whole + 1])
    for piece in pieces:
        rows = piece.shape[0] * piece.shape[1]
        parts = parts_of(piece, engine)
        _add_chunks(sums[0], parts.first, ones, rows)
        for part in parts.more:
            _add_chunks(sums[1], part, ones, rows)


def _store_added(run: list[_Columns], ones: nl.NkiTensor, depth: int) -> None:
    """The same of chunks that GpSimd adds up while TensorE has the product, which then adds up the
    partitions of their sums."""
    pmax = nl.tile_size.pmax
    wide = nl.ndarray(ones.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=wide, value=1.0, engine=nisa.engine.gpsimd)
    count = 0
    for columns in run:
        count = count + columns.data.shape[2]
    total = nl.ndarray((1, count), dtype=run[0].line.dtype, buffer=nl.sbuf)
    done = 0
    whole = depth // pmax
    rest = depth % pmax
    for number in range(len(run)):
        data = run[number].data
        end = done + data.shape[2]
        bank = nl.ndarray((1, data.shape[2]), dtype=nl.float32, buffer=nl.psum)
        added = _sum_of_chunks(data[:, 0:whole])
        nisa.nc_matmul(dst=bank, stationary=wide, moving=added, is_stationary_onezero=True)
        if rest > 0:
            nisa.nc_matmul(
                dst=bank,
                stationary=ones[0:rest],
                moving=data[0:rest, whole],
                is_stationary_onezero=True,
            )
        engine = nisa.engine.vector if number % 2 == 0 else nisa.engine.scalar
        nisa.tensor_copy(dst=total[:, done:end], src=bank, engine=engine)
        done = end
    first = run[0].first
    nisa.dma_copy(dst=run[0].line[first : first + count].permute((1, 0)), src=total)


def _sum_of_chunks(data: nl.NkiTensor) -> nl.NkiTensor:
    """`[128, columns]`, float32: the sum of the chunks of `data[128, chunks, columns]`, two at
    least."""
    added = nl.ndarray((data.shape[0], data.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    before = data[:, 0]
    for chunk in range(1, data.shape[1]):
        nisa.tensor_tensor(
            dst=added,
            data1=before,
            data2=data[:, chunk],
            op=nl.add,
            engine=nisa.engine.gpsimd,
        )
        before = added
    return added


def _gradients_of(b: Bindings) -> list[Any]:
    """One, or three."""
    return [b[name] for name in _GRADIENTS if b[name] is not None]


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, gradients of one size, and a core's part of them stays in SBUF beside blocks of
    x."""
    if reject := reject_dtypes(b, "gradient", "x"):
        return reject
    for spec in _gradients_of(b):
        if spec.dtype != b.x.dtype:
            return Reject(f"gradient is {spec.dtype} but x is {b.x.dtype}; one dtype is needed")
        if spec.ndim != 2 or b.x.ndim != 2 or spec.shape[0] != b.x.shape[0]:
            return Reject(f"gradient{spec.shape} and x{b.x.shape} are not rows of one batch")
        if spec.shape != b.gradient.shape:
            return Reject(f"gradients of {b.gradient.shape} and {spec.shape} differ in size")
    if b.gradient.numel == 0 or b.x.numel == 0:
        return Reject(f"an empty product: gradient{b.gradient.shape}, x{b.x.shape}")
    depth = b.x.shape[0]
    rows, _ = _part(b, hw)
    is_deep = block_sizes(*_part(b, hw), depth, b.x.dtype.itemsize, hw)[2] < depth
    if is_deep or not stay_in_sbuf(rows, depth, b.x.dtype.itemsize, hw):
        return Reject(f"gradient{b.gradient.shape} does not stay in SBUF")
    return None


def _rows(b: Bindings) -> int:
    """Those of all gradients, turned."""
    return len(_gradients_of(b)) * int(b.gradient.shape[1])


def _part(b: Bindings, hw: Hardware) -> tuple[int, int]:
    """Rows and columns of a core's part of the weights' gradients."""
    return part_sizes(_rows(b), b.x.shape[1], hw.cores, _by_rows(b))


def _by_rows(b: Bindings) -> bool:
    """Whether cores share its rows."""
    return shares_rows(_rows(b), b.x.shape[1])


def _block_rows(b: Bindings, hw: Hardware, most: int) -> int:
    """Rows of a block: of one gradient alone where they can, because loads of two into one tile
    wait for each other."""
    own, _ = _part(b, hw)
    unit = hw.partitions
    whole = (n for n in range(most, 0, -unit) if b.gradient.shape[1] % n == 0 and own % n == 0)
    return most if len(_gradients_of(b)) == 1 else next(whole, most)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The block sizes."""
    sizes = block_sizes(*_part(b, hw), b.x.shape[0], b.x.dtype.itemsize, hw)
    given = (_block_rows(b, hw, sizes[0]), *sizes[1:3], _by_rows(b))
    return Launch.of(linear_weight_gradient_kernel, b, (*_GRADIENTS, "x"), *given)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add and per addend; every operand crosses HBM once."""
    rows, columns = _rows(b), b.x.shape[1]
    return Cost(
        matmul_flops=2 * rows * b.x.shape[0] * (columns + 1),
        vector_flops=rows * (columns + 1),
        hbm_bytes=sum(spec.nbytes for spec in _gradients_of(b))
        + b.x.nbytes
        + rows * (columns + 1) * b.x.dtype.itemsize,
    )


def reference(
    gradient: torch.Tensor,
    gradient_1: torch.Tensor | None,
    gradient_2: torch.Tensor | None,
    x: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """The same in float32, rounded once."""
    found: list[torch.Tensor] = []
    for given in (gradient, gradient_1, gradient_2):
        if given is not None:
            wide = given.float()
            found += [(wide.T @ x.float()).to(x.dtype), wide.sum(0, keepdim=True).to(x.dtype)]
    return tuple(found)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged rows, columns and K, several blocks."""

    def sample(
        note: str,
        rows: int,
        columns: int,
        depth: int,
        dtype: torch.dtype = torch.float32,
        count: int = 1,
    ) -> Sample:
        values: dict[str, torch.Tensor | None] = dict.fromkeys(_GRADIENTS)
        for name in _GRADIENTS[:count]:
            values[name] = torch.randn(depth, rows, generator=generator).to(dtype)
        values["x"] = torch.randn(depth, columns, generator=generator).to(dtype)
        # What a float32 sum of a column loses where its terms cancel.
        terms = max(g.float().abs().sum(0).max().item() for g in values.values() if g is not None)
        return Sample(values, note, torch.finfo(torch.float32).eps * terms if count > 1 else 0.0)

    for size in (1, 2, 127, 128, 129, 300):
        yield sample(f"{size} rows", size, 66, 130)
        yield sample(f"{size} columns", 66, size, 65)
        yield sample(f"a batch of {size}", 300, 70, size)
    yield sample("more rows than a block", 1100, 40, 64)
    yield sample("several columns of banks", 600, 1100, 130)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 390, 140, 300, dtype)
        yield sample(f"{dtype}, three", 256, 140, 130, dtype, count=3)
    for size in (1, 127, 300):
        yield sample(f"three, {size} rows", size, 66, 130, count=3)
    yield sample("three, more columns than rows", 130, 600, 140, count=3)
    yield sample("chunks added up on GpSimd", 130, 1540, 300)
    yield sample("the same, three", 200, 780, 257, torch.bfloat16, count=3)


def _gradients(gradient: torch.Tensor, x: torch.Tensor) -> Any:
    turned = aten.transpose.int(gradient, 0, 1)
    product = aten.linear.default(turned, aten.transpose.int(x, 0, 1), None)
    return product, aten.sum.dim_IntList(gradient, [0], True)


def _three_gradients(
    gradient: torch.Tensor, gradient_1: torch.Tensor, gradient_2: torch.Tensor, x: torch.Tensor
) -> Any:
    turned = aten.transpose.int(x, 0, 1)
    found: list[Any] = []
    for given in (gradient, gradient_1, gradient_2):
        product = aten.linear.default(aten.transpose.int(given, 0, 1), turned, None)
        found += [product, aten.sum.dim_IntList(given, [0], True)]
    return tuple(found)


register(
    KernelSpec(
        name="linear_weight_gradient",
        patterns=(
            Pattern(_three_gradients),
            Pattern(_gradients, {"gradient_1": None, "gradient_2": None}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=linear_weight_gradient_kernel,
        launch=launch,
        fuses=True,
    )
)
