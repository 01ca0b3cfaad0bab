"""Descriptors of DMA that are made before the run.

The trigger of a transfer that has them takes 8 ns of its queue (nki-dma-intro-5), in place of the
600 in which the hardware makes them (nki-dge.rst). They take HBM while a model is loaded.
"""

from __future__ import annotations

# Of a kernel that has them made, at most.
MOST_DESCRIPTORS = 2**15
