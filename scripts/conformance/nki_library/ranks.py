"""Cases of nki-library with collectives, on simulated ranks: what its simulation mode leaves out.

`simulate_on_ranks` runs the kernel of a case on all its ranks and writes what each returns to where
the suite's validator looks for a rank's outputs: a folder for each rank, in it a file for each
output under the name that the golden values have. By a patch in `patches/` the suite's orchestrator
calls it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from worker import measured

from trnx.simulator import simulate_ranks
from trnx.simulator.hardware import hardware


def has_ranks(case: Any) -> bool:
    """True where the simulation mode will not do. `case` is the suite's KernelArgs."""
    return case.inference_args.collective_ranks > 1 or hasattr(case.kernel_input, "for_rank")


def simulate_on_ranks(orchestrator: Any, case: Any, folder: str) -> str:
    """Run `case` and write its outputs to `folder` among the case's artifacts; the whole path."""
    from test.utils.common_dataclasses import normalize_golden_output

    ranks = case.inference_args.collective_ranks
    target = hardware(case.compiler_input.platform_target.get_nc_gen()).target
    given = [_inputs(case, rank) for rank in range(ranks)]
    grid = case.compiler_input.logical_nc_config

    def run(warn: tuple[str, ...]) -> list[Any]:
        return simulate_ranks(case.kernel_func, ranks, target, grid=grid, warn=warn, borrow=True)(
            given
        )

    # What all ranks are given is one input.
    inputs = {id(value): value for own in given for value in own.values()}
    results = measured(inputs.values(), run)
    path = os.path.join(orchestrator.fs_config.artifacts_output_directory_path, folder)
    for rank in range(ranks):
        # Dropped before the golden values of the next rank are made.
        result, results[rank] = results[rank], None
        golden = normalize_golden_output(case.validation_args.golden_output, rank)
        own = os.path.join(path, f"output_worker_{rank}") if ranks > 1 else path
        orchestrator.__dump_tensors__(own, _named(result, golden), lambda name: name)
    return path


def _inputs(case: Any, rank: int) -> dict[str, Any]:
    """What one rank gets, by the names of the kernel's parameters."""
    given = case.kernel_input or {}
    own = given.for_rank(rank) if hasattr(given, "for_rank") else given
    return {name.removesuffix(".must_alias_input"): value for name, value in own.items()}


def _named(result: Any, golden: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Results by the names and in the types of the golden values, as the suite does it for one."""
    values = list(result) if isinstance(result, list | tuple) else [result]
    if result is None:
        values = []
    if len(values) != len(golden):
        raise RuntimeError(f"the kernel returns {len(values)} outputs, expected: {list(golden)}")
    return {
        name: np.asarray(value, dtype=expected.dtype)
        for (name, expected), value in zip(golden.items(), values, strict=True)
    }
