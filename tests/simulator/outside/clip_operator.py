"""An operator that trnx does not have, declared outside of it: all that there is of it."""

from __future__ import annotations

import torch

from trnx.simulator.language.operators.reductions import fold_last
from trnx.simulator.language.operators.table import Operator, declare


def _clip(x: torch.Tensor, *, out: torch.Tensor) -> None:
    torch.clamp(x, -1.0, 1.0, out=out)


declare(Operator("clip", 1, _clip, is_alu=True, activation=_clip, aliases=("clip_unit",)))
declare(
    Operator("hypot", 2, torch.hypot, is_alu=True, identity=0.0, reduction=fold_last(torch.hypot))
)
