"""Views of NkiTensor against torch's own views."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnx.simulator.errors import IllegalInstructionError, OutOfBoundsError
from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.language.recorder import CURRENT
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtypes import resolve
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.memory.views import reshape_strides

REGIONS = st.sampled_from([MemoryRegion.sbuf, MemoryRegion.private_hbm])
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def _tensor(shape: tuple[int, ...], buffer: MemoryRegion) -> tuple[NkiTensor, torch.Tensor]:
    """A tensor and the torch tensor that its memory is."""
    tensor = Simulator(TraceOptions()).allocate(shape, "int32", buffer)
    values = torch.arange(math.prod(shape), dtype=torch.int32).view(shape)
    tensor.torch_view().copy_(values)
    return tensor, tensor.torch_view()


def _check_same(view: NkiTensor, expected: torch.Tensor) -> None:
    assert view.shape == tuple(expected.shape)
    assert torch.equal(view.torch_view(), expected)


@given(SIZES, st.data())
def test_reshape_agrees_with_torch(shape: list[int], data: st.DataObject) -> None:
    base = torch.arange(math.prod(shape)).view(shape)
    order = data.draw(st.permutations(range(len(shape))))
    source = base.permute(order)
    new = tuple(data.draw(st.permutations(shape))) + (1,) * data.draw(st.integers(0, 1))
    if data.draw(st.booleans()):
        new = (math.prod(shape),)
    strides = reshape_strides(tuple(source.shape), source.stride(), new)
    try:
        expected = source.view(new)
    except RuntimeError:
        assert strides is None
    else:
        assert strides is not None
        assert torch.equal(base.as_strided(new, strides), expected)


@given(SIZES, st.data())
def test_chains_of_views_agree_with_torch(sizes: list[int], data: st.DataObject) -> None:
    shape = (*sizes, 4, 3)
    view, want = _tensor(shape, data.draw(REGIONS))
    first = 1 if view.is_on_chip else 0
    for _ in range(data.draw(st.integers(1, 4))):
        dim = data.draw(st.integers(first, want.ndim - 1))
        match data.draw(st.sampled_from(["slice", "permute", "expand", "select", "split"])):
            case "slice":
                start = data.draw(st.integers(0, want.shape[dim] - 1))
                step = data.draw(st.integers(1, 2))
                view = view.slice(dim, start, want.shape[dim], step)
                want = want[(slice(None),) * dim + (slice(start, None, step),)]
            case "permute":
                rest = data.draw(st.permutations(range(first, want.ndim)))
                order = (*range(first), *rest)
                view, want = view.permute(order), want.permute(order)
            case "expand":
                view, want = view.expand_dim(dim).broadcast(dim, 3), want.unsqueeze(dim)
                want = want.expand(*want.shape[:dim], 3, *want.shape[dim + 1 :])
            case "select" if want.ndim > 2:
                index = data.draw(st.integers(0, want.shape[dim] - 1))
                view, want = view.select(dim, index), want.select(dim, index)
            case "split":
                view = view.reshape_dim(dim, (-1, 1))
                want = want.unflatten(dim, (want.shape[dim], 1))
        _check_same(view, want)
        assert view.get_pattern() == [
            [stride, size] for stride, size in zip(view.strides, view.shape, strict=True)
        ]


@given(st.data())
def test_indexing_agrees_with_numpy_rules(data: st.DataObject) -> None:
    view, want = _tensor(
        (4, 5, 6), data.draw(st.sampled_from([MemoryRegion.sbuf, MemoryRegion.private_hbm]))
    )
    key: list[object] = []
    reference: list[object] = []
    for dim, size in enumerate(want.shape):
        start = data.draw(st.integers(0, size - 1))
        if data.draw(st.booleans()):
            index = start - size if data.draw(st.booleans()) else start
            key.append(index)
            # On chip the partition dimension stays.
            reference.append(slice(start, start + 1) if view.is_on_chip and dim == 0 else start)
        else:
            stop = data.draw(st.integers(start + 1, size + 3))
            key.append(slice(start, stop, data.draw(st.sampled_from([None, 1, 2]))))
            reference.append(key[-1])
    expected = want[tuple(reference)]  # type: ignore[index]
    least = 2 if view.is_on_chip else 1
    while expected.ndim < least:
        expected = expected.unsqueeze(-1)
    _check_same(view[tuple(key)], expected)


def test_ellipsis_and_short_keys() -> None:
    view, want = _tensor((4, 5, 6), MemoryRegion.private_hbm)
    _check_same(view[..., 2], want[..., 2])
    _check_same(view[1, ..., 0:3], want[1, ..., 0:3])
    _check_same(view[2], want[2])
    _check_same(view[...], want)
    with pytest.raises(IllegalInstructionError, match="at most one"):
        view[..., 0, ...]
    with pytest.raises(IllegalInstructionError, match="4 indices"):
        view[0, 0, 0, 0]
    for key in (4, -5, slice(4, 5)):
        with pytest.raises(OutOfBoundsError):
            view[key]
    with pytest.raises(IllegalInstructionError, match="step"):
        view[::-1]


def test_the_partition_dimension_stays() -> None:
    view, want = _tensor((8, 2, 6), MemoryRegion.sbuf)
    for change in (
        lambda: view.permute((1, 0, 2)),
        lambda: view.expand_dim(0),
        lambda: view.flatten_dims(0, 1),
        lambda: view.reshape_dim(0, (2, 4)),
        lambda: view.reshape((16, 6)),
        lambda: view.slice(0, 0, 1).broadcast(0, 4),
        lambda: view.slice(0, 0, 1).squeeze_dim(0),
    ):
        with pytest.raises(IllegalInstructionError, match="partition"):
            change()
    _check_same(view.flatten_dims(1, 2), want.flatten(1, 2))
    _check_same(view.reshape((8, 3, 4)), want.reshape(8, 3, 4))
    _check_same(view.reshape((8, -1)), want.reshape(8, 12))
    assert view[3:5].start_partition == 3


@pytest.mark.parametrize("size", [0, -1, 1.5, None])
def test_a_dimension_is_repeated_a_positive_number_of_times(size: object) -> None:
    view, _ = _tensor((8, 1, 6), MemoryRegion.sbuf)
    with pytest.raises(IllegalInstructionError, match="no positive number"):
        view.broadcast(1, size)


def test_rearrange() -> None:
    view, want = _tensor((3, 24), MemoryRegion.sbuf)
    _check_same(
        view.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4}),
        want.view(3, 4, 6).permute(0, 2, 1),
    )
    _check_same(view.rearrange(("b", ("h", "w")), ("b", ("h", "w")), {"w": 6}), want)
    with pytest.raises(IllegalInstructionError, match="not contiguous"):
        view.rearrange(("b", ("h", "w")), ("b", ("w", "h")), {"h": 4})


@given(st.data())
def test_ap_is_as_strided(data: st.DataObject) -> None:
    view, want = _tensor((6, 40), MemoryRegion.private_hbm)
    dims = data.draw(st.integers(1, 3))
    pattern = [[data.draw(st.integers(0, 9)), data.draw(st.integers(1, 4))] for _ in range(dims)]
    offset = data.draw(st.integers(0, 100))
    got = view.ap(pattern, offset=offset)
    _check_same(got, want.as_strided([n for _, n in pattern], [s for s, _ in pattern], offset))


def test_ap_adds_to_the_offset_and_may_change_the_type() -> None:
    view, want = _tensor((4, 8), MemoryRegion.sbuf)
    _check_same(view[1:].ap([[8, 2], [2, 3]], offset=1), want.as_strided((2, 3), (8, 2), 9))
    _check_same(view[1:].ap([[8, 2], [1, 3]]), want.as_strided((2, 3), (8, 1), 8))
    halves = view.ap([[16, 4], [1, 16]], dtype="int16")
    assert torch.equal(halves.torch_view(), want.view(torch.int16))
    assert halves.dtype == resolve("int16")


def test_ap_made_from_the_shape_of_a_view_counts_its_partitions() -> None:
    tensor, want = _tensor((6, 8), MemoryRegion.sbuf)
    view, half = tensor[1:5, 4:8], want[1:5, 4:8]
    _check_same(view.ap([[4, 4], [1, 4]]), half)
    _check_same(view.ap([[4, 2], [2, 2]], offset=9), half[2:, 1::2])
    _check_same(view.ap([[4, 1], [1, 4]]), half[:1])
    words = view.ap([[8, 4], [1, 8]], dtype="int16")
    assert torch.equal(words.torch_view(), half.view(torch.int16))
    for other in (tensor[:, ::2], tensor[:, :4]):
        with pytest.raises(IllegalInstructionError, match="partition stride"):
            other.ap([[2, 6], [1, 2]])
    with pytest.raises(IllegalInstructionError, match="partition stride is 4"):
        tensor[:, ::2].ap([[4, 6], [1, 4]])


def test_reinterpretation() -> None:
    view, want = _tensor((4, 8), MemoryRegion.sbuf)
    _check_same(view.view("uint8"), want.view(torch.uint8))
    _check_same(view.view("uint8").view("int32"), want)
    _check_same(view[:, 2:4].view("int16"), want[:, 2:4].view(torch.int16))
    with pytest.raises(IllegalInstructionError, match="contiguous"):
        view[:, ::2].view("int16")


def test_contiguity_ignores_partitions_on_chip() -> None:
    view, _ = _tensor((4, 8), MemoryRegion.sbuf)
    assert view.is_contiguous()
    assert not view[:, ::2].is_contiguous()
    assert view[:, :4].is_contiguous()
    hbm, _ = _tensor((4, 8), MemoryRegion.private_hbm)
    assert not hbm[:, :4].is_contiguous()


def test_arguments_are_patterns_of_the_callers_memory() -> None:
    x = torch.arange(24.0).view(4, 6).t()[1:]
    simulator = Simulator(TraceOptions(values=True))
    token = CURRENT.set(simulator)
    try:
        view = simulator.argument(TensorSpec.of(x), x)
    finally:
        CURRENT.reset(token)
    _check_same(view, x)
    _check_same(view.permute((1, 0)), x.t())


@pytest.mark.parametrize(
    ("buffer", "pattern", "offset"),
    [
        (MemoryRegion.sbuf, [[8, 4], [1, 8]], 1),
        (MemoryRegion.sbuf, [[8, 4], [1, 8]], 8),
        (MemoryRegion.private_hbm, [[8, 4], [1, 8]], 1),
    ],
)
def test_a_pattern_out_of_bounds_may_be_made_but_not_used(
    buffer: MemoryRegion, pattern: list[list[int]], offset: int
) -> None:
    view, _ = _tensor((4, 8), buffer)
    outside = view.ap(pattern, offset=offset)
    assert outside.shape == (4, 8)
    uses: list[Callable[[], object]] = [
        outside.torch_view,
        outside.span,
        lambda: outside[:, :1],
        lambda: outside.reshape((4, 2, 4)),
        lambda: outside.ap([[8, 1], [1, 1]]),
    ]
    for use in uses:
        with pytest.raises(OutOfBoundsError, match="ap reaches"):
            use()


@pytest.mark.parametrize("buffer", [MemoryRegion.sbuf, MemoryRegion.private_hbm])
def test_an_empty_slice_may_be_made_but_not_used(buffer: MemoryRegion) -> None:
    view, _ = _tensor((4, 8), buffer)
    for key in [slice(0, 0), slice(4, 4), slice(3, 2), (slice(None), slice(5, 5))]:
        empty = view[key]
        assert 0 in empty.shape
        with pytest.raises(OutOfBoundsError, match="is empty"):
            empty.torch_view()
    for beyond in [slice(4, 6), slice(5, 5), slice(4, None)]:
        with pytest.raises(OutOfBoundsError, match="of size 4"):
            view[beyond]


@pytest.mark.parametrize(
    ("buffer", "shape", "dim", "limit"),
    [
        (MemoryRegion.private_hbm, (4, 1, 8), 1, 4),
        (MemoryRegion.private_hbm, (4, 2, 8), 1, 8),
        (MemoryRegion.private_hbm, (3, 5, 1), 2, 15),
        (MemoryRegion.sbuf, (4, 3, 1, 8), 2, 3),
        (MemoryRegion.sbuf, (4, 3, 2, 8), 2, 2),
    ],
)
def test_indices_of_a_scalar_offset(
    buffer: MemoryRegion, shape: tuple[int, ...], dim: int, limit: int
) -> None:
    view, _ = _tensor(shape, buffer)
    pattern = [[view.strides[0], 1], [1, 1]]
    indirect = view.ap(pattern, scalar_offset=VirtualRegister(), indirect_dim=dim).indirection
    assert indirect is not None
    assert (indirect.limit, indirect.scale) == (limit, view.strides[dim])


@given(SIZES, st.lists(st.integers(0, 5), max_size=3))
def test_reshaped_strides_are_row_major_also_of_size_1(shape: list[int], ones: list[int]) -> None:
    sizes = list(shape)
    for at in ones:
        sizes.insert(min(at, len(sizes)), 1)
    expected = tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
    flat = (math.prod(shape),)
    assert reshape_strides(flat, (1,), tuple(sizes)) == expected
    rows = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if sizes != shape:
        assert reshape_strides(tuple(shape), rows, tuple(sizes)) == expected


def test_the_base_of_a_tensor_has_the_type_it_was_made_with() -> None:
    tensor = Simulator(TraceOptions()).allocate((4, 6), "int32", MemoryRegion.private_hbm)
    assert tensor.base_tensor is tensor
    base = tensor.view("int16").base_tensor
    assert (base.dtype, base.shape, base.offset) == ("int32", (4, 6), 0)
    assert base.same_elements(tensor)
    for part in (tensor[1:], tensor[:, 0:3], tensor.permute((1, 0)), tensor.view("int16")[:, 1:]):
        with pytest.raises(IllegalInstructionError, match="view of a part"):
            part.base_tensor  # noqa: B018 (the access raises)
