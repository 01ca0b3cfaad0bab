"""What is wrong with a kernel's results, and what it looks like."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from trnx.backend.kernel_checks.cases import Case, is_dim, like_dim, magnitude, tensors_of
from trnx.nki_kernels.spec import KernelSpec

Results = tuple[torch.Tensor, ...]


def as_tuple(found: Any) -> Results:
    """One result or several."""
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def difference(found: Sequence[torch.Tensor], expected: Results, case: Case) -> str:
    """How the results differ in number, shape, dtype or values; empty where they agree.

    Sums are float32 in any order, of numbers as large as inputs and results, and results are
    rounded once; `case.error` comes on top.
    """
    if len(found) != len(expected):
        return f"{len(found)} results, and the pattern gives {len(expected)}"
    # What a reduction over two dimensions adds up.
    shapes = [sorted(tensor.shape)[-2:] for tensor in tensors_of(case.values).values()]
    sums = 8 + math.sqrt(max(map(math.prod, shapes), default=1))
    scale = magnitude(case.values)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        which = f"result {index}" if len(expected) > 1 else "the result"
        if wrong := _differs(one, other, sums, scale, case.error):
            return f"{which} {wrong}"
    return ""


def in_eager(case: Case, results: Results) -> Case:
    """`case` with the error of PyTorch's own ops: those for half precision round in between."""
    floats = [t for t in results if t.dtype in (torch.bfloat16, torch.float16) and t.numel()]
    scales = [t.abs().nan_to_num(0.0, 0.0).max().item() * torch.finfo(t.dtype).eps for t in floats]
    return dataclasses.replace(case, error=case.error + 8 * max(scales, default=0.0))


def _differs(
    found: torch.Tensor, expected: torch.Tensor, sums: float, scale: float, error: float
) -> str:
    wanted = expected.dtype
    if wanted is torch.bool and found.dtype is torch.uint8:
        expected, wanted = expected.to(torch.uint8), torch.uint8
    if found.dtype is not wanted:
        return f"is {found.dtype}, and {wanted} is expected".replace("torch.", "")
    if found.shape != expected.shape:
        return f"has the shape {list(found.shape)}, and {list(expected.shape)} is expected"
    if not expected.numel():
        return ""
    if not expected.is_floating_point():
        allowed = torch.zeros(expected.shape, dtype=torch.float64)
    else:
        finite = expected[expected.isfinite()].double().abs()
        scale = max(scale, finite.max().item() if finite.numel() else 0.0)
        absolute = torch.finfo(torch.float32).eps * sums * scale + error
        allowed = 2 * torch.finfo(expected.dtype).eps * expected.double().abs() + absolute
    return _worst(found.double(), expected.double(), allowed)


def _worst(found: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> str:
    same = (found == expected) | (found.isnan() & expected.isnan())
    off = torch.where(same, 0.0, (found - expected).abs().nan_to_num(torch.inf, torch.inf))
    excess = torch.where(same, -torch.inf, off - allowed.nan_to_num(0.0, 0.0))
    if excess.max() <= 0:
        return ""
    flat = int(excess.argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(flat), found.shape)]
    share = (excess > 0).double().mean().item()
    return (
        f"is {found.reshape(-1)[flat].item():.6g} at {place}, and "
        f"{expected.reshape(-1)[flat].item():.6g} is expected (within "
        f"{allowed.reshape(-1)[flat].item():.2g}); {share:.1%} of the elements differ"
    )


def looks_like(
    spec: KernelSpec, found: Results, case: Case, failing: Collection[str]
) -> tuple[str, str]:
    """(check, sentence) for a mistake that gives just these results; empty where none is known.

    `failing` are checks that have failed before: one mistake shows in many cases.
    """
    for check, sentence, values, after in _mistakes(case):
        try:
            expected = tuple(map(after, as_tuple(spec.reference(**values))))
        except Exception:  # noqa: BLE001  the reference is the user's and refuses values
            continue
        if not difference(found, expected, case):
            return check, sentence
    if "values" in failing:
        return "values", ""  # other sizes make values small too
    if _is_rounded(spec, found, case, is_known="dtypes" in failing):
        return "dtypes", "it is right in half precision: is a tile of the kernel too narrow?"
    return "", ""


def _is_rounded(spec: KernelSpec, found: Results, case: Case, is_known: bool) -> bool:
    """Whether float32 results are the reference's within bfloat16: now larger and now smaller,
    unless that `is_known` of others."""
    expected = as_tuple(spec.reference(**case.values))
    if any(one.dtype is not torch.float32 for one in (*found, *expected)):
        return False
    eps = torch.finfo(torch.bfloat16).eps
    scale = max(
        (t.abs().nan_to_num(0.0, 0.0).max().item() for t in expected if t.numel()), default=0
    )
    wide = dataclasses.replace(case, error=case.error + 2 * eps * scale)
    if difference(found, expected, wide):
        return False
    if is_known:
        return True
    pairs = zip(found, expected, strict=True)
    signs = torch.cat([(a.abs() - b.abs()).sign().reshape(-1) for a, b in pairs])
    above, below = (signs > 0).sum().item(), (signs < 0).sum().item()
    return min(above, below) > 0.1 * (above + below)


def _mistakes(
    case: Case,
) -> Iterator[tuple[str, str, Mapping[str, Any], Callable[[torch.Tensor], torch.Tensor]]]:
    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.mT if x.ndim > 1 else x

    tensors = tensors_of(case.values)
    for one, other in itertools.combinations(tensors, 2):
        if tensors[one].shape == tensors[other].shape:
            values = {**case.values, one: tensors[other], other: tensors[one]}
            yield "bindings", f"it is right with {one} and {other} exchanged", values, same
    ranks = max((tensor.ndim for tensor in tensors.values()), default=0)
    for name, value in case.values.items():
        if is_dim(value):
            for other_dim in range(-ranks, ranks):
                values = {**case.values, name: like_dim(value, other_dim)}
                yield "axis", f"it is right for {name}={other_dim}", values, same
    values = {**case.values, **{name: turned(tensor) for name, tensor in tensors.items()}}
    yield "axis", "it is right with the last two axes exchanged", values, turned
