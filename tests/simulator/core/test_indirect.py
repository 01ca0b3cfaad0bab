"""Tensor indirection of NeuronCore-v4 against loops over elements."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import load_module, simulate, trace
from trnx.simulator.errors import FindingError


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


@pytest.mark.parametrize(
    ("what", "target", "message"),
    [
        ("plain", "trn2", "needs trn3"),
        ("dma", "trn3", "src takes no tensor indirection"),
        ("data2", "trn3", "data2 takes no tensor indirection"),
        ("dst", "trn3", "dst takes no tensor indirection"),
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
