"""Does a kernel pay? Its predicted time on the target against the best fallback's.

A lower bound by the roofline plus the fixed latency of a region, against what an engine predicts
for the same nodes as a region of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx

from trnx.fx_passes.match import bindings_spec
from trnx.fx_passes.region import FallbackEngine, KernelMatch
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

Select = Literal["profit", "legal", "none"]

# Both predictions are roofline bounds that nobody has calibrated on a device, so a fallback must be
# clearly faster before a kernel is refused.
MARGIN = 2.0


@dataclass(frozen=True)
class Profit:
    """The judge of one partition. `select="legal"` takes everything that is legal; under `none`
    nobody asks, since partition looks for no kernels."""

    hardware: Hardware
    engines: tuple[FallbackEngine, ...]
    select: Select

    def nki_seconds(self, match: KernelMatch) -> float:
        """Predicted seconds of the kernel as a region of a launched graph."""
        cost = match.kernel.cost(bindings_spec(match))
        roofline = self.hardware.roofline_seconds(
            cost.matmul_flops, cost.vector_flops, cost.hbm_bytes
        )
        return roofline + self.hardware.region_seconds

    def refuse(self, match: KernelMatch, nodes: Sequence[fx.Node]) -> Reject | None:
        """A Reject where a fallback engine is predicted to be faster by more than MARGIN."""
        if self.select == "legal":
            return None
        nki = self.nki_seconds(match)
        for engine in self.engines:
            if any(engine.supports(node) for node in nodes):
                continue
            other = engine.cost(nodes)
            if other * MARGIN < nki:
                return Reject(
                    f"kernel {match.kernel.name} is predicted to take {nki * 1e6:.0f} us, "
                    f"{engine.name} {other * 1e6:.0f} us",
                    nodes[-1],
                )
        return None
