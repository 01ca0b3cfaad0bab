"""`InstructionSpec`: everything that is declared about an instruction but how it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from trnx.simulator.costs.cost import EngineCost
from trnx.simulator.language.enums import Engine
from trnx.simulator.program.propagation import NOTHING, Propagation


@dataclass(frozen=True, eq=False)
class InstructionSpec:
    """One instruction.

    `function(emit, ...)` checks the operands and builds the steps. `engines` may run it, the first
    by default; `generation` (2 to 4) is the first that has it. `undefined` is what becomes of
    elements that nothing has written, `indirect` the operands that take tensor indirection.
    `discards`: it has a second result, for the sake of which a destination may be a broadcast view.
    `meets`: cores wait for each other in it. `cost` has a rule for an engine, or one for all; an
    engine without one has its usual cost (`costs`).
    """

    name: str
    function: Callable[..., None]
    engines: tuple[Engine, ...]
    generation: int = 2
    undefined: Propagation = NOTHING
    indirect: tuple[str, ...] = ()
    discards: bool = False
    meets: bool = False
    cost: tuple[EngineCost, ...] = ()

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine where there is no choice."""
        return self.engines[0] if len(self.engines) == 1 else Engine.unknown

    def cost_on(self, engine: Engine) -> EngineCost | None:
        """The rule for an engine; None where its usual one holds."""
        return next((rule for rule in self.cost if rule.engine in (engine, None)), None)
