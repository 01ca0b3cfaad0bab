"""Tensor indirection of NeuronCore-v4 against loops over elements."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import load_module, simulate, trace
from trnx.simulator.errors import FindingError, OutOfBoundsError


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    return load_module(Path(__file__).with_name("indirect_kernels.py"))


def offset(index: torch.Tensor, partition: int, i: int, group: int) -> int:
    """Offset i of a partition: the lists snake through the partitions of its group."""
    return int(index[partition - partition % group + i % group, i // group])


@pytest.mark.parametrize(("rows", "count"), [(16, 1), (128, 20), (32, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gather(twin: ModuleType, rows: int, count: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, 50).to(dtype)
    index = torch.randint(0, 50, (rows, 3), dtype=torch.int32)
    got = simulate(twin.gathers, target="trn3")(x, index, count)
    want = torch.empty(rows, count)
    for p in range(rows):
        for i in range(count):
            want[p, i] = 2 * x[p, offset(index, p, i, 16)]
    assert torch.equal(got, want)
    program = trace(twin.gathers, [x, index, count], target="trn3")
    assert torch.equal(program.run([x, index])[0], got)
    assert not torch.equal(program.run([x, (index + 1) % 50])[0], got)


def test_scatter(twin: ModuleType) -> None:
    x = torch.randn(32, 24)
    index = torch.stack([torch.randperm(32), 32 + torch.randperm(32)], 1).to(torch.int32)
    got = simulate(twin.scatters, target="trn3")(x, index, 64)
    want = torch.full((32, 64), -1.0)
    for p in range(32):
        for i in range(24):
            want[p, offset(index, p, i, 16)] = x[p, i]
    assert torch.equal(got, want)


def test_product_of_gathered_columns(twin: ModuleType) -> None:
    x, y = torch.randn(64, 40).to(torch.bfloat16), torch.randn(64, 9).to(torch.bfloat16)
    index = torch.randint(0, 40, (64, 2), dtype=torch.int32)
    got = simulate(twin.multiplies, target="trn3")(x, y, index, 50)
    left = torch.empty(64, 50)
    for p in range(64):
        for i in range(50):
            left[p, i] = x[p, offset(index, p, i, 32)]
    torch.testing.assert_close(got, left.T @ y.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("accumulate", [False, True, None])
def test_products_scattered_to_columns(twin: ModuleType, accumulate: bool | None) -> None:
    x, y = torch.randn(64, 32).to(torch.bfloat16), torch.randn(64, 40).to(torch.bfloat16)
    index = torch.stack([torch.randperm(32), 32 + torch.randperm(32)], 1).to(torch.int32)
    arguments = (x, y, index, 64, accumulate)
    got = simulate(twin.scatters_products, target="trn3")(*arguments)
    want = torch.ones(32, 64)
    product = x.float().T @ y.float()
    for _ in range(2):
        for p in range(32):
            for i in range(40):
                column = offset(index, p, i, 32)
                before = 0.0 if accumulate is False else want[p, column]
                want[p, column] = (before + product[p, i]).to(torch.bfloat16)
    torch.testing.assert_close(got, want, rtol=0.01, atol=0.01)
    program = trace(twin.scatters_products, list(arguments), target="trn3")
    assert torch.equal(program.run([x, y, index])[0], got)


def test_scatter_by_predicate(twin: ModuleType) -> None:
    x = torch.randn(32, 24)
    mask = torch.randint(0, 2, (32, 24), dtype=torch.uint8)
    index = torch.stack([torch.randperm(32), 32 + torch.randperm(32)], 1).to(torch.int32)
    got = simulate(twin.scatters_by_predicate, target="trn3")(x, mask, index, 64)
    want = torch.full((32, 64), -1.0)
    for p in range(32):
        for i in range(24):
            if mask[p, i]:
                want[p, offset(index, p, i, 16)] = x[p, i]
    assert torch.equal(got, want)


def test_mx_operands_are_gathered_with_their_scales(twin: ModuleType) -> None:
    """Gathering columns first and multiplying then gives the same."""
    mx = load_module(Path(__file__).with_name("mx_kernels.py"))
    dtype, rows, count = "float8_e5m2_x4", 64, 50
    a = torch.randint(0, 0x7B, (rows, 40, 4), dtype=torch.uint8).view(torch.int32)[..., 0]
    b = torch.randint(0, 0x7B, (rows, 6, 4), dtype=torch.uint8).view(torch.int32)[..., 0]
    scales = [torch.randint(120, 130, (rows, n), dtype=torch.uint8) for n in (40, 6)]
    index = torch.randint(0, 40, (rows, 2), dtype=torch.int32)
    arguments = (a, scales[0], b, scales[1], dtype, index, count)
    got = simulate(twin.multiplies_gathered_mx, target="trn3")(*arguments, True)
    left, left_scale = torch.empty(rows, count, dtype=torch.int32), torch.empty(rows, count)
    for p in range(rows):
        for i in range(count):
            column = offset(index, p, i, 32)
            left[p, i], left_scale[p, i] = a[p, column], scales[0][p, column]
    plain = (left, left_scale.to(torch.uint8), b, scales[1], dtype, 1)
    assert torch.equal(got, simulate(mx.product, target="trn3")(*plain))
    with pytest.raises(FindingError, match="must both be indirect, or neither"):
        simulate(twin.multiplies_gathered_mx, target="trn3")(*arguments, False)


@pytest.mark.parametrize(
    ("what", "target", "message"),
    [
        ("plain", "trn2", "needs trn3"),
        ("dma", "trn3", "src takes no tensor indirection"),
        ("data2", "trn3", "data2 takes no tensor indirection"),
        ("dst", "trn3", "dst takes no tensor indirection"),
        ("wide product", "trn3", "dst is indirect; it is float32"),
        ("tiling", "trn3", "excludes tiling"),
        ("partly", "trn3", "products lie in a part"),
        ("index start", "trn3", "index of src starts at partition 16"),
        ("starts differ", "trn3", "at partition 32, and what it goes with at 0"),
        ("scatter starts differ", "trn3", "at partition 32, and what it goes with at 0"),
        ("scalar into psum", "trn3", "does not scatter into PSUM"),
        ("count", "trn3", "65 elements"),
        ("offsets", "trn3", "32 offsets each"),
        ("float", "trn3", "must be integers"),
        ("bounds", "trn3", "valid are 0 to 7"),
    ],
)
def test_limits(twin: ModuleType, what: str, target: str, message: str) -> None:
    with pytest.raises(FindingError, match=message) as caught:
        simulate(twin.breaks, target=target)(torch.zeros(4, 4), what)
    assert caught.value.location is not None
    assert caught.value.location.function == "breaks"


@pytest.mark.parametrize("slot", [0, 5, 7, 13, 22, 23, 2**32 - 1])
def test_a_scalar_offset_in_hbm_may_leave_its_dimension_but_not_the_tensor(
    twin: ModuleType, slot: int
) -> None:
    cache, token = torch.randn(4, 6, 8), torch.randn(2, 8)
    where = torch.tensor([[slot]], dtype=torch.int64).to(torch.uint32)
    got = simulate(twin.stores_a_token)(cache, token, where)
    want = cache.clone().view(24, 8)
    if slot + 2 <= 24:
        want[slot : slot + 2] = token
    assert torch.equal(got, want.view(4, 6, 8))


@pytest.mark.parametrize("rank", [0, 2])
def test_an_index_counts_in_the_stride_of_its_dimension(twin: ModuleType, rank: int) -> None:
    x = torch.randn(5, 3, 8)
    where = torch.tensor([[rank]], dtype=torch.int64).to(torch.uint32)
    assert torch.equal(simulate(twin.selects_a_rank)(x, where), x[:, rank])


def test_a_scalar_offset_that_leaves_the_tensor_is_found(twin: ModuleType) -> None:
    where = torch.tensor([[3]], dtype=torch.int64).to(torch.uint32)
    with pytest.raises(OutOfBoundsError, match="index 3; valid are 0 to 2"):
        simulate(twin.selects_a_rank)(torch.randn(5, 3, 8), where)
