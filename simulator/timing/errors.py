"""Errors of the timing package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trnx.simulator.errors import TrnxError


class ProfileDependencyError(TrnxError):
    """A package of the extra `profile` is missing."""


class OutputPathError(TrnxError):
    """A trace or plots cannot be written where they were asked for."""


@contextmanager
def needs(package: str, what: str) -> Iterator[None]:
    """Imports of `package` in this block raise ProfileDependencyError where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ProfileDependencyError(
            f"{what} needs {package}: pip install 'trnx[profile]'"
        ) from error
