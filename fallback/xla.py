"""The XLA engine: a region as one program of XLA for the CPU device, through JAX (extra `xla`).

`supports` looks an op up in trnx's table and traces it alone on the node's shapes, so what is
missing is known at compile time. A region is lowered and compiled when it is made; with symbolic
sizes, for the sizes of the capture. Other sizes run in eager until they have come `SETTLED_AFTER`
times, so that sizes that keep changing cost no compilation; at most `COMPILED_SIZES` are compiled.

What eager refuses at run time (an index out of range, an integer division by zero) is checked in
the program; where a check fails, eager runs the region again and raises its own error. Outputs are
tensors of their own with the strides of the graph's metadata. JAX is imported when first needed;
its settings are trnx's own inside a region, and stay the user's outside (`settings.py`). Where a
fork has lost JAX, eager takes the regions (`forks.py`).
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from trnx.fallback import forks
from trnx.fallback.cost import fused_seconds
from trnx.fallback.eager import EagerEngine
from trnx.fallback.errors import FallbackError
from trnx.fx_passes import advice
from trnx.fx_passes.nodes import is_compute, op_name
from trnx.fx_passes.region import Engine, Refuse, RegionFunction
from trnx.simulator.errors import Reject
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.hardware import TRN2, Hardware
from trnx.simulator.lru_cache import LruCache

# A compilation takes as long as thousands of calls of a small region.
SETTLED_AFTER = 8
COMPILED_SIZES = 16
_COUNTED_SIZES = 1024
_UNSETTLED = (
    f"XLA compiles every set of sizes anew: one that the graph was not captured with runs in eager "
    f"until it has come {SETTLED_AFTER} times, and always once {COMPILED_SIZES} are compiled"
)
_log = logging.getLogger(__name__)


def jax_missing() -> str | None:
    """Why XLA cannot be used here, None where it can."""
    if importlib.util.find_spec("jax") is None or importlib.util.find_spec("jaxlib") is None:
        return "JAX is not installed; install trnx[xla]"
    return None


class XlaEngine:
    """Compiles regions with XLA."""

    name: Engine = "xla"

    def __init__(self, hardware: Hardware = TRN2) -> None:
        self._hardware = hardware
        self._missing = jax_missing()

    def supports(self, node: fx.Node) -> Reject | None:
        """None where the table has the op, and its function takes this node's arguments."""
        if self._missing is not None:
            return Reject(self._missing, node, advice=advice.INSTALL)
        if forks.jax_is_lost:
            forks.warn_once()
            return Reject(forks.REASON, node, advice=advice.WORKERS)
        from trnx.fallback.legality import refusal

        return refusal(node)

    def cost(self, nodes: Sequence[fx.Node]) -> float:
        """Predicted seconds on the target: one launch for all."""
        return fused_seconds(nodes, self._hardware)

    def stablehlo(self, graph_module: fx.GraphModule) -> str:
        """The region as StableHLO text (`program.stablehlo`). Raises FallbackError for what XLA
        does not take."""
        for node in filter(is_compute, graph_module.graph.nodes):
            if reject := self.supports(node):
                raise FallbackError(f"{op_name(node)}: {reject.reason}")
        from trnx.fallback.program import stablehlo

        try:
            return stablehlo(graph_module)
        except Exception as error:
            reason = f"XLA does not take the region: {type(error).__name__}: {error}"
            raise FallbackError(reason) from error

    def compile(self, graph_module: fx.GraphModule, refuse: Refuse | None = None) -> RegionFunction:
        """A compiled program behind a Python function; where XLA fails, eager, a warning, and a
        call of `refuse`."""
        if self._missing is not None:
            raise FallbackError(self._missing)
        from trnx.fallback.program import Program, example_inputs, specialises

        eager = EagerEngine(self._hardware).compile(graph_module)

        def tell(reason: str, what_to_do: str) -> None:
            if refuse is not None:
                refuse(reason, what_to_do)

        def tell_lost() -> None:
            forks.warn_once()
            tell(forks.REASON, advice.WORKERS)

        def build(inputs: Sequence[Any]) -> RegionFunction:
            if forks.jax_is_lost:
                tell_lost()
                return eager
            try:
                return Program(graph_module, inputs, eager, tell_lost).run
            except Exception as error:  # noqa: BLE001 - the fallback boundary: eager can run anything
                reason = f"XLA does not compile the region: {type(error).__name__}: {error}"
                _log.warning("%s; it runs eagerly", reason)
                tell(reason, advice.REPORT)
                return eager

        inputs = example_inputs(graph_module)
        first = build(inputs)
        if not specialises(graph_module):
            return first
        return _BySizes(build, eager, {_sizes(inputs): first}, refuse)


def _sizes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x.shape if isinstance(x, torch.Tensor) else x for x in inputs)


class _BySizes:
    """A program for each set of sizes that has settled; every other one runs in eager."""

    def __init__(
        self,
        build: Callable[[Sequence[Any]], RegionFunction],
        eager: RegionFunction,
        programs: dict[Any, RegionFunction],
        refuse: Refuse | None,
    ) -> None:
        self._build = build
        self._eager = eager
        self._programs = programs
        self._refuse = refuse
        self._seen: LruCache[int] = LruCache(_COUNTED_SIZES)
        self._lock = fork_lock(self, threading.Lock)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        key = _sizes(inputs)
        program = self._programs.get(key)
        if program is None:
            program = self._make(key, inputs) if self._settles(key) else self._eager
        return program(inputs)

    def _settles(self, key: Any) -> bool:
        """Count one more call with these sizes; True where it is time to compile for them."""
        with self._lock:
            refuse, self._refuse = self._refuse, None
            count = (self._seen.get(key) or 0) + 1
            self._seen.put(key, count)
            settles = count == SETTLED_AFTER and len(self._programs) < COMPILED_SIZES
        if refuse is not None:
            refuse(_UNSETTLED, advice.SIZES)
        return settles

    def _make(self, key: Any, inputs: Sequence[Any]) -> RegionFunction:
        program = self._programs[key] = self._build(inputs)
        return program
