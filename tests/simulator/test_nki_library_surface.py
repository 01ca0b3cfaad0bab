"""The packages that nki-library's suite imports, and what its kernels showed about the rules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trnx.simulator import install_cpu_simulator, load_module, simulate, uninstall_cpu_simulator
from trnx.simulator.errors import KernelSubsetError, UninitialisedReadError, UnorderedAccessError
from trnx.simulator.frontend import neuron_dtypes
from trnx.simulator.frontend.cpu_simulator import cpu_simulate
from trnx.simulator.memory.dtypes import resolve

KERNELS = Path(__file__).with_name("surface_kernels.py")
MODULES = (
    "nki",
    "nki.builtin",
    "nki.compiler",
    "nki.isa",
    "nki.isa.constants",
    "nki.language",
    "nki.language.dtypes",
    "nki.tensor",
    "nki.typing",
)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(KERNELS)


@pytest.fixture
def installed() -> Iterator[None]:
    install_cpu_simulator()
    try:
        yield
    finally:
        uninstall_cpu_simulator()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", MODULES)
def test_the_suites_modules_can_be_imported(name: str) -> None:
    module = importlib.import_module(f"nki_cpu_simulator.{name}")
    assert isinstance(module, ModuleType)
    assert "nki" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_submodules_are_attributes_too() -> None:
    exec(
        "import nki_cpu_simulator.nki.language.dtypes as d\n"
        "from nki_cpu_simulator import nki\n"
        "assert d.float32 == nki.language.float32 and nki.isa.constants.dge_mode\n"
    )
    assert sys.modules["nki_cpu_simulator.nki"].cpu_simulate is cpu_simulate
    assert sys.modules["neuron_dtypes"].static_cast is neuron_dtypes.static_cast


def test_nothing_is_left_behind() -> None:
    before = set(sys.modules)
    install_cpu_simulator()
    install_cpu_simulator()
    uninstall_cpu_simulator()
    added = {name for name in set(sys.modules) - before if not name.startswith("trnx.")}
    assert added == set()


def test_the_generation_comes_from_the_environment(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    monkeypatch.setenv("NKI_NC_VERSION", "gen4")
    np.testing.assert_array_equal(cpu_simulate(kernels.passes_through)[2](x=x), x)
    monkeypatch.setenv("NKI_NC_VERSION", "gen2")
    np.testing.assert_array_equal(cpu_simulate(kernels.passes_through)(x), x)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_the_callers_arrays_are_left_alone(kernels: ModuleType, dtype: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    result = cpu_simulate(kernels.doubled_in_place)[1](x=x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result.astype(np.float32), np.arange(6).reshape(2, 3) * 2)
    np.testing.assert_array_equal(x.astype(np.float32), np.arange(6).reshape(2, 3))


def test_simulate_writes_into_bfloat16_arrays(kernels: ModuleType) -> None:
    x = np.ones((2, 3), dtype=ml_dtypes.bfloat16)
    simulate(kernels.doubled_in_place)(x)
    np.testing.assert_array_equal(x.astype(np.float32), np.full((2, 3), 2.0))


def test_the_truth_of_an_argument_is_that_it_was_given(kernels: ModuleType) -> None:
    """On chip, too; of one element there, it would be a value."""
    with pytest.raises(KernelSubsetError, match="value of a tensor"):
        simulate(kernels.doubled_in_place)(np.ones((1, 1), dtype=np.float32))
    x = np.ones((2, 3), dtype=np.float32)
    result = simulate(kernels.doubled_in_place)(x, np.zeros((2, 3), dtype=np.float32))
    np.testing.assert_array_equal(result, np.zeros((2, 3)))


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.float8_e4m3, *map(str, ("float8_e4m3fn_x4", "float4_e2m1fn_x4"))]
)
def test_types_without_a_torch_dtype_pass_bit_for_bit(kernels: ModuleType, dtype: Any) -> None:
    values = np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)
    x = neuron_dtypes.static_cast(values, dtype)
    result = simulate(kernels.passes_through)(x)
    assert result.dtype == x.dtype
    assert result.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("float8_e4m3fn_x4", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2_x4", ml_dtypes.float8_e5m2),
        ("float4_e2m1fn_x4", ml_dtypes.float4_e2m1fn),
    ],
)
def test_packed_types_hold_four_values(name: str, value: Any) -> None:
    values = np.linspace(-3.0, 3.0, 16, dtype=np.float32).reshape(2, 8)
    packed = neuron_dtypes.static_cast(values, name)
    assert packed.shape == (2, 2)
    unpacked = neuron_dtypes.static_cast(packed, np.float32)
    np.testing.assert_array_equal(unpacked, values.astype(value).astype(np.float32))
    assert neuron_dtypes.finfo(name).max == ml_dtypes.finfo(value).max
    assert neuron_dtypes.sizeinbytes(name) == packed.itemsize
    assert not neuron_dtypes.is_float_type(packed.dtype)
    assert np.zeros((2, 3), dtype=resolve(name)).dtype == packed.dtype
    assert name in str(packed.dtype)
    with pytest.raises(TypeError, match="cast"):
        packed.astype(np.float32)


def test_conversions_and_sizes() -> None:
    values = np.array([0.1, 1.0 / 3.0, 300.0], dtype=np.float32)
    cast = neuron_dtypes.static_cast(values, "bfloat16")
    np.testing.assert_array_equal(cast, values.astype(ml_dtypes.bfloat16))
    assert neuron_dtypes.static_cast(values, np.float32) is values
    assert neuron_dtypes.sizeinbytes("tfloat32") == 4
    assert neuron_dtypes.is_float_type("float8_e4m3")
    assert neuron_dtypes.is_float_type(np.float16)
    assert not neuron_dtypes.is_float_type(np.int32)


def test_what_is_unwritten_may_move_but_not_arrive(kernels: ModuleType) -> None:
    x = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    np.testing.assert_array_equal(simulate(kernels.uses_the_written_half)(x), (x + 1).T)
    with pytest.raises(UninitialisedReadError, match="tensor_scalar: data") as caught:
        simulate(kernels.uses_the_other_half)(x)
    assert caught.value.location is not None
    assert caught.value.location.function == "uses_the_other_half"


def test_both_programs_may_store_the_same(kernels: ModuleType) -> None:
    x = np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)
    want = np.concatenate([x[:2], np.zeros((2, 8), dtype=np.float32)])
    np.testing.assert_array_equal(simulate(kernels.both_store_the_same, grid=2)(x), want)
    with pytest.raises(UnorderedAccessError):
        simulate(kernels.both_store_their_own, grid=2)(x)


def test_a_reduction_may_throw_its_first_result_away(kernels: ModuleType) -> None:
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    result = simulate(kernels.keeps_the_sum_alone)(x)
    np.testing.assert_allclose(result, (x * x).sum(1, keepdims=True), rtol=1e-6)


def test_fields_without_annotation_or_value(kernels: ModuleType) -> None:
    plan = kernels.Plan(rows=1, offset=3)
    assert (plan.rows, plan.offset) == (1, 3)
    assert not hasattr(plan, "columns")
    assert kernels.Plan(1, 2).columns == 2
    with pytest.raises(TypeError, match="nonsense"):
        kernels.Sizes(nonsense=1)
