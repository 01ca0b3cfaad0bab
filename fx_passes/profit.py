"""Does a kernel pay? Its predicted time on the target against the best fallback's.

The kernel's time is the predictor's: the schedule of its instructions. The fallback's is what an
engine estimates for the same nodes as a region of its own, by the rates of the busiest engine:
nobody has published how AWS's compiler schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.match import bindings_spec
from trnx.fx_passes.region import FallbackEngine, KernelMatch, Predictor
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

Select = Literal["profit", "legal", "none"]

# A fallback must be predicted to be faster by more than this before a kernel is refused: its
# estimate knows no waiting and no slow DMA rows, for which good kernels take up to 2.3 times as
# long.
MARGIN = 3.0


@dataclass(frozen=True)
class Profit:
    """The judge of one partition. `select="legal"` takes everything that is legal; under `none`
    nobody asks, since partition looks for no kernels."""

    hardware: Hardware
    engines: tuple[FallbackEngine, ...]
    select: Select
    predictor: Predictor | None = None

    def nki_seconds(self, match: KernelMatch) -> float:
        """Predicted seconds of the kernel as a region of a launched graph."""
        if self.predictor is not None:
            return self.predictor(match)
        cost = match.kernel.cost(bindings_spec(match))
        roofline = self.hardware.roofline_seconds(
            cost.matmul_flops, cost.vector_flops, cost.hbm_bytes
        )
        return roofline + self.hardware.region_seconds

    def refuse(self, match: KernelMatch, nodes: Sequence[fx.Node]) -> Reject | None:
        """A Reject where a fallback engine is predicted to be faster by more than MARGIN."""
        if self.select == "legal":
            return None
        offers = [(engine, engine.cost(nodes)) for engine in self.engines]
        if not offers:
            return None
        nki = self.nki_seconds(match)
        for engine, other in offers:
            # XLA imports JAX and traces each op to answer: ask only where it matters.
            if other * MARGIN < nki and not any(engine.supports(node) for node in nodes):
                return Reject(
                    f"kernel {match.kernel.name} is predicted to take {nki * 1e6:.0f} us, "
                    f"{engine.name} {other * 1e6:.0f} us",
                    nodes[-1],
                    match.kernel.name,
                    advice.PROFIT,
                )
        return None
