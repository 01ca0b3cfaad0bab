"""Checks: every broken rule is a named error with the kernel's line."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, simulate, trace
from trnx.simulator.errors import (
    CapacityError,
    FindingError,
    IllegalInstructionError,
    KernelSubsetError,
    OutOfBoundsError,
    UninitialisedReadError,
)
from trnx.simulator.frontend.tracing import KernelResultError

SPEC = TensorSpec.dense((4, 4), torch.float32)


def _line(text: str) -> int:
    lines = Path(__file__).with_name("core_kernels.py").read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("values", [False, True])
def test_unwritten_elements_are_found_in_both_modes(kernels: ModuleType, values: bool) -> None:
    x = torch.randn(5, 8)
    argument = x if values else TensorSpec.of(x)
    with pytest.raises(UninitialisedReadError, match="src") as caught:
        trace(kernels.reads_unwritten, [argument], values=values)
    location = caught.value.location
    assert location is not None
    assert location.line == _line("# the finding's line")
    assert location.file.endswith("core_kernels.py")


def test_an_unwritten_result_is_found(kernels: ModuleType) -> None:
    with pytest.raises(KernelResultError, match="nothing has written"):
        trace(kernels.returns_unwritten, [SPEC])


def test_writes_in_parts_add_up(kernels: ModuleType) -> None:
    x = torch.randn(5, 8)
    assert torch.equal(simulate(kernels.writes_in_halves)(x), x)


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("partitions", IllegalInstructionError, "129 partitions"),
        ("start_partition", IllegalInstructionError, "starts at partition 4"),
        ("slice", OutOfBoundsError, "slice 1000:1025"),
        ("bank", IllegalInstructionError, "PSUM bank"),
        ("dma_psum", IllegalInstructionError, "psum"),
        ("sizes", IllegalInstructionError, "differ in partitions or elements"),
        ("matmul_dtypes", IllegalInstructionError, "cannot be mixed"),
        ("keyword", IllegalInstructionError, "'dtype'; it takes dst, src, "),
        ("broadcast_dst", IllegalInstructionError, "broadcast view"),
        ("partition_stride", IllegalInstructionError, "partition stride is 2048"),
        ("pattern_end", OutOfBoundsError, "element 1027 of 1024"),
        ("register_value", KernelSubsetError, "register"),
        ("private_result", KernelResultError, "shared_hbm"),
        ("tensor_value", KernelSubsetError, "value of a tensor"),
    ],
)
def test_a_broken_rule_is_named(
    kernels: ModuleType, what: str, error: type[FindingError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        trace(kernels.bad, [SPEC, what])
    assert caught.value.location is not None
    assert caught.value.location.file.endswith("core_kernels.py")


def test_sbuf_capacity_counts_what_is_live(kernels: ModuleType) -> None:
    width = 12 * 1024
    with pytest.raises(CapacityError, match="sbuf") as caught:
        trace(kernels.holds_tiles, [5, width])
    assert caught.value.location is not None
    assert trace(kernels.holds_tiles, [4, width]).peak_sbuf_bytes == 4 * width * 4
    assert trace(kernels.holds_tiles, [5, width], target="trn3").peak_sbuf_bytes == 5 * width * 4
    assert trace(kernels.streams_tiles, [9, width]).peak_sbuf_bytes == width * 4


@pytest.mark.parametrize(("rows", "parts"), [(65, 1), (64, 2), (33, 2), (32, 4), (1, 4)])
def test_tensors_of_few_partitions_share_columns(
    kernels: ModuleType, rows: int, parts: int
) -> None:
    width, fits = 12 * 1024, 229376 * parts // (48 * 1024)
    program = trace(kernels.holds_tiles, [fits, width, rows])
    assert program.peak_sbuf_bytes == fits * width * 4 // parts
    with pytest.raises(CapacityError, match=r"\[capacity\].* sbuf"):
        trace(kernels.holds_tiles, [fits + 1, width, rows])


@pytest.mark.parametrize(
    ("flags", "times"),
    [
        ((None,), 1),
        ((None, None, None), 3),
        ((False, True), 2),
        ((False, False), 1),
        ((None, False, None), 2),
    ],
)
def test_accumulation(kernels: ModuleType, flags: tuple[bool | None, ...], times: int) -> None:
    a, b = torch.randn(16, 8), torch.randn(16, 12)
    got = simulate(kernels.accumulates)(a, b, flags)
    torch.testing.assert_close(got, times * (a.t() @ b), rtol=1e-5, atol=1e-5)


def test_accumulating_onto_nothing_is_found(kernels: ModuleType) -> None:
    with pytest.raises(UninitialisedReadError, match="accumulate=True"):
        trace(kernels.accumulates, [torch.randn(16, 8), torch.randn(16, 12), (True,)])


@pytest.mark.parametrize("is_transpose", [False, True])
def test_accumulate_is_a_flag(kernels: ModuleType, is_transpose: bool) -> None:
    arguments = [torch.eye(16), torch.eye(16), (128,), is_transpose]
    with pytest.raises(IllegalInstructionError, match="accumulate=128 must be True, False"):
        trace(kernels.accumulates, arguments)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_transpose_needs_an_identity(kernels: ModuleType, target: str) -> None:
    a, eye = torch.randn(16, 8), torch.eye(16)
    kernel = simulate(kernels.accumulates, target=target)
    assert torch.equal(kernel(a, eye, (None,), True), a.t())
    for other in (eye.flip(0), eye * 2, torch.ones(16, 16)):
        with pytest.raises(IllegalInstructionError, match="needs an identity matrix as moving"):
            kernel(a, other, (None,), True)


def test_accumulation_goes_by_location(kernels: ModuleType) -> None:
    a, b = torch.randn(16, 8), torch.randn(16, 64)
    product = a.t() @ b
    expected = torch.zeros(8, 96)
    expected[:, 0:64] += product
    expected[:, 32:96] += product
    got = simulate(kernels.accumulates_on_overlap)(a, b)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    program = trace(kernels.accumulates_on_overlap, [TensorSpec.of(a), TensorSpec.of(b)])
    assert torch.equal(program.run([a, b])[0], got)
    assert torch.equal(program.run([a, b])[0], got)


def test_accumulation_onto_a_window_keeps_what_is_there(kernels: ModuleType) -> None:
    a, b = torch.randn(16, 8), torch.randn(16, 6, 8)
    expected = torch.einsum("km,krc->mrc", a, b)
    expected[:, 1:5, 2:6] += expected[:, 0:4, 0:4].clone()
    got = simulate(kernels.accumulates_on_windows)(a, b)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    program = trace(kernels.accumulates_on_windows, [TensorSpec.of(a), TensorSpec.of(b)])
    assert torch.equal(program.run([a, b])[0], got)
    assert torch.equal(program.run([a, b])[0], got)


def test_fresh_memory_is_poison(simulator: object) -> None:
    from trnx.simulator.frontend.simulator import Simulator
    from trnx.simulator.memory.storage import MemoryRegion

    assert isinstance(simulator, Simulator)
    for dtype in ("float32", "bfloat16", "float8_e4m3fn"):
        tile = simulator.allocate((4, 4), dtype, MemoryRegion.sbuf)
        assert bool(tile.torch_view().float().isnan().all())
    tile = simulator.allocate((4, 4), "int32", MemoryRegion.psum)
    assert bool((tile.torch_view() == 0x5A5A5A5A).all())


def test_nki_outside_of_a_kernel_is_named(kernels: ModuleType) -> None:
    from trnx.simulator.language.recorder import OutsideKernelError

    with pytest.raises(OutsideKernelError, match="ndarray"):
        kernels.nl.ndarray((4, 4), dtype=kernels.nl.float32)
