"""Reads of elements that nothing has written: when they are a finding.

Kernels move whole tiles of which a part is filled, and use that part alone: engines work on every
lane anyway. So instructions hand "nothing has written this" on, as memory checkers do: an
element-wise one or a transposition by element, another one of the engines that work lane by lane
by partition, a product by row and column. The finding comes where it matters: a result of the
kernel, an address, what crosses partitions. It is then the first read's, with the first read's
line. A read of which every element is missing is a finding at once.
"""

from __future__ import annotations

import torch

from trnx.simulator.checks.findings import Findings
from trnx.simulator.errors import FindingError
from trnx.simulator.isa.propagation import Propagation
from trnx.simulator.tensor import NkiTensor

# What is missing in a read operand (by element), the operand's name, and the finding that the read
# is if it cannot be handed on.
Read = tuple[torch.Tensor, str, FindingError]


def missing_elements(
    propagation: Propagation, operand: str, tensor: NkiTensor
) -> torch.Tensor | None:
    """What is missing in an operand, if the instruction hands it on; else None. Where all is
    missing, nothing sensible can come of it.
    """
    if tensor.indirection is not None or not propagation.hands_on(operand):
        return None
    missing = tensor.storage.written.mask(tensor) == 0
    return None if bool(missing.all()) and tensor.storage.undefined is None else missing


def carry(
    propagation: Propagation,
    reads: list[Read],
    operands: list[tuple[NkiTensor, bool]],
    findings: Findings,
) -> None:
    """After an instruction: what its reads miss is missing in what it wrote."""
    targets = [tensor for tensor, is_write in operands if is_write]
    for missing, operand, finding in reads:
        for target in targets:
            mask = propagation.place(operand, missing, target)
            if mask is None or target.indirection is not None:
                findings.report(finding)
                continue
            if not bool(mask.any()):
                continue
            target.storage.written.unmark(target, mask)
            if target.storage.undefined is None:
                target.storage.undefined = finding
