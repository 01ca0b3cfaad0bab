"""The declaration of an op that is copies alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from trnx.nki_kernels.kernels._copies import PiecesOf, cost_of_copies, launch_copies
from trnx.nki_kernels.kernels._copy_kernels import copy_kernel
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware


def _zero(b: Bindings) -> float:
    del b
    return 0.0


def copies_spec(
    name: str,
    patterns: tuple[Pattern, ...],
    operands: tuple[str, ...],
    *,
    supports: Callable[[Bindings, Hardware], Reject | None],
    reference: Callable[..., torch.Tensor],
    pieces: PiecesOf,
    samples: Callable[[torch.Generator], Iterable[Sample]],
    value: Callable[[Bindings], float] = _zero,
) -> KernelSpec:
    """An op over `operands` of any strides, whose result `pieces` describes; `value` is the number
    that fills what is no copy."""

    def launch(b: Bindings, hw: Hardware) -> Launch:
        del hw
        return launch_copies(b, operands, reference, pieces, value(b))

    def cost(b: Bindings) -> Cost:
        return cost_of_copies(b, reference)

    return KernelSpec(
        name=name,
        patterns=patterns,
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=copy_kernel,
        launch=launch,
        strided=frozenset(operands),
    )
