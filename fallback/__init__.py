"""Engines for the regions that no kernel takes: XLA where its table has the ops, else eager."""

from trnx.fallback.eager import EagerEngine
from trnx.fallback.xla import XlaEngine

__all__ = ["EagerEngine", "XlaEngine"]
