"""`trnx::swap_random_state(Tensor? state) -> Tensor` gives the state of the CPU's generator and,
where `state` is given, puts that in its place.

Activation checkpointing draws random numbers again in the backward pass: `canonicalise/
name_random_states.py` says how. It counts as a random operator, whose order a plan keeps.
"""

from __future__ import annotations

import torch


@torch.library.custom_op(
    "trnx::swap_random_state",
    mutates_args=(),
    schema="(Tensor? state) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
def swap_random_state(state: torch.Tensor | None) -> torch.Tensor:
    """See the module's docstring."""
    before = torch.get_rng_state()
    if state is not None:
        torch.set_rng_state(state)
    return before


_BYTES = torch.get_rng_state().numel()


@swap_random_state.register_fake
def _(state: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    return torch.empty(_BYTES, dtype=torch.uint8, device="cpu")
