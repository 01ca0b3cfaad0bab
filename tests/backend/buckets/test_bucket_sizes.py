"""The buckets, and tensors on their way to them and back."""

from __future__ import annotations

import pytest
import torch

from trnx.backend.buckets.conversions import CannotPadError, Cutter, fill_padding, padder
from trnx.backend.buckets.sizes import LIMIT, auto_bucket, bucket_of, bucketed, parse_buckets
from trnx.simulator.memory.tensor_spec import TensorSpec


def test_buckets_are_powers_of_two_and_their_steps() -> None:
    found = sorted({auto_bucket(size) for size in range(1, 513)} - {None})  # type: ignore[type-var]
    assert found == [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160,
                     192, 256, 320, 384, 512]  # fmt: skip
    for size in range(8, 3000):
        bucket = auto_bucket(size)
        assert bucket is not None
        assert size <= bucket < 1.34 * size
    assert auto_bucket(LIMIT) == LIMIT
    assert auto_bucket(LIMIT + 1) is None
    assert auto_bucket(0) is None


def test_a_list_holds_what_is_not_less_than_half_of_a_bucket() -> None:
    buckets = (64, 128)
    assert [bucket_of(n, buckets) for n in (2, 31, 32, 64, 65, 129)] == [2, 32, 64, 64, 128, None]
    assert bucket_of(5, "exact") is None
    assert bucketed({"a": 33, "b": 2}, buckets) == {"a": 64, "b": 2}
    assert bucketed({"a": 200, "b": 2}, buckets) is None


@pytest.mark.parametrize(
    ("given", "want"),
    [("auto", "auto"), ("exact", "exact"), ("128, 64", (64, 128)), ([8, 4, 8], (4, 8)),
     ("", None), ([], None), ([0], None), ([True], None), (["4"], None), (7, None), ("big", None)],
)  # fmt: skip
def test_values_of_the_option(given: object, want: object) -> None:
    assert parse_buckets(given) == want


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_what_is_padded_and_cut_is_as_before(order: tuple[int, ...]) -> None:
    exact = torch.randn(3, 5, 4).permute(order)
    big = torch.zeros(4, 8, 4).permute(order)
    made = padder(TensorSpec(tuple(big.shape), big.dtype, big.stride()))(exact)
    assert made.shape == big.shape
    assert made.stride() == big.stride()
    torch.testing.assert_close(made.sum(), exact.sum())
    numbers = [*exact.shape, *exact.stride()]
    cut = Cutter([(n,) for n in big.shape], [(0,), (1,), (2,)], (0, 1, 2), (3, 4, 5))
    again = cut(made, numbers)
    assert torch.equal(again, exact)
    assert again.stride() == exact.stride()
    assert again.data_ptr() != made.data_ptr()


def test_dimensions_that_repeat_stay_so() -> None:
    exact = torch.arange(5).expand(3, 5)
    made = padder(TensorSpec((4, 8), torch.int64, (0, 1)))(exact)
    assert made.stride() == (0, 1)
    assert made.tolist() == [[0, 1, 2, 3, 4, 0, 0, 0]] * 4
    cut = Cutter([(4,), (8,)], [(0,), (1,)], (0, 1), (2, 3))
    again = cut(made, (3, 5, 0, 1))
    assert torch.equal(again, exact)
    assert again.stride() == (0, 1)


def test_merged_dimensions_are_cut_in_both_sizes() -> None:
    padded = torch.arange(4 * 8 * 2).view(32, 2)
    cut = Cutter([(4, 8), (2,)], [(0, 1), (2,)], (3, 2), (2, 4))
    want = padded.view(4, 8, 2)[:3, :5].reshape(15, 2)
    assert torch.equal(cut(padded, (3, 5, 2, 15, 1)), want)


@pytest.mark.parametrize("exact", [(5, 1), (8, 2), (1, 1), (0, 1), (7, 2)])
def test_parts_keep_their_places(exact: tuple[int, int]) -> None:
    """Two parts of 8 and 2 places: good elements lie at the front of each."""
    x = torch.randn(3, sum(exact), 4)
    parts = ((8, 2), (1, 2))
    numbers = (3, *exact, 4, sum(exact), *x.stride())
    made = padder(TensorSpec((3, 10, 4), x.dtype, (40, 4, 1)), {1: parts}, -torch.inf)(x, numbers)
    assert torch.equal(made[:, : exact[0]], x[:, : exact[0]])
    assert torch.equal(made[:, 8 : 8 + exact[1]], x[:, exact[0] :])
    assert int(made.isinf().sum()) == 3 * (10 - sum(exact)) * 4
    cut = Cutter([(3,), (10,), (4,)], [(0,), (4,), (3,)], (0, 4, 3), (5, 6, 7), {1: {0: parts}})
    assert torch.equal(cut(made, numbers), x)


def test_memory_that_overlaps_is_refused() -> None:
    with pytest.raises(CannotPadError, match="overlaps"):
        padder(TensorSpec((4, 3), torch.float32, (1, 1)))


def test_filling_leaves_good_elements() -> None:
    x = torch.full((2, 4, 6), torch.nan)
    fill_padding(x, (3, 5), ((1, 0, 0), (2, 1, 0)))
    assert x[:, :3, :5].isnan().all()
    assert not x[:, 3:].any()
    assert not x[:, :, 5:].any()
