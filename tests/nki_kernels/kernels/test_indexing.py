"""What is special to kernels that read and write at indices: layouts, indices out of range, int64,
the choice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
Function = Callable[..., torch.Tensor]


def draw(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).mul(9).to(dtype)


def at(size: int, *shape: int, low: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(low, size, shape, generator=generator)


def check(function: Function, *operands: torch.Tensor) -> None:
    """Bits, dtype and strides of eager, on NKI alone; operands stay as they are."""
    kept = [x.clone() for x in operands]
    result = torch.compile(function, backend="trnx", options=ALL_ON_NKI)(*operands)
    expected = function(*operands)
    assert result.dtype is expected.dtype
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    for x, before in zip(operands, kept, strict=True):
        torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


READS: dict[str, tuple[Function, tuple[int, ...], tuple[torch.Tensor, ...]]] = {
    "rows": (lambda x, i: x[i], (9, 7, 5), (at(9, 130, low=-9),)),
    "columns": (lambda x, i: x[..., i], (9, 7, 5), (at(5, 3, 2, low=-5),)),
    "pairs": (lambda x, i, j: x[i, :, j], (9, 7, 5), (at(9, 4, 1), at(5, 6))),
    "tokens": (lambda x, i, j: x[i, j], (9, 7, 5), (torch.arange(9), at(7, 9, low=-7))),
    "index_select": (lambda x, i: x.index_select(1, i), (9, 7, 5), (at(7, 20),)),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("layout", ["special values", "transposed", "sliced", "expanded"])
def test_layouts_of_what_is_read(name: str, layout: str) -> None:
    function, shape, indices = READS[name]
    x = draw(shape)
    if layout == "transposed":
        x = draw(tuple(reversed(shape))).permute(2, 1, 0)
        result = torch.compile(function, backend="trnx", options=ALL_ON_NKI)(x, *indices)
        assert torch.equal(result, function(x, *indices))
        return
    if layout == "sliced":
        x = draw((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2]
    elif layout == "expanded":
        x = x[..., :1].expand(shape)
    else:
        x[0, ..., 0], x[-1, ..., 1] = float("nan"), float("-inf")
    check(function, x, *indices)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool, torch.uint8]
)
def test_dtypes_of_what_is_read(name: str, dtype: torch.dtype) -> None:
    function, shape, indices = READS[name]
    x = draw(shape).mul(2.0**20).long()
    check(function, (x * 2**40 - 1 if dtype is torch.int64 else x).to(dtype), *indices)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("form", ["int32", "transposed", "sliced", "expanded"])
def test_layouts_of_indices(name: str, form: str) -> None:
    function, shape, indices = READS[name]
    found = []
    for index in indices:
        if form == "int32":
            index = index.int()
        elif form == "transposed" and index.ndim == 2:
            index = index.t().contiguous().t()
        elif form == "sliced":
            index = index.repeat_interleave(2, -1)[..., ::2]
        elif form == "expanded":
            index = index[..., :1].expand(index.shape)
        found.append(index)
    check(function, draw(shape), *found)


@pytest.mark.parametrize("bad", [5, -6, 2**31 - 1, 2**31, 2**32, 2**32 + 1, -(2**32) - 1, -(2**63)])
@pytest.mark.parametrize("size", [3, 9000])
def test_an_index_out_of_range_raises_eagers_error(bad: int, size: int) -> None:
    def rows(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i]

    compiled = torch.compile(rows, backend="trnx", options={"select": "legal"})
    x, index = draw((5, size)), torch.tensor([0, -5, bad, 4])
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        compiled(x, index)
    good = torch.tensor([0, -5, 1, 4])
    assert torch.equal(compiled(x, good), x[good])


def test_one_wrong_index_of_several_is_no_other_element() -> None:
    """(0, 5) of [4, 5] is not (1, 0)."""
    compiled = torch.compile(lambda x, i, j: x[i, j], backend="trnx", options={"select": "legal"})
    with pytest.raises(IndexError):
        compiled(draw((4, 5)), torch.tensor([0, 1]), torch.tensor([0, 5]))


def refusal(name: str, **values: object) -> str:
    spec = registry.kernels()[name]
    bound = {k: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    found = spec.supports(Bindings(bound), hardware("trn2"))
    assert isinstance(found, Reject)
    return found.reason


def test_refusals_of_reads() -> None:
    none = dict.fromkeys(f"i{n}" for n in range(6))
    x, index = draw((5, 3)), at(5, 4)
    assert "mask" in refusal("index", **{**none, "x": x, "i0": torch.ones(5) > 0})
    assert "float64" in refusal("index", **{**none, "x": x.double(), "i0": index})
    assert "int16" in refusal("index", **{**none, "x": x, "i0": index.short()})
    assert "no elements" in refusal("index", **{**none, "x": x, "i0": index[:0]})
    long = torch.empty(1, device="meta").expand(2**24)
    assert "exactly" in refusal("index", **{**none, "x": long, "i0": index})
    assert "no dimensions" in refusal("index_select", x=torch.tensor(1.0), dim=0, index=index)


def test_many_rows_are_chosen_by_profit() -> None:
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="trnx")
    with trnx.collect_reports() as reports:
        compiled(torch.zeros(4000, 512), torch.zeros(2048, dtype=torch.int64))
    assert reports[0].regions[0].kernel == "index"
