"""The rule of ops that go image by image: convolutions, pooling and group norms of a padded batch.

An image of the result depends on the same image of the operand alone. Channels and places of an
image have no padding: a convolution sums over them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.nodes import aten, op_name, val
from trnx.fx_passes.padding.layouts import (
    Layout,
    Operands,
    axis_of,
    no_padding,
    no_padding_in,
)

# The dimensions of an operand with a batch; pooling takes a single image too.
_POOLING: dict[Any, int] = {
    aten.max_pool2d_with_indices.default: 4,
    aten.avg_pool2d.default: 4,
    aten._adaptive_avg_pool2d.default: 4,
    aten.max_pool3d_with_indices.default: 5,
    aten.avg_pool3d.default: 5,
    aten._adaptive_avg_pool3d.default: 5,
}
IMAGE_OPS = (*_POOLING, aten.convolution.default, aten.native_group_norm.default)


def by_image(node: fx.Node, operands: Operands) -> Layout | tuple[Layout, ...]:
    """All results have the batch in front."""
    image, *others = node.args
    layout = operands.layout(image)
    has_batch = len(layout) == _POOLING.get(node.target, len(layout))
    no_padding(layout, range(int(has_batch), len(layout)), op_name(node))
    no_padding_in(others, operands, node)

    def of(result: torch.Tensor) -> Layout:
        axes = [axis_of((operands.padded.size(size),)) for size in result.shape]
        return (replace(layout[0], fill=None), *axes[1:]) if has_batch else tuple(axes)

    value = node.meta["val"]
    return tuple(map(of, value)) if isinstance(value, (tuple, list)) else of(val(node))
