"""How the joint graph of a training step is split into forward and backward.

The min-cut partitioner saves least, but it may save an input in place of a value computed from it:
for `y = x * buf.clone(); buf.add_(1)` it saves `buf` and recomputes the clone in backward, after
`buf` has changed. So its split is taken only where it saves no input that the function writes to,
nor a view of one; else the default partitioner's, which saves what eager saves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from trnx.backend.torch_internals import (
    copy_graph_module,
    mutated_inputs,
    partition_by_default,
    partition_by_min_cut,
)
from trnx.fx_passes.aliasing import storage_root
from trnx.fx_passes.canonicalise.name_masks import NAME_MASKS


def _saved(forward: fx.GraphModule, num_fwd_outputs: int) -> list[fx.Node]:
    outputs = forward.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple))
    return [value for value in outputs[num_fwd_outputs:] if isinstance(value, fx.Node)]


def split_joint(
    joint: fx.GraphModule,
    inputs: Any,
    *,
    num_fwd_outputs: int,
    expand: Callable[[fx.GraphModule], None],
    **kwargs: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graph modules of `joint`, after `expand`. Masks are named here already:
    backward would see one that forward saves, and not how it is made."""
    expand(joint)
    NAME_MASKS.run(joint)
    written = mutated_inputs(joint)
    original = copy_graph_module(joint) if written else joint
    forward, backward = partition_by_min_cut(
        joint, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs
    )
    if any(storage_root(node).name in written for node in _saved(forward, num_fwd_outputs)):
        forward, backward = partition_by_default(
            original, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs
        )
    return forward, backward
