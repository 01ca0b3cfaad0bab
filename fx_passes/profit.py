"""Does a kernel pay? Its predicted time on the target against the best fallback's.

A lower bound by the roofline plus one launch, against what an engine predicts for the same nodes as
a region of its own. Equal times go to NKI: a region that stays on the device splits nothing.
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

Select = Literal["profit", "legal"]


@dataclass(frozen=True)
class Profit:
    """The judge of one partition. `select="legal"` takes everything that is legal."""

    hardware: Hardware
    engines: tuple[FallbackEngine, ...]
    select: Select

    def nki_seconds(self, match: KernelMatch) -> float:
        """Predicted seconds of the kernel, launch included."""
        cost = match.kernel.cost(bindings_spec(match))
        roofline = self.hardware.roofline_seconds(
            cost.matmul_flops, cost.vector_flops, cost.hbm_bytes
        )
        return roofline + self.hardware.launch_seconds

    def refuse(self, match: KernelMatch, nodes: Sequence[fx.Node]) -> Reject | None:
        """A Reject where a fallback engine is predicted to be faster."""
        if self.select == "legal":
            return None
        nki = self.nki_seconds(match)
        for engine in self.engines:
            if any(engine.supports(node) for node in nodes):
                continue
            other = engine.cost(nodes)
            if other < nki:
                return Reject(
                    f"kernel {match.kernel.name} is predicted to take {nki * 1e6:.0f} us, "
                    f"{engine.name} {other * 1e6:.0f} us",
                    nodes[-1],
                )
        return None
