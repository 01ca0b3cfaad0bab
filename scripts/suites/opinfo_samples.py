"""Samples of PyTorch's OpInfo database, outside of PyTorch's own tests."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core


def samples_of(op: Any, dtype: torch.dtype, requires_grad: bool = False) -> Any:
    """What iterates over `op.sample_inputs` on the CPU: the same samples.

    OpInfo looks for a test of `unittest` among the callers of each of its iterators. That goes
    through all modules of the process for each frame, which takes tens of milliseconds where
    thousands of them are imported.
    """
    with (
        mock.patch.object(common_utils, "extract_test_fn", _none),
        mock.patch.object(core, "extract_test_fn", _none),
    ):
        return op.sample_inputs("cpu", dtype, requires_grad=requires_grad)


def _none() -> None:
    return None
