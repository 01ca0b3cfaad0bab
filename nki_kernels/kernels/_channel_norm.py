"""The kernel of norms whose statistics are those of channels (`channel_norm.py`)."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._scalar_table import early_epsilon

PIECE = 2048  # elements of one load per partition: 8 KiB of float32


@nki.jit
def channel_norm_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    running_mean: nl.NkiTensor | None,
    running_var: nl.NkiTensor | None,
    eps: float,
    momentum: float,
    images: int,
    channels: int,
    group: int,
    stats_shape: tuple[int, ...],
    keep: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, ...]:
    """x of `images * channels` planes -> (out, mean, rstd), and new running statistics.

    Normalised are `images` planes of `group` neighbouring channels; weight and bias repeat.
    `cores` share the channels.
    """
    pmax = nl.tile_size.pmax
    length = x.size // (images * channels)
    stats_dtype = x.dtype
    for parameter in (weight, bias, running_mean):
        if parameter is not None:
            stats_dtype = parameter.dtype
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mean = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rstd = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    source = x.reshape((images, channels, length)).permute((1, 0, 2))
    result = out.reshape((images, channels, length)).permute((1, 0, 2))
    epsilon = early_epsilon(eps)
    lanes = pmax // group * group
    moved = []  # the running statistics as they are after this
    if running_mean is not None:
        for _ in range(2):
            moved.append(nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm))
    first, last = share_of(channels, cores, group)
    if first < last:
        tiles, moments = _load_moments(source[first : min(last, first + lanes)], keep)
    for start in range(first, last, lanes):
        # The next channels are loaded before anything waits for what these need last.
        fresh, ahead = tiles, moments
        if start + lanes < last:
            end = min(last, start + 2 * lanes)
            fresh, ahead = _load_moments(source[start + lanes : end], keep)
        p = moments.shape[0]
        if group > 1:
            moments = _merge(moments, group, images * length)
        deviation = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=deviation, op=nl.rsqrt, data=moments[:, 1:2], bias=epsilon[0:p])
        _store_channels(mean, moments[:, 0:1], start, group)
        _store_channels(rstd, deviation, start, group)
        if running_mean is not None:
            count = images * length
            _update(moved[0], running_mean, moments[:, 0:1], start, momentum, momentum)
            unbiased = momentum * count / (count - 1)
            _update(moved[1], running_var, moments[:, 1:2], start, momentum, unbiased)
        scale, shift = _affine(moments, deviation, weight, bias, start)
        _apply(result[start : start + p], source[start : start + p], tiles, scale, shift, keep)
        tiles, moments = fresh, ahead
    if running_mean is not None:
        return out, mean, rstd, moved[0], moved[1]
    return out, mean, rstd


def _affine(
    moments: nl.NkiTensor,
    deviation: nl.NkiTensor,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    start: int,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(scale, shift) with which x * scale + shift is the norm of channels from `start`."""
    p = moments.shape[0]
    scale = deviation
    if weight is not None:
        scale = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        weights = _load_channels(weight, start, p)
        nisa.tensor_tensor(dst=scale, data1=deviation, data2=weights, op=nl.multiply)
    shift = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=shift,
        data=moments[:, 0:1],
        op0=nl.multiply,
        operand0=scale,
        op1=nl.multiply,
        operand1=-1.0,
    )
    if bias is not None:
        biases = _load_channels(bias, start, p)
        nisa.tensor_tensor(dst=shift, data1=shift, data2=biases, op=nl.add)
    return scale, shift


def _piece(planes: nl.NkiTensor, at: int) -> nl.NkiTensor:
    """Piece number `at` of planes[p, images, length] in HBM: whole planes, or a part of one."""
    _, images, length = planes.shape
    if length >= PIECE:
        parts = (length + PIECE - 1) // PIECE
        image, part = at // parts, at % parts
        left = part * PIECE
        return planes[:, image : image + 1, left : min(length, left + PIECE)]
    each = PIECE // length
    return planes[:, at * each : min(images, (at + 1) * each)]


def _pieces(planes: nl.NkiTensor) -> int:
    images, length = int(planes.shape[1]), int(planes.shape[2])
    if length >= PIECE:
        return images * ((length + PIECE - 1) // PIECE)
    each = PIECE // length
    return (images + each - 1) // each


def _load(source: nl.NkiTensor) -> nl.NkiTensor:
    data = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=source)
    return data


def _load_moments(planes: nl.NkiTensor, keep: bool) -> tuple[list[nl.NkiTensor], nl.NkiTensor]:
    """The tiles of planes[p, images, length] where kept, and (mean, variance) per partition."""
    most = nl.tile_size.bn_stats_fmax
    p = planes.shape[0]
    tiles = []
    parts = []
    for at in range(_pieces(planes)):
        data = _load(_piece(planes, at))
        if keep:
            tiles.append(data)
        _, n, length = data.shape
        if length >= most:
            for image in range(n):
                for left in range(0, length, most):
                    parts.append(data[:, image : image + 1, left : min(length, left + most)])
        else:
            each = most // length
            for image in range(0, n, each):
                parts.append(data[:, image : min(n, image + each)])
        if at == 0:
            total = _pieces(planes) * len(parts)
            statistics = nl.ndarray((p, total, 6), dtype=nl.float32, buffer=nl.sbuf)
            done = 0
        for i in range(len(parts)):
            nisa.bn_stats(dst=statistics[:, done], data=parts[i])
            done = done + 1
        parts = []
    moments = nl.ndarray((p, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(dst=moments, data=statistics[:, 0:done])
    return tiles, moments


def _merge(moments: nl.NkiTensor, group: int, count: int) -> nl.NkiTensor:
    """The moments of each channel's group, of which a channel has `count` elements.

    By way of HBM, from where every channel reads what its group has: a product with a matrix of
    ones and zeros would carry NaN from one group to another.
    """
    p = moments.shape[0]
    own = nl.ndarray((p, 3), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=own[:, 0:1], value=float(count))
    nisa.tensor_copy(dst=own[:, 1:2], src=moments[:, 0:1])
    spread = moments[:, 1:2]
    nisa.tensor_scalar(dst=own[:, 2:3], data=spread, op0=nl.multiply, operand0=float(count))
    scratch = nl.ndarray((p, 3), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=scratch, src=own)
    every = nl.ndarray((p, 3 * group), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[3 * group, p // group], [0, group], [1, 3 * group]]
    nisa.dma_copy(dst=every, src=scratch.ap(pattern=pattern))
    merged = nl.ndarray((p, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(dst=merged, data=every)
    return merged


def _apply(
    result: nl.NkiTensor,
    planes: nl.NkiTensor,
    tiles: list[nl.NkiTensor],
    scale: nl.NkiTensor,
    shift: nl.NkiTensor,
    keep: bool,
) -> None:
    """result = planes * scale + shift; `tiles` hold the planes where they were kept."""
    for at in range(_pieces(planes)):
        data = tiles[at] if keep else _load(_piece(planes, at))
        scaled = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
        nisa.activation(dst=scaled, op=nl.copy, data=data, scale=scale, bias=shift)
        nisa.dma_copy(dst=_piece(result, at), src=scaled)


def _load_channels(vector: nl.NkiTensor, start: int, p: int) -> nl.NkiTensor:
    """vector[(start + i) % size] in partition i."""
    size = vector.size
    tile = nl.ndarray((p, 1), dtype=vector.dtype, buffer=nl.sbuf)
    column = vector.reshape((size, 1))
    done = 0
    while done < p:
        left = (start + done) % size
        count = min(p - done, size - left)
        nisa.dma_copy(dst=tile[done : done + count], src=column[left : left + count])
        done = done + count
    return tile


def _store_channels(dst: nl.NkiTensor, column: nl.NkiTensor, start: int, group: int) -> None:
    """column[p, 1], equal within groups, to one element a group of dst."""
    p = column.shape[0]
    rounded = nl.ndarray((p, 1), dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=column)
    first, count = start // group, p // group
    target = dst.reshape((dst.size, 1))[first : first + count]
    if group == 1:
        nisa.dma_copy(dst=target, src=rounded)
    else:
        scratch = nl.ndarray((p, 1), dtype=dst.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(dst=scratch, src=rounded)
        nisa.dma_copy(dst=target, src=scratch.reshape((count, group))[:, 0:1])


def _update(
    dst: nl.NkiTensor,
    running: nl.NkiTensor,
    moment: nl.NkiTensor,
    start: int,
    momentum: float,
    factor: float,
) -> None:
    """dst = running * (1 - momentum) + moment * factor, for channels from `start`."""
    p = moment.shape[0]
    old = _load_channels(running, start, p)
    fresh = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=fresh, data=moment, op0=nl.multiply, operand0=factor)
    mixed = nl.ndarray((p, 1), dtype=dst.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=mixed, data=old, op0=nl.multiply, operand0=1.0 - momentum, op1=nl.add, operand1=fresh
    )
    nisa.dma_copy(dst=dst.reshape((dst.size, 1))[start : start + p], src=mixed)
