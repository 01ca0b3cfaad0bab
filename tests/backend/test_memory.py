"""Buffers of intermediates: what lives together does not overlap, what does not shares memory."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trnx.backend.memory import ALIGNMENT, Buffer, FramePool, assign_offsets
from trnx.simulator.memory.tensor_spec import TensorSpec


def buffer(size: int, start: int, end: int) -> Buffer:
    return Buffer(TensorSpec.dense((size,), torch.uint8), start, end)


def test_buffers_that_do_not_meet_share_memory() -> None:
    offsets, total = assign_offsets([buffer(100, 0, 1), buffer(100, 2, 3), buffer(100, 1, 2)])
    assert offsets[0] == offsets[1] == 0
    assert offsets[2] == 128
    assert total == 256


def test_the_storage_of_a_frame_is_whole_elements_of_every_dtype() -> None:
    """PyTorch counts the elements of a view's storage, such as in `copy`."""
    floats = Buffer(TensorSpec.dense((2, 4), torch.float32), 0, 1)
    (found, _) = FramePool([floats, buffer(41, 0, 1)]).take()
    assert found.untyped_storage().nbytes() % 8 == 0
    column = torch.ops.aten.copy.default(found[:, 0], torch.tensor(0.5))
    assert column.tolist() == [0.5, 0.5]


def test_nothing_needs_nothing() -> None:
    assert assign_offsets([]) == ([], 0)
    (empty,) = FramePool([buffer(0, 0, 0)]).take()
    assert empty.shape == (0,)


lifetimes = st.tuples(st.integers(0, 300), st.integers(0, 10), st.integers(0, 10))


@given(st.lists(lifetimes, max_size=12))
def test_what_lives_together_does_not_overlap(parts: list[tuple[int, int, int]]) -> None:
    buffers = [buffer(size, min(a, b), max(a, b)) for size, a, b in parts]
    offsets, total = assign_offsets(buffers)
    for i, one in enumerate(buffers):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + one.nbytes <= total or one.nbytes == 0
        for j in range(i):
            other = buffers[j]
            together = one.start <= other.end and other.start <= one.end
            if together and one.nbytes and other.nbytes:
                apart = (
                    offsets[i] + one.nbytes <= offsets[j] or offsets[j] + other.nbytes <= offsets[i]
                )
                assert apart


def test_a_strided_buffer_spans_its_strides() -> None:
    spec = TensorSpec((3, 2), torch.float32, (1, 8))
    assert Buffer(spec, 0, 0).nbytes == 4 * (1 + 2 * 1 + 1 * 8)
    (tensor,) = FramePool([Buffer(spec, 0, 0)]).take()
    assert (tensor.shape, tensor.stride(), tensor.dtype) == ((3, 2), (1, 8), torch.float32)


def test_frames_are_reused_and_never_shared() -> None:
    pool = FramePool([buffer(64, 0, 0)])
    first, second = pool.take(), pool.take()
    assert first[0].data_ptr() != second[0].data_ptr()
    pool.give_back(first)
    assert pool.take() is first
