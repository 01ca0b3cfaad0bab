"""Totals that are stored from the partitions on which they were found.

TensorE transposes what partitions have of an extremum, or of rows in parts, and VectorE reduces it:
the values that stay lie along the partitions then. Where no tile reads them, and nothing but steps
with numbers comes between them and the results, they do not go back to all partitions, which takes
a transposition and a copy. Rows lie along the free axis: they stay there where DMA runs along them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trnx.nki_kernels.generator.across import Across, Phase
from trnx.nki_kernels.generator.engines import TENSOR
from trnx.nki_kernels.generator.geometry import PARTITIONS, Strides
from trnx.nki_kernels.generator.instruction import Instruction
from trnx.nki_kernels.generator.ir import Value

_STEPS = ("activation", "tensor_scalar", "tensor_copy")


def turned_total(
    across: Across, phases: Sequence[Phase], stores: Mapping[Value, Strides]
) -> Instruction | None:
    """What combines the total that stays so; the once instructions of the last phase are those on
    the way to the results, which lie in memory as `stores` says. None where there is none."""
    if len(phases) < 2 or phases[-1].each or len(phases[-2].combines) != 1:
        return None
    (combine,) = phases[-2].combines
    partial = combine.reads()[0]
    reduction = next(i for i in phases[-2].each if partial in i.writes())
    kept = across.size(across.free(combine.dst)[1])
    if across.geometry.crosses:
        if not 1 < kept <= across.geometry.partitions or reduction.engine == TENSOR:
            return None
        if ("op", "nl.add") in combine.arguments:
            return None
    elif not across.geometry.leads_reduced or not 1 < kept <= PARTITIONS:
        return None
    made = {combine.dst}
    for i in phases[-1].once:
        same = all(v.axes == combine.dst.axes for v in i.writes())
        if i.call not in _STEPS or not same or not made.issuperset(i.reads()):
            return None
        made.update(i.writes())
    stored = {across.results[n] for n in phases[-1].stores}
    if not stored <= made:
        return None
    runs_along_rows = all(_runs_along_rows(across, v, stores[v]) for v in stored)
    return combine if across.geometry.crosses or runs_along_rows else None


def _runs_along_rows(across: Across, value: Value, strides: Strides) -> bool:
    """Whether a result has longer runs along rows, which neighbours in memory are."""
    geometry = across.geometry
    labels = tuple(d for d in geometry.free_labels if d in value.axes)
    alike = not geometry.folded and strides.get(geometry.partition) == 1
    return alike and geometry.run(labels, strides) < max(r.count for r in geometry.rows)
