"""Held-out attention: softmax(q k^T) v of one head at a time, in groups of keys with a running
maximum. Written for this repository from the published descriptions; see `held_out.py`.
"""

import nki
import nki.isa as nisa
import nki.language as nl

# Keys of a group: half of PSUM for their scores.
_GROUP = 2048


def _tile(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def _bank(rows, columns):
    return nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)


def _load_half(source):
    """A tile in bfloat16."""
    tile = _tile(source.shape, source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    if source.dtype != nl.float32:
        return tile
    half = _tile(source.shape, nl.bfloat16)
    nisa.tensor_copy(dst=half, src=tile, engine=nisa.vector_engine)
    return half


def _load_keys(k, v):
    """k [d, S] by groups, v [S, d] by 128 rows a tile, a group a load."""
    depth, keys = k.shape
    turned = []
    values = []
    for start in range(0, keys, _GROUP):
        end = min(start + _GROUP, keys)
        turned.append(_load_half(k[:, start:end]))
        count = (end - start) // 128
        block = v[start:end].reshape((count, 128, depth)).permute((1, 0, 2))
        values.append(_load_half(block))
    return turned, values


@nki.jit
def attention(q, k, v, is_causal):
    """q [heads, d, Q], k [heads, d, S], v [heads, S, d] -> [heads, Q, d]; the query tiles of 128
    rows go to the programs in turn. With `is_causal` Q = S. The scores of a group are computed
    before the products of the group before it, so that no engine waits for another.
    """
    heads, depth, rows = q.shape
    out = nl.ndarray((heads, rows, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    before = None
    for head in range(heads):
        turned, values = _load_keys(k[head], v[head])
        for row in range(128 * nl.program_id(0), rows, 128 * nl.num_programs(0)):
            query = _load_half(q[head, :, row : row + 128])
            end = row + 128 if is_causal else k.shape[2]
            target = out[head, row : row + 128]
            most = None
            sums = []
            for group in range((end + _GROUP - 1) // _GROUP):
                size = min(_GROUP, end - _GROUP * group)
                scores = _scores(query, turned[group], size, is_causal, row - _GROUP * group)
                step = _weigh(scores, most, sums, values[group])
                most = step[2]
                if before is not None:
                    _finish(before, depth)
                is_last = _GROUP * group + size == end
                before = (step, target if is_last else None)
    _finish(before, depth)
    return out


def _weigh(scores, most, sums, values):
    """(weights, their sums, -max, factor of what was before, state of this row, values)"""
    negmax = _negated_maximum(scores, most)
    weights, parts = _exponentials(scores, negmax)
    fade = None
    if most is not None:
        fade = _tile((128, 1), nl.float32)
        nisa.activation(dst=fade, op=nl.exp, data=most, scale=-1.0, bias=negmax)
    return weights, parts, negmax, fade, sums, values


def _finish(before, depth):
    """Weighted values of a group, added to those of the row; the result after the last group."""
    weights, parts, _, fade, sums, values = before[0]
    part = _tile((128, 1), nl.float32)
    nisa.tensor_reduce(dst=part, op=nl.add, data=parts, axis=1)
    value = _weighted(weights, values, depth)
    if fade is None:
        acc = _tile((128, depth), nl.float32)
        nisa.tensor_copy(dst=acc, src=value, engine=nisa.vector_engine)
        sums.append(acc)
        sums.append(part)
    else:
        for target, added in ((sums[0], value), (sums[1], part)):
            nisa.scalar_tensor_tensor(
                dst=target, data=target, op0=nl.multiply, operand0=fade, op1=nl.add, operand1=added
            )
    if before[1] is None:
        return
    inverse = _tile((128, 1), nl.float32)
    nisa.reciprocal(dst=inverse, data=sums[1])
    result = _tile((128, depth), before[1].dtype)
    nisa.tensor_scalar(dst=result, data=sums[0], op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=before[1], src=result)


def _scores(query, turned, size, is_causal, diagonal):
    banks = []
    for n in range(0, size, 512):
        width = min(512, size - n)
        bank = _bank(128, width)
        nisa.nc_matmul(dst=bank, stationary=query, moving=turned[:, n : n + width])
        if is_causal and n + width > diagonal:
            held = _tile((128, width), nl.float32)
            nisa.tensor_copy(dst=held, src=bank, engine=nisa.vector_engine)
            nisa.affine_select(
                dst=held, pattern=[[-1, width]], offset=diagonal - n, channel_multiplier=1,
                on_true_tile=held, on_false_value=-1e30, cmp_op=nl.greater_equal,
            )  # fmt: skip
            bank = held
        banks.append(bank)
    return banks


def _negated_maximum(scores, most):
    count = len(scores) + (most is not None)
    columns = _tile((128, count), nl.float32)
    for i in range(len(scores)):
        nisa.tensor_reduce(dst=columns[:, i : i + 1], op=nl.maximum, data=scores[i], axis=1)
    if most is not None:
        nisa.tensor_scalar(
            dst=columns[:, count - 1 : count], data=most, op0=nl.multiply, operand0=-1.0
        )
    negmax = _tile((128, 1), nl.float32)
    nisa.tensor_reduce(dst=negmax, op=nl.maximum, data=columns, axis=1, negate=True)
    return negmax


def _exponentials(scores, negmax):
    """exp(score - max) in bfloat16 by banks, and the sums of each row by banks."""
    weights = []
    sums = _tile((128, len(scores)), nl.float32)
    for i in range(len(scores)):
        tile = _tile(scores[i].shape, nl.bfloat16)
        nisa.activation_reduce(
            dst=tile, op=nl.exp, data=scores[i], reduce_op=nl.add,
            reduce_res=sums[:, i : i + 1], bias=negmax,
        )  # fmt: skip
        weights.append(tile)
    return weights, sums


def _weighted(weights, values, depth):
    """weights @ values: four transposes of 128 columns share a bank, and a bank is transposed while
    the one before it is used.
    """
    acc = _bank(128, depth)
    before = None
    for i in range(len(weights)):
        turned = _turned(weights[i])
        if before is not None:
            _accumulate(acc, before, values, 4 * i - 4)
        before = turned
    _accumulate(acc, before, values, 4 * len(weights) - 4)
    return acc


def _turned(weights):
    width = weights.shape[1]
    held = nl.ndarray((128, width), dtype=nl.bfloat16, buffer=nl.psum)
    for n in range(0, width, 128):
        nisa.nc_transpose(
            dst=held[:, n : n + 128], data=weights[:, n : n + 128], engine=nisa.tensor_engine
        )
    turned = _tile((128, width), nl.bfloat16)
    nisa.tensor_copy(dst=turned, src=held, engine=nisa.vector_engine)
    return turned


def _accumulate(acc, turned, values, first):
    for n in range(0, turned.shape[1], 128):
        nisa.nc_matmul(
            dst=acc, stationary=turned[:, n : n + 128], moving=values[:, first + n // 128]
        )
