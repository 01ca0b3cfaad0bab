"""`mlp_layer_norm`: an MLP, its residual and the layer norm behind it, as transformers have them.

`total = activation(x[..., K] @ weight[I, K].T + bias[I]) @ down[N, I].T + down_bias[N] +
residual[..., N]`, normalised over N; `total` too where it is wanted, as norms before products need
it. Weights are the stationary operand of the first product, so that its results have I on the
partitions, as the second one reads it: ScalarE adds the bias and applies the activation as it
empties PSUM, and what lies between never leaves SBUF. Sums and norm are float32; what down
multiplies is rounded to the dtype once. float32, bfloat16 or float16, one dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import ROWS, leading_dims_merge, operand_layout
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._matmul import load_chunks, multiply, multiply_block, multiply_chunks
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue, activation_function, load_bias
from trnx.nki_kernels.kernels._operands import (
    MatmulOperand,
    Pieces,
    load_operand,
    load_pieces,
    load_turned_bias,
    piece_columns,
    segments_of,
)
from trnx.nki_kernels.kernels._row_norm import flush, new_row_norm, new_row_results, returned
from trnx.nki_kernels.kernels._row_norm_host import largest_scale, reject_row_norm
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
# Rows of a block: one bank of PSUM.
_MOST_ROWS = 512
# I of a piece of weights: that of the first piece is in four banks of PSUM at a time.
_PIECE = 512
# The same on trn1, in all banks, because a descriptor costs as much as some hundred bytes.
_PIECE_GEN2 = 1024
# Float32 tiles of 128 rows that the norm has under way.
_NORM_TILES = 10
_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")
_VECTORS = ("bias", "down_bias", "norm_weight", "norm_bias")


@nki.jit
def mlp_layer_norm_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    down: nl.NkiTensor,
    down_bias: nl.NkiTensor | None,
    residual: nl.NkiTensor,
    norm_weight: nl.NkiTensor | None,
    norm_bias: nl.NkiTensor | None,
    eps: float,
    with_total: bool,
    activation: str,
    x_layout: str,
    x_merged: bool,
    weight_layout: str,
    down_layout: str,
    cores: int = 1,
) -> Any:
    """x `[..., K]`, weight `[I, K]`, down `[N, I]`, bias `[I]`, residual `[..., N]`, the other
    vectors `[N]` -> out `[..., N]`, and total where it is wanted; `cores` share the rows."""
    columns = down.shape[0]
    rows = x.size // x.shape[-1]
    results = new_row_results(x.shape[:-1] + (columns,), x.dtype, False, with_total)
    norm = new_row_norm(norm_weight, norm_bias, eps, results, False)
    flat = results.out.reshape((rows, columns))
    row, end_row = share_of(rows, cores)
    operand = MatmulOperand(segments_of(x, x_merged), x_layout)
    up = MatmulOperand([weight], weight_layout)
    last = MatmulOperand([down], down_layout)
    then = Epilogue(down_bias, residual.reshape((rows, columns)), "none", norm)
    is_gen2 = nisa.get_nc_version() == nisa.nc_version.gen2
    weights = Pieces(_PIECE_GEN2 if is_gen2 else _PIECE, [])
    more = Pieces(piece_columns(last, down.shape[1], columns), [])
    biases = []  # type: list[nl.NkiTensor]
    added = None
    for first in range(row, end_row, _MOST_ROWS):
        count = min(_MOST_ROWS, end_row - first)
        hidden = _hidden(operand, (first, count), up, weights, bias, biases, activation)
        if first == row:
            load_pieces(more, last, 0, columns, down.shape[1])
            added = load_bias(then, 0, columns, count)
        data = Pieces(count, [hidden])
        multiply_block(flat, (first, count), (0, columns), data, more, down.shape[1], added, then)
    flush(norm, flat)
    return returned(results)


def _hidden(
    x: MatmulOperand,
    row_range: tuple[int, int],
    up: MatmulOperand,
    weights: Pieces,
    bias: nl.NkiTensor | None,
    biases: list[nl.NkiTensor],
    activation: str,
) -> nl.NkiTensor:
    """`activation(x @ up.T + bias)` of rows of x, `(first, count)`: `[128, chunks of I, rows]`.

    `weights` and `biases` are what is in SBUF already, nothing at first.
    """
    pmax = nl.tile_size.pmax
    row, rows = row_range
    inner, depth = up.segments[0].shape
    is_first = len(weights.tiles) == 0
    by_chunks = is_first and x.layout != ROWS and up.layout != ROWS
    if by_chunks:
        loaded = Pieces(rows, [])
        load_chunks(loaded, weights, x, row, up, (0, min(weights.step, inner)))
        data = loaded.tiles[0]
    else:
        data = load_operand(x, row, rows, 0, depth)
    if is_first:
        biases.append(load_turned_bias(bias, inner))
        done = len(weights.tiles) * weights.step
        load_pieces(weights, up, done, inner - done, depth)
    shape = (min(inner, pmax), (inner + pmax - 1) // pmax, rows)
    hidden = nl.ndarray(shape, dtype=data.dtype, buffer=nl.sbuf)
    for number in range(len(weights.tiles)):
        tile = weights.tiles[number]
        banks = []
        for start in range(0, tile.shape[2], pmax):
            width = min(pmax, tile.shape[2] - start)
            banks.append(nl.ndarray((width, rows), dtype=nl.float32, buffer=nl.psum))
        if by_chunks and number == 0:  # as they arrive
            for k in range(0, depth, pmax):
                for place in range(len(banks)):
                    end = min(depth, k + pmax)
                    multiply_chunks(banks[place], tile, place * pmax, data, 0, k, end)
        for place in range(len(banks)):
            bank = banks[place]
            if not by_chunks or number > 0:
                multiply(bank, tile, place * pmax, data, 0, depth)
            chunk = number * weights.step // pmax + place
            nisa.activation(
                dst=hidden[0 : bank.shape[0], chunk, :],
                op=activation_function(activation),
                data=bank,
                bias=biases[0][0 : bank.shape[0], chunk : chunk + 1],
            )
    return hidden


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, one norm over the columns, and weights that fit in SBUF as a whole."""
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.ndim < 1 or b.weight.ndim != 2 or b.down.ndim != 2:
        return Reject(f"x{b.x.shape} has no rows, or a weight is no matrix")
    (inner, depth), columns = b.weight.shape, b.down.shape[0]
    if b.x.numel == 0 or b.weight.numel == 0 or b.down.numel == 0:
        return Reject(f"an empty product: x{b.x.shape}, weight{b.weight.shape}")
    sizes = {
        "x": (*b.x.shape[:-1], depth), "down": (columns, inner), "bias": (inner,),
        "residual": (*b.x.shape[:-1], columns), "down_bias": (columns,),
        "norm_weight": (columns,), "norm_bias": (columns,),
    }  # fmt: skip
    for name, shape in sizes.items():
        if b[name] is not None and (b[name].shape, b[name].dtype) != (shape, b.weight.dtype):
            return Reject(f"{name} is {b[name].dtype}{b[name].shape}, not {b.weight.dtype}{shape}")
    if reject := reject_row_norm(b, columns):
        return reject
    if _bytes(b, hw) > hw.sbuf_partition_bytes * 7 // 8:
        return Reject(f"weight{b.weight.shape} and down{b.down.shape} do not fit in SBUF")
    return None


def _bytes(b: Bindings, hw: Hardware) -> int:
    """Of a partition of SBUF: both weights, x and what lies between, and the norm."""
    (inner, depth), columns = b.weight.shape, b.down.shape[0]
    size, rows = b.x.dtype.itemsize, -(-b.x.numel // depth // hw.cores)
    deep, between = -(-depth // hw.partitions), -(-inner // hw.partitions)
    blocks = min(rows, 2 * _MOST_ROWS)
    own = deep * inner + between * columns + (deep + between) * blocks
    return int(own * size + _NORM_TILES * columns * 4)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides of x and of the weights allow."""
    names = ("x", "weight", "bias", "down", "down_bias", "residual", "norm_weight", "norm_bias")
    constants = ("eps", "with_total", "activation")
    weights = (operand_layout(b.weight, hw), operand_layout(b.down, hw))
    x_layout = (operand_layout(b.x, hw), leading_dims_merge(b.x))
    return Launch.of(mlp_layer_norm_kernel, b, (*names, *constants), *x_layout, *weights)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add, ten operations an element of the norm and of the sum before it;
    every operand crosses HBM once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    inner, columns = b.weight.shape[0], b.down.shape[0]
    tensors = (b.x, b.weight, b.down, b.residual, *(b[name] for name in _VECTORS))
    results = rows * columns * (1 + b.with_total)
    return Cost(
        matmul_flops=2 * rows * (b.weight.numel + b.down.numel),
        vector_flops=2 * rows * inner + 10 * rows * columns,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None) + results * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    down: torch.Tensor,
    down_bias: torch.Tensor | None,
    residual: torch.Tensor,
    normalized_shape: list[int],
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    eps: float,
    with_total: bool,
    activation: str,
) -> Any:
    """The same in float32; what down multiplies is rounded, and each result once."""
    given = (bias, down_bias, norm_weight, norm_bias)
    vectors = [None if v is None else v.float() for v in given]
    hidden = ACTIVATIONS[activation](F.linear(x.float(), weight.float(), vectors[0])).to(x.dtype)
    total = F.linear(hidden.float(), down.float(), vectors[1]) + residual.float()
    out = F.layer_norm(total, normalized_shape, vectors[2], vectors[3], eps).to(x.dtype)
    return (out, total.to(x.dtype)) if with_total else out


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged rows, I, K and N, every activation, both layouts of weights, missing vectors."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        sizes: tuple[int, int, int],
        activation: str = "gelu",
        dtype: torch.dtype = torch.float32,
        turned: bool = False,
        vectors: tuple[str, ...] = _VECTORS,
        total: bool = False,
    ) -> Sample:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        def matrix(*shape: int) -> torch.Tensor:
            drawn = draw(*shape) / math.sqrt(shape[-1])
            return drawn.mT.contiguous().mT if turned else drawn

        depth, inner, columns = sizes
        lengths = {"bias": inner, "down_bias": columns, "norm_weight": columns}
        values: dict[str, Any] = {
            "x": draw(*rows, depth),
            "weight": matrix(inner, depth),
            "down": matrix(columns, inner),
            "residual": draw(*rows, columns),
            "normalized_shape": [columns],
            "eps": 1e-5,
            "with_total": total,
            "activation": activation,
        }
        for name in _VECTORS:
            length = lengths.get(name, columns)
            values[name] = draw(length) if name in vectors else None
        return Sample(values, note, _rounding_error(values))

    for rows in (1, 127, 128, 129, 300):
        yield sample(f"{rows} rows", (rows,), (130, 140, 66))
    for size in (1, 129, 520):
        yield sample(f"K = {size}", (140,), (size, 70, 66))
        yield sample(f"I = {size}", (140,), (66, size, 70), turned=True)
    for columns in (2, 513, 1030):
        yield sample(f"{columns} columns", (2, 70), (64, 130, columns))
    for activation in _ACTIVATIONS:
        yield sample(activation, (130,), (64, 160, 64), activation)
    yield sample("several blocks of rows", (1100,), (100, 130, 40))
    yield sample("no vectors", (3, 50), (60, 130, 600), vectors=())
    yield sample("one dimension", (), (96, 130, 64))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield sample(f"{dtype}, total", (3, 100), (200, 700, 140), dtype=dtype, total=True)
    yield sample("bfloat16, turned", (300,), (256, 1100, 256), dtype=torch.bfloat16, turned=True)


def _rounding_error(values: dict[str, Any]) -> float:
    """A value between the products may round to either neighbour, and the norm of a narrow row
    makes what comes of it larger."""
    x, weight, down = (values[name].float() for name in ("x", "weight", "down"))
    vectors = {n: None if values[n] is None else values[n].float() for n in _VECTORS}
    hidden = ACTIVATIONS[values["activation"]](F.linear(x, weight, vectors["bias"]))
    total = F.linear(hidden, down, vectors["down_bias"]) + values["residual"].float()
    factor = largest_scale(total, vectors["norm_weight"], values["eps"])
    spread = F.linear(hidden.abs() + 1e-3, down.abs()).max() + total.abs().max()
    largest = torch.maximum(factor, torch.ones(())) if values["with_total"] else factor
    return float(torch.finfo(values["x"].dtype).eps * spread * largest)


def _pattern(activation: str, with_total: bool) -> Pattern:
    def pattern(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        down_bias: torch.Tensor | None,
        residual: torch.Tensor,
        normalized_shape: list[int],
        norm_weight: torch.Tensor | None,
        norm_bias: torch.Tensor | None,
        eps: float,
    ) -> Any:
        hidden = ACTIVATIONS[activation](aten.linear.default(x, weight, bias))
        total = aten.add.Tensor(aten.linear.default(hidden, down, down_bias), residual)
        found = aten.native_layer_norm.default(total, normalized_shape, norm_weight, norm_bias, eps)
        return (found[0], total) if with_total else (found[0],)

    return Pattern(pattern, {"with_total": with_total, "activation": activation})


register(
    KernelSpec(
        name="mlp_layer_norm",
        patterns=tuple(
            _pattern(name, with_total) for with_total in (False, True) for name in _ACTIVATIONS
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=mlp_layer_norm_kernel,
        launch=launch,
        strided=frozenset({"x", "weight", "down"}),
        fuses=True,
    )
)
