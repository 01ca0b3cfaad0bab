"""Errors of export and load."""

from __future__ import annotations

from trnx.backend.errors import BackendError


class ExportError(BackendError):
    """A model, or a folder to write to, that cannot be exported."""


class LoadError(BackendError):
    """A folder that cannot be loaded."""


class ForeignFolderError(LoadError):
    """A folder that `trnx.export` of this version of the format has not written."""


class DamagedFolderError(LoadError):
    """A folder that is not as it was written: a file is missing, cut, changed or added."""


class UnsafeFolderError(LoadError):
    """A folder that every user of the machine may change."""


class FolderVersionError(LoadError):
    """A folder that was exported with another torch, or with other kernels, than are here."""
