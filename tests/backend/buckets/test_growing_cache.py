"""A cache that grows by a token a call: few specialisations, and the values that eager has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import trnx
from trnx.backend.buckets import function
from trnx.backend.kernel_call import KernelCall

TOKENS = 24


def step(
    x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two layers' worth of rows around attention; padding of keys and values is NaN inside."""
    keys = torch.cat([keys, torch.log(x)], -2)
    values = torch.cat([values, torch.rsqrt(x)], -2)
    seen = F.scaled_dot_product_attention(torch.relu(x), torch.log(keys.exp()), values, mask)
    return seen * 2, keys, values


def generated(model: Any, is_masked: bool, mark: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shape = (2, 4, 9, 32)
    keys, values = torch.randn(shape), torch.randn(shape)
    found = []
    for _ in range(TOKENS):
        x = torch.rand(2, 4, 1, 32) + 0.5
        mask = torch.rand(2, 1, 1, keys.shape[2] + 1) > 0.3 if is_masked else None
        if mark:  # each of them gets a symbol of its own
            for one in (keys, values):
                torch._dynamo.mark_dynamic(one, 2)
            if mask is not None:
                torch._dynamo.mark_dynamic(mask, 3)
        out, keys, values = model(x, keys, values, mask)
        found += [out, keys, values]
    return found


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("runner", ["simulator", "reference"])
def test_symbols_of_their_own_share_buckets(is_masked: bool, runner: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="trnx", options={"select": "legal", "runner": runner})
    with trnx.collect_reports() as reports, torch.no_grad():
        got = generated(compiled, is_masked, mark=True)
        want = generated(step, is_masked, mark=False)
    for a, b in zip(got, want, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    # 9 to 32 tokens have the buckets 10, 12, 16, 20, 24, 32.
    assert [report.shapes for report in reports] == [6]


def test_sizes_that_differ_are_refused_as_in_eager() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="trnx", options={"select": "legal"})
    x, keys, values = torch.rand(2, 4, 1, 32), torch.rand(2, 4, 9, 32), torch.rand(2, 4, 9, 32)
    mask = torch.ones(2, 1, 1, 10, dtype=torch.bool)
    for one, dim in ((keys, 2), (values, 2), (mask, 3)):
        torch._dynamo.mark_dynamic(one, dim)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, keys, values, mask), step(x, keys, values, mask))
        for function in (step, compiled):
            with pytest.raises(RuntimeError, match="size"):
                function(x, keys, values, mask[..., :7])


def test_causal_attention_over_parts_is_exact() -> None:
    """Its mask goes by places, and the places of new keys are others in the padded tensor."""

    def function(x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, x * 2], 2)
        return F.scaled_dot_product_attention(both, both, both, is_causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", dynamic=True, options={"select": "legal"})
    with torch.no_grad():
        for length in (9, 10, 13, 11):
            x = torch.randn(2, 4, length, 32)
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)


def test_kernels_that_no_size_enters_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are bound once for all lengths of a cache; results are eager's in any order of these,
    also from kernels that a later specialisation took over."""
    torch.manual_seed(0)
    first, last = torch.nn.Linear(32, 32), torch.nn.Linear(32, 16)

    def function(x: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = torch.cat([keys, F.gelu(first(x))], -2)
        return last(F.scaled_dot_product_attention(x, keys, keys)), keys

    prepared: list[str] = []
    prepare = KernelCall._prepare

    def counted(call: KernelCall, *args: Any) -> None:
        prepared.append(call._region.name)
        prepare(call, *args)

    monkeypatch.setattr(KernelCall, "_prepare", counted)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", options={"select": "legal"})
    with trnx.collect_reports() as reports, torch.no_grad():
        for length in (9, 17, 40, 11, 18, 39, 70):
            x, keys = torch.randn(2, 4, 1, 32), torch.randn(2, 4, length, 32)
            torch._dynamo.mark_dynamic(keys, 2)
            for got, want in zip(compiled(x, keys), function(x, keys), strict=True):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    (report,) = reports
    assert report.shapes == 5
    padded = {region.name for region in report.regions if region.padding}
    once = {region.name for region in report.regions if region.engine == "nki"} - padded
    assert len(once) >= 2
    assert all(prepared.count(name) == 1 for name in once)
    assert all(prepared.count(name) == 5 for name in padded)


WINDOW = 12


def window_step(
    x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, first: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A full sliding window: the mask of the whole text is looked up from its first place on."""
    keys, values = torch.cat([keys, torch.log(x)], -2), torch.cat([values, torch.rsqrt(x)], -2)
    rows = torch.arange(2)[:, None, None, None]
    seen = mask.bool()[rows, torch.arange(WINDOW) + first]
    out = F.scaled_dot_product_attention(x, keys, values, seen)
    return out, keys[:, :, 1:], values[:, :, 1:]


def through_window(model: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 4, WINDOW - 1, 32), torch.randn(2, 4, WINDOW - 1, 32)
    mask = torch.ones(2, WINDOW, dtype=torch.int64)
    mask[1, :5] = 0  # the second text is shorter
    found = []
    for first in range(TOKENS):
        x = torch.rand(2, 4, 1, 32) + 0.5
        out, keys, values = model(x, keys, values, mask, first)
        found += [out, keys, values]
        mask = torch.cat([mask, (torch.rand(2, 1) > 0.3).long()], 1)
        mask[:, -1] = 1
    return found


@pytest.mark.parametrize("runner", ["simulator", "reference"])
def test_the_mask_of_a_sliding_window_has_buckets(runner: str) -> None:
    torch._dynamo.reset()
    options = {"select": "legal", "runner": runner}
    compiled = torch.compile(window_step, backend="trnx", options=options)
    with trnx.collect_reports() as reports, torch.no_grad():
        for got, want in zip(through_window(compiled), through_window(window_step), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    # The first call has fixed sizes; 13 to 35 places have the buckets 16, 20, 24, 32, 40.
    assert [report.shapes for report in reports] == [1, 5]


def test_places_of_a_padded_dimension_are_those_of_eager() -> None:
    """Negative ones count from the exact end, and eager's error is raised beyond both ends."""

    def function(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)[:, at] * 2

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", options={"select": "legal"})
    with trnx.collect_reports() as reports, torch.no_grad():
        for length in (9, 11, 10, 9, 12):
            x = torch.randn(3, length)
            torch._dynamo.mark_dynamic(x, 1)
            for places in ([0, 8, 3, -9], [-1, -length, length - 1, 0]):
                at = torch.tensor(places)
                torch.testing.assert_close(compiled(x, at), function(x, at))
            for beyond in (length, -length - 1):
                at = torch.tensor([0, 1, beyond, 2])
                with pytest.raises(IndexError) as eager:
                    function(x, at)
                with pytest.raises(IndexError) as ours:
                    compiled(x, at)
                assert str(ours.value) == str(eager.value)
    (report,) = reports
    assert report.shapes == 2
    # The product comes after the places were taken, and has none of the padded size.
    assert sum("padding" in region.padding for region in report.regions) == 2


def test_all_buckets_share_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """What buckets differ in are kernels and numbers, not the generated text."""
    made: list[fx.GraphModule] = []
    write = function._Generator.run

    def counted(self: Any) -> fx.GraphModule:
        made.append(write(self))
        return made[-1]

    monkeypatch.setattr(function._Generator, "run", counted)
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="trnx", options={"select": "legal"})
    with trnx.collect_reports() as reports, torch.no_grad():
        got = generated(compiled, is_masked=True, mark=True)
        again = generated(compiled, is_masked=True, mark=True)
        want = generated(step, is_masked=True, mark=False)
    assert [report.shapes for report in reports] == [6]
    assert len(made) == 1
    for a, b, c in zip(got, again, want, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b, c, rtol=1e-4, atol=1e-5)
