"""Reads of elements that nothing has written: when they are a finding.

Kernels move whole tiles of which a part is filled, and use that part alone: engines work on every
lane anyway. So instructions hand "nothing has written this" on, as memory checkers do: an
element-wise one or a transposition by element, another one of the engines that work lane by lane
by partition, a product by row and column. The finding comes where it matters: a result of the
kernel, an address, what crosses partitions. It is then the first read's, with the first read's
line. A read of which every element is missing is a finding at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from trnx.simulator.checks.findings import Findings
from trnx.simulator.errors import FindingError
from trnx.simulator.tensor import NkiTensor

# What is missing in a read operand (by element), the operand's name, and the finding that the read
# is if it cannot be handed on.
Read = tuple[torch.Tensor, str, FindingError]
# What is missing in the result, from what is missing in an operand; None where nobody can say.
Place = Callable[[torch.Tensor, NkiTensor], torch.Tensor | None]

# Instructions whose results in one partition come from that partition of all operands.
_LANES = frozenset(
    {
        "tensor_scalar",
        "tensor_tensor",
        "scalar_tensor_tensor",
        "activation",
        "activation2",
        "activation_reduce",
        "reciprocal",
        "exponential",
        "tensor_reduce",
        "tensor_scalar_reduce",
        "tensor_scalar_cumulative",
        "tensor_tensor_scan",
        "bn_stats",
        "bn_aggr",
        "max8",
        "nc_find_index8",
        "nc_match_replace8",
        "range_select",
        "select_reduce",
        "affine_select",
    }
)
# Instruction -> the operands whose elements have their place in the result.
_CARRIED = {
    "tensor_copy": ("src",),
    "dma_copy": ("src",),
    "dma_transpose": ("src",),
    "nc_transpose": ("data",),
    "nc_matmul": ("stationary", "moving"),
    "tensor_scalar": ("data",),
    "tensor_tensor": ("data1", "data2"),
    "scalar_tensor_tensor": ("data", "operand1"),
    "activation": ("data",),
    "reciprocal": ("data",),
    "sendrecv": ("src",),
    "nc_stream_shuffle": ("src", "dst"),
    "tensor_copy_predicated": ("src", "predicate", "dst"),
    "local_gather": ("src_buffer",),
    "nonzero_with_count": ("src",),
}


def missing_elements(name: str, operand: str, tensor: NkiTensor) -> torch.Tensor | None:
    """What is missing in an operand, if the instruction `name` hands it on; else None. Where all is
    missing, nothing sensible can come of it.
    """
    if operand not in _CARRIED.get(name, ()) and name not in _LANES:
        return None
    if tensor.indirection is not None:
        return None
    missing = tensor.storage.written.mask(tensor) == 0
    return None if bool(missing.all()) and tensor.storage.undefined is None else missing


def carry(
    name: str,
    reads: list[Read],
    operands: list[tuple[NkiTensor, bool]],
    findings: Findings,
    places: Mapping[str, Place],
) -> None:
    """After an instruction: what its reads miss is missing in what it wrote. `places` are those of
    operands whose place in the result is this instruction's own.
    """
    targets = [tensor for tensor, is_write in operands if is_write]
    for missing, operand, finding in reads:
        for target in targets:
            own = places.get(operand)
            mask = own(missing, target) if own else _place(name, operand, missing, target)
            if mask is None or target.indirection is not None:
                findings.report(finding)
                continue
            if not bool(mask.any()):
                continue
            target.storage.written.unmark(target, mask)
            if target.storage.undefined is None:
                target.storage.undefined = finding


def _place(
    name: str, operand: str, missing: torch.Tensor, target: NkiTensor
) -> torch.Tensor | None:
    """What is missing in `target`, or None where that cannot be said."""
    if operand in _CARRIED.get(name, ()):
        mask = _PLACES.get((name, operand), _same_place)(missing, target)
        if mask is not None:
            return mask
    return _lanes(missing, target) if name in _LANES else None


def _same_place(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    return missing.reshape(target.shape) if missing.numel() == target.size else None


def _lanes(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    lanes = missing.reshape(missing.shape[0], -1).any(1)
    if lanes.numel() != target.shape[0]:
        return None
    return lanes.view(-1, *[1] * (target.ndim - 1)).expand(target.shape)


def _turned(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    if missing.numel() != target.size:
        return None
    if missing.ndim == 3 and target.ndim == 3:
        return missing.permute(2, 1, 0).reshape(target.shape)
    if missing.ndim == 4 and target.ndim == 4:
        return missing.permute(3, 1, 2, 0).reshape(target.shape)
    return missing.reshape(missing.shape[0], -1).t().reshape(target.shape)


def _per_core(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """The operand has one row for each GpSimd core, whose partitions in the result are 16."""
    lanes = torch.zeros(target.shape[0], dtype=torch.bool, device="cpu")
    lanes[::16] = missing.reshape(missing.shape[0], -1).any(1)
    return lanes.view(-1, *[1] * (target.ndim - 1)).expand(target.shape)


def _rows(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """A column of the stationary operand makes a row of the product."""
    rows = missing.reshape(missing.shape[0], -1).any(0)
    if rows.numel() != target.shape[0]:
        return None
    return rows.view(-1, *[1] * (target.ndim - 1)).expand(target.shape)


def _columns(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """A column of the moving operand makes a column of the product."""
    columns = missing.reshape(missing.shape[0], -1).any(0)
    if columns.numel() * target.shape[0] != target.size:
        return None
    return columns.view(1, *target.shape[1:]).expand(target.shape)


def moved_partitions(
    targets: Sequence[int], sources: Sequence[int], missing: torch.Tensor, target: NkiTensor
) -> torch.Tensor:
    """Partitions `targets` of the result come from the partitions `sources` of the operand."""
    placed = torch.zeros(target.shape[0], target.free_size, dtype=torch.bool, device="cpu")
    placed[list(targets)] = missing.reshape(missing.shape[0], -1)[list(sources)]
    return placed.view(target.shape)


def other_partitions(
    targets: Sequence[int], missing: torch.Tensor, target: NkiTensor
) -> torch.Tensor:
    """All partitions of the result but `targets` are what they were."""
    kept = missing.clone()
    kept[list(targets)] = False
    return kept.view(target.shape)


_PLACES: dict[tuple[str, str], Place] = {
    ("nc_transpose", "data"): _turned,
    ("dma_transpose", "src"): _turned,
    ("local_gather", "src_buffer"): _lanes,
    ("nonzero_with_count", "src"): _per_core,
    ("nc_matmul", "stationary"): _rows,
    ("nc_matmul", "moving"): _columns,
}
