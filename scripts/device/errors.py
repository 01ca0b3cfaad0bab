"""Errors of `trnx device`."""

from __future__ import annotations

from trnx.simulator.errors import TrnxError


class DeviceError(TrnxError):
    """Root of the errors of `trnx device`."""


class CollectError(DeviceError):
    """A folder that cannot be collected into."""


class RanksError(DeviceError):
    """A job of several ranks that did not end well."""


class ArchiveError(DeviceError):
    """A file that is no archive of `trnx device collect`."""
