"""On how many physical cores of a logical core a kernel's work is shared: the schedule says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trnx.nki_kernels.spec import Bindings, Cost, Kernel, Launch
from trnx.simulator.hardware import Hardware


@dataclass(frozen=True)
class Choice:
    """The launch that is made, and where one core has all the work, why."""

    launch: Launch
    reason: str = ""


def launches_of(kernel: Kernel, b: Bindings, hw: Hardware) -> tuple[Launch, ...]:
    """The ways to launch a kernel on the cores of `hw`: those that share the work, and on one core
    where there is a choice. Raises what the kernel's `launch` raises."""
    shared = kernel.launch(b, hw)
    on_one = getattr(kernel, "launch_on_one", None)
    if shared.cores == 1 or on_one is None:  # a user's `Kernel` need not have it
        return (shared,)
    others = getattr(kernel, "other_launches", None)
    return shared, *(() if others is None else others(b, hw)), on_one(b, hw)


def choose(
    launches: Sequence[Launch], cost: Cost, hw: Hardware, seconds: Callable[[Launch], float]
) -> Choice:
    """The fastest launch by its predicted `seconds`; the fastest of those that share the work where
    no core alone could read and multiply as fast, and so need not be scheduled."""
    if len(launches) == 1:
        only = launches[0]
        return Choice(only, _why_alone(only) if hw.cores > only.cores else "")
    *sharing, alone = launches
    shared = sharing[0] if len(sharing) == 1 else min(sharing, key=seconds)
    two = seconds(shared)
    least = replace(hw, cores=1).roofline_seconds(cost.matmul_flops, 0, cost.hbm_bytes)
    if two <= least:
        return Choice(shared)
    one = seconds(alone)
    if two <= one:
        return Choice(shared)
    why = f"it takes {one * 1e6:.1f} us, and both would take {two * 1e6:.1f} us"
    return Choice(alone, why)


def _why_alone(launch: Launch) -> str:
    if launch.knows_cores:
        return "the work is one tile, or has an order"
    return "the kernel does not share its work; each core does all of it"
