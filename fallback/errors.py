"""Errors of the fallback engines."""

from __future__ import annotations

from trnx.simulator.errors import TrnxError


class FallbackError(TrnxError):
    """A region cannot run on the engine that it was given to."""


class DuplicateOpError(TrnxError):
    """Two entries of the ATen-to-JAX table claim one op."""


class TranslationError(FallbackError):
    """The JAX form of an op disagrees with the graph's metadata, or cannot be traced."""
