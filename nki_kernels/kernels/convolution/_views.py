"""NKI helpers of convolutions: tensors in HBM as `[channels, planes, rows, columns]`."""

from __future__ import annotations

from typing import Any

import nki.language as nl


def with_planes(weight: nl.NkiTensor, apart: int) -> nl.NkiTensor:
    """A weight of 1, 2 or 3 kernel dimensions as `[a, b, planes, rows, columns]`; its rows are
    further channels b where they are `apart`.
    """
    shape = weight.shape
    if apart > 1:
        return weight.reshape((shape[0], shape[1] * apart, 1, 1, shape[3]))
    if len(shape) == 3:
        return weight.reshape((shape[0], shape[1], 1, shape[2], 1))
    if len(shape) == 4:
        return weight.reshape((shape[0], shape[1], 1, shape[2], shape[3]))
    return weight


def volumes_of(tensor: nl.NkiTensor | None, count: int) -> list[Any]:
    """`tensor[N, C, ...]` as views `[C, planes, rows, columns]`; None `count` times for None."""
    views: list[Any] = []
    if tensor is None:
        for _ in range(count):
            views.append(None)
        return views
    shape = tensor.shape
    if len(shape) == 3:
        views.append(tensor.reshape((shape[0], shape[1], shape[2], 1)).permute((1, 0, 2, 3)))
    elif len(shape) == 4:
        views.append(tensor.permute((1, 0, 2, 3)))
    else:
        for image in range(shape[0]):
            views.append(tensor[image])
    return views


def results_of(tensor: nl.NkiTensor | None, apart: int, count: int) -> list[Any]:
    """The result, or what is added to it, as `volumes_of` has it; `[C, apart, planes, rows,
    columns]` where rows are further channels.
    """
    if tensor is None or apart == 1:
        return volumes_of(tensor, count)
    images, channels, rows, columns = tensor.shape
    split = tensor.reshape((images, channels, rows // apart, apart, columns))
    views: list[Any] = [split.permute((1, 3, 0, 2, 4))]
    return views
