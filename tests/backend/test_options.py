"""Options: validation, precedence, and the one reader of the environment."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from trnx.backend import environment
from trnx.backend.environment import option_defaults
from trnx.backend.options import Options, make_options, option_names
from trnx.backend.versions import PYTHON, check_versions
from trnx.errors import (
    InvalidOptionError,
    OptionError,
    TrnxError,
    UnknownOptionError,
    UnknownTargetError,
    UnsupportedVersionError,
)


def test_defaults() -> None:
    options = make_options(environment={})
    assert (options.target, options.fallback, options.select, options.runner) == (
        "trn2",
        "auto",
        "profit",
        "auto",
    )
    assert options.hardware.target == "trn2"


def test_an_unknown_key_lists_the_valid_ones() -> None:
    with pytest.raises(UnknownOptionError) as error:
        make_options({"traget": "trn1"}, {})
    assert "'traget'" in str(error.value)
    assert all(name in str(error.value) for name in option_names())


@pytest.mark.parametrize("name", ["fallback", "select", "runner"])
def test_a_bad_value_lists_the_valid_ones(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=rf"{name}='fastest' is not valid; choose one of"):
        make_options({name: "fastest"}, {})


def test_a_bad_target() -> None:
    with pytest.raises(UnknownTargetError, match="trn9"):
        make_options({"target": "trn9"}, {})
    with pytest.raises(InvalidOptionError, match="target=2"):
        make_options({"target": 2}, {})


def test_an_alias_of_a_target_is_the_target() -> None:
    assert make_options({"target": "inf2"}, {}) == Options(target="trn1")


def test_options_must_be_a_dictionary() -> None:
    with pytest.raises(OptionError, match="dictionary"):
        make_options(["trn1"], {})  # type: ignore[arg-type]


def test_the_environment_sets_defaults_and_options_win() -> None:
    variables = {"TRNX_TARGET": "trn1", "TRNX_RUNNER": "reference", "PATH": "/bin"}
    options = make_options({"target": "trn3"}, variables)
    assert (options.target, options.runner) == ("trn3", "reference")


def test_the_environment_is_validated() -> None:
    with pytest.raises(InvalidOptionError, match="TRNX_RUNNER='gpu'"):
        make_options(None, {"TRNX_RUNNER": "gpu"})


def test_an_unknown_variable_is_a_warning_with_the_nearest_name_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment._warn.cache_clear()
    variables = {"TRNX_TRAGET": "trn1", "TRNX_OF_OTHERS": "1", "TRNX_RUNER": "", "TRNX": "1"}
    for _ in range(2):
        assert make_options(None, {**variables, "TRNX_SELECT": "legal"}).select == "legal"
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    first, second = [record.getMessage() for record in caplog.records]
    assert "TRNX_OF_OTHERS is no variable of trnx" in first
    assert "TRNX_TRAGET is no variable of trnx" in second
    assert "the nearest one is TRNX_TARGET (all: TRNX_TARGET, TRNX_FALLBACK," in second


def test_a_known_variable_with_a_bad_value_is_an_error_beside_an_unknown_one() -> None:
    with pytest.raises(InvalidOptionError, match="TRNX_SELECT='most'"):
        make_options(None, {"TRNX_SELECT": "most", "TRNX_OF_OTHERS": "1"})


def test_variables_of_other_tools_and_empty_ones_are_left_alone() -> None:
    assert option_defaults(["target"], {"TRNX_CRD_SCHEMAS": "x", "TRNX_TARGET": ""}) == {}


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNX_SELECT", "legal")
    assert make_options().select == "legal"


def test_options_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Options().target = "trn1"  # type: ignore[misc]


@pytest.mark.parametrize("version", [(3, 10), (3, 15)])
def test_an_unsupported_python_is_named(version: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"Python 3\.\d+ is not supported"):
        check_versions(python=version)


@pytest.mark.parametrize("version", ["2.12.1", "2.16.0a0+git", "garbage"])
def test_an_unsupported_torch_is_named(version: str) -> None:
    with pytest.raises(UnsupportedVersionError, match="pip install"):
        check_versions(torch_version=version)


def test_supported_versions_pass() -> None:
    for python in ((3, 11), (3, 14)):
        for torch_version in ("2.13.0+cpu", "2.14.1", "2.15.0+cu132"):
            check_versions(python, torch_version)
    assert issubclass(UnsupportedVersionError, TrnxError)


def test_the_package_asks_for_the_versions_that_are_checked() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (torch_range,) = [one for one in project["dependencies"] if one.startswith("torch")]
    with pytest.raises(UnsupportedVersionError, match=re.escape(f'pip install "{torch_range}"')):
        check_versions(torch_version="2.1.0")
    (first, last) = PYTHON
    assert project["requires-python"] == f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"
