"""`nki.simulate`, `kernel(...)` and the environment variables of AWS's package."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from trnx.simulator import install, interactive, load_module, uninstall
from trnx.simulator.errors import (
    FindingError,
    KernelSubsetError,
    UninitialisedReadError,
    UnknownNkiNameError,
    UnknownTargetError,
)
from trnx.simulator.frontend.kernel import DeviceRequiredError

KERNELS = Path(__file__).with_name("door_kernels.py")


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(KERNELS)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_PRECISE_FP", "NKI_SIMULATOR"):
        monkeypatch.delenv(name, raising=False)


def test_numpy_in_numpy_out(kernels: ModuleType) -> None:
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    result = kernels.nki.simulate(kernels.double)(a)
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, 2 * a)


def test_torch_in_torch_out(kernels: ModuleType) -> None:
    a = torch.arange(12, dtype=torch.bfloat16).reshape(4, 3)
    result = kernels.double(a)
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, 2 * a)
    assert result.dtype is torch.bfloat16


def test_ml_dtypes_in_and_out(kernels: ModuleType) -> None:
    a = np.ones((4, 3), ml_dtypes.bfloat16)
    result = kernels.double(a)
    assert result.dtype == a.dtype
    np.testing.assert_array_equal(result.astype(np.float32), 2)


def test_launch_with_cores(kernels: ModuleType) -> None:
    np.testing.assert_array_equal(kernels.double[1](np.ones((4, 3), np.float32)), 2)
    result = kernels.programs[2](np.zeros((2, 1), np.int32))
    np.testing.assert_array_equal(result, [[10], [11]])


@pytest.mark.parametrize(
    ("asked", "version"), [("trn1", 2), ("inf2", 2), ("gen3", 3), ("TRN2", 3), ("gen4", 4)]
)
def test_target_of_the_environment(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, asked: str, version: int
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", asked)
    np.testing.assert_array_equal(kernels.version(np.zeros((1, 1), np.int32)), version)


def test_default_target_and_the_decorators(kernels: ModuleType) -> None:
    zeros = np.zeros((1, 1), np.int32)
    np.testing.assert_array_equal(kernels.version(zeros), 3)
    np.testing.assert_array_equal(kernels.version_on_trn1(zeros), 2)
    np.testing.assert_array_equal(kernels.version_on_trn1[1](zeros), 2)


def test_unknown_target(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    with pytest.raises(UnknownTargetError, match="trn9"):
        kernels.version(np.zeros((1, 1), np.int32))


def test_device_is_refused(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_SIMULATOR", "0")
    with pytest.raises(DeviceRequiredError, match="NKI_SIMULATOR=0"):
        kernels.double(np.ones((4, 3), np.float32))
    monkeypatch.setenv("NKI_SIMULATOR", "1")
    np.testing.assert_array_equal(kernels.double(np.ones((4, 3), np.float32)), 2)


def test_precise_is_the_default(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.full((4, 3), 1.0, dtype=torch.bfloat16)
    # 1 + 2^-9 is no bfloat16.
    assert torch.equal(kernels.add_small(a), a)
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    wide = kernels.add_small(a)
    assert wide.dtype is torch.float32
    assert torch.equal(wide, a.float() + 2**-9)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.int16])
def test_imprecise_numpy(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    result = kernels.double(np.ones((4, 3), dtype))
    assert result.dtype == (np.int16 if dtype is np.int16 else np.float32)
    np.testing.assert_array_equal(result, 2)


@pytest.mark.parametrize("precise", ["0", "1"])
def test_arguments_are_written_in_place(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, precise: str
) -> None:
    monkeypatch.setenv("NKI_PRECISE_FP", precise)
    a = torch.ones(4, 3, dtype=torch.float16)
    untouched = torch.ones(4, 3, dtype=torch.float16)
    kernels.into_first(a, untouched)
    assert torch.equal(a, torch.full((4, 3), 2.0, dtype=torch.float16))
    assert torch.equal(untouched, torch.ones(4, 3, dtype=torch.float16))


def test_prompt_gives_truth_values_and_kernels_do_not(kernels: ModuleType) -> None:
    nl = kernels.nl
    with interactive() as session:
        a = nl.full((4, 3), 3.0, dtype=nl.float32)
        assert nl.equal(nl.add(a, 2.0), nl.full((4, 3), 5.0, dtype=nl.float32))
        assert not nl.equal(a, 2.0)
        assert torch.equal(session.values(a), torch.full((4, 3), 3.0))
        with pytest.raises(UninitialisedReadError):
            bool(nl.ndarray((4, 3), dtype=nl.float32))
    with pytest.raises(FindingError, match=r"nl\.where"):
        kernels.asks_a_tensor(np.ones((4, 3), np.float32))


def test_prompt_writes_into_arrays(kernels: ModuleType) -> None:
    nl = kernels.nl
    out = np.zeros((4, 3), np.float32)
    with interactive("trn3") as session:
        nl.store(session.tensor(out), nl.full((4, 3), 7.0, dtype=nl.float32))
    np.testing.assert_array_equal(out, 7)


@pytest.mark.parametrize("give", ["positional", "keywords", "mixed"])
def test_operators_take_keywords(kernels: ModuleType, give: str) -> None:
    nl = kernels.nl
    with interactive() as session:
        a = nl.full((4, 3), 3.0, dtype=nl.float32)
        result = {
            "positional": lambda: nl.subtract(a, 1.0, nl.bfloat16),
            "keywords": lambda: nl.subtract(y=1.0, x=a, dtype=nl.bfloat16),
            "mixed": lambda: nl.subtract(a, y=1.0, dtype=nl.bfloat16),
        }[give]()
        assert torch.equal(session.values(result), torch.full((4, 3), 2.0, dtype=torch.bfloat16))


def test_broadcast_over_partitions(kernels: ModuleType) -> None:
    nl = kernels.nl
    row = np.arange(5, dtype=np.float32)[None]
    with interactive() as session:
        tile = nl.broadcast_to(nl.load(session.tensor(row)), (100, 5))
        expected = torch.from_numpy(np.repeat(row, 100, 0))
        assert torch.equal(session.values(tile), expected)
        with pytest.raises(FindingError, match="does not broadcast"):
            nl.broadcast_to(tile, (128, 5))
        with pytest.raises(FindingError, match=r"does not broadcast: use nl\.broadcast_to"):
            nl.add(tile, nl.load(session.tensor(row)))


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([[-0.0, float("nan"), float("inf"), 1e-45]]),
        torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        torch.tensor([[2**31 - 1, -7, 16_777_217]], dtype=torch.int32),
        torch.tensor([[0, 255]], dtype=torch.uint8),
    ],
    ids=lambda values: str(values.dtype),
)
def test_broadcast_over_partitions_keeps_values(kernels: ModuleType, values: torch.Tensor) -> None:
    with interactive() as session:
        row = kernels.nl.load(session.tensor(values))
        tile = kernels.nl.broadcast_to(row, (128, *values.shape[1:]))
        found = session.values(tile)
    assert found.dtype == values.dtype
    expected = values.expand(128, -1).contiguous()
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_broadcast_over_all_dimensions_rounds_once(kernels: ModuleType) -> None:
    nl = kernels.nl
    with interactive() as session:
        one = nl.load(session.tensor(torch.tensor([[[1.00390625], [3.0]]])))
        tile = nl.broadcast_to(one, (7, 2, 3), dtype=nl.bfloat16)
        expected = torch.tensor([[[1.0], [3.0]]], dtype=torch.bfloat16).expand(7, 2, 3)
        assert torch.equal(session.values(tile), expected)


CELL = """\
import nki
import nki.language as nl


@nki.jit
def copy(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(a))
    return out
"""


def _run_cell(name: str, cell: str = CELL) -> dict[str, Any]:
    install()
    try:
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(cell, name, "exec"), scope)
        return scope
    finally:
        uninstall()


def test_kernel_in_a_notebook_cell() -> None:
    name = "<cell 1>"
    # Notebooks register their cells like this.
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    result = _run_cell(name)["copy"](np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(result, 1)


def test_notebook_cells_are_checked_against_the_subset() -> None:
    name = "<cell 2>"
    cell = CELL.replace("    return out", "    numbers = {n for n in range(3)}\n    return out")
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    with pytest.raises(KernelSubsetError, match="copy"):
        _run_cell(name, cell)["copy"](np.ones((2, 3), np.float32))


def test_kernel_without_source_runs() -> None:
    result = _run_cell("<nowhere>")["copy"](np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(result, 1)


def test_jax_arrays_come_as_numpy(kernels: ModuleType) -> None:
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    for dtype in (jnp.float32, jnp.bfloat16):
        a = jnp.arange(12, dtype=dtype).reshape(4, 3)
        result = kernels.double(a)
        assert isinstance(result, np.ndarray)
        assert result.dtype == a.dtype
        np.testing.assert_array_equal(result.astype(np.float32), 2 * np.asarray(a, np.float32))


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        ("isa", "tensor_tensr", "did you mean nki.isa.tensor_tensor"),
        ("isa", "ndarray", "did you mean nki.language.ndarray?"),
        ("language", "nc_matmul", "did you mean nki.isa.nc_matmul?"),
        ("language", "float23", "did you mean nki.language.float32"),
        ("language", "zzzzzz", "docs/nki_api.md lists the names"),
        ("language", "arange", "gone since NKI 0.2: index with slices"),
        ("language", "par_dim", "gone since NKI 0.2: the partition dimension is the first one"),
        ("isa", "tensor_copy_dynamic_src", "gone since NKI 0.4: nki.isa.tensor_copy"),
    ],
)
def test_a_misspelt_name_is_answered(
    kernels: ModuleType, module: str, name: str, meant: str
) -> None:
    found = getattr(kernels.nki, module)
    with pytest.raises(UnknownNkiNameError) as error:
        getattr(found, name)
    assert str(error.value).startswith(f"nki.{module} has no {name!r}; {meant}")
    assert not hasattr(found, name)
    assert not hasattr(found, "__wrapped__")
