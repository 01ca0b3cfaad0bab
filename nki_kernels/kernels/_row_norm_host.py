"""What kernels with a layer norm behind a product (`_row_norm.py`) take, and how exact they are."""

from __future__ import annotations

import torch

from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject

# Columns, of which some tiles in float32 fit in SBUF beside the weights.
_MOST_COLUMNS = 2048


def reject_row_norm(b: Bindings, columns: int) -> Reject | None:
    """One norm over all columns of the product, not too many of them."""
    if list(b.normalized_shape) != [columns]:
        return Reject(f"a norm over {list(b.normalized_shape)}, not over the {columns} columns")
    if columns > _MOST_COLUMNS:
        return Reject(f"{columns} columns; rows of more than {_MOST_COLUMNS} do not fit in SBUF")
    return None


def largest_scale(
    total: torch.Tensor, norm_weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """By how much the norm of rows `total[..., N]` in float32 makes an error in them larger."""
    factor = torch.rsqrt(total.var(-1, correction=0) + eps).max()
    return factor if norm_weight is None else factor * norm_weight.float().abs().max()
