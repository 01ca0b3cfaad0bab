"""`nki.collectives`: known by name; a single simulated core has no peers to talk to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from trnx.simulator.context import kernel_location
from trnx.simulator.errors import IllegalInstructionError

_NAMES = (
    "all_reduce",
    "all_gather",
    "all_gather_v",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_reduce",
    "rank_id",
    "collective_permute_implicit_current_processing_rank_id",
)


@dataclass(frozen=True)
class ReplicaGroup:
    """Ranks that take part in a collective operation."""

    groups: Any


def _collective(name: str) -> Callable[..., NoReturn]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise IllegalInstructionError(
            "collectives",
            f"{name}: the simulator runs one core and has no collectives; run it on Trainium",
            kernel_location(),
        )

    call.__name__ = name
    return call


def namespace() -> dict[str, Any]:
    """The members of nki.collectives."""
    return {"ReplicaGroup": ReplicaGroup, **{name: _collective(name) for name in _NAMES}}
