"""What callers pass and get back: every kind of array and object, and the errors of the others."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import CapacityError, FindingError, IllegalInstructionError, TrnxError
from trnx.simulator.frontend.arguments import ArgumentError
from trnx.simulator.frontend.kernel import simulate as nki_simulate
from trnx.simulator.frontend.options import Passing, TraceOptions
from trnx.simulator.frontend.tracing import KernelResultError, record

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("argument_kernels.py"))


def _read_only() -> np.ndarray[Any, Any]:
    array = X.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        X,
        np.asfortranarray(X),
        X[::-1],
        X[:, ::-2],
        X[1:3, 1:],
        np.broadcast_to(X[:1], (4, 3)),
        _read_only(),
        X.astype(np.uint16),
        X.astype(np.float16)[::2],
    ],
    ids=["dense", "fortran", "reversed", "backwards", "part", "broadcast", "read-only", "u2", "f2"],
)
def test_arrays_of_any_layout_are_read(kernels: ModuleType, array: np.ndarray[Any, Any]) -> None:
    before = array.copy()
    result = simulate(kernels.copy)(array)
    assert isinstance(result, np.ndarray)
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, before)
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize(
    "array",
    [X, np.asfortranarray(X), X[:, 1:], X[::-1], torch.arange(12.0).reshape(3, 4).t()],
    ids=["dense", "fortran", "part", "reversed", "transposed"],
)
def test_access_patterns_count_dense_elements(kernels: ModuleType, array: Any) -> None:
    half = array.shape[1] // 2
    result = simulate(kernels.second_half_of_rows)(array)
    np.testing.assert_array_equal(result, array[:, -half:])


def test_a_tensor_that_shares_its_elements_is_never_written(kernels: ModuleType) -> None:
    row = torch.ones(1, 3)
    with pytest.raises(ArgumentError, match="argument x has elements that share memory"):
        simulate(kernels.clears)(row.expand(4, 3))
    assert torch.equal(row, torch.ones(1, 3))
    assert torch.equal(simulate(kernels.copy)(row.expand(4, 3)), torch.ones(4, 3))


@pytest.mark.parametrize("how", ["dense", "reversed", "negated"])
def test_what_a_kernel_writes_reaches_the_caller(kernels: ModuleType, how: str) -> None:
    if how == "negated":
        whole = torch.complex(torch.ones(4, 3), torch.ones(4, 3)).conj()
        assert whole.imag.is_neg()
        assert torch.equal(simulate(kernels.copy)(whole.imag), torch.full((4, 3), -1.0))
        simulate(kernels.clears)(whole.imag)
        assert torch.equal(whole.imag, torch.zeros(4, 3))
        return
    array = X + 1
    simulate(kernels.clears)(array if how == "dense" else array[::-1, ::-1])
    np.testing.assert_array_equal(array, 0)


def test_a_read_only_array_is_never_written(kernels: ModuleType) -> None:
    array = _read_only()
    with pytest.raises(ArgumentError, match="argument x is a read-only array"):
        simulate(kernels.clears)(array)
    np.testing.assert_array_equal(array, X)


def test_arguments_that_a_kernel_returns_come_back_themselves(kernels: ModuleType) -> None:
    array, tensor, words = X.copy(), torch.from_numpy(X.copy()), torch.arange(4)
    assert simulate(kernels.returns_arg)(array) is array
    assert simulate(kernels.returns_arg)(tensor) is tensor
    assert simulate(kernels.returns_arg)(words) is words
    first, second = simulate(kernels.returns_arg_twice)(array)
    assert first is array
    assert second is array
    a, b = torch.ones(3, 2), torch.zeros(3, 2)
    c, d = simulate(kernels.swaps)(a, b)
    assert c is a
    assert d is b
    assert torch.equal(a, torch.zeros(3, 2))
    assert torch.equal(b, torch.ones(3, 2))


def test_aliased_arguments_share_memory(kernels: ModuleType) -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    before = whole.clone()
    result = simulate(kernels.adds_into)(whole[:4], whole[2:])
    assert torch.equal(result, before[:4] + before[2:])
    assert torch.equal(whole[4:], before[4:])
    one = torch.ones(3, 2)
    assert torch.equal(simulate(kernels.adds_into)(one, one), torch.full((3, 2), 2.0))


def _values(x: Any) -> torch.Tensor:
    return x.clone() if isinstance(x, torch.Tensor) else torch.from_numpy(x.copy())


@pytest.mark.parametrize(
    "make",
    [
        lambda: X + 1,
        lambda: np.asfortranarray(X + 1),
        lambda: (X + 1)[:, ::2],
        lambda: (X + 1)[::-1],
        lambda: X.astype(np.int64) + 1,
        lambda: np.broadcast_to(X[:1] + 1, (4, 3)),
        _read_only,
        lambda: torch.from_numpy(X + 1).t(),
        lambda: torch.from_numpy(X + 1)[1:3, 1:],
    ],
    ids=["dense", "fortran", "part", "reversed", "int64", "broadcast", "read-only", "t", "slice"],
)
def test_borrowed_arguments_stay_as_they_are(kernels: ModuleType, make: Any) -> None:
    """Also where two are one tensor; an argument that comes back as a result is a copy."""
    x = make()
    before = _values(x)
    got, same, old = map(torch.as_tensor, simulate(kernels.clears_a_part, borrow=True)(x, x))
    assert torch.equal(_values(x), before)
    want = before.clone()
    want[0] = 0
    assert got.dtype == want.dtype
    assert torch.equal(got, want)
    assert torch.equal(same, before)
    if before.dtype is torch.int64:
        before = torch.stack([before, torch.zeros_like(before)], dim=-1).to(torch.int32)
    assert torch.equal(old, before)
    kept = _values(x)
    same.zero_()
    assert torch.equal(_values(x), kept)


def test_what_is_not_written_is_not_copied(kernels: ModuleType) -> None:
    x, y = torch.ones(4, 3), torch.ones(4, 3)
    run = record(
        kernels.clears_a_part, (x, y), {}, TraceOptions(values=True, passing=Passing.borrowed)
    )
    written, read = (slot.holder for slot in run.program.slots[:2])
    assert written is not None
    assert read is not None
    assert written.data_ptr() != x.data_ptr()
    assert read.data_ptr() == y.data_ptr()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array(3, np.float32), [3.0]),
        (torch.tensor(3.0), [3.0]),
        (torch.ones(2, 2, requires_grad=True), [[1.0, 1.0]] * 2),
        (torch.nn.Parameter(torch.ones(2, 2)), [[1.0, 1.0]] * 2),
    ],
    ids=["0-d array", "0-d tensor", "requires grad", "parameter"],
)
def test_other_tensors(kernels: ModuleType, value: Any, expected: Any) -> None:
    result = simulate(kernels.copy)(value)
    assert type(result) is (np.ndarray if isinstance(value, np.ndarray) else torch.Tensor)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected, np.float32))


def test_keywords_none_and_helpers(kernels: ModuleType) -> None:
    np.testing.assert_array_equal(simulate(kernels.scale)(x=X, factor=3.0), 3 * X)
    np.testing.assert_array_equal(simulate(kernels.scale)(X, bias=X), 3 * X)
    np.testing.assert_array_equal(simulate(kernels.scale)(X, 2.0, None), 2 * X)
    np.testing.assert_array_equal(simulate(kernels.scale)(X, np.float32(2)), 2 * X)
    np.testing.assert_array_equal(simulate(kernels.nested)(X), 3 * X)
    np.testing.assert_array_equal(simulate(kernels.with_mode)(X, kernels.Mode.triple), 3 * X)


def test_objects_with_tensors_stay_as_they_are(kernels: ModuleType) -> None:
    config = kernels.Config(factor=3.0, rows=4)
    np.testing.assert_array_equal(simulate(kernels.with_config)(X, config), 3 * X)
    frozen = kernels.Frozen(factor=3.0, tensor=X)
    result = simulate(kernels.with_frozen)(frozen)
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, 3 * X)
    assert frozen.tensor is X
    program = trace(
        kernels.with_frozen, [kernels.Frozen(2.0, TensorSpec.dense((4, 3), torch.float32))]
    )
    assert torch.equal(program.run([torch.ones(4, 3)])[0], torch.full((4, 3), 2.0))


def test_results_in_tuples_and_lists(kernels: ModuleType) -> None:
    for kernel in (kernels.returns_list, kernels.returns_named):
        first, second = simulate(kernel)(X)
        np.testing.assert_array_equal(first, X)
        np.testing.assert_array_equal(second, 2 * X)
    np.testing.assert_array_equal(simulate(kernels.returns_view)(X), X[1:])
    assert simulate(kernels.clears)(X.copy()) == ()
    for kernel in (kernels.returns_dict, kernels.returns_nested):
        with pytest.raises(KernelResultError, match=r"return tensors in nl\.shared_hbm"):
            simulate(kernel)(X)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (X.astype(np.float64), r"argument x \(4, 3\): .*float64 is not an NKI data type"),
        (X.astype(np.complex64), "complex64 is not an NKI data type"),
        (X.astype(np.uint64), "uint64 is not an NKI data type"),
        (X.astype(">f4"), "argument x is a numpy array of >f4"),
        (np.array([object()]), "argument x is a numpy array of object"),
        (np.array(["a"]), "argument x is a numpy array of <U1"),
        (torch.ones(2, 2, device="meta"), "on device 'meta'; pass one in CPU memory"),
        (torch.ones(2, 2).to_sparse(), "layout is torch.sparse_coo; pass a strided tensor"),
    ],
    ids=["f8", "complex", "u8", "big endian", "object", "text", "meta", "sparse"],
)
def test_what_no_kernel_can_get(kernels: ModuleType, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        simulate(kernels.copy)(value)
    with pytest.raises(ArgumentError, match="argument bias"):
        simulate(kernels.scale)(X, bias=value)


def test_a_simulation_within_a_simulation_is_named(kernels: ModuleType) -> None:
    with pytest.raises(ArgumentError, match="is a tensor of another run of a kernel: within a"):
        nki_simulate(nki_simulate(kernels.copy))(X)


def test_values_need_tensors(kernels: ModuleType) -> None:
    with pytest.raises(ArgumentError, match="argument x is a TensorSpec"):
        trace(kernels.copy, [TensorSpec.dense((4, 3), torch.float32)], values=True)


@pytest.mark.parametrize("empty", [np.zeros((0, 3), np.float32), torch.zeros(4, 0)])
def test_nothing_has_no_tile(kernels: ModuleType, empty: Any) -> None:
    with pytest.raises(IllegalInstructionError, match="must be positive integers") as caught:
        simulate(kernels.copy)(empty)
    assert caught.value.location is not None


@pytest.mark.parametrize("shape", [None, (), (4, -1), (4, 0), (4, 2.5), ("a", 2), 2.5, (4, None)])
def test_shapes_that_are_none(kernels: ModuleType, shape: Any) -> None:
    with pytest.raises(IllegalInstructionError, match="must be positive integers"):
        simulate(kernels.allocates)(X, shape)
    simulate(kernels.allocates)(X, (np.int64(4), 4))


@pytest.mark.parametrize("index", [None, "a", 2.5, (0, 0, 0), 5, slice(0, 2.5), slice(4, 9), [0]])
def test_indices_that_are_none(kernels: ModuleType, index: Any) -> None:
    with pytest.raises(FindingError) as caught:
        simulate(kernels.indexes)(X, index)
    assert caught.value.location is not None
    assert caught.value.location.function == "indexes"


def test_a_message_stays_readable(kernels: ModuleType) -> None:
    """A value of a megabyte, and thousands of tensors with long names."""
    with pytest.raises(IllegalInstructionError) as caught:
        simulate(kernels.adds_what)(X, "a" * 1_000_000)
    assert len(str(caught.value)) < 12_000
    with pytest.raises(IllegalInstructionError) as caught:
        simulate(kernels.indexes)(X, "a" * 1_000_000)
    assert len(str(caught.value)) < 1_000
    with pytest.raises(CapacityError) as capacity:
        simulate(kernels.holds_many_names)(X)
    assert len(str(capacity.value)) < 12_000
    assert isinstance(capacity.value, TrnxError)


@pytest.mark.parametrize("rows", [1, 127, 128, 129])
@pytest.mark.parametrize(
    ("grid", "region", "other"),
    [(1, "hbm", "shared_hbm"), (None, "hbm", "shared_hbm"), (2, "shared_hbm", "hbm")],
)
def test_the_buffer_of_an_argument_is_the_guides(
    kernels: ModuleType, rows: int, grid: int | None, region: str, other: str
) -> None:
    """nki_simulator.rst: `nl.hbm`, or `nl.shared_hbm` for two programs; a result in both cases."""
    x = np.ones((rows, 3), np.float32)
    result = simulate(kernels.is_in, grid=grid)(x, getattr(kernels.nl, region))
    np.testing.assert_array_equal(result, x)
    with pytest.raises(AssertionError):
        simulate(kernels.is_in, grid=grid)(x, getattr(kernels.nl, other))


def test_a_tensor_like_an_argument_can_be_a_result(kernels: ModuleType) -> None:
    assert simulate(kernels.clears_like)(X).tolist() == np.zeros((4, 3)).tolist()
