"""Engines for the regions that no kernel takes: XLA where its table has the ops, else eager."""

from trnx.fallback.eager import EagerEngine

__all__ = ["EagerEngine"]
