"""Every seeded bug is found: the error's class, the check's name, the marked line."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.errors import (
    AllocationOverlapError,
    CapacityError,
    DeadlockError,
    FindingError,
    IllegalInstructionError,
    KernelSubsetError,
    OutOfBoundsError,
    UninitialisedReadError,
    UnknownDTypeError,
    UnorderedAccessError,
)
from trnx.simulator.findings import CHECKS
from trnx.simulator.frontend.options import is_check
from trnx.simulator.frontend.tracing import KernelResultError, LaunchError

HERE = Path(__file__).parent
X = TensorSpec.dense((128, 64), torch.float32)


@dataclass(frozen=True)
class Bug:
    """A kernel of one of the files beside this one, and what must be found in it."""

    file: str
    kernel: str
    error: type[FindingError]
    check: str
    arguments: tuple[Any, ...] = (X,)
    target: str = "trn2"
    grid: int | None = None
    values: bool = False


def _bugs(file: str, error: type[FindingError], check: str, names: str, **given: Any) -> list[Bug]:
    return [Bug(file, name, error, check, **given) for name in names.split()]


BAD_IDS = {"arguments": (torch.zeros(128, 64), torch.tensor([1, 128, 3], dtype=torch.int32))}
TALL = {"arguments": (TensorSpec.dense((256, 64), torch.float32),)}

BUGS = [
    *_bugs(
        "memory",
        UninitialisedReadError,
        "uninitialised-read",
        "gathers_a_row_that_nothing_wrote",
        values=True,
        arguments=(torch.zeros(128, 64), torch.tensor([0, 4, 3], dtype=torch.int32)),
    ),
    *_bugs(
        "memory",
        UninitialisedReadError,
        "uninitialised-read",
        "reads_an_unwritten_tile misses_the_last_column writes_even_columns_alone "
        "reads_psum_without_a_product uses_a_bias_that_is_unset reads_hbm_that_nobody_wrote "
        "uses_a_register_without_value loops_to_a_register_without_value",
    ),
    *_bugs(
        "memory", UninitialisedReadError, "uninitialised-read", "forgets_the_remainder_rows", **TALL
    ),
    *_bugs("memory", KernelResultError, "uninitialised-result", "returns_half_a_result"),
    *_bugs("memory", KernelResultError, "result", "returns_private_memory returns_a_number"),
    *_bugs(
        "memory",
        OutOfBoundsError,
        "out-of-bounds",
        "slices_past_the_end starts_past_the_end takes_a_row_that_is_not_there "
        "has_a_pattern_that_is_too_long has_a_pattern_beyond_the_partition "
        "has_a_pattern_beyond_the_last_partition selects_past_the_end",
    ),
    *_bugs(
        "memory",
        OutOfBoundsError,
        "out-of-bounds",
        "gathers_a_row_that_is_not_there scatters_to_a_row_that_is_not_there",
        values=True,
        **BAD_IDS,
    ),
    *_bugs(
        "memory",
        CapacityError,
        "capacity",
        "holds_too_much_sbuf holds_too_many_banks carries_too_much_through_a_loop",
    ),
    *_bugs(
        "memory",
        IllegalInstructionError,
        "legality",
        "asks_for_more_than_a_partition asks_for_more_than_psum",
    ),
    *_bugs(
        "memory",
        IllegalInstructionError,
        "address",
        "places_a_tile_outside_of_sbuf places_a_tile_past_the_last_partition "
        "places_a_tile_between_banks",
    ),
    *_bugs(
        "memory",
        AllocationOverlapError,
        "address-overlap",
        "overwrites_a_neighbour reuses_a_buffer_too_early overlaps_in_psum",
    ),
    *_bugs("legality", IllegalInstructionError, "legality", "has_129_partitions"),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "start-partition",
        "starts_at_partition_16 starts_64_rows_at_partition_32 starts_100_rows_at_partition_28 "
        "is_placed_at_partition_8",
    ),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "view",
        "strides_over_partitions splits_the_partition_dimension permutes_the_partition_dimension "
        "reshapes_what_has_gaps",
    ),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "dma_copy",
        "writes_to_a_broadcast copies_unequal_sizes converts_in_the_hardware_dge "
        "has_an_unknown_keyword",
    ),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "tensor_tensor",
        "adds_unequal_tiles adds_two_tiles_of_psum",
    ),
    *_bugs(
        "legality", IllegalInstructionError, "tensor_scalar", "adds_a_row_of_scalars shifts_floats"
    ),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "nc_matmul",
        "multiplies_different_depths has_a_stationary_that_is_too_wide "
        "has_a_moving_that_is_too_wide gives_a_tile_size_without_position "
        "mixes_float32_with_bfloat16 multiplies_integers accumulates_in_bfloat16",
    ),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "nc_transpose",
        "transposes_64_columns_on_vector transposes_to_another_type",
    ),
    *_bugs("legality", IllegalInstructionError, "bn_stats", "takes_statistics_of_too_much"),
    *_bugs("legality", IllegalInstructionError, "max8", "looks_for_the_largest_of_four"),
    *_bugs("legality", IllegalInstructionError, "tensor_reduce", "reduces_a_middle_axis"),
    *_bugs("legality", IllegalInstructionError, "dma_transpose", "transposes_to_the_wrong_shape"),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "memset",
        "fills_integers_with_a_half writes_a_constant",
    ),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "buffer",
        "loads_to_psum computes_in_hbm multiplies_into_sbuf multiplies_out_of_psum",
    ),
    *_bugs(
        "legality",
        IllegalInstructionError,
        "engine",
        "copies_from_psum_on_gpsimd fills_on_the_tensor_engine",
    ),
    *_bugs("legality", IllegalInstructionError, "engine", "copies_on_scalar", target="trn1"),
    *_bugs("legality", IllegalInstructionError, "quantize_mx", "quantizes_too_early"),
    *_bugs("legality", IllegalInstructionError, "psum-bank", "crosses_a_bank"),
    *_bugs(
        "legality",
        UninitialisedReadError,
        "matmul-accumulate",
        "accumulates_onto_nothing accumulates_onto_a_constant",
    ),
    *_bugs("legality", IllegalInstructionError, "matmul-accumulate", "scales_between_two_products"),
    *_bugs(
        "programs",
        UnorderedAccessError,
        "shared-hbm-order",
        "reads_the_other_half_too_early writes_the_same_rows_twice writes_what_the_other_reads "
        "writes_again_after_the_barrier",
        grid=2,
    ),
    *_bugs(
        "programs",
        DeadlockError,
        "deadlock",
        "skips_a_barrier names_different_pipes sends_once_more_than_the_other_receives",
        grid=2,
    ),
    *_bugs(
        "programs",
        IllegalInstructionError,
        "sendrecv",
        "sends_to_itself exchanges_different_shapes sends_too_much_with_gpsimd",
        grid=2,
    ),
    *_bugs("programs", IllegalInstructionError, "core_barrier", "meets_alone"),
    *_bugs(
        "programs", IllegalInstructionError, "legality", "allocates_differently_per_core", grid=2
    ),
    *_bugs(
        "programs",
        KernelSubsetError,
        "kernel-subset",
        "branches_on_a_tensor branches_on_a_comparison compares_a_tensor converts_a_tensor "
        "adds_with_an_operator "
        "iterates_over_a_tensor uses_a_register_in_if uses_a_register_in_range "
        "computes_with_a_register leaves_a_register_loop has_a_dynamic_step "
        "reaches_torch_in_a_helper has_a_lambda has_a_generator has_a_try raises_an_error "
        "imports_inside reads_the_clock defines_a_helper_inside formats_a_number",
    ),
]


VALUES = torch.zeros(128, 64), torch.full((128, 64), 200, dtype=torch.int32)
_operands = functools.partial(_bugs, "operands")
_illegal = functools.partial(_operands, IllegalInstructionError)
BUGS += [
    *_illegal("dtype", "bounds_a_range_with_integers"),
    *_operands(UnknownDTypeError, "dtype", "allocates_a_type_that_is_none"),
    *_illegal("tensor_copy_predicated", "selects_with_a_float_predicate selects_another_type"),
    *_illegal("engine", "adds_on_the_scalar_engine multiplies_by_a_tile_on_scalar"),
    *_illegal("tensor_tensor", "fills_psum_on_gpsimd"),
    *_illegal("nc_matmul", "doubles_rows_on_trn1", target="trn1"),
    *_illegal("exponential", "takes_an_exponential_on_trn2"),
    *_illegal("view", "gathers_on_chip_on_trn2"),
    *_illegal("sendrecv", "exchanges_on_one_core"),
    *_illegal("nc_matmul", "asks_for_a_tile_beyond_the_array doubles_rows_of_bfloat16"),
    *_illegal("psum-bank", "writes_a_product_across_banks"),
    *_illegal("matmul-accumulate", "fills_a_bank_between_two_products"),
    *_operands(UninitialisedReadError, "matmul-accumulate", "continues_a_group_on_more_columns"),
    *_operands(
        OutOfBoundsError,
        "gather-index",
        "takes_a_column_that_is_not_there",
        values=True,
        arguments=VALUES,
    ),
    *_illegal(
        "scatter-index",
        "adds_to_a_row_twice",
        values=True,
        arguments=(torch.zeros(128, 64), torch.arange(128, dtype=torch.int32).view(128, 1) // 127),
    ),
    *_operands(
        OutOfBoundsError,
        "out-of-bounds",
        "takes_a_row_by_register_that_is_not_there counts_beyond_the_tensor",
        values=True,
        arguments=VALUES,
    ),
    *_operands(UninitialisedReadError, "uninitialised-read", "reads_what_the_first_turn_has_not"),
    *_operands(
        KernelSubsetError,
        "kernel-subset",
        "counts_downwards asks_whether_a_tensor_is_zero counts_up_to_a_tensor "
        "asks_whether_a_register_is_three slices_by_a_tensor holds_a_wide_integer deletes_a_name",
    ),
    *_bugs(
        "programs",
        UnorderedAccessError,
        "shared-hbm-order",
        "gathers_what_the_other_writes writes_a_row_that_the_other_writes",
        grid=2,
        values=True,
        arguments=(torch.zeros(128, 64), torch.arange(64, dtype=torch.int32)[:, None]),
    ),
    *_operands(LaunchError, "launch-grid", "runs_on_four_cores", grid=4),
    *_operands(LaunchError, "launch-grid", "runs_on_two_cores_of_trn1", grid=2, target="trn1"),
    *_operands(DeadlockError, "deadlock", "waits_for_a_barrier_and_for_a_pipe", grid=2),
]


@pytest.fixture(scope="module")
def twins() -> dict[str, ModuleType]:
    return {file: load_module(HERE / f"{file}.py") for file in {bug.file for bug in BUGS}}


def _marked_lines(file: str) -> dict[str, int]:
    """Function -> line of its mark; a mark in a helper counts for the function that comes next."""
    text = (HERE / f"{file}.py").read_text()
    lines = text.splitlines()
    found: dict[str, int] = {}
    pending = 0
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        assert node.end_lineno is not None
        marks = [
            number
            for number in range(node.lineno, node.end_lineno + 1)
            if lines[number - 1].endswith("# BUG")
        ]
        assert len(marks) <= 1
        if node.name.startswith("_"):
            pending = marks[0] if marks else 0
        else:
            found[node.name] = marks[0] if marks else pending
    return found


MARKS = {file: _marked_lines(file) for file in ("memory", "legality", "programs", "operands")}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.kernel)
def test_the_bug_is_found(bug: Bug, twins: dict[str, ModuleType]) -> None:
    with pytest.raises(bug.error) as caught:
        trace(
            getattr(twins[bug.file], bug.kernel),
            bug.arguments,
            target=bug.target,
            grid=bug.grid,
            values=bug.values,
        )
    assert type(caught.value) is bug.error
    assert caught.value.check == bug.check
    location = caught.value.location
    assert location is not None
    assert location.file == str(HERE / f"{bug.file}.py")
    assert location.line == MARKS[bug.file][bug.kernel]


def test_every_check_has_a_seeded_bug() -> None:
    # No tensor has more than 128 partitions to begin with, `tile` is of nl.* at the prompt, and
    # `kernel-purity` compares two calls (`doors/test_replays.py`).
    assert {bug.check for bug in BUGS} >= CHECKS - {"partitions", "tile", "kernel-purity"}


def test_every_seeded_bug_is_listed() -> None:
    listed = {file: {bug.kernel for bug in BUGS if bug.file == file} for file in MARKS}
    assert listed == {file: set(marks) for file, marks in MARKS.items()}
    assert len(BUGS) >= 60
    assert all(is_check(bug.check) for bug in BUGS)
    assert all(count == 1 for count in Counter(bug.kernel for bug in BUGS).values())


def test_what_is_too_large_for_vector_names_the_tensor_engine(twins: dict[str, ModuleType]) -> None:
    kernel = twins["legality"].transposes_64_columns_on_vector
    with pytest.raises(IllegalInstructionError, match=r"use engine=nisa\.engine\.tensor"):
        trace(kernel, (X,))
