"""The dtypes that kernels take. Engines convert them to float32, and round results to them."""

from __future__ import annotations

import torch

from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def reject_dtypes(b: Bindings, *names: str) -> Reject | None:
    """A Reject for the first of these tensors with another dtype; None is skipped (no tensor)."""
    for name in names:
        if b[name] is not None and b[name].dtype not in FLOAT_DTYPES:
            return Reject(f"dtype {b[name].dtype} of {name} is not float32, bfloat16 or float16")
    return None
