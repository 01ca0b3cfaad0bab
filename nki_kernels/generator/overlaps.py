"""Parts of a reduced dimension that overlap, on the partitions: what neighbours have in common is
added up once.

Parts that are not equal overlap by some elements (`split.py`). An extremum takes these twice. What
a sum or product adds up has its identity there in all parts but the last one: GpSimd selects by
partition, whatever the first one of a part. Only what nothing else reads may change so.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_text import call
from trnx.nki_kernels.generator.instruction import Overlap
from trnx.nki_kernels.generator.ir import Operand, Value, values_of
from trnx.nki_kernels.generator.lower import Lowered, reachable

_EXTREMA = ("maximum", "minimum")
_IDENTITY = {"add": 0.0, "multiply": 1.0}
# What gives a tile of its own, of floats.
_CHANGEABLE = ("load", "alu", "unary", "cast", "reciprocal")


def may_overlap(lowered: Lowered) -> bool:
    """Whether parts of any reduced dimension may overlap."""
    values = reachable(tuple(o.value for o in lowered.outputs))
    uses = Counter([*(v for value in values for v in values_of(value.args)),
                    *(o.value for o in lowered.outputs)])  # fmt: skip
    reductions = [v for v in values if v.op == "reduce"]
    return all(
        v.name in _EXTREMA or _may_change(v, source, uses[source], lowered)
        for v in reductions
        for source in values_of(v.args)
    )


def _may_change(total: Value, source: Value, uses: int, lowered: Lowered) -> bool:
    """Whether the elements that are added up to `total` may change in place."""
    return (
        total.name in _IDENTITY
        and uses == 1
        and source.op in _CHANGEABLE
        and source.dtype.is_floating_point
        and lowered.reduced & set(lowered.order) <= source.axes
    )


def added_once(lowered: Lowered, overlap: Overlap, outer: int) -> Lowered:
    """`lowered`, whose label `outer` counts parts, with sums of what these do not share."""
    new: dict[Value, Value] = {}

    def renewed(operand: Operand) -> Operand:
        return new[operand] if isinstance(operand, Value) else operand

    for value in reachable(tuple(o.value for o in lowered.outputs)):  # operands first
        args = tuple(map(renewed, value.args))
        if value.op == "reduce" and value.name in _IDENTITY:
            (source,) = values_of(args)
            if {outer, overlap.label} <= source.axes - value.axes:
                what = overlap._replace(identity=_IDENTITY[value.name])
                once = Value("once", source.name, (source,), source.dtype, source.axes, what)
                args = (once, *args[1:])
        # A load stays the one whose strides are known.
        new[value] = dataclasses.replace(value, args=args) if args else value
    outputs = tuple(dataclasses.replace(o, value=new[o.value]) for o in lowered.outputs)
    return dataclasses.replace(lowered, outputs=outputs)


def selecting(
    tile: str, overlap: Overlap, start: str, counts: Sequence[str], at: int | None
) -> list[str]:
    """The lines that leave the elements of `tile`, whose free axes have these `counts`, as they are
    in the last part, and in others but for what they share. The tile's elements of the label begin
    with `start` and lie along free axis `at`, or it has one of them where that is None."""
    ranges = [f"0:{count}" for count in counts]
    sizes = list(counts) or ["1"]
    condition = f"{start} >= {overlap.step}"
    lines: list[str] = []
    if at is not None:
        lines = [f"first = max(0, {overlap.step} - {start})"]
        ranges[at], sizes[at] = f"first:{counts[at]}", f"{counts[at]} - first"
        condition = f"first < {counts[at]}"
    view = f"{tile}[{', '.join([':', *ranges])}]"
    arguments = [
        f"dst={view}",
        f"pattern=[{', '.join(f'[0, {size}]' for size in sizes)}]",
        f"offset=-{overlap.parts - 1} * m",
        "channel_multiplier=1",
        f"on_true_tile={view}",
        f"on_false_value={overlap.identity}",
        "cmp_op=nl.greater_equal",
    ]
    return [*lines, f"if {condition}:", *indent(call("nisa.affine_select", arguments))]
