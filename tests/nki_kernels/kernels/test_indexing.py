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
    "gather": (lambda x, i: x.gather(1, i), (9, 7, 5), (at(7, 9, 20, 5),)),
    "gather of a part": (lambda x, i: x.gather(-1, i), (9, 7, 5), (at(5, 8, 6, 20),)),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("layout", ["special values", "transposed", "sliced", "expanded"])
def test_layouts_of_what_is_read(name: str, layout: str) -> None:
    function, shape, indices = READS[name]
    x = draw(shape)
    if layout == "transposed":
        x = draw(tuple(reversed(shape))).permute(2, 1, 0)
    elif layout == "sliced":
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


def test_strides_of_sizes_that_change() -> None:
    def columns(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[:, i] * 2

    compiled = torch.compile(columns, backend="trnx", dynamic=True)
    for size in (3, 5, 7):
        x, index = draw((4, 9, size)), at(9, 2, size).t()
        result, expected = compiled(x, index), columns(x, index)
        assert not expected.is_contiguous()
        assert result.stride() == expected.stride()
        assert torch.equal(result, expected)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_data_decide() -> None:
    def chosen(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[mask.nonzero().squeeze(1)] + 1

    x, mask = draw((3, 9)).t(), at(2, 9) == 1
    result = torch.compile(chosen, backend="trnx", fullgraph=True)(x, mask)
    assert torch.equal(result, chosen(x, mask))


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


@pytest.mark.parametrize("bad", [5, -1, 2**32, -(2**32)])
@pytest.mark.parametrize("name", ["gather", "index_select"])
def test_indices_that_do_not_wrap(name: str, bad: int) -> None:
    functions = {
        "gather": lambda x, i: x.gather(1, i[None].expand(3, 4)),
        "index_select": lambda x, i: x.index_select(1, i),
    }
    compiled = torch.compile(functions[name], backend="trnx", options={"select": "legal"})
    with pytest.raises((IndexError, RuntimeError), match=r"(?i)out of"):
        compiled(draw((3, 5)), torch.tensor([0, 4, bad, 1]))


def test_take_along_dim() -> None:
    x, index = draw((9, 7, 5)), at(7, 1, 20, 5)
    compiled = torch.compile(lambda x, i: torch.take_along_dim(x, i, 1), backend="trnx")
    with trnx.collect_reports():
        assert torch.equal(compiled(x, index), torch.take_along_dim(x, index, 1))


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
    assert "no dimensions" in refusal(
        "gather", x=torch.tensor(1.0), dim=0, index=index, sparse_grad=False
    )
    assert "no dimensions" in refusal("index_select", x=torch.tensor(1.0), dim=0, index=index)


def test_many_rows_are_chosen_by_profit() -> None:
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="trnx")
    with trnx.collect_reports() as reports:
        compiled(torch.zeros(4000, 512), torch.zeros(2048, dtype=torch.int64))
    assert reports[0].regions[0].kernel == "index"


INF, NAN = float("inf"), float("nan")
put = torch.ops.aten.index_put


def close(function: Function, *operands: torch.Tensor) -> None:
    """As `check`, for sums: float32 in any order."""
    result = torch.compile(function, backend="trnx", options=ALL_ON_NKI)(*operands)
    expected = function(*operands)
    assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_special_values_are_added_where_they_belong() -> None:
    """A sum has an infinity or a NaN where eager has one, and nowhere else."""
    x, values, index = draw((5, 24)), draw((300, 24)), at(5, 300)
    x[1, 3], x[2, 3] = NAN, INF
    values[3, 2], values[7, 2], values[9, 5], values[20, 1] = INF, -INF, NAN, -INF
    values[:, 7] = 3e38  # the sum overflows
    close(lambda x, i, v: put(x, [i], v, True), x, index, values)
    check(lambda x, i, v: put(x, [i], v, False), x, index, values)


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("form", ["transposed", "one value", "a column", "a row"])
def test_layouts_of_values_and_base(accumulate: bool, form: str) -> None:
    values = {
        "transposed": draw((24, 300)).t(),
        "one value": torch.tensor(2.5),
        "a column": draw((300, 1)),
        "a row": draw((48,))[::2],
    }[form]
    base = draw((24, 5)).t() if form == "transposed" else draw((5, 24))
    close(lambda x, i, v: put(x, [i], v, accumulate), base, at(5, 300, low=-5), values)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.float16])
def test_dtypes_of_what_is_put(dtype: torch.dtype) -> None:
    x, values = (draw((7, n, 5)).mul(2.0**20).long() * 2**40 - 1 for n in (9, 4))
    check(
        lambda x, i, v: put(x, [None, i], v, False), x.to(dtype), torch.tensor([1, -1, 0, 5]),
        values.to(dtype),
    )  # fmt: skip


def test_writes_in_place() -> None:
    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, i] = v
        x.index_put_((i,), v[0, 0], accumulate=True)
        return x + 0.0

    close(function, draw((6, 6, 4)), torch.tensor([1, -2]), draw((6, 2, 4)))


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("bad", [5, -6, 2**32])
def test_a_write_out_of_range_raises_eagers_error(bad: int, accumulate: bool) -> None:
    compiled = torch.compile(
        lambda x, i, v: put(x, [i], v, accumulate), backend="trnx", options={"select": "legal"}
    )
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        compiled(draw((5, 3)), torch.tensor([0, bad]), draw((2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "count"), [(300, 700), (1, 260), (2100, 129)])
def test_rows_that_both_cores_add(dtype: torch.dtype, rows: int, count: int) -> None:
    """Repeated indices in one tile and in several, of a short base and of a long one."""
    x, values, index = draw((rows, 520), dtype), draw((count, 520), dtype), at(rows, count)
    values[5, 7], values[count - 1, 519] = INF, NAN
    found = []
    for lnc in (1, 2):
        torch._dynamo.reset()
        options = {**ALL_ON_NKI, "lnc": lnc}
        function = torch.compile(
            lambda x, i, v: x.index_add(0, i, v), backend="trnx", options=options
        )
        found.append(function(x, index, values))
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
    exact = x.double().index_add(0, index, values.double()).to(dtype)
    rounded = 1e-5 if dtype is torch.float32 else 2.0**-8
    torch.testing.assert_close(found[0], exact, rtol=rounded, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("width", [511, 512, 1025])
def test_the_last_of_rows_of_one_address_in_all_columns(width: int, lnc: int) -> None:
    """Columns of wide rows are written apart from each other, tile after tile."""
    x, values, index = draw((40, width)), draw((300, width)), at(40, 300)
    torch._dynamo.reset()
    options = {**ALL_ON_NKI, "lnc": lnc}
    function = torch.compile(
        lambda x, i, v: torch.index_put(x, (i,), v), backend="trnx", options=options
    )
    last = {int(row): place for place, row in enumerate(index)}
    expected = x.clone()
    for row, place in last.items():
        expected[row] = values[place]
    assert torch.equal(function(x, index, values), expected)


@pytest.mark.parametrize(("lnc", "microseconds"), [(1, 69), (2, 65)])
def test_writes_wait_for_those_of_the_same_columns_alone(lnc: int, microseconds: float) -> None:
    """72.0 and 65.9 us where rows are written whole."""
    x, values = torch.zeros(4096, 1024, dtype=torch.bfloat16), torch.zeros(2048, 1024).bfloat16()
    torch._dynamo.reset()
    options = {**ALL_ON_NKI, "target": "trn2", "lnc": lnc}
    function = torch.compile(
        lambda x, i, v: torch.index_put(x, (i,), v), backend="trnx", options=options
    )
    profile = trnx.profile(function, x, at(4096, 2048), values, target="trn2")
    assert sum(region.seconds for region in profile.regions) < microseconds * 1e-6


def test_gradients_of_an_embedding_with_padding_alone() -> None:
    """Rows of one address that are all left out."""
    weight = draw((50, 24)).requires_grad_()
    index = torch.full((130,), 2)
    index[7] = index[129] = 3
    function = torch.compile(
        lambda w, i: torch.nn.functional.embedding(i, w, padding_idx=2), backend="trnx"
    )
    function(weight, index).sum().backward()
    assert weight.grad is not None
    expected = torch.zeros(50, 24)
    expected[3] = 2
    torch.testing.assert_close(weight.grad, expected, rtol=0, atol=0)


GRADIENTS: dict[str, tuple[Function, torch.Tensor, list[str]]] = {
    "embedding": (
        lambda w, i: torch.nn.functional.embedding(i, w, padding_idx=2),
        at(50, 4, 70),
        ["embedding", "embedding_backward"],
    ),
    "index_select": (
        lambda w, i: w.index_select(1, i), at(24, 40), ["index_select", "index_add"]
    ),
    "index": (lambda w, i: w[i, i % 24], at(24, 3, 40, low=-24), ["index", "index_put"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    function, index, kernels = GRADIENTS[name]
    weight = draw((50, 24))
    grads = []
    for run in (function, torch.compile(function, backend="trnx", options={"select": "legal"})):
        leaf = weight.clone().requires_grad_()
        with trnx.collect_reports() as reports:
            run(leaf, index).square().sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-5, atol=1e-4)
    found = [region.kernel for report in reports for region in report.regions]
    assert set(kernels) <= set(found)


def test_refusals_of_writes() -> None:
    none = dict.fromkeys(f"i{n}" for n in range(6))
    index = at(5, 4)
    values = {**none, "base": draw((5, 3)), "values": draw((4, 3)), "i0": index}
    assert "float32, bfloat16" in refusal(
        "index_put", **{**values, "base": index, "values": index, "accumulate": True}
    )
    assert "values" in refusal("index_put", **{**values, "values": index, "accumulate": False})
    assert "mask" in refusal("index_put", **{**values, "i0": index > 2, "accumulate": False})
    large = torch.empty(1, device="meta").expand(2**24)
    many = {**none, "base": large, "i0": None, "values": draw((1,)), "accumulate": True}
    assert "apart" in refusal("index_put", **many)
    given = {"rows": 2**24, "padding": -1, "base": None}
    assert "exactly" in refusal("embedding_backward", values=draw((4, 3)), index=index, **given)
