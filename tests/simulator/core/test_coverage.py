"""Written elements, tracked by element, against a map of every byte."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.shadows import Shadow, Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import MemoryRegion

PATTERNS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=3),
        st.integers(0, 12),
        st.sampled_from(["int32", "int16", "uint8"]),
    ),
    min_size=1,
    max_size=5,
)


@given(PATTERNS, PATTERNS, st.integers(1, 5))
def test_coverage_is_exact(
    writes: list[tuple],  # type: ignore[type-arg]
    reads: list[tuple],  # type: ignore[type-arg]
    every: int,
) -> None:
    tensor = Simulator(TraceOptions()).allocate((64,), "int32", MemoryRegion.private_hbm)
    seen = torch.zeros(256, dtype=torch.bool)
    coverage = Shadows().of(tensor.storage)

    def bytes_of(pattern: list[tuple[int, int]], offset: int, dtype: str) -> torch.Tensor:
        # The offset of `ap` counts elements of the new type from the view's start, which is 0.
        view = tensor.ap(pattern, offset=offset, dtype=dtype)
        size = view.dtype.itemsize
        strides = [stride * size for stride in view.strides]
        places = torch.arange(256).as_strided([*view.shape, size], [*strides, 1], offset * size)
        return places.flatten()

    for number, (pattern, offset, dtype) in enumerate(writes, 1):
        coverage.mark(tensor.ap(pattern, offset=offset, dtype=dtype))
        seen[bytes_of(pattern, offset, dtype)] = True
        if number % every:
            continue
        for read, start, kind in (*reads, (pattern, offset, dtype)):
            view = tensor.ap(read, offset=start, dtype=kind)
            there = seen[bytes_of(read, start, kind)]
            assert coverage.covers(view) == bool(there.all())
            want = Covered.ALL if there.all() else Covered.SOME if there.any() else Covered.NONE
            assert coverage.state(view) is want


def test_halves_of_rows_are_told_apart_by_their_columns() -> None:
    tensor = Simulator(TraceOptions()).allocate((8, 6), "float32", MemoryRegion.private_hbm)
    coverage = Shadows().of(tensor.storage)
    coverage.mark(tensor[0:4, 0:3])
    coverage.mark(tensor[6:8, 1:3])
    assert coverage.state(tensor[0:8, 3:6]) is Covered.NONE
    assert coverage.state(tensor[2, 3:5]) is Covered.NONE
    assert coverage.state(tensor[4:6, 0:3]) is Covered.NONE
    assert coverage.state(tensor[3:6, 2:6]) is Covered.SOME
    assert coverage.covers(tensor[1:4, 0:3])
    coverage.mark(tensor[4:6])
    assert coverage.state(tensor[5, 3:6]) is Covered.ALL
    assert coverage.state(tensor[0:4, 3:6]) is Covered.NONE
    coverage.erase(tensor[0:8, 0:3])
    assert coverage.state(tensor[0:8, 0:3]) is Covered.NONE
    assert coverage.covers(tensor[4:6, 3:6])


def test_as_many_elements_as_the_storage_may_still_leave_gaps() -> None:
    tensor = Simulator(TraceOptions()).allocate((16,), "int32", MemoryRegion.private_hbm)
    written = Shadows().of(tensor.storage)
    written.mark(tensor.ap([[1, 4], [1, 4]]))
    assert not written.covers(tensor)
    assert written.covers(tensor[:7])
    assert not written.covers(tensor[:8])


def test_a_permuted_whole_is_whole() -> None:
    tensor = Simulator(TraceOptions()).allocate((4, 6), "int32", MemoryRegion.private_hbm)
    written = Shadows().of(tensor.storage)
    written.mark(tensor.permute((1, 0)))
    assert written.full


# Of a tile [8, 40] of int32: partitions (start, step, count), then free dimensions as above.
TILE_VIEWS = st.tuples(
    st.integers(0, 3),
    st.integers(1, 2),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=2),
    st.integers(0, 8),
    st.sampled_from(["int32", "int16", "uint8"]),
)


def _tile_view(tile: NkiTensor, view: tuple) -> tuple[NkiTensor, torch.Tensor]:  # type: ignore[type-arg]
    """A view, and the bytes of its elements as [*shape, itemsize]."""
    start, step, count, free, column, dtype = view
    rows = tile[start : start + step * count : step].view(dtype)
    shape = (count, *(extent for _, extent in free))
    strides = (rows.strides[0], *(stride for stride, _ in free))
    picked = NkiTensor(tile.storage, rows.dtype, shape, strides, rows.offset + column)
    size = rows.dtype.itemsize
    places = torch.arange(8 * 40 * 4).as_strided(
        (*shape, size), (*(s * size for s in strides), 1), picked.offset * size
    )
    return picked, places


def _assert_as_seen(coverage: Shadow, seen: torch.Tensor, tile: NkiTensor, view: tuple) -> None:  # type: ignore[type-arg]
    asked, places = _tile_view(tile, view)
    there = seen[places]
    assert torch.equal(coverage.mask(asked).bool(), there.all(-1))
    assert coverage.covers(asked) == bool(there.all())
    want = Covered.ALL if there.all() else Covered.SOME if there.any() else Covered.NONE
    assert coverage.state(asked) is want


class _Sizes(TorchDispatchMode):
    """Notes the most elements that a result had."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["mark", "erase", "unmark", "rival"]), TILE_VIEWS), max_size=6
    ),
    st.lists(TILE_VIEWS, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_coverage_on_chip_is_exact(writes: list[tuple], reads: list[tuple], random: Random) -> None:  # type: ignore[type-arg]
    tile = Simulator(TraceOptions()).allocate((8, 40), "int32", MemoryRegion.sbuf)
    coverage = Shadows().of(tile.storage)
    seen = torch.zeros(8 * 40 * 4, dtype=torch.bool)
    for what, given_view in writes:
        view, places = _tile_view(tile, given_view)
        if what == "mark":
            coverage.mark(view)
            seen[places.flatten()] = True
        elif what == "erase":
            coverage.erase(view)
            seen[places.flatten()] = False
        elif what == "unmark":
            chosen = torch.tensor([random.random() < 0.5 for _ in range(view.size)])
            chosen = chosen.view(view.shape)
            coverage.unmark(view, chosen)
            seen[places[chosen].flatten()] = False
        else:
            low, bits = random.randrange(60), random.getrandbits(30)
            columns = [low + i for i in range(30) if bits >> i & 1]
            first, last = sorted(random.sample(range(9), 2))
            map_ = seen.view(8, 160)[first:last]
            assert coverage.erase_bytes(first, last, bits << low) == bool(map_[:, columns].any())
            map_[:, columns] = False
        assert coverage.is_empty == (not bool(seen.any()))
        for read in (*reads, given_view):
            _assert_as_seen(coverage, seen, tile, read)


@given(
    st.lists(
        st.tuples(st.sampled_from(["mark", "all", "erase", "unmark"]), TILE_VIEWS), max_size=6
    ),
    st.lists(TILE_VIEWS, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_coverage_in_hbm_is_exact(writes: list[tuple], reads: list[tuple], random: Random) -> None:  # type: ignore[type-arg]
    tensor = Simulator(TraceOptions()).allocate((8, 40), "int32", MemoryRegion.private_hbm)
    coverage = Shadows().of(tensor.storage)
    seen = torch.zeros(8 * 40 * 4, dtype=torch.bool)
    for what, given_view in writes:
        view, places = _tile_view(tensor, given_view)
        if what == "mark":
            coverage.mark(view)
            seen[places.flatten()] = True
        elif what == "all":
            coverage.mark_everything()
            seen[:] = True
        elif what == "erase":
            coverage.erase(view)
            seen[places.flatten()] = False
        else:
            chosen = torch.tensor([random.random() < 0.5 for _ in range(view.size)])
            chosen = chosen.view(view.shape)
            coverage.unmark(view, chosen)
            seen[places[chosen].flatten()] = False
        for read in (*reads, given_view):
            _assert_as_seen(coverage, seen, tensor, read)


def test_rows_of_a_large_storage_take_no_map_of_its_elements() -> None:
    shape = (4097, 6144)
    tensor = Simulator(TraceOptions()).allocate(shape, "bfloat16", MemoryRegion.private_hbm)
    coverage = Shadows().of(tensor.storage)
    for row in range(1, 4096, 32):
        coverage.mark(tensor[row, 0:3072] if row % 64 == 1 else tensor[row, 3072:6144])
    with _Sizes() as sizes:
        assert coverage.state(tensor[2:33, 0:6144]) is Covered.NONE
        assert coverage.state(tensor[2:34, 3072:4096]) is Covered.SOME
        assert coverage.state(tensor[33, 3072:6144]) is Covered.ALL
        assert coverage.state(tensor[4033:4097, 1024:2048]) is Covered.SOME
    assert sizes.largest <= 6 * 4097


def test_a_whole_tile_loses_what_is_erased() -> None:
    tile = Simulator(TraceOptions()).allocate((128, 24), "bfloat16", MemoryRegion.sbuf)
    coverage = Shadows().of(tile.storage)
    coverage.mark(tile)
    coverage.erase(tile[64:128, 3:5])
    assert coverage.covers(tile[0:64])
    assert coverage.covers(tile[64:128, 5:24])
    assert coverage.state(tile[:, 4:6]) is Covered.SOME
    assert coverage.state(tile[64:128, 3:5]) is Covered.NONE
    assert coverage.erase_bytes(0, 128, (1 << 48) - 1)
    assert coverage.is_empty
    assert not coverage.erase_bytes(0, 128, (1 << 48) - 1)


def test_tensors_by_turns_share_memory_and_forget_what_was_overwritten() -> None:
    simulator = Simulator(TraceOptions())
    turns = [
        simulator.allocate((128, 64), "float32", MemoryRegion.sbuf, address=(0, 1024 + i % 2 * 256))
        for i in range(10)
    ]
    wide = simulator.allocate((64, 170), "bfloat16", MemoryRegion.sbuf, address=(32, 960))
    assert simulator.pool.allocated_bytes == 2 * 128 * 256 + 64 * 340
    written, overlap = simulator.initialised.written, simulator.initialised.overlap
    for tensor in turns:
        written.of(tensor.storage).mark(tensor)
        overlap.overwrite(tensor)
    assert [written.of(t.storage).is_empty for t in turns] == [True] * 8 + [False] * 2
    overlap.overwrite(wide)
    last = turns[-2]
    assert written.of(last.storage).state(last[32:96]) is Covered.NONE
    assert written.of(last.storage).covers(last[0:32])
    del last
    place = wide.storage.place
    assert place is not None
    assert len(overlap.holders(place)) == 3
    del turns, tensor
    assert len(overlap.holders(place)) == 1
