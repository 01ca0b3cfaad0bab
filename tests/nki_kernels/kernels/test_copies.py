"""What is special to kernels that only move data: layouts, NaN, int64, empty pieces, the choice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed

import trnx
from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
Function = Callable[..., torch.Tensor]

FUNCTIONS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "cat": (lambda a, b: torch.cat([a, b], 1), ((2, 3, 8, 9), (2, 5, 8, 9))),
    "cat of one twice": (lambda a: torch.cat([a, a, a], -1), ((3, 130),)),
    "cat with an empty one": (lambda a, b: torch.cat([a, b[:0], b], 0), ((3, 7), (2, 7))),
    "stack": (lambda a, b: torch.stack([a, b, a], 2), ((2, 3, 8, 9),) * 2),
    "stack last": (lambda a, b: torch.stack([a, b], -1), ((2, 3, 8, 9),) * 2),
    "pad images": (lambda a: F.pad(a, (1, 2, 0, 1)), ((2, 3, 8, 9),)),
    "pad and cut": (lambda a: F.pad(a, (-1, 2, 1, -3)), ((2, 3, 8, 9),)),
    "pad reflecting": (lambda a: F.pad(a, (1, 2, 0, 1), "reflect"), ((2, 3, 8, 9),)),
    "pad replicating": (lambda a: F.pad(a, (1, 2, 0, 1), "replicate"), ((2, 3, 8, 9),)),
    "flip": (lambda a: a.flip(1, 3), ((2, 3, 8, 9),)),
    "repeat": (lambda a: a.repeat(2, 1, 3, 2), ((2, 3, 8, 9),)),
    "repeat new dimensions": (lambda a: a.repeat(2, 3, 1, 1, 2), ((3, 8, 9),)),
    "roll": (lambda a: a.roll((1, -2), (1, 3)), ((2, 3, 8, 9),)),
    "roll all": (lambda a: a.contiguous().roll(50), ((2, 3, 8, 9),)),
    "select_scatter": (
        lambda a, b: torch.select_scatter(a, b, 1, -2),
        ((2, 7, 8, 9), (2, 8, 9)),
    ),
    "slice_scatter": (
        lambda a, b: torch.slice_scatter(a, b, 1, 1, 6, 2),
        ((2, 7, 8, 9), (2, 3, 8, 9)),
    ),
}


def draw(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).mul(9).to(dtype)


def check(function: Function, operands: list[torch.Tensor]) -> None:
    kept = [x.clone() for x in operands]
    result = torch.compile(function, backend="trnx", options=ALL_ON_NKI)(*operands)
    expected = function(*operands)
    assert result.dtype is expected.dtype
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    for x, before in zip(operands, kept, strict=True):
        torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced", "expanded"])
def test_layouts_and_special_values(name: str, layout: str) -> None:
    function, shapes = FUNCTIONS[name]
    operands = []
    for shape in shapes:
        x = draw(shape)
        if layout == "channels_last" and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        elif layout == "sliced":
            x = draw((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2]
        elif layout == "expanded":
            x = x[..., :1].expand(shape)
        else:
            x[0, ..., 0], x[-1, ..., 1] = float("nan"), float("-inf")
        operands.append(x)
    check(function, operands)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool, torch.uint8]
)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    if dtype is torch.bool and name in ("pad reflecting", "pad replicating"):
        pytest.skip("eager has no such padding of bools")
    function, shapes = FUNCTIONS[name]
    operands = [draw(shape).mul(2.0**20).long().to(dtype) for shape in shapes]
    if dtype is torch.int64:
        operands = [x * 2**40 - 1 for x in operands]
    check(function, operands)


@pytest.mark.parametrize("value", [0, 2.5, float("inf"), float("-inf"), float("nan")])
def test_the_number_of_a_padding(value: float) -> None:
    for shape in ((40000, 3), (2, 3, 700)):
        check(lambda a: F.pad(a, (1, 2, 3, 4), value=value), [draw(shape)])


@pytest.mark.parametrize("value", [-100, 7, 2**40 + 3, -(2**63), 2**63 - 1024, 2**31])
def test_the_number_of_a_padding_of_int64_has_two_words(value: int) -> None:
    labels = torch.randint(-(2**62), 2**62, (40, 300))
    for x in (labels, labels[:, :2], labels.T, labels[:1].repeat(1, 20)):
        check(lambda a: F.pad(a, (0, 1, 2, 0), value=value), [x])


def test_the_number_of_a_padding_that_no_int64_holds() -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 1), value=2**63 - 1)  # 2**63 as the double that it becomes

    x = torch.arange(6).view(2, 3)
    with pytest.raises(BackendCompilerFailed, match=r"beyond torch\.int64"):
        check(padded, [x])
    assert torch.equal(torch.compile(padded, backend="trnx")(x), padded(x))


def test_long_fills_are_written_in_parts() -> None:
    check(lambda a: F.pad(a, (0, 0, 1, 2), value=-5), [torch.arange(14 * 5003).view(2, 7, 5003)])
    check(lambda a: F.pad(a, (0, 0, 1, 2), value=3.0), [draw((2, 7, 5003))])
    check(lambda a: F.pad(a, (4099, 1)), [draw((3, 70), torch.bfloat16)])


def test_gradients_are_copies_too() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.pad(torch.cat([a, b], 1), (1, 1)).repeat(1, 2)

    grads = []
    for run in (function, torch.compile(function, backend="trnx")):
        a, b = (draw(s).requires_grad_() for s in ((5, 3), (5, 4)))
        run(a, b).square().sum().backward()
        grads.append((a.grad, b.grad))
    for ours, expected in zip(*reversed(grads), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("pad", "value", "dtype", "reason"),
    [
        ([1, 1], 0, torch.float64, "float64"),
        ([-3, 2], 0, torch.float32, "leaves nothing"),
        ([1, 1], 2**63, torch.int64, "beyond"),
        ([1, 1], 1e6, torch.float16, "beyond"),
        ([1, 1], 300, torch.uint8, "beyond"),
        ([1, 1], 0.5, torch.int32, "is no torch.int32"),
    ],
)
def test_paddings_are_refused_with_a_reason(
    pad: list[int], value: float, dtype: torch.dtype, reason: str
) -> None:
    b = Bindings({"x": TensorSpec.dense((5, 3), dtype), "pad": pad, "value": value})
    refusal = registry.kernels()["constant_pad"].supports(b, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason


def test_short_rows_are_assembled_in_sbuf_and_long_ones_are_not() -> None:
    cat = registry.kernels()["cat"]
    operands = dict.fromkeys(f"x{i}" for i in range(16))
    for columns, on_chip in ((3, True), (512, False)):
        specs = [TensorSpec.dense((1 << 17, columns), torch.float32)] * 2
        named = operands | dict(zip(operands, specs, strict=False))
        launch = cat.launch(Bindings({**named, "dim": 1}), hardware("trn2"))
        program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
        assert (program.peak_sbuf_bytes > 0) is on_chip


PERMUTATIONS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "transpose": (lambda a: a.transpose(1, 2).contiguous(), (2, 130, 140)),
    "to channels_last": (
        lambda a: a.contiguous(memory_format=torch.channels_last),
        (2, 40, 20, 21),
    ),
    "all reversed": (lambda a: a.permute(3, 2, 1, 0).contiguous(), (40, 3, 5, 64)),
}


@pytest.mark.parametrize("name", PERMUTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_permuting_copies_keep_values_and_layout(name: str, dtype: torch.dtype) -> None:
    function, shape = PERMUTATIONS[name]
    x = draw(shape).to(dtype)
    if dtype.is_floating_point:
        x[0, ..., 0], x[-1, ..., 1] = float("nan"), float("inf")
    check(function, [x])


def test_a_copy_that_keeps_the_last_dimension_is_generated() -> None:
    spec = registry.kernels()["permute_copy"]
    x = TensorSpec.of(torch.empty(8, 40, 12, 64).transpose(1, 2))
    b = Bindings({"x": x, "memory_format": torch.contiguous_format})
    refusal = spec.supports(b, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert "no dimension" in refusal.reason


def test_a_permuting_copy_that_a_generated_kernel_does_faster_is_left_to_it() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.transpose(2, 3).contiguous(), backend="trnx")
    x = torch.zeros(8, 12, 197, 64, dtype=torch.bfloat16)
    report = trnx.explain(compiled, x).reports[0]
    assert [region.engine for region in report.regions] == ["nki"]
    assert "permute_copy" not in {region.kernel for region in report.regions}
    compiled = torch.compile(lambda x: x.t().contiguous(), backend="trnx")
    report = trnx.explain(compiled, x.reshape(-1, 64)[:4096]).reports[0]
    assert [region.kernel for region in report.regions] == ["permute_copy"]


def test_many_small_pieces_wait_for_no_descriptors() -> None:
    """A transfer whose descriptors DGE makes takes its queue for 600 ns (nki-dge.rst)."""
    compiled = torch.compile(
        lambda *given: torch.stack(given), backend="trnx", options=ALL_ON_NKI | {"target": "trn2"}
    )
    operands = [draw(()) for _ in range(16)]
    (region,) = trnx.profile(compiled, *operands, target="trn2").regions
    assert region.kernel == "cat"
    assert region.seconds < 16 * 600e-9 / 4
