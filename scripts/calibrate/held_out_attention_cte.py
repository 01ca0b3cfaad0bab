"""Held-out attention of long prompts: softmax(q k^T) v in sections of 8192 keys. Scores leave PSUM
with their maximum, and the DMA engines transpose the weights. Written for this repository from the
description in aws-neuron/nki-library, core/attention/attention_cte.py; see `held_out.py`.
"""

import nki
import nki.isa as nisa
import nki.language as nl

_SECTION = 8192
_LARGE = 2048  # keys whose weighted values add up in PSUM
_KEYS = 512  # of an instruction
_QUERIES = 1024  # of a load
_LEAST = -3e38


def _tile(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def _load_half(source):
    """A tile in bfloat16."""
    tile = _tile(source.shape, nl.bfloat16)
    nisa.dma_copy(dst=tile, src=source)
    return tile


@nki.jit
def attention_cte(q, k, v, is_causal):
    """q [heads, d, Q], k [heads, d, S], v [heads, S, d] -> [heads, Q, d]; groups of 128 rows go to
    the programs in turn. With `is_causal` Q = S.

    The scores of a group are computed while those of the group before it become weights, and the
    one before that is multiplied with the values.
    """
    heads, depth, rows = q.shape
    keys = k.shape[2]
    out = nl.ndarray((heads, rows, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    own = range(128 * nl.program_id(0), rows, 128 * nl.num_programs(0))
    for head in range(heads):
        # Of each group its -max and sum so far.
        most = _tile((128, len(own)), nl.float32)
        sums = _tile((128, len(own)), nl.float32)
        for first in range(0, keys, _SECTION):
            section = (first, min(first + _SECTION, keys), first == 0)
            turned, values = _load_section(k[head], v[head], section)
            before = []
            queries = {}
            for i, row in enumerate(own):
                if is_causal and row + 128 <= first:
                    continue
                end = min(section[1], row + 128) if is_causal else section[1]
                last = end == (row + 128 if is_causal else keys)
                # The next queries, before the transposes of this group take the DMA engines.
                for start in (row - row % _QUERIES, row - row % _QUERIES + _QUERIES):
                    if start < rows and start not in queries:
                        queries[start] = _load_half(q[head, :, start : start + _QUERIES])
                column = row % _QUERIES
                query = queries[row - column][:, column : column + 128]
                offset = row - first if is_causal else None
                pending = before[0] if len(before) == 2 else None
                scores, maxima = _scores(query, turned, end - first, offset, pending, values)
                if pending is not None:
                    _finish(pending, out[head], sums)
                    before = [before[1]]
                state = (i, row, first == 0, last)
                before.append(_weigh(scores, maxima, most, state))
            for pending in before:
                for large in range(len(pending[0])):
                    _accumulate(pending, large, values)
                _finish(pending, out[head], sums)
    return out


def _load_section(k, v, section):
    """k [d, keys] by 2048 keys a tile, v by 128 keys on the partitions."""
    turned, values = [], []
    for start in range(section[0], section[1], _LARGE):
        end = min(start + _LARGE, section[1])
        turned.append(_load_half(k[:, start:end]))
        block = v[start:end].reshape(((end - start) // 128, 128, v.shape[1]))
        values.append(_load_half(block.permute((1, 0, 2))))
    return turned, values


def _scores(query, turned, size, offset, pending, values):
    """(masked scores by 2048 keys, their maxima by 512); between them the weighted values of the
    group that is pending.
    """
    count = -(-size // _KEYS)
    maxima = _tile((128, count), nl.float32)
    nisa.memset(dst=maxima, value=_LEAST)
    scores = []
    for large in range(max(-(-size // _LARGE), len(pending[0]) if pending is not None else 0)):
        if pending is not None and large < len(pending[0]):
            _accumulate(pending, large, values)
        if _LARGE * large < size:
            width = min(_LARGE, size - _LARGE * large)
            held = _tile((128, width), nl.float32)
            for n in range(0, width, _KEYS):
                key = _LARGE * large + n
                part = held[:, n : min(n + _KEYS, width)]
                column = maxima[:, key // _KEYS : key // _KEYS + 1]
                moving = turned[large][:, n : n + part.shape[1]]
                _score(query, moving, part, column, None if offset is None else offset - key)
            scores.append(held)
    return scores, maxima


def _score(query, moving, part, column, diagonal):
    """Scores of 512 keys with their maximum; masked where they reach over the diagonal."""
    width = part.shape[1]
    source = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=source, stationary=query, moving=moving)
    if diagonal is not None and width > diagonal:
        copied, masked = _tile((128, width), nl.float32), _tile((128, width), nl.float32)
        nisa.tensor_copy(dst=copied, src=source, engine=nisa.vector_engine)
        nisa.affine_select(
            dst=masked, pattern=[[-1, width]], offset=diagonal, channel_multiplier=1,
            on_true_tile=copied, on_false_value=_LEAST, cmp_op=nl.greater_equal,
        )  # fmt: skip
        source = masked
    nisa.tensor_scalar_reduce(
        dst=part, data=source, op0=nl.multiply, operand0=1.0, reduce_op=nl.maximum,
        reduce_res=column,
    )  # fmt: skip


def _weigh(scores, maxima, most, state):
    """(transposed weights by 2048 keys, sums by 512, factor of what was before, a list for the
    values, state of the group).
    """
    i, _, is_first, _ = state
    fade = None
    own = most[:, i : i + 1]
    negmax = own
    if not is_first:
        negmax, fade = _tile((128, 1), nl.float32), _tile((128, 1), nl.float32)
    nisa.tensor_reduce(dst=negmax, op=nl.maximum, data=maxima, axis=1, negate=True)
    if fade is not None:
        least = _tile((128, 1), nl.float32)
        nisa.tensor_tensor(dst=least, data1=own, data2=negmax, op=nl.minimum)
        nisa.activation(dst=fade, op=nl.exp, data=own, scale=-1.0, bias=least)
        nisa.tensor_copy(dst=own, src=least, engine=nisa.vector_engine)
    parts = _tile((128, maxima.shape[1]), nl.float32)
    turned = []
    for large, held in enumerate(scores):
        weights = _tile(held.shape, nl.bfloat16)
        result = _tile((128, held.shape[1] // 128, 128), nl.bfloat16)
        for n in range(0, held.shape[1], _KEYS):
            end = min(n + _KEYS, held.shape[1])
            column = (_LARGE * large + n) // _KEYS
            nisa.activation_reduce(
                dst=weights[:, n:end], op=nl.exp, data=held[:, n:end], reduce_op=nl.add,
                reduce_res=parts[:, column : column + 1], bias=own,
            )  # fmt: skip
            nisa.dma_transpose(
                dst=result[:, n // 128 : end // 128],
                src=weights[:, n:end].reshape((128, (end - n) // 128, 128)),
            )
        turned.append(result)
    return turned, parts, fade, [], state


def _accumulate(pending, large, values):
    """Weighted values of 2048 keys, added to those before."""
    turned, _, _, total, _ = pending
    depth = values[0].shape[2]
    acc = nl.ndarray((128, depth), dtype=nl.float32, buffer=nl.psum)
    for n in range(turned[large].shape[1]):
        nisa.nc_matmul(dst=acc, stationary=turned[large][:, n], moving=values[large][:, n])
    if total:
        nisa.tensor_tensor(dst=total[0], data1=total[0], data2=acc, op=nl.add)
    else:
        total.append(_tile((128, depth), nl.float32))
        nisa.tensor_copy(dst=total[0], src=acc, engine=nisa.vector_engine)


def _finish(pending, out, sums):
    """The group's part of a section, with what the sections before it left in HBM."""
    _, parts, fade, total, state = pending
    i, row, _, is_last = state
    target = out[row : row + 128]
    own = sums[:, i : i + 1]
    result = _tile(target.shape, out.dtype)
    part = _tile((128, 1), nl.float32)
    nisa.tensor_reduce(dst=part, op=nl.add, data=parts, axis=1)
    if fade is None:
        nisa.tensor_copy(dst=own, src=part, engine=nisa.vector_engine)
    else:
        held = _tile(target.shape, out.dtype)
        nisa.dma_copy(dst=held, src=target)
        for whole, old, new in ((total[0], held, total[0]), (own, own, part)):
            nisa.scalar_tensor_tensor(
                dst=whole, data=old, op0=nl.multiply, operand0=fade, op1=nl.add, operand1=new
            )
    factor = 1.0
    if is_last:
        factor = _tile((128, 1), nl.float32)
        nisa.reciprocal(dst=factor, data=own)
    nisa.tensor_scalar(dst=result, data=total[0], op0=nl.multiply, operand0=factor)
    nisa.dma_copy(dst=target, src=result)
