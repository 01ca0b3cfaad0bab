"""What is padded gives what eager gives, whatever padding turns into; the rest is exact.

Padding starts as zeros. `log`, `rsqrt` and a table whose first row is NaN make it inf and NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.backend.executable import Executable
from trnx.backend.kernel_call import KernelCall
from trnx.fx_passes.region import Region

LENGTHS = (9, 13, 16, 7, 10, 11)
Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def tokens(length: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(length, 8) + 0.5,)


def batched(length: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(2, length, 8) + 0.5,)


def indices(length: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(1, 6, (2, length)), torch.cat([torch.full((1, 8), torch.nan), TABLE])


def attention(length: int) -> tuple[torch.Tensor, ...]:
    mask = torch.rand(2, 1, length, length) > 0.4
    mask[..., 0] = True
    mask[0, 0, 0] = False  # a query that sees nothing
    return torch.rand(2, 4, length, 32) + 0.5, mask


_DRAWN = torch.Generator().manual_seed(3)
TABLE = torch.randn(5, 8, generator=_DRAWN)
WEIGHT = torch.randn(12, 8, generator=_DRAWN)
# Variances among others: what is divided by their roots is compared in absolute terms.
VECTOR = torch.rand(8, generator=_DRAWN) + 0.25
KERNEL = torch.randn(8, 8, 3, 3, generator=_DRAWN)


def log_rows(x: torch.Tensor) -> torch.Tensor:
    """Padding is -inf, and NaN after a product with 0."""
    return torch.log(x)


def images(length: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(length, 8, 6, 6) + 0.5,)


def attend(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Queries, keys and values have NaN and inf in their padding."""
    q, k, v = torch.log(x), torch.rsqrt(x), torch.log(x) * torch.rsqrt(x)
    return F.scaled_dot_product_attention(q, k, v, **kwargs)


def attend_by_hand(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Scores are the result of one kernel, weights of another; padding of both is NaN or inf."""
    q, k, v = torch.log(x).flatten(0, 1), torch.rsqrt(x).flatten(0, 1), torch.log(x).flatten(0, 1)
    bias = torch.where(mask, 0.0, -3.0e38).expand(-1, 4, -1, -1).flatten(0, 1)
    scores = torch.bmm(q, k.transpose(1, 2)) + bias
    return torch.bmm(torch.softmax(scores, -1), v)


def hidden_rows(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A row of which all is hidden is NaN, and so is what it is multiplied with."""
    scores = torch.where(mask, torch.log(x) @ torch.log(x).transpose(2, 3), -torch.inf)
    return torch.softmax(scores, -1) @ torch.rsqrt(x)


def two_uses(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What one kernel needs to be -inf, another needs to be zero."""
    rows = F.linear(log_rows(x), WEIGHT)
    return torch.softmax(rows, 1), rows.sum(1), rows.amin(1), torch.bmm(rows.transpose(1, 2), x)


def gram_of_parts(x: torch.Tensor) -> torch.Tensor:
    rows = torch.cat([log_rows(x), x], 1)
    return torch.bmm(rows.transpose(1, 2), torch.cat([torch.rsqrt(x), x], 1))


def cached(length: int) -> tuple[torch.Tensor, ...]:
    """A query, new keys and values, and a cache whose tensors have symbols of their own."""
    query, new_keys, new_values = torch.rand(3, 2, 4, 1, 32).unbind()
    keys, values = torch.randn(2, 2, 4, length, 32).unbind()
    return query, new_keys, new_values, keys, values


def positive_cache(length: int) -> tuple[torch.Tensor, ...]:
    return tuple(one.abs() + 0.5 for one in cached(length))


def cached_with_mask(length: int) -> tuple[torch.Tensor, ...]:
    """The mask has the length of the cache and one more."""
    mask = torch.rand(2, 1, 1, length + 1) > 0.4
    mask[0] = False
    mask[..., -1] = True
    return *cached(length), mask


def decode(
    query: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """A step of generation: the cache grows, and the caller gets it back."""
    keys, values = torch.cat([keys, new_keys], 2), torch.cat([values, new_values], 2)
    return F.scaled_dot_product_attention(query, keys, values, mask), keys, values


def float_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return attend(x, attn_mask=torch.where(mask, 0.0, -torch.inf))


def padding_mask(length: int) -> tuple[torch.Tensor, ...]:
    """`[B, S]` as tokenizers give it, its symbol apart from that of the keys."""
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, : length // 2] = 0
    return torch.rand(2, length, 8) + 0.5, mask


def looked_up(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A mask at the places of all keys, as transformers makes it of two positions."""
    batch = torch.arange(2)[:, None, None, None]
    keys = (torch.arange(x.shape[1]) + 0)[None, None, None, :]
    return torch.log(x) * mask.bool()[batch, keys][:, 0, 0, :, None]


PADDED: dict[str, tuple[Function, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "elementwise": (lambda x: torch.rsqrt(x) * torch.log(x) + VECTOR, tokens),
    "softmax": (lambda x: torch.softmax(log_rows(x), -1), batched),
    "softmax_over_it": (lambda x: torch.softmax(x, 0), tokens),
    "softmax_over_what_is_padded": (lambda x: torch.softmax(log_rows(x) @ WEIGHT.t(), 1), batched),
    "log_softmax_over_it": (lambda x: torch.log_softmax(log_rows(x) @ WEIGHT.t(), 1), batched),
    "rows_that_are_hidden": (hidden_rows, attention),
    "softmax_over_parts": (
        lambda x: torch.softmax(torch.cat([log_rows(x) @ WEIGHT.t(), x @ WEIGHT.t()], 1), 1),
        batched,
    ),
    "softmax_of_two_uses": (two_uses, batched),
    "attention_by_hand": (attend_by_hand, attention),
    "amax_over_it": (lambda x: F.linear(log_rows(x), WEIGHT).amax(1), batched),
    "any_over_it": (lambda x, mask: log_rows(x) * mask.bool().any(1)[:, None, None], padding_mask),
    "amin_over_it": (lambda x: F.linear(log_rows(x), WEIGHT).amin(0, keepdim=True), tokens),
    "layer_norm": (lambda x: F.layer_norm(log_rows(x), (8,), VECTOR), batched),
    "rms_norm": (lambda x: F.rms_norm(log_rows(x), (8,), VECTOR), batched),
    "row_sum": (lambda x: log_rows(x).sum(-1), batched),
    "row_mean": (lambda x: log_rows(x).mean(-1, keepdim=True), batched),
    "linear": (lambda x: F.linear(log_rows(x), WEIGHT), batched),
    "summed_product": (lambda x: F.linear(log_rows(x).t(), torch.rsqrt(x).t()), tokens),
    "column_sum": (lambda x: log_rows(x).sum(0), tokens),
    "gram": (lambda x: log_rows(x) @ log_rows(x).t(), tokens),
    "bmm": (lambda x: torch.bmm(log_rows(x).transpose(1, 2), torch.rsqrt(x)), batched),
    "views": (lambda x: F.linear(log_rows(x), WEIGHT).view(2, -1, 3, 4).transpose(1, 2), batched),
    "merged": (lambda x: F.linear(log_rows(x).reshape(-1, 8), WEIGHT).relu(), batched),
    "cat": (lambda x: torch.cat([log_rows(x), x], -1), batched),
    "first": (lambda x: F.linear(log_rows(x)[:, 0], WEIGHT), batched),
    "two_results": (lambda x: (log_rows(x), F.linear(x, WEIGHT)), batched),
    "embedding": (lambda i, table: F.linear(F.embedding(i, table), WEIGHT), indices),
    "causal": (lambda x, _: attend(x, is_causal=True), attention),
    "bool_mask": (lambda x, mask: attend(x, attn_mask=mask), attention),
    "float_mask": (float_mask, attention),
    "finite_mask": (
        lambda x, mask: attend(x, attn_mask=torch.where(mask, 0.0, -3.0e38)),
        attention,
    ),
    "finite_mask_of_an_input": (
        lambda x, mask: attend(x, attn_mask=mask.float().log().clamp(min=-3.0e38)),
        attention,
    ),
    "cumsum": (lambda x: log_rows(x).cumsum(1), batched),
    "full_like": (lambda x: torch.full_like(x, 2.5) * log_rows(x), batched),
    "no_mask": (lambda x, _: attend(x), attention),
    "cat_along_it": (lambda x: torch.cat([log_rows(x), x], 1), batched),
    "cat_of_three": (lambda x: torch.cat([x, TABLE.expand(2, -1, -1), log_rows(x)], 1), batched),
    "cat_with_a_legacy_empty": (lambda x: torch.cat([torch.empty(0), log_rows(x)], 1), batched),
    "sum_of_parts": (lambda x: torch.cat([log_rows(x), x], 1).sum(1), batched),
    "product_of_parts": (lambda x: gram_of_parts(x), batched),
    "norm_of_parts": (lambda x: F.layer_norm(torch.cat([log_rows(x), x], 1), (8,)), batched),
    "merged_parts": (
        lambda x: F.linear(torch.cat([log_rows(x), x], 1).reshape(-1, 8), WEIGHT).relu(),
        batched,
    ),
    "mask_at_places": (looked_up, padding_mask),
    "rows_of_a_table": (lambda i, table: log_rows(table[i] + 1), indices),
    "columns_and_places": (
        lambda x, _: log_rows(x)[torch.arange(2)[:, None], :, torch.tensor([[0], [3]])],
        padding_mask,
    ),
    "cache": (lambda *args: decode(*args), cached),
    "cache_of_nan": (lambda *args: decode(*args[:3], *map(log_rows, args[3:])), positive_cache),
    "cache_and_mask": (lambda *args: decode(*args), cached_with_mask),
}

# Image by image: the batch is padded, and no place of an image.
IMAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "convolution": lambda x: F.conv2d(x, KERNEL, VECTOR, padding=1),
    "depthwise": lambda x: F.conv2d(x, KERNEL[:, :1], padding=1, groups=8),
    "batch_norm_in_eval": lambda x: F.batch_norm(F.conv2d(x, KERNEL), VECTOR, VECTOR),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "group_norm": lambda x: F.group_norm(x, 4, VECTOR),
}

EXACT: dict[str, tuple[Function, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "mean": (lambda x: log_rows(x).mean(0), tokens),
    "max": (lambda x: (-x).amax(0), tokens),
    "size_in_values": (lambda x: x * x.shape[0], tokens),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), tokens),
}

# A region is padded, and what reads it is exact.
CUT: dict[str, tuple[Function, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "last": (lambda x: torch.relu(x)[:, -1] * 2, batched),
    "strided": (lambda x: torch.relu(torch.relu(x)[:, ::2]), batched),
    "product": (lambda x: torch.relu(x).cumprod(1), batched),
    "from_the_end": (lambda x: torch.relu(x)[:, torch.tensor([-1, 0, -2])] * 2, batched),
    "places_backwards": (
        lambda x: torch.relu(x)[:, x.shape[1] - 1 - torch.arange(x.shape[1])] * 2,
        batched,
    ),
}


def compare(function: Function, make: Any, lengths: tuple[int, ...], **options: Any) -> Any:
    """Compile once, compare each length with eager in values, shapes and strides; the reports."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = torch.compile(
        function, backend="trnx", dynamic=True, options={"select": "legal", **options}
    )
    with trnx.collect_reports() as reports, torch.no_grad():
        for length in lengths:
            args = make(length)
            got, want = compiled(*args), function(*args)
            pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
            for a, b in pairs:
                assert a.stride() == b.stride(), length
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    return reports


def paddings(reports: Any) -> list[str]:
    return [region.padding for report in reports for region in report.regions if region.padding]


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_no_result(name: str) -> None:
    reports = compare(*PADDED[name], LENGTHS)
    assert paddings(reports)
    assert not any(text.startswith("exact") for text in paddings(reports))
    # 7, 9 to 16 have the buckets 8, 10, 12, 16.
    assert [report.shapes for report in reports] == [4]


def test_a_mask_of_another_length_than_at_capture_is_looked_up_as_in_eager() -> None:
    """Its symbol is tied to that of the keys; more places are exact, and fewer are refused."""
    torch._dynamo.reset()
    compiled = torch.compile(looked_up, backend="trnx", options={"select": "legal"})
    with trnx.collect_reports() as reports, torch.no_grad():
        for length in (9, 13, 14):
            x, mask = padding_mask(length)
            torch._dynamo.mark_dynamic(x, 1)
            torch._dynamo.mark_dynamic(mask, 1)
            longer = torch.cat([mask, mask], 1)
            for one in (mask, longer):
                want = looked_up(x, one)
                torch.testing.assert_close(compiled(x, one), want, equal_nan=True)
            for function in (looked_up, compiled):
                with pytest.raises((IndexError, RuntimeError), match=r"out of bounds|out of range"):
                    function(x, mask[:, : length - 1])
    # Those of equal lengths share the buckets 10 and 16; each longer mask has exact sizes.
    assert reports[0].shapes == 2 + 3


@pytest.mark.parametrize("name", IMAGES)
def test_a_padded_batch_of_images_changes_no_result(name: str) -> None:
    reports = compare(lambda x: IMAGES[name](log_rows(x)), images, (9, 13, 15, 10))
    assert paddings(reports)
    assert not any(text.startswith("exact") for text in paddings(reports))
    assert [report.shapes for report in reports] == [2]


@pytest.mark.parametrize("name", EXACT)
def test_what_a_size_changes_is_exact(name: str) -> None:
    reports = compare(*EXACT[name], LENGTHS)
    found = paddings(reports)
    assert all("exact: " in text for text in found)
    assert [report.shapes for report in reports] == [len(LENGTHS)]


@pytest.mark.parametrize("name", CUT)
def test_what_is_exact_reads_what_is_padded(name: str) -> None:
    assert not all(text.startswith("exact") for text in paddings(compare(*CUT[name], LENGTHS)))


def test_a_number_that_is_zero_leaves_sizes_their_buckets() -> None:
    """As `logits_to_keep` of transformers, of which 0 keeps all."""
    torch._dynamo.reset()

    def function(x: torch.Tensor, kept: int) -> torch.Tensor:
        return F.linear(log_rows(x)[:, slice(-kept, None)], WEIGHT)

    compiled = torch.compile(function, backend="trnx", dynamic=True, options={"select": "legal"})
    with trnx.collect_reports() as reports, torch.no_grad():
        for length in LENGTHS:
            x = batched(length)[0]
            torch.testing.assert_close(compiled(x, 0), function(x, 0), rtol=1e-4, atol=1e-5)
    assert [report.shapes for report in reports] == [4]


def test_the_reference_runner_has_the_same_buckets() -> None:
    reports = compare(*PADDED["bool_mask"], LENGTHS, runner="reference")
    assert [report.shapes for report in reports] == [4]


@pytest.mark.parametrize(
    ("buckets", "shapes"), [("exact", 6), ([16], 2), ([32], 5), ("8,16", 2)]
)  # fmt: skip
def test_the_option_says_which_buckets_there_are(buckets: Any, shapes: int) -> None:
    reports = compare(*PADDED["linear"], LENGTHS, buckets=buckets)
    assert [report.shapes for report in reports] == [shapes]
    has_none = [text == "exact: buckets='exact'" for text in paddings(reports)]
    assert all(has_none) if buckets == "exact" else not any(has_none)


def test_a_size_above_the_buckets_is_exact() -> None:
    reports = compare(*PADDED["linear"], (9, 17, 18), buckets=[16])
    assert [report.shapes for report in reports] == [3]


def test_exact_kernels_are_made_for_the_sizes_that_they_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of a call for what no padded size enters; one a size for what is exact."""
    made: list[str] = []
    make = Executable._make_kernel

    def counted(self: Executable, region: Region, *rest: Any) -> KernelCall:
        made.append(region.name)
        return make(self, region, *rest)

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        products = [z @ weight for weight in weights]
        return y @ VECTOR + 1, torch.log(x), z.mean(0), y.exp().sum(), *products

    weights = torch.randn(27, 8, 4).unbind()  # LEAST_PADDED regions and more, for one that refuses
    monkeypatch.setattr(Executable, "_make_kernel", counted)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", options={"select": "legal"})
    y = torch.randn(4, 8)
    with trnx.collect_reports() as reports:
        for rows, columns in ((127, 9), (126, 10), (125, 10), (128, 9), (126, 9)):
            x, z = torch.rand(rows, 8) + 0.5, torch.rand(columns, 8) + 0.5
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(z, 0)
            with torch.no_grad():
                for got, want in zip(compiled(x, y, z), function(x, y, z), strict=True):
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    found = {region.name: region for region in reports[0].regions}
    exact = [name for name, one in found.items() if one.padding.startswith("exact")]
    assert len(exact) == 1
    for name in found:  # 9 and 10 columns
        assert made.count(name) == (2 if name in exact else 1), name
    assert [report.shapes for report in reports] == [1]


def test_an_input_is_never_written() -> None:
    """Clearing padding must not reach what the user owns, nor what another result reads."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.exp(x)
        return y.t() @ y, torch.log(y)

    for length in (9, 10, 13):
        whole = torch.randn(20, 8)
        kept = whole.clone()
        compare(function, lambda n: (whole[:n],), (length,))  # noqa: B023  called now
        assert torch.equal(whole, kept)


def test_training_has_eagers_gradients() -> None:
    torch._dynamo.reset()
    layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    compiled = torch.compile(layer, backend="trnx", dynamic=True, options={"select": "legal"})
    for length in LENGTHS:
        x = torch.randn(2, length, 8)
        found = []
        for function in (compiled, layer):
            layer.zero_grad()
            given = x.clone().requires_grad_()
            function(given).square().sum().backward()
            found.append([given.grad, *(p.grad.clone() for p in layer.parameters())])
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_explain_shows_buckets_and_why_a_region_has_none() -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.log(x).mean(-1)

    compiled = torch.compile(function, backend="trnx", dynamic=True, options={"select": "legal"})
    text = str(trnx.explain(compiled, *batched(13)))
    assert "dynamic sizes:" in text
    assert re.search(r"buckets: s\d+ 13 to 16, s\d+ 2 to 2: 23 % padding", text)
    assert "is exact: aten.mean.dim goes along a padded dimension in region_" in text
