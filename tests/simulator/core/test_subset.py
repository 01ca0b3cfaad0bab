"""The Python subset of kernels."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.errors import KernelSubsetError
from trnx.simulator.frontend import subset
from trnx.simulator.frontend.kernel import Kernel
from trnx.simulator.frontend.subset import check_subset, subset_findings
from trnx.simulator.frontend.subset_rules import PARAMETERS, RULES


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    return load_module(Path(__file__).with_name("subset_kernels.py"))


def test_a_clean_kernel_has_no_findings(twin: ModuleType) -> None:
    assert subset_findings(twin.clean) == []
    check_subset(twin.clean)
    check_subset(twin.changes_its_own)


def test_names_behind_a_return_mean_nothing(twin: ModuleType) -> None:
    check_subset(twin.uses_torch_behind_its_return)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("has_lambda", "a lambda"),
        ("has_a_lambda_behind_its_return", "a lambda"),
        ("has_comprehension", "a list comprehension"),
        ("has_inner_function", "defines inner inside"),
        ("has_try", "has try"),
        ("has_raise", "has raise"),
        ("has_varargs", r"has \*args"),
        ("has_keywords", r"has \*\*kwargs"),
        ("has_positions", "position-only parameters, .* may reject"),
        ("has_keyword_only", "keyword-only parameters, .* may reject"),
        ("has_star", "a starred element or argument, .* may reject"),
        ("has_set", r"a set, .*nki-language-guide\.rst"),
        ("has_dict_of_numbers", "a dict whose keys are not strings"),
        ("has_wide_integer", "an integer of more than 32 bits"),
        ("has_unsigned_integer", "an integer beyond int32, .* may reject"),
        ("has_bytes", "bytes or a complex number"),
        ("has_matmul_operator", "the operator @"),
        ("has_expanded_keywords", r"an expanded keyword argument \(\*\*\)"),
        ("has_for_else", r"a for loop with else, .*Simplify\.lean"),
        ("has_while_else", "a while loop with else"),
        ("has_class", "a class inside"),
        ("has_del", r"has del, .*gather\.c"),
        ("has_match", "has match"),
        ("has_global", "has global"),
        ("has_walrus", "an assignment expression"),
        ("has_yield", "has yield"),
        ("has_dict_comprehension", "a comprehension"),
        ("has_generator", "a generator expression"),
        ("imports_inside", "an import inside"),
        ("has_format_spec", "format spec"),
        ("uses_torch", "refers to 'torch'"),
        ("uses_a_set", "refers to 'NAMES', a set"),
        ("reaches_a_bad_helper", "bad_helper refers to 'torch'"),
        ("changes_a_global", "changes 'ROWS', which is kept"),
        ("changes_an_item", "changes 'ROWS', which is kept"),
        ("changes_settings", "changes 'DEFAULTS', which is kept"),
        ("changes_a_default", "changes 'made', which is kept"),
    ],
)
def test_what_is_outside_of_the_subset_is_named(twin: ModuleType, name: str, message: str) -> None:
    with pytest.raises(KernelSubsetError, match=message) as caught:
        check_subset(getattr(twin, name))
    assert caught.value.location is not None
    assert caught.value.location.file.endswith("subset_kernels.py")
    assert len(subset_findings(getattr(twin, name))) == 1


def test_every_row_has_a_test_and_a_source(twin: ModuleType) -> None:
    """A row of the table without a kernel that breaks it would be a guess."""
    found = [
        finding
        for value in vars(twin).values()
        if isinstance(value, Kernel)
        for finding in map(str, subset_findings(value))
    ]
    rules = [*PARAMETERS, *(rule for rules in RULES.values() for rule in rules)]
    asynchronous = {"await", "an async function", "an async loop", "an async with"}
    for rule in rules:
        assert rule.sources
        assert all(source.startswith(("SDK/", "KLR ", "nki-library")) for source in rule.sources)
        if rule.what not in asynchronous | {"nonlocal"}:
            assert any(f"has {rule.what}," in message for message in found), rule.what
    assert all(len(rule.sources) > 1 or rule in PARAMETERS for rule in rules if rule.is_disputed)


def test_kernels_of_a_trusted_folder_are_recorded_unread_and_can_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subset, "_trusted", [])
    ours, other = tmp_path / "ours", tmp_path / "ours_too"
    for folder in (ours, other):
        folder.mkdir()
        (folder / "copies.py").write_text(dedent(OUTSIDE))
    subset.trust_sources(ours)
    given = [TensorSpec.dense((4, 4), torch.float32)]
    trusted = load_module(ours / "copies.py").copies
    assert len(trace(trusted, given).steps) == 1
    with pytest.raises(KernelSubsetError, match="has del"):
        check_subset(trusted)
    with pytest.raises(KernelSubsetError, match="has del"):
        trace(load_module(other / "copies.py").copies, given)


OUTSIDE = """
    import nki
    import nki.isa as nisa
    import nki.language as nl

    @nki.jit
    def copies(x):
        unused = 0
        del unused
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out
    """
