"""Operators of torch in the place of the steps that the simulator recorded of a kernel.

A convolution is thousands of small products and copies as the kernel has it, one as torch has it.
Where a Program is proven to compute what the reference of its kernel does (`simulator/program/
proof.py`), a call runs that, as long as the results, or all that they are made of, are finite.
Others are for the recorded steps: they say which elements become NaN or infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.spec import Bindings, Kernel, Launch
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.precision import is_full_for_operators
from trnx.simulator.program.program import Program
from trnx.simulator.program.proof import Claim


@dataclass(frozen=True)
class ProvenOperator:
    """The reference of a kernel for one set of sizes: `names` are those of its tensors, `constants`
    its other bindings, without the `activation` that it ends in: that makes numbers of what is
    infinite. `claim` is that a Program of the kernel computes the same. `checked` are the
    tensors that have to be finite, by number; empty where the results have to be, before the
    activation, which have fewer elements.
    """

    reference: Callable[..., Any]
    names: tuple[str, ...]
    constants: Mapping[str, Any]
    activation: str
    claim: Claim
    checked: tuple[int, ...] = ()

    def proven_by(self, program: Program, read: Sequence[int]) -> ProvenOperator | None:
        """This operator where the Program, which reads the tensors with these numbers, is proven to
        compute it; else None.
        """
        if program.proven != self.claim.key:
            return None
        given, made = (
            sum(math.prod(spec.shape) for spec in specs)
            for specs in (program.inputs, program.outputs)
        )
        return replace(self, checked=tuple(read) if given < made else ())

    def compute(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """The results; None where the steps have to run."""
        if not is_full_for_operators() or torch.is_autocast_enabled("cpu"):
            return None
        with torch.no_grad():
            checked = [inputs[at] for at in self.checked]
            if checked and not _are_finite(checked):
                return None
            results = _results(self.reference, self.constants, self.names, inputs)
            if not checked and not _are_finite(results):
                return None
            return [ACTIVATIONS[self.activation](one) for one in results]


def _are_finite(tensors: Sequence[torch.Tensor]) -> bool:
    # A sum is not finite where an element is not; it may overflow, and the steps are right then.
    return all(math.isfinite(float(one.sum())) for one in tensors)


def operator_of(
    kernel: Kernel, b: Bindings, launch: Launch, names: tuple[str, ...]
) -> ProvenOperator | None:
    """What may run in place of the steps of a launch with these tensors, once it is proven; None
    where the kernel makes no such claim, or takes its tensors otherwise than they are bound.
    """
    if not getattr(kernel, "is_operator", False) or not getattr(kernel, "builtin", False):
        return None
    specs = {name: b[name] for name in names}
    arguments = [one for one in launch.arguments if isinstance(one, TensorSpec)]
    is_direct = arguments == [specs[name] for name in launch.tensor_names]
    is_exact = all(spec.dtype is torch.float32 for spec in specs.values())
    if not is_direct or not is_exact or launch.result_orders:
        return None
    constants = {name: value for name, value in b.items() if name not in specs}

    def compute(given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        known = dict(zip(launch.tensor_names, given, strict=True))
        # Of other tensors a reference reads the sizes alone: were it otherwise, nothing is proven.
        every = [known[name] if name in known else _nothing(specs[name]) for name in names]
        return _results(kernel.reference, constants, names, every)

    key = f"{kernel.name} {constants} {specs}"
    activation = constants.get("activation", "none")
    plain = {**constants, "activation": "none"} if activation != "none" else constants
    return ProvenOperator(kernel.reference, names, plain, activation, Claim(key, compute))


def _results(
    reference: Callable[..., Any],
    constants: Mapping[str, Any],
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor]:
    found = reference(**constants, **dict(zip(names, tensors, strict=True)))
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def _nothing(spec: TensorSpec) -> torch.Tensor:
    made = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="cpu")
    return made.fill_(math.nan)
