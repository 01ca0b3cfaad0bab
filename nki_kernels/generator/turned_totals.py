"""Extrema that are stored from the partitions on which they were found.

TensorE transposes what partitions have of an extremum, and VectorE reduces it: the values that stay
lie along the partitions then. Where no tile reads them, and nothing but steps with numbers comes
between them and the results, they do not go back to all partitions, which takes a transposition
and a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnx.nki_kernels.generator.across import Across, Phase
from trnx.nki_kernels.generator.engines import TENSOR
from trnx.nki_kernels.generator.select_instructions import Instruction

_STEPS = ("activation", "tensor_scalar", "tensor_copy")


def turned_total(across: Across, phases: Sequence[Phase]) -> Instruction | None:
    """What combines the extremum that stays so; the once instructions of the last phase are those
    on the way to the results. None where there is none."""
    if len(phases) < 2 or phases[-1].each or len(phases[-2].combines) != 1:
        return None
    (combine,) = phases[-2].combines
    partial = combine.reads()[0]
    reduction = next(i for i in phases[-2].each if partial in i.writes())
    kept = across.size(across.free(combine.dst)[1])
    if not across.geometry.crosses or not 1 < kept <= across.geometry.partitions:
        return None
    if ("op", "nl.add") in combine.arguments or reduction.engine == TENSOR:
        return None
    made = {combine.dst}
    for i in phases[-1].once:
        same = all(v.axes == combine.dst.axes for v in i.writes())
        if i.call not in _STEPS or not same or not made.issuperset(i.reads()):
            return None
        made.update(i.writes())
    stored = {across.results[n] for n in phases[-1].stores}
    return combine if stored <= made else None
