"""The Pythons and torches that trnx is tested with, first and last. Nothing is imported here."""

from __future__ import annotations

Version = tuple[int, int]

PYTHON: tuple[Version, Version] = ((3, 11), (3, 14))
TORCH: tuple[Version, Version] = ((2, 13), (2, 15))
