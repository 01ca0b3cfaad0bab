"""Errors of `trnx plan`: what it was asked that it cannot answer."""

from __future__ import annotations

from trnx.backend.errors import BackendError


class PlanError(BackendError):
    """A question about a plan that has no answer; the message says what to change."""


class UnknownModelError(PlanError):
    """A model whose configuration trnx cannot read the sizes of."""


class NoMeshError(PlanError):
    """No mesh divides the model and the batch over the cores that were asked for."""
