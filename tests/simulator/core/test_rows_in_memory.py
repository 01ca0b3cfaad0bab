"""Rows of 16 KiB and more lie further apart in this process's memory than on the chip: no view, no
instruction may notice.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import FindingWarning
from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.memory.dtypes import resolve
from trnx.simulator.memory.storage import MemoryRegion


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    """The kernels of `row_kernels.py`."""
    return load_module(Path(__file__).with_name("row_kernels.py"))


def test_long_rows_lie_apart_and_short_ones_do_not() -> None:
    simulator = Simulator(TraceOptions())
    for columns, distance in ((4096, 4112), (8192, 8208), (2048, 2048), (4097, 4097)):
        tile = simulator.allocate((4, columns), "float32", MemoryRegion.sbuf)
        assert tile.strides == (columns, 1)
        assert tile.torch_view().stride() == (distance, 1)


def test_a_shape_that_joins_rows_has_no_view() -> None:
    storage = Simulator(TraceOptions()).allocate((4, 4096), "float32", MemoryRegion.sbuf).storage
    kind = resolve("float32")
    assert storage.has_view(kind, (2, 2, 4096), (8192, 4096, 1))
    assert storage.has_view(kind, (4, 8, 512), (4096, 512, 1))
    assert not storage.has_view(kind, (8, 2048), (2048, 1))
    assert not storage.has_view(kind, (16384,), (1,))
    assert storage.has_view(resolve("bfloat16"), (4, 8192), (8192, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("shape", [(64, 4096), (128, 2048), (32, 8192), (262144,), (4, 16, 4096)])
def test_copies_count_elements(
    rows: ModuleType, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.arange(64 * 4096).to(dtype)
    for given in (x.view(64, 4096), x.view(128, 2048), x.view(262144)):
        assert torch.equal(simulate(rows.through_wide_rows)(given, shape), x.view(shape))
        specs = [TensorSpec.of(given), shape]
        assert torch.equal(trace(rows.through_wide_rows, specs).run([given])[0], x.view(shape))


def test_instructions_on_parts_of_long_rows(rows: ModuleType) -> None:
    x = torch.randn(64, 4096)
    results = simulate(rows.from_wide_rows)(x)
    expected = (
        x[:, 2048::2] + x[:, 5 : 5 + 3 * 1024 : 3],
        x[:, 2176:2304].t(),
        x[:, 128:256].t() @ x[:, 2560:3072],
        x.view(torch.int16),
    )
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
    replayed = trace(rows.from_wide_rows, [TensorSpec.of(x)]).run([x])
    assert all(map(torch.equal, results, replayed))


def test_transposes_of_long_rows(rows: ModuleType) -> None:
    x = torch.randn(64, 4096)
    with pytest.warns(FindingWarning, match="dst is in HBM"):
        out, whole = simulate(rows.turned_by_dma)(x)
    assert torch.equal(out[:, :64], x[:, :128].t())
    assert not out[:, 64:].any()
    assert torch.equal(whole, x.t())
