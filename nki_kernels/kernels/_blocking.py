"""How a matrix product is laid out for a generation: operand layouts and block sizes (host side).

The kernels in `_matmul.py` and `_operands.py` take these as trace-time constants. The budget leaves
room for a second block of weights and rows, so that loads overlap with the product.

A layout says how K, the last dimension of an operand `[rows, K]`, gets to the partitions:

* `COLUMNS`: rows are adjacent in memory (a transposed view); a plain DMA lands with K on
  partitions.
* `ROWS`: K is adjacent; whole rows are loaded, then TensorE transposes 128x128 blocks, several into
  one PSUM bank, evicted together.
* `DMA`: K is adjacent; the DMA engines transpose on the way in, which leaves TensorE, and the
  eviction of PSUM, to the product. From trn2 on it reaches 90 % of DMA throughput for types of 2
  and 4 bytes; on trn1 it is slow.
* `ONE_ROW`: of a long row, 128 chunks are loaded next to each other, and TensorE transposes them; a
  row of few has as many descriptors as elements, which takes less.
* `STREAM`: of the weights of few rows, most are loaded as they lie and transposed by TensorE, and
  some by the DMA engines (`_streamed.py`), so that both have as much to do.
* `NEIGHBOURS`: of few rows and of weights as `COLUMNS`, a partition takes adjacent indices of K
  (`_neighbours.py`), so that what is loaded lies in long runs.
"""

from __future__ import annotations

from itertools import pairwise

from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

COLUMNS = "columns"
ROWS = "rows"
DMA = "dma"
ONE_ROW = "one row"
STREAM = "stream"
NEIGHBOURS = "neighbours"

_LARGEST_COLUMNS = 4096  # wider blocks would only lengthen the row tiles of the output
_DEEP_ROWS = 1024
_DEEP_COLUMNS = 1024
_DEEP_BYTES = 4096  # of K per row: what saturates a DMA
# 2048 descriptors take 0.9 us of 16 DMA engines, a transpose and its eviction 0.5 us.
_LONG_ROW = 2048
# Rows that TensorE multiplies while weights arrive, and transposes these as well. With less of K or
# of weights than this, the way of the sums takes more time than it saves (by schedule, trn2, trn3).
_FEW_ROWS = 64
_LEAST_STREAMED_DEPTH = 2048
_LEAST_STREAMED_BYTES = 2**23
_LEAST_STREAMED_BYTES_GEN4 = 2**25
# With less of K a row of weights is most of what is loaded, and lies in one run.
_LEAST_NEIGHBOUR_DEPTH = 512
# Products of fewer columns are not shared by columns, and those of more at multiples of this.
_LEAST_COLUMNS = 256
COLUMN_UNIT = 128


def float32_per_bank(hw: Hardware) -> int:
    """Columns of one nc_matmul: the float32 elements of a partition of a PSUM bank."""
    return hw.psum_bank_bytes // 4


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def leading_dims_merge(spec: TensorSpec) -> bool:
    """True where all dimensions but the last are one dimension with one stride."""
    kept = [
        (size, stride)
        for size, stride in zip(spec.shape[:-1], spec.strides[:-1], strict=True)
        if size != 1
    ]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(kept))


def operand_layout(spec: TensorSpec, hw: Hardware) -> str:
    """How K, the last dimension of `spec`, gets to the partitions."""
    if spec.numel == spec.shape[-1]:
        # A transpose on trn1 is a product, which spreads a NaN.
        is_long = spec.numel >= _LONG_ROW and spec.strides[-1] == 1 and hw.generation >= 3
        return ONE_ROW if is_long else COLUMNS
    steps = [t for n, t in zip(spec.shape[:-1], spec.strides[:-1], strict=True) if n != 1]
    if steps[-1] == 1 and spec.strides[-1] != 1:
        return COLUMNS
    if spec.strides[-1] == 1 and hw.generation >= 3:
        return DMA
    return ROWS


def weight_layout(rows: int, weight: TensorSpec, hw: Hardware) -> str:
    """The layout of `weight[N, K]` that is read once: `STREAM` with few rows, where TensorE has the
    time to transpose what the DMA engines would, 10 % slower than they load. Two cores share the
    rate of HBM, which is less than that of their transposing DMA.
    """
    layout, depth = operand_layout(weight, hw), weight.shape[1]
    least = _LEAST_STREAMED_BYTES if hw.generation == 3 else _LEAST_STREAMED_BYTES_GEN4
    fits = (
        hw.cores == 1
        and rows <= _FEW_ROWS
        and weight.dtype.itemsize == 2
        and depth >= _LEAST_STREAMED_DEPTH
        and depth % hw.partitions == 0
        and weight.nbytes >= least
        and stay_in_sbuf(rows, depth, weight.dtype.itemsize, hw)
    )
    return STREAM if layout == DMA and fits else layout


def weight_layout_beside(x: TensorSpec, weight: TensorSpec, hw: Hardware) -> str:
    """The same where `x[..., K]` is loaded as well, which `load_few_rows` does as it lies."""
    if leading_dims_merge(x) and x.strides[-1] == 1:
        return weight_layout(x.numel // x.shape[-1], weight, hw)
    return operand_layout(weight, hw)


def layout_of_few(x: TensorSpec, weight: TensorSpec, hw: Hardware) -> str:
    """The same where `NEIGHBOURS` is known as well."""
    layout = weight_layout_beside(x, weight, hw)
    is_loaded_as_is = leading_dims_merge(x) and x.strides[-1] == 1
    if layout == COLUMNS and is_loaded_as_is and _has_neighbours(x, weight, hw):
        return NEIGHBOURS
    return layout


def _has_neighbours(x: TensorSpec, weight: TensorSpec, hw: Hardware) -> bool:
    """Whether few rows are multiplied with adjacent indices of K on a partition: by schedule on
    trn1, where a descriptor costs as much as some hundred bytes."""
    rows, depth = x.numel // x.shape[-1], weight.shape[1]
    fits = depth >= _LEAST_NEIGHBOUR_DEPTH and depth % hw.partitions == 0
    is_few = rows <= hw.partitions and hw.generation == 2
    return is_few and fits and weight.strides[0] == 1 < weight.shape[0]


def block_sizes(
    rows: int, columns: int, depth: int, itemsize: int, hw: Hardware
) -> tuple[int, int, int, bool]:
    """The fields of `_matmul.Blocks`, such that SBUF holds them for any size of the product.

    All of w takes half of SBUF at most, else a block of it a quarter, and the next one as much.
    Where not even one bank's width of whole columns fits in a quarter, K is cut as well, and
    partial sums stay in SBUF.
    """
    bank = float32_per_bank(hw)
    half = hw.sbuf_partition_bytes // 2
    row_bytes = -(-depth // hw.partitions) * itemsize  # of one row, per partition
    all_rows, width = _up(rows, hw.partitions), _up(columns, bank)
    count = 1
    few = stay_in_sbuf(rows, depth, itemsize, hw)
    if width > _LARGEST_COLUMNS or width * row_bytes > half:
        # Few rows are kept for all columns, so that narrow blocks read nothing again.
        unit = next((u for u in _units(bank, few) if half // 2 // row_bytes >= u), 0)
        if unit == 0:
            step = min(_DEEP_BYTES // itemsize, depth)
            return _DEEP_ROWS, _DEEP_COLUMNS, step, False
        widest = min(half // 2 // row_bytes // unit * unit, _LARGEST_COLUMNS)
        count = -(-columns // widest)
        width = _up(-(-columns // count), unit)
    keep = count > 1 and few
    fitting = half // 4 // row_bytes // hw.partitions * hw.partitions
    return min(all_rows, max(fitting, hw.partitions), 512), width, depth, keep


def stay_in_sbuf(rows: int, depth: int, itemsize: int, hw: Hardware) -> bool:
    """Whether so many rows of K are few enough to be kept beside blocks of weights."""
    return rows * -(-depth // hw.partitions) * itemsize <= hw.sbuf_partition_bytes // 6


def _units(bank: int, few: bool) -> tuple[int, ...]:
    """What the columns of a block are a multiple of, best first."""
    return (bank, bank // 2, bank // 4) if few else (bank,)


def shares_rows(rows: int, columns: int) -> bool:
    """Whether the cores of a logical core share the rows of a product, or its columns: the other
    operand is loaded by each of them."""
    return rows >= columns or columns <= _LEAST_COLUMNS


def tile_columns(rows: int, columns: int, depth: int, itemsize: int, hw: Hardware) -> int:
    """Columns of a block of weights for few rows that are in SBUF; 0 where K is too deep for one.
    Cores share the columns."""
    own = _up(-(-columns // hw.cores), COLUMN_UNIT)
    _, width, block_depth, _ = block_sizes(rows, own, depth, itemsize, hw)
    return width if block_depth >= depth else 0


def part_sizes(rows: int, columns: int, cores: int, by_rows: bool) -> tuple[int, int]:
    """Rows and columns of a core's part of a product, where cores share its rows or columns."""
    if by_rows:
        return -(-rows // cores), columns
    return rows, _up(-(-columns // cores), COLUMN_UNIT)
