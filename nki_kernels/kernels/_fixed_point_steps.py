"""What `_fixed_point_sums.py` does, in which pieces: the instructions of a plan by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

EPOCH = 16384  # elements whose magnitudes are added
# Instructions: of a piece ...
LOAD, BOUND, LIFT, ROUND, ROUND_ON_VECTOR = range(5)
LEFT, LEFT_ON_VECTOR, LEFT_ON_TENSOR, SUM, SUM_LEFT, ADD, FINISH, FINISH_ON_GPSIMD = range(5, 13)
ADD_ON_TENSOR, COPY = range(13, 15)  # in place of ADD, FINISH and FINISH_ON_GPSIMD
# ... and of a chunk: the bound of its sums, and what it starts with, in turn.
NOTHING, BOUND_ALL, MOVE, START, START_LEFT = range(15, 20)
_FEW = 2048  # elements of which what is left stays little


class Chunk(NamedTuple):
    """`size` elements of a row of tile `tile`, `number` of that row; in `first_piece ..
    last_piece`. `before` and `long_before` are the last chunks of the two epochs before, or -1;
    where `in_powers` is 1 what it rounds by is a power of two."""

    tile: int
    first: int
    size: int
    number: int
    first_piece: int
    last_piece: int
    begins_epoch: int
    before: int
    long_before: int
    in_powers: int


class Piece(NamedTuple):
    """`size` elements from `first` on of a chunk, of which VectorE rounds `rounds`, and finds what
    is left of `on_vector`; it also adds, where `adds` is 1. TensorE finds what is left of every
    second one where `on_tensor` is 1, and adds up all results where `in_psum` is 1."""

    chunk: int
    first: int
    size: int
    rounds: int
    on_vector: int
    adds: int
    on_tensor: int
    finishes: int
    in_psum: int


class Plan(NamedTuple):
    """Of the work of a core with so many tiles; TensorE begins with `warm_up` products, `order` has
    instructions with their numbers."""

    tiles: int
    warm_up: int
    chunks: tuple[Chunk, ...]
    pieces: tuple[Piece, ...]
    order: tuple[tuple[int, int], ...]


def moves(chunk: Chunk) -> bool:
    """Whether a chunk moves what the one before last left to its grid, so that this stays little:
    it would be known too late of the last one."""
    return chunk.number > 1 and chunk.first + chunk.size > _FEW


def grid_of(chunks: Sequence[Chunk], c: int) -> tuple[int, int]:
    """The instruction that tells to what chunk `c` rounds."""
    return (BOUND_ALL, c) if chunks[c].in_powers else (BOUND, chunks[c].last_piece)
