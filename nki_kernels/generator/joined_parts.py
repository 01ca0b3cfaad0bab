"""The logsumexp of rows whose parts lie on several partitions, and which no tile reads again.

Each partition scales its sums to its own maximum, without a wait for the one of the whole row. Both
go to a line of one partition, which joins the parts, and the totals alone come back to the first
partitions: a transposition loads as many columns as it gives partitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trnx.nki_kernels.generator.across import Across, Phase
from trnx.nki_kernels.generator.emit_text import call
from trnx.nki_kernels.generator.instruction import Instruction


class Joined(NamedTuple):
    """What combines the maxima, and the sums that are scaled by them."""

    most: Instruction
    total: Instruction


def joined_totals(across: Across, phases: Sequence[Phase]) -> Joined | None:
    """The two, None where there are others, or tiles read them, or copies bring the parts together,
    which takes less."""
    geometry = across.geometry
    if len(phases) < 2 or phases[-1].each or not geometry.leads_reduced:
        return None
    if geometry.lead_in_quadrants:
        return None
    combines = phases[-2].combines
    totals = [i for i in combines if across.in_one_phase(i) is not None]
    others = [i for i in combines if i not in totals]
    if len(totals) != 1 or len(others) != 1 or any(any(across.free(i.dst)) for i in combines):
        return None
    pair = across.in_one_phase(totals[0])
    is_scaled = pair is not None and pair[1] is others[0].dst and across.in_columns(others[0])
    return Joined(others[0], totals[0]) if is_scaled else None


def joined_lines(
    most: str, total: str, steps: int, rows: str, parts: str, *, in_psum: bool
) -> list[str]:
    """The totals named so of `rows`, which have `parts` of `steps` tiles each: exp(-inf) is no NaN
    where a part has nothing else, and -inf - -inf is one where the row has not. The sums stay
    `in_psum` where ScalarE alone reads them."""
    kind = "dtype=nl.float32, buffer=nl.sbuf"
    scaled = ["dst=scales", f"data={total}_below", "op0=nl.subtract", "operand0=least"]
    scaled += ["op1=nl.power", f"operand1={math.exp(-1)!r}", "reverse1=True"]
    weighed = ["dst=weights", "data=weights", "op0=nl.power", f"operand0={math.e!r}"]
    whole = f"(1, {parts}, {rows})"
    return [
        f"own = nl.ndarray((p, 1), {kind})",
        f"nisa.tensor_reduce(dst=own, op=nl.maximum, data={most}_parts, axis=(1,))",
        f"least = nl.ndarray((p, 1), {kind})",
        f"nisa.tensor_reduce(dst=least, op=nl.minimum, data={total}_below, axis=(1,))",
        f"scales = nl.ndarray((p, {steps}), {kind})",
        *call("nisa.tensor_scalar", scaled),
        "line = nl.ndarray((1, p), dtype=nl.float32, buffer=nl.psum)",
        "nisa.nc_transpose(dst=line, data=own)",
        f"line = line.reshape({whole})",
        f"most = nl.ndarray((1, {rows}), {kind})",
        "nisa.tensor_reduce(dst=most, op=nl.maximum, data=line.permute((0, 2, 1)), axis=(2,))",
        f"nisa.tensor_tensor(dst=scales, data1=scales, data2={total}_sums, op=nl.multiply)",
        f"weights = nl.ndarray({whole}, {kind})",
        f"all_most = most.expand_dim(1).broadcast(1, {parts})",
        "nisa.tensor_tensor(dst=weights, data1=line, data2=all_most, op=nl.subtract)",
        f"sums = nl.ndarray((p, 1), {kind})",
        "nisa.tensor_reduce(dst=sums, op=nl.add, data=scales, axis=(1,))",
        "line = nl.ndarray((1, p), dtype=nl.float32, buffer=nl.psum)",
        "nisa.nc_transpose(dst=line, data=sums)",
        *call("nisa.tensor_scalar", [*weighed, "reverse0=True"]),
        f"line = line.reshape({whole})",
        "nisa.tensor_tensor(dst=weights, data1=weights, data2=line, op=nl.multiply)",
        f"total = nl.ndarray((1, {rows}), {kind})",
        "nisa.tensor_reduce(dst=total, op=nl.add, data=weights.permute((0, 2, 1)), axis=(2,))",
        *_back(most, "most", rows),
        *_back(total, "total", rows)[: 2 if in_psum else None],
        *([f"{total}_tile = back"] if in_psum else []),
    ]


def _back(stem: str, line: str, rows: str) -> list[str]:
    """The tile of a total, a row in each of the first partitions."""
    return [
        f"back = nl.ndarray(({rows}, 1), dtype=nl.float32, buffer=nl.psum)",
        f"nisa.nc_transpose(dst=back, data={line})",
        f"{stem}_tile = nl.ndarray(({rows}, 1), dtype=nl.float32, buffer=nl.sbuf)",
        f"nisa.tensor_copy(dst={stem}_tile, src=back)",
    ]
