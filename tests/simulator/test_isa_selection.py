"""Selection, search, shuffles and GpSimd instructions against numpy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trnx.simulator import TensorSpec, simulate, trace
from trnx.simulator.errors import IllegalInstructionError, OutOfBoundsError

QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
FP32_MIN = float(np.finfo(np.float32).min)
COMPARE = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


def some(shape, seed=0, dtype=torch.float32):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 4
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)


def flags(shape, dtype=torch.uint8):
    generator = torch.Generator().manual_seed(9)
    return (torch.randint(0, 3, shape, generator=generator)).to(dtype)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("predicate", [torch.uint8, torch.uint16, torch.uint32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint16])
@pytest.mark.parametrize("layout", ["dense", "strided", "result-strided"])
def test_tensor_copy_predicated(check_isa, predicate, dtype, layout):
    src, dst, mask = some((64, 9), 1, dtype), some((64, 9), 2, dtype), flags((64, 9), predicate)
    got = check_isa(
        "tensor_copy_predicated", ins={"src": src, "predicate": mask}, outs={"dst": dst},
        layout=layout,
    )  # fmt: skip
    expected = np.where(mask.numpy() != 0, src.float().numpy(), dst.float().numpy())
    same(got["dst"].float(), torch.from_numpy(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
def test_tensor_copy_predicated_with_a_number(check_isa, dtype):
    dst, mask = some((8, 9), 0, dtype), flags((8, 9))
    got = check_isa(
        "tensor_copy_predicated", ins={"predicate": mask}, outs={"dst": dst}, src=-2.0,
        reverse_pred=True,
    )  # fmt: skip
    same(got["dst"], torch.where(mask == 0, torch.tensor(-2, dtype=dtype), dst))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("predicate is int32", {"predicate": torch.int32}),
        ("must be equal", {"src": torch.bfloat16}),
        ("both in PSUM", {"psum": ("src", "predicate")}),
    ],
)
def test_illegal_tensor_copy_predicated(check_isa, message, change):
    ins = {
        "src": some((8, 4)).to(change.get("src", torch.float32)),
        "predicate": flags((8, 4), change.get("predicate", torch.uint8)),
    }
    with pytest.raises(IllegalInstructionError, match=message):
        check_isa(
            "tensor_copy_predicated", ins=ins, outs={"dst": some((8, 4))},
            psum=change.get("psum", ()),
        )  # fmt: skip


@pytest.mark.parametrize("is_column", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_select_reduce(check_isa, nl, nisa, is_column, reverse, dtype):
    on_true, mask, column = some((128, 4, 8), 0, dtype), flags((128, 32)), some((128, 1), 1)
    ins, constants = {"predicate": mask, "on_true": on_true}, {"on_false": FP32_MIN}
    if is_column:
        ins, constants = {**ins, "on_false": column}, {}
    got = check_isa(
        "select_reduce", ins=ins, reverse_pred=reverse,
        outs={"dst": ((128, 32), nl.float32), "reduce_res": ((128, 1), nl.float32)},
        reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_op=nl.maximum, **constants,
    )  # fmt: skip
    chosen = (mask != 0) ^ reverse
    other = column if is_column else torch.tensor(FP32_MIN)
    expected = torch.where(chosen, on_true.float().view(128, 32), other)
    same(got["dst"], expected)
    same(got["reduce_res"], expected.amax(1, True))


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("result", ["float32", "bfloat16"])
@pytest.mark.parametrize("ops", [("greater_equal", "less"), ("equal", "less_equal")])
def test_range_select(check_isa, nl, target, result, ops):
    x = some((128, 24))
    low = torch.randint(0, 20, (128, 1)).float()
    high = low + torch.randint(-2, 20, (128, 1))
    got = check_isa(
        "range_select", ins={"on_true_tile": x, "bound0": low, "bound1": high}, target=target,
        outs={"dst": ((128, 24), result), "reduce_res": ((128, 1), nl.float32)},
        comp_op0=getattr(nl, ops[0]), comp_op1=getattr(nl, ops[1]), range_start=3,
    )  # fmt: skip
    index = np.arange(3, 27, dtype=np.float32)
    mask = COMPARE[ops[0]](index, low.numpy()) & COMPARE[ops[1]](index, high.numpy())
    expected = torch.from_numpy(np.where(mask, x.numpy(), np.float32(FP32_MIN)))
    same(got["dst"], expected.to(got["dst"].dtype))
    same(got["reduce_res"], expected.amax(1, True))


def test_illegal_range_select(check_isa, nl):
    column = torch.ones(8, 1)
    for message, target, constants in (
        ("needs trn2", "trn1", {}),
        ("must be FP32_MIN", "trn2", {"on_false_value": 0.0}),
        ("not supported", "trn2", {"comp_op0": nl.not_equal}),
        ("reduce_op", "trn2", {"reduce_op": nl.add}),
        ("2\\*\\*24", "trn2", {"range_start": 2**24}),
    ):
        arguments = {"comp_op0": nl.less, "comp_op1": nl.less, **constants}
        with pytest.raises(IllegalInstructionError, match=message):
            check_isa(
                "range_select", target=target,
                ins={"on_true_tile": some((8, 4)), "bound0": column, "bound1": column},
                outs={"dst": ((8, 4), nl.float32)}, **arguments,
            )  # fmt: skip


@QUICK
@given(
    partitions=st.sampled_from([1, 16, 128]),
    pattern=st.sampled_from(
        [[[1, 12]], [[4, 3], [1, 4]], [[-2, 2], [0, 2], [5, 3]], [[1, 6], [0, 2]]]
    ),
    offset=st.integers(-40, 40),
    multiplier=st.integers(-2, 2),
    dtype=st.sampled_from(["int32", "float32", "bfloat16", "int16", "uint8", "uint32"]),
)
def test_iota(check_isa, partitions, pattern, offset, multiplier, dtype):
    got = check_isa(
        "iota", outs={"dst": ((partitions, 12), dtype)}, pattern=pattern, offset=offset,
        channel_multiplier=multiplier,
    )  # fmt: skip
    values = affine(partitions, pattern, offset, multiplier)
    result = got["dst"]
    if dtype == "uint32":
        values = values & 0xFFFFFFFF
    elif not result.dtype.is_floating_point:
        values = values.clip(torch.iinfo(result.dtype).min, torch.iinfo(result.dtype).max)
    same(result, torch.from_numpy(values).to(result.dtype))


def affine(partitions, pattern, offset, multiplier):
    values = np.arange(partitions)[:, None] * multiplier + offset
    for step, count in pattern:
        values = (values[..., None] + np.arange(count) * step).reshape(partitions, -1)
    return values


@pytest.mark.parametrize("compare", COMPARE)
@pytest.mark.parametrize(
    "dtypes", [("float32", "float32"), ("bfloat16", "bfloat16"), ("int16", "float32")]
)
@pytest.mark.parametrize("layout", ["dense", "strided", "result-strided"])
def test_affine_select(check_isa, nl, compare, dtypes, layout):
    x = some((128, 32), 0, getattr(torch, dtypes[0]))
    got = check_isa(
        "affine_select", ins={"on_true_tile": x}, outs={"dst": ((128, 32), dtypes[1])},
        layout=layout, pattern=[[-1, 32]], offset=-3, channel_multiplier=1, on_false_value=-9984.0,
        cmp_op=getattr(nl, compare),
    )  # fmt: skip
    mask = COMPARE[compare](affine(128, [[-1, 32]], -3, 1), 0)
    expected = torch.where(torch.from_numpy(mask), x.float(), -9984.0)
    same(got["dst"], expected.to(got["dst"].dtype))


@pytest.mark.parametrize("multiplier", [-3, 0])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "uint8"])
def test_patterns_take_a_register_as_offset(nl, nisa, dtype, multiplier):
    def kernel(x):
        register = nisa.register_alloc(5)
        tile = nl.ndarray((4, 8), dtype=dtype, buffer=nl.sbuf)
        data = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        nisa.iota(dst=tile, pattern=[[2, 8]], offset=register, channel_multiplier=multiplier)
        nisa.affine_select(
            dst=data, pattern=[[2, 8]], offset=register, channel_multiplier=multiplier,
            on_true_tile=data, on_false_value=-1.0, cmp_op=nl.greater,
        )  # fmt: skip
        outs = []
        for held in (tile, data):
            outs.append(nl.ndarray((4, 8), dtype=held.dtype, buffer=nl.shared_hbm))
            nisa.dma_copy(dst=outs[-1], src=held)
        return tuple(outs)

    x = some((4, 8))
    values = torch.from_numpy(affine(4, [[2, 8]], 5, multiplier))
    numbers, selected = simulate(kernel)(x)
    expected = values.clamp(min=0) if dtype == "uint8" else values
    same(numbers, expected.to(numbers.dtype))
    same(selected, torch.where(values > 0, x, -1.0))


def test_a_step_of_iota_keeps_one_row_of_equal_partitions(nl, nisa):
    def kernel(x):
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        for offset in range(3):
            nisa.iota(dst=tile, pattern=[[1, 64]], offset=offset)
        nisa.dma_copy(dst=x, src=tile)
        return x

    program = trace(kernel, [TensorSpec.dense((128, 64), torch.float32)])
    steps = [step for step in program.steps if isinstance(step, functools.partial)]
    assert [step.args[0].numel() for step in steps][:3] == [64] * 3
    (got,) = program.run([torch.zeros(128, 64)])
    same(got, torch.arange(2.0, 66).expand(128, 64))


@pytest.mark.parametrize("offset", [1000, -1000])
def test_affine_select_of_all_or_none(check_isa, nl, offset):
    x = some((16, 8))
    got = check_isa(
        "affine_select", ins={"on_true_tile": x}, outs={"dst": None},
        inplace={"dst": "on_true_tile"}, pattern=[[1, 8]], offset=offset, channel_multiplier=1,
        on_false_value=FP32_MIN, cmp_op=nl.greater,
    )  # fmt: skip
    same(got["dst"], x if offset > 0 else torch.full_like(x, FP32_MIN))


def test_gpsimd_needs_sbuf(check_isa, nl):
    with pytest.raises(IllegalInstructionError, match="psum"):
        check_isa("iota", outs={"dst": ((8, 4), nl.int32)}, psum=("dst",), pattern=[[1, 4]])
    with pytest.raises(IllegalInstructionError, match="gives 3 elements"):
        check_isa("iota", outs={"dst": ((8, 4), nl.int32)}, pattern=[[1, 3]])


def test_max8_find_and_replace(check_isa, nl):
    x = some((128, 40)).round()
    largest = check_isa("max8", ins={"src": x}, outs={"dst": ((128, 8), nl.float32)})["dst"]
    same(largest, x.sort(1, descending=True).values[:, :8])
    index = check_isa(
        "nc_find_index8", ins={"data": x, "vals": largest}, outs={"dst": ((128, 8), nl.uint32)}
    )["dst"]
    same(x.gather(1, index.long()), largest)
    assert all(len(set(row)) == 8 for row in index.tolist())


def test_search_pairs_duplicates(check_isa, nl):
    data = torch.tensor([[1.0, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]])
    vals = torch.tensor([[3.0, 8, 8, 8, 8, 8, 8, 8]])
    index = check_isa(
        "nc_find_index8", ins={"data": data, "vals": vals}, outs={"dst": ((1, 8), nl.uint16)}
    )["dst"]
    assert index.tolist() == [[2, 4, 5, 6, 7, 8, 9, 10]]
    got = check_isa(
        "nc_match_replace8", ins={"data": data, "vals": vals}, imm=-1.0,
        outs={"dst": ((1, 11), nl.float32), "dst_idx": ((1, 8), nl.uint32)},
    )  # fmt: skip
    assert got["dst_idx"].tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert got["dst"].tolist() == [[1, 2, -1, 4, *[-1] * 7]]


def test_search_marks_what_is_missing(check_isa, nl):
    data, vals = torch.arange(8.0)[None], torch.tensor([[0.0, 99, 0, 7, 6, 5, 4, 3]])
    got = check_isa(
        "nc_match_replace8", ins={"data": data, "vals": vals}, imm=0.5,
        outs={"dst": ((1, 8), nl.bfloat16), "dst_idx": ((1, 8), nl.uint16)},
    )  # fmt: skip
    assert got["dst_idx"].tolist() == [[65535, 65535, 0, 7, 6, 5, 4, 3]]
    assert got["dst"].tolist() == [[0.5, 1, 2, 0.5, 0.5, 0.5, 0.5, 0.5]]
    index = check_isa(
        "nc_find_index8", ins={"data": data, "vals": vals}, outs={"dst": ((1, 8), nl.uint32)}
    )["dst"]
    assert index.tolist() == [[0, 2**32 - 1, 2**32 - 1, 7, 6, 5, 4, 3]]


def test_search_limits(check_isa, nl):
    with pytest.raises(IllegalInstructionError, match="8 to 16384"):
        check_isa("max8", ins={"src": some((8, 7))}, outs={"dst": ((8, 8), nl.float32)})
    with pytest.raises(IllegalInstructionError, match="imm must be a number"):
        check_isa(
            "nc_match_replace8", ins={"data": some((8, 8)), "vals": some((8, 8))}, imm=None,
            outs={"dst": ((8, 8), nl.float32)},
        )  # fmt: skip
    with pytest.raises(IllegalInstructionError, match="dst is int32"):
        check_isa(
            "nc_find_index8", ins={"data": some((8, 8)), "vals": some((8, 8))},
            outs={"dst": ((8, 8), nl.int32)},
        )  # fmt: skip


@pytest.mark.parametrize("partitions", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_nc_stream_shuffle(check_isa, partitions, dtype):
    x = some((partitions, 6), 0, torch.float32).abs().round().to(dtype)
    mask = [(i - 1) % 32 for i in range(32)]
    rows = [p - p % 32 + mask[p % 32] for p in range(partitions)]
    kind = str(dtype).removeprefix("torch.")
    got = check_isa(
        "nc_stream_shuffle", ins={"src": x}, outs={"dst": ((partitions, 6), kind)},
        layout="strided", shuffle_mask=mask,
    )  # fmt: skip
    same(got["dst"], x[rows])
    got = check_isa(
        "nc_stream_shuffle", ins={"src": x}, outs={"dst": None}, inplace={"dst": "src"},
        shuffle_mask=mask,
    )  # fmt: skip
    same(got["dst"], x[rows])


def test_nc_stream_shuffle_keeps_and_broadcasts(check_isa, nl):
    x, before = some((1, 6)), some((32, 6), 1)
    got = check_isa(
        "nc_stream_shuffle", ins={"src": x}, outs={"dst": ((32, 6), nl.float32)},
        shuffle_mask=[0] * 32,
    )  # fmt: skip
    same(got["dst"], x.expand(32, 6))
    got = check_isa(
        "nc_stream_shuffle", ins={"src": x}, outs={"dst": before}, layout="margin",
        shuffle_mask=[255] * 31 + [0],
    )  # fmt: skip
    same(got["dst"], torch.cat((before[:31], x)))
    with pytest.raises(IllegalInstructionError, match="takes partition 1 of src"):
        check_isa(
            "nc_stream_shuffle", ins={"src": x}, outs={"dst": ((32, 6), nl.float32)},
            shuffle_mask=[1] * 32,
        )  # fmt: skip


def test_nc_n_gather(check_isa, nl):
    data = some((128, 4, 8), 0, torch.bfloat16)
    index = torch.randint(0, 32, (128, 7)).to(torch.uint32)
    got = check_isa(
        "nc_n_gather", ins={"data": data, "indices": index}, outs={"dst": ((128, 7), nl.bfloat16)}
    )
    same(got["dst"], data.flatten(1).gather(1, index.long()))
    with pytest.raises(OutOfBoundsError, match="exceeds the 32") as caught:
        check_isa(
            "nc_n_gather", ins={"data": data, "indices": (index.long() + 32).to(torch.uint32)},
            outs={"dst": ((128, 7), nl.bfloat16)},
        )  # fmt: skip
    assert caught.value.location is not None


@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize("valid", [None, 37])
def test_local_gather(check_isa, nl, each, valid):
    data = some((32, 64, each))
    index = torch.randint(0, 64, (32, 4))
    count = valid or 64
    got = check_isa(
        "local_gather", ins={"src_buffer": data, "index": (index * each).to(torch.uint16)},
        outs={"dst": ((32, count, each), nl.float32)}, num_elem_per_idx=each,
        num_valid_indices=valid,
    )  # fmt: skip
    for first in (0, 16):
        order = index[first : first + 16].numpy().flatten(order="F")[:count]
        same(got["dst"][first : first + 16], data[first : first + 16][:, order])


def test_topk(check_isa, nl):
    src = torch.randperm(16 * 3)[None].float().view(3, 16).t().repeat(2, 1).bfloat16()
    got = check_isa(
        "topk", ins={"src": src}, n=42,
        outs={"val_dst": ((32, 8), nl.bfloat16), "idx_dst": ((32, 8), nl.uint32)},
    )  # fmt: skip
    snake = src[:16].t().reshape(-1)[:42].float()
    expected = snake.sort().values[-8:]
    same(got["val_dst"].float(), expected.expand(32, 8))
    same(snake[got["idx_dst"][0].long()], expected)


def test_nonzero_with_count(check_isa, nl):
    src = torch.zeros((32, 8), dtype=torch.int32)
    src[0, [1, 2, 5]] = 1
    got = check_isa(
        "nonzero_with_count", ins={"src": src},
        outs={"dst": torch.full((32, 9), 7, dtype=torch.int32)}, index_offset=16,
    )["dst"]  # fmt: skip
    assert got[0].tolist() == [17, 18, 21, -1, -1, -1, -1, -1, 3]
    assert got[16].tolist() == [-1] * 8 + [0]
    assert got[1:16].unique().tolist() == [7]
    with pytest.raises(IllegalInstructionError, match="needs trn2"):
        check_isa(
            "nonzero_with_count", ins={"src": src}, outs={"dst": ((32, 9), nl.int32)},
            target="trn1",
        )  # fmt: skip


def test_sequence_bounds(check_isa, nl):
    ids = torch.tensor([[0, 1, 1, 2, 2, 2, 0, 3, 3]], dtype=torch.int32)
    got = check_isa(
        "sequence_bounds", ins={"segment_ids": ids}, outs={"dst": ((1, 2, 9), nl.int32)}
    )["dst"]
    assert got[0].tolist() == [[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]
