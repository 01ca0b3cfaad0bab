"""NKI helpers of attention of long sequences: the blocks on the diagonal of `_direct` in pairs.

Of a block of 128 keys (on the partitions) and the same 128 queries, the second half of the keys is
hidden from the first half of the queries. The first halves of two blocks that follow each other
share their columns therefore: that of the first block is on the first 64 partitions, that of the
second one on the others. Columns of a pair: 64 of both first halves of the queries, 64 of the
second half of the first block's, 64 of that of the second's: three quarters of what ScalarE does
otherwise. GpSimd sets the weights of hidden keys to 0.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

_HALF = 64
PAIR_COLUMNS = 3 * _HALF
# Keys of a head for which pairs pay. With fewer, its loads take as long as its scores; with more,
# the products that hide keys keep TensorE at its full rate, which keys of 64 features do not.
_LEAST_KEYS = 640
_MOST_KEYS = 4096


def is_paired(width: int, depth: int, value_width: int) -> bool:
    """Whether pairs pay for heads of `depth` keys of these widths: ScalarE is what all wait for up
    to half of the array's rows, and with fewer rows TensorE stays at half rate."""
    return width == _HALF and value_width <= _HALF and _LEAST_KEYS <= depth <= _MOST_KEYS


def score_pair(scores: nl.NkiTensor, keys: nl.NkiTensor, queries: nl.NkiTensor) -> None:
    """Scores `[128, 192]` of a pair's `keys[d, 256]` and `queries[d, 256]`; d may be padded."""
    pmax = nl.tile_size.pmax
    for number in range(2):
        low = number * _HALF
        start = number * pmax
        # On the columns of the array that lead to these partitions.
        nisa.nc_matmul(
            dst=scores[low : low + _HALF, 0:_HALF],
            stationary=keys[:, start : start + _HALF],
            moving=queries[:, start : start + _HALF],
            tile_position=(0, low),
            tile_size=(keys.shape[0], _HALF),
        )
    for number in range(2):
        start = number * pmax
        nisa.nc_matmul(
            dst=scores[:, (number + 1) * _HALF : (number + 2) * _HALF],
            stationary=keys[:, start : start + pmax],
            moving=queries[:, start + _HALF : start + pmax],
        )


def hide_pairs(weights: nl.NkiTensor, pairs: int) -> None:
    """0 for the keys after the query, of weights `[128, pairs * 192]`."""
    pmax = nl.tile_size.pmax
    first = weights[0:_HALF].reshape_dim(1, (pairs, PAIR_COLUMNS))
    _hide(first[:, :, 0:_HALF], pairs, _HALF)
    # All are of second halves of keys and queries, or of first ones.
    _hide(weights[_HALF:pmax], 3 * pairs, _HALF)


def hide_block(weights: nl.NkiTensor) -> None:
    """The same of a block by itself, `[128, 128]`."""
    _hide(weights, 1, nl.tile_size.pmax)


def _hide(weights: nl.NkiTensor, blocks: int, queries: int) -> None:
    """0 for the keys, from the first partition on, after each of `blocks` times so many queries."""
    nisa.affine_select(
        dst=weights,
        pattern=[[0, blocks], [1, queries]],
        offset=0,
        channel_multiplier=-1,
        on_true_tile=weights,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )


def raise_values(values: nl.NkiTensor, first: int, blocks: int) -> nl.NkiTensor:
    """The first halves of the second blocks of all pairs of a group, `[128, pairs, Dv + 1]`, on the
    partitions on which their weights are; `values[128, S / 128, Dv + 1]`."""
    pmax = nl.tile_size.pmax
    pairs = min(blocks, values.shape[1] - first) // 2
    raised = nl.ndarray((pmax, max(1, pairs), values.shape[2]), dtype=values.dtype, buffer=nl.sbuf)
    for pair in range(pairs):
        nisa.tensor_copy(
            dst=raised[_HALF:pmax, pair, :],
            src=values[0:_HALF, first + 2 * pair + 1, :],
            engine=nisa.engine.vector,
        )
    return raised


def combine_pair(
    products: nl.NkiTensor,
    weights: nl.NkiTensor,
    number: int,
    values: nl.NkiTensor,
    raised: nl.NkiTensor,
) -> None:
    """The weights of a pair times the values of its block `number`, `[128, Dv + 1]`, to the
    products of its queries; `raised`: of the pair, as from `raise_values`."""
    pmax = nl.tile_size.pmax
    low = number * _HALF
    part = values if number == 0 else raised
    nisa.nc_matmul(
        dst=products[0:_HALF, :],
        stationary=weights[low : low + _HALF, 0:_HALF],
        moving=part[low : low + _HALF, :],
        tile_position=(low, 0),
        tile_size=(_HALF, _HALF),
    )
    start = (number + 1) * _HALF
    nisa.nc_matmul(
        dst=products[_HALF:pmax, :],
        stationary=weights[:, start : start + _HALF],
        moving=values,
        tile_position=(0, _HALF),
        tile_size=(pmax, _HALF),
    )
