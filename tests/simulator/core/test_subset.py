"""The Python subset of kernels."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from trnx.simulator import load_module
from trnx.simulator.errors import KernelSubsetError
from trnx.simulator.subset import check_subset, subset_findings


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    return load_module(Path(__file__).with_name("subset_kernels.py"))


def test_a_clean_kernel_has_no_findings(twin: ModuleType) -> None:
    assert subset_findings(twin.clean) == []
    check_subset(twin.clean)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("has_lambda", "a lambda"),
        ("has_comprehension", "a list comprehension"),
        ("has_inner_function", "defines inner inside"),
        ("has_try", "contains try"),
        ("has_raise", "contains raise"),
        ("has_varargs", r"\*args"),
        ("has_format_spec", "format spec"),
        ("uses_torch", "refers to 'torch'"),
        ("uses_a_set", "refers to 'NAMES', a set"),
        ("reaches_a_bad_helper", "bad_helper refers to 'torch'"),
    ],
)
def test_what_is_outside_of_the_subset_is_named(twin: ModuleType, name: str, message: str) -> None:
    with pytest.raises(KernelSubsetError, match=message) as caught:
        check_subset(getattr(twin, name))
    assert caught.value.location is not None
    assert caught.value.location.file.endswith("subset_kernels.py")
    assert len(subset_findings(getattr(twin, name))) == 1
