"""NKI helpers of attention of long sequences: blocks of 128 queries by the running maxima of
`_forward`, one after the other in a loop of the device, for keys that SBUF does not hold.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._recurrence import counter, move
from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels.attention._forward import (
    STAGES,
    Outputs,
    Prepared,
    Problem,
    empty_pipeline,
    load_keys,
    step,
)
from trnx.nki_kernels.kernels.attention._heads import load_transposed
from trnx.nki_kernels.kernels.attention._layout import Chunk, head_layout
from trnx.nki_kernels.kernels.attention._long_schedule import Place
from trnx.nki_kernels.kernels.attention._masks import Bias, Masks
from trnx.nki_kernels.kernels.attention._maxima import is_power_of_two
from trnx.nki_kernels.kernels.attention._row_logs import RowLogs, store_logs


def forward_places(
    causal: bool,
    scale: float,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    places: list[Place],
    results: tuple[nl.NkiTensor, nl.NkiTensor | None],
) -> None:
    """The queries of `places`, each of which begins with a tile of keys, without masks; `results`:
    `out[B, H, L, Dv]`, and `lse[blocks of queries of all, 128]` or None."""
    q, k = tensors[0], tensors[1]
    out, lse = results
    if lse is not None:
        lse = lse.reshape((q.shape[0], q.shape[1], q.shape[2]))
    features = head_layout(q.shape[3], False, False)
    keys = head_layout(k.shape[2], False, False)
    tile = min(nl.tile_size.psum_bank_fmax, k.shape[2])
    plain = Masks(None, False, False, 0)
    p = Problem(
        plain, None, 1.0, scale, 1, features, keys, tile, False, is_power_of_two(scale), False
    )
    pmax = nl.tile_size.pmax
    numbers = None
    if causal:
        numbers = nl.ndarray((pmax, tile), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=numbers, pattern=[[1, tile]], offset=0, channel_multiplier=0)
    for place in places:
        _forward_place(p, tensors, place, numbers, (out, lse))


def _forward_place(
    p: Problem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    place: Place,
    numbers: nl.NkiTensor | None,
    results: tuple[nl.NkiTensor, nl.NkiTensor | None],
) -> None:
    """The blocks of one place. `numbers`: where attention is causal, those of the keys of a tile,
    on each partition: the last tile of keys begins with the queries."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    head = place.head // (q.shape[1] // k.shape[1])
    k = _alone(k[place.batch, head])
    v = _alone(v[place.batch, head])
    out, lse = results
    alone = Chunk(0, 1, 0, 1, 1)  # the one head of a view
    block = counter(place.first)
    last = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)  # key that a query sees
    nisa.iota(dst=last, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    for _ in nl.dynamic_range(place.blocks):
        load_table(nl.exp)
        rows = _block_of(q[place.batch, place.head], block)
        queries = load_transposed(rows, alone, 0, pmax, p.features).transposed
        logs = RowLogs(None, False, [])
        if lse is not None:
            logs = RowLogs(_block_of(lse[place.batch, place.head], block), False, [])
        outputs = Outputs(_block_of(out[place.batch, place.head], block), logs)
        pipeline = empty_pipeline()
        seen = place.seen * pmax
        for start in range(0, seen, p.tile):
            tile = load_keys(p, k[:, :, 0:seen], v[:, :, 0:seen], alone, start)
            bias = None
            if numbers is not None and start >= place.first * pmax:
                bias = Bias(None, _seen(numbers[:, 0 : tile.size], last))
            is_last = start + p.tile >= seen
            prepared = Prepared(queries, tile, alone, 0, bias, is_last)
            pipeline = step(p, outputs, pipeline, prepared)
        for _turn in range(STAGES):
            pipeline = step(p, outputs, pipeline, None)
        store_logs(outputs.logs, True)
        move(block, 1)
        nisa.tensor_scalar(dst=last, data=last, op0=nl.add, operand0=float(pmax))


def _alone(x: nl.NkiTensor) -> nl.NkiTensor:
    """A head by itself, `[1, 1, ...]`."""
    return x.expand_dim(0).expand_dim(0)


def _block_of(x: nl.NkiTensor, block: nl.NkiTensor) -> nl.NkiTensor:
    """The 128 rows of a head with the number in `block`, `[1, 1, 128, ...]`."""
    pmax = nl.tile_size.pmax
    return _alone(x.reshape_dim(0, (x.shape[0] // pmax, pmax)).select(0, block))


def _seen(numbers: nl.NkiTensor, last: nl.NkiTensor) -> nl.NkiTensor:
    """`[128, 1, 1, keys]`, 1 where a query sees a key, up to its `last` one."""
    seen = nl.ndarray((numbers.shape[0], 1, 1, numbers.shape[1]), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=seen.reshape(numbers.shape), data=numbers, op0=nl.less_equal, operand0=last
    )
    return seen
