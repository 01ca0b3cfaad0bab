"""NKI helpers of the forward pass of attention: short sequences, many heads of which are loaded
together, so that the queue of loads is not what everything waits for.
"""

from __future__ import annotations

import nki.language as nl

from trnx.nki_kernels.kernels.attention._forward import (
    Biases,
    KeyTile,
    Outputs,
    Pipeline,
    Prepared,
    Problem,
    bias_of,
    step,
    visible,
)
from trnx.nki_kernels.kernels.attention._heads import load_blocks, load_heads, turned_heads
from trnx.nki_kernels.kernels.attention._layout import Chunk, span_of


def forward_span(
    p: Problem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    outputs: Outputs,
    chunks: list[Chunk],
    biases: Biases,
    pipeline: Pipeline,
) -> Pipeline:
    """All rows of the heads of `chunks`, which follow each other in one batch entry."""
    q, k, v = tensors
    rows, cols = q.shape[2], k.shape[2]
    whole = span_of(chunks)
    queries = load_heads(q, whole, 0, rows, p.features, p.is_static)
    keys = load_heads(k, whole, 0, cols, p.features, p.is_static)
    values = load_blocks(v, whole, 0, cols, p.is_static)[0]
    for chunk in chunks:
        first = chunk.head - whole.head
        mine = turned_heads(queries, first, chunk.heads, p.features).transposed
        theirs = turned_heads(keys, first, chunk.heads, p.features).transposed
        tile = KeyTile(0, cols, theirs, [values[:, first : first + chunk.heads, :]])
        bias = bias_of(p, biases, chunk, 0, rows, 0, visible(p, 0, rows, 0, cols))
        pipeline = step(p, outputs, pipeline, Prepared(mine, tile, chunk, 0, bias, True))
    return pipeline
