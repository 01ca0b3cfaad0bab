"""Predictions of held-out points: trace our kernel from shapes alone, schedule it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from held_out import PREAMBLE_NS, HeldOut
from leave_family_out import Without

from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.costs.constants import timing
from trnx.simulator.costs.cost import COUNT, TENSOR
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.compiler import EVERY, Pass
from trnx.simulator.timing.scheduler import schedule

_FILES = (
    "held_out_elementwise.py", "held_out_products.py", "held_out_attention.py",
    "held_out_attention_cte.py",
)  # fmt: skip


@functools.cache
def _kernel(name: str) -> Any:
    for file in _FILES:
        module = load_module(Path(__file__).with_name(file))
        if hasattr(module, name):
            return getattr(module, name)
    raise KeyError(name)


def _argument(value: Any) -> Any:
    if isinstance(value, list):
        return [_argument(item) for item in value]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], tuple):
        return TensorSpec.dense(value[1], getattr(torch, value[0]))
    return value


def program(point: HeldOut) -> Program:
    """The Program of a point's kernel."""
    if point.kernel.startswith("registry:"):
        name = point.kernel.partition(":")[2]
        given: Mapping[str, Any] = point.arguments[0]
        bindings = Bindings({key: _argument(value) for key, value in given.items()})
        spec = next(spec for spec in kernels() if spec.name == name)
        launch = spec.launch(bindings, hardware(point.target))
        return trace(launch.kernel, launch.arguments, target=point.target)
    arguments = [_argument(value) for value in point.arguments]
    return trace(_kernel(point.kernel), arguments, target=point.target, grid=point.grid)


def predict(
    point: HeldOut,
    without: Without | None = None,
    traced: Program | None = None,
    passes: frozenset[Pass] = EVERY,
) -> float:
    """Predicted ns; `without` replaces what the point's family set, `traced` is its Program where
    it is there already.
    """
    chip = hardware(point.target)
    constants = timing(chip)
    if point.is_static:
        constants = dataclasses.replace(constants, dma_issue_ns=constants.dma_static_issue_ns)
    if without is not None:
        chip = dataclasses.replace(chip, **without.hardware)
        constants = dataclasses.replace(constants, **without.constants)
    rows = (traced or program(point)).rows
    result = schedule(rows, chip, constants=constants, passes=passes)
    if point.quantity == "tensor":
        busy = result.busy_ps
        return max(busy.get(core * COUNT + TENSOR, 0) for core in result.cores) / 1000
    return result.total_ps / 1000 + _preamble(point, without)


def _preamble(point: HeldOut, without: Without | None) -> float:
    if not point.has_preamble:
        return 0.0
    cores = point.grid or 1
    usual = PREAMBLE_NS[point.harness, point.target, cores]
    return usual if without is None else without.preamble.get(cores, usual)
