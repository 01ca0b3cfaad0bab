"""The plans of all ranks in one process: a thread for each rank, and `nki.collectives` in the
simulator where the ranks meet.

    outputs, collectives = run_ranks(plans, arguments, options)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from trnx.backend.executable import Executable
from trnx.backend.options import Options
from trnx.backend.pipeline import make_engines
from trnx.backend.report import GraphReport, RegionReport
from trnx.backend.runners import make_runner
from trnx.fx_passes.nodes import is_collective
from trnx.fx_passes.region import Engine, Plan, Refuse, RegionFunction
from trnx.simulator import load_module, simulate_ranks
from trnx.simulator.errors import Reject

KERNELS = load_module(Path(__file__).with_name("collective_kernels.py"))


class Meeting:
    """Where the threads of all ranks come together: the last one runs the collective for all."""

    def __init__(self, ranks: int) -> None:
        self._given: list[Any] = [None] * ranks
        self._found: list[torch.Tensor] = []
        self._call: Callable[[], list[torch.Tensor]] = list
        self._barrier = threading.Barrier(ranks, self._run, timeout=300)
        self.log: list[str] = []

    def abort(self) -> None:
        """Ends the waiting of all: a rank has failed."""
        self._barrier.abort()

    def exchange(self, rank: int, target: Any, value: torch.Tensor, extra: tuple[Any, ...]) -> Any:
        """What the collective gives to `rank`, of the values of all ranks."""
        self._given[rank] = (target, value, extra)
        self._barrier.wait()
        found = self._found[rank]
        self._barrier.wait()  # nobody gives anything new before all have taken this
        return found

    def _run(self) -> None:
        if self._given[0] is None:
            return
        (target, _, extra), *others = self._given
        assert all(one[0] is target and one[2] == extra for one in others), "other collectives"
        values = [value for _, value, _ in self._given]
        self._given = [None] * len(values)
        name = str(target).split(".")[1]
        self.log.append(name)
        rows = 1 if name == "all_reduce" else -1
        flat = [v.contiguous().reshape(rows if rows > 0 else v.shape[0], -1) for v in values]
        groups = [list(range(len(values)))]
        more = extra[:1] if name == "all_reduce" else ()
        run = simulate_ranks(getattr(KERNELS, name), len(values))
        results = run([(x, groups, *more) for x in flat])
        tail = values[0].shape[1:]
        self._found = [
            y.reshape(values[0].shape) if name == "all_reduce" else y.reshape(-1, *tail)
            for y in results
        ]


@dataclass(frozen=True)
class _RankEngine:
    """Collectives of one rank."""

    rank: int
    meeting: Meeting
    name: Engine = "collective"

    def supports(self, node: fx.Node) -> Reject | None:
        """None for a collective."""
        return None if is_collective(node) else Reject("it is no collective", node)

    def cost(self, nodes: Sequence[fx.Node]) -> float:
        """Nobody asks."""
        raise NotImplementedError

    def compile(self, graph_module: fx.GraphModule, refuse: Refuse | None = None) -> RegionFunction:
        """The one collective of the region."""
        del refuse
        [node] = [n for n in graph_module.graph.nodes if n.op == "call_function"]

        def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            extra = tuple(node.args[1:])
            return [self.meeting.exchange(self.rank, node.target, inputs[0], extra)]

        return run


def run_ranks(
    plans: Sequence[Plan], arguments: Sequence[Sequence[Any]], options: Options
) -> tuple[list[list[Any]], list[str]]:
    """What each rank's plan returns, and the collectives in their order."""
    meeting = Meeting(len(plans))
    runner = make_runner("simulator")

    def one(rank: int) -> list[Any]:
        plan = plans[rank]
        report = GraphReport(f"rank_{rank}", "forward", options.target, "simulator")
        report.regions = [RegionReport(r.name, r.engine, None, [], "") for r in plan.regions]
        engines = (*make_engines(options), _RankEngine(rank, meeting))
        try:
            return Executable(plan, options, runner, engines, report)(list(arguments[rank]))
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(len(plans)) as pool:
        futures = [pool.submit(one, rank) for rank in range(len(plans))]
        return [future.result() for future in futures], meeting.log
