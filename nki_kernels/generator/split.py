"""A dimension of a lowered region as two: what lies `count` times apart, and what lies within.

The outer one may lie on partitions that another dimension leaves empty, and the inner one keeps
its long runs in memory. Where the parts would not be equal, neighbours overlap by some elements,
which are computed and stored twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trnx.nki_kernels.generator.geometry import Strides
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.lower import Lowered, reachable

Accesses = tuple[Mapping[Value, Strides], tuple[Strides, ...]]


def equal_parts(size: int, count: int) -> tuple[int, int]:
    """How many elements `count` parts of a dimension have, all as many, and how far apart they
    begin; the last one ends with the dimension."""
    step = size // count
    return size - step * (count - 1), step


def split_dimension(
    lowered: Lowered, strides: Accesses, label: int, step: int
) -> tuple[Lowered, Accesses, int]:
    """The region and the strides of its loads and results with `label` for the elements of that
    dimension that stay together, and the label, which is new, of the outer one, whose elements lie
    a `step` of the others apart."""
    values = reachable(tuple(o.value for o in lowered.outputs))
    outer = 1 + max(max(lowered.order), *(d for v in values for d in v.axes))
    new: dict[Value, Value] = {}
    for value in values:  # operands first
        args = tuple(new[a] if isinstance(a, Value) else a for a in value.args)
        axes = value.axes | {outer} if label in value.axes else value.axes
        new[value] = dataclasses.replace(value, args=args, axes=axes)
    outputs = tuple(dataclasses.replace(o, value=new[o.value]) for o in lowered.outputs)

    def cut(access: Strides) -> Strides:
        return {**access, outer: access[label] * step} if label in access else access

    loads = {new[value]: cut(access) for value, access in strides[0].items()}
    results = tuple(map(cut, strides[1]))
    return dataclasses.replace(lowered, outputs=outputs), (loads, results), outer
