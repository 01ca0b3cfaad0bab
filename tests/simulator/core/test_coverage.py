"""Written elements, tracked by element, against a map of every byte."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trnx.simulator.coverage import Covered
from trnx.simulator.hardware import TRN2
from trnx.simulator.simulator import Simulator
from trnx.simulator.storage import MemoryRegion

PATTERNS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=3),
        st.integers(0, 12),
        st.sampled_from(["int32", "int16", "uint8"]),
    ),
    min_size=1,
    max_size=5,
)


@given(PATTERNS, PATTERNS)
def test_coverage_is_exact(writes: list[tuple], reads: list[tuple]) -> None:  # type: ignore[type-arg]
    tensor = Simulator(TRN2).allocate((64,), "int32", MemoryRegion.private_hbm)
    seen = torch.zeros(256, dtype=torch.bool)
    coverage = tensor.storage.written

    def bytes_of(pattern: list[tuple[int, int]], offset: int, dtype: str) -> torch.Tensor:
        # The offset of `ap` counts elements of the new type from the view's start, which is 0.
        view = tensor.ap(pattern, offset=offset, dtype=dtype)
        size = view.dtype.itemsize
        strides = [stride * size for stride in view.strides]
        places = torch.arange(256).as_strided([*view.shape, size], [*strides, 1], offset * size)
        return places.flatten()

    for pattern, offset, dtype in writes:
        coverage.mark(tensor.ap(pattern, offset=offset, dtype=dtype))
        seen[bytes_of(pattern, offset, dtype)] = True
        for read, start, kind in (*reads, (pattern, offset, dtype)):
            view = tensor.ap(read, offset=start, dtype=kind)
            there = seen[bytes_of(read, start, kind)]
            assert coverage.covers(view) == bool(there.all())
            want = Covered.ALL if there.all() else Covered.SOME if there.any() else Covered.NONE
            assert coverage.state(view) is want


def test_as_many_elements_as_the_storage_may_still_leave_gaps() -> None:
    tensor = Simulator(TRN2).allocate((16,), "int32", MemoryRegion.private_hbm)
    tensor.storage.written.mark(tensor.ap([[1, 4], [1, 4]]))
    assert not tensor.storage.written.covers(tensor)
    assert tensor.storage.written.covers(tensor[:7])
    assert not tensor.storage.written.covers(tensor[:8])


def test_a_permuted_whole_is_whole() -> None:
    tensor = Simulator(TRN2).allocate((4, 6), "int32", MemoryRegion.private_hbm)
    tensor.storage.written.mark(tensor.permute((1, 0)))
    assert tensor.storage.written.full
