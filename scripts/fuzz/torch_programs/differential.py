"""A program in eager and compiled: values, dtypes, shapes, strides, aliasing, writes, gradients.

A float may be as far from the same program in float64 as eager's is, a few roundings more, because
sums and functions have no one right order. All else must be equal.
"""

from __future__ import annotations

import functools
import itertools
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_programs.program import DTYPES, EXACT, Program

# Times the largest error of eager that a result may have, and roundings of the largest value.
ERRORS, ROUNDINGS = 4.0, 24.0


@dataclass(frozen=True)
class Verdict:
    """`status` is agreed, or the first thing that differs; `detail` says where and by how much."""

    status: str
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        """True where trnx is at fault: not what torch's own tracing gets wrong or eager refuses."""
        return self.status not in ("agreed", "refused", "torch")


@dataclass
class _Run:
    """What one call did: results, arguments after it, gradients."""

    outputs: list[torch.Tensor]
    arguments: list[torch.Tensor]
    gradients: list[torch.Tensor | None]

    def tensors(self) -> list[tuple[str, torch.Tensor | None]]:
        """All that is compared, by a name for messages."""
        return [
            *((f"output {i}", one) for i, one in enumerate(self.outputs)),
            *((f"argument {i} after the call", one) for i, one in enumerate(self.arguments)),
            *((f"gradient of argument {i}", one) for i, one in enumerate(self.gradients)),
        ]

    def shared(self) -> list[tuple[int, int]]:
        """Which of outputs and arguments lie in one storage."""
        places = [
            one.untyped_storage().data_ptr() if one.numel() else -1 - i
            for i, one in enumerate([*self.outputs, *self.arguments])
        ]
        pairs = itertools.combinations(range(len(places)), 2)
        return [(a, b) for a, b in pairs if places[a] == places[b]]


def _run(
    program: Program,
    function: Callable[..., Any],
    dims: Mapping[str, int],
    dtypes: Mapping[str, torch.dtype] = DTYPES,
) -> _Run:
    arguments = program.arguments(dims, dtypes)
    outputs = list(function(*arguments))
    gradients: list[torch.Tensor | None] = []
    if program.has_gradients:
        _backward(outputs)
        gradients = [one.grad for one in arguments]
    return _Run(outputs, arguments, gradients)


def _backward(outputs: list[torch.Tensor]) -> None:
    """Gradients with fixed cotangents that differ by element."""
    roots = [one for one in outputs if one.requires_grad]
    cotangents = [
        torch.linspace(-1, 1, one.numel(), dtype=torch.float64).view(one.shape).to(one.dtype)
        for one in roots
    ]
    if roots:
        torch.autograd.backward(roots, cotangents)


def check(program: Program, backend: Any = "trnx") -> Verdict:
    """Compile and compare; what fails with `aot_eager` too is torch's."""
    verdict = _check(program, backend)
    if verdict.is_failure and backend == "trnx" and _check(program, "aot_eager").is_failure:
        return replace(verdict, status="torch")
    return verdict


def _check(program: Program, backend: Any) -> Verdict:
    torch._dynamo.reset()
    options = dict(program.options) if backend == "trnx" else None
    function = program.function(DTYPES)
    compiled = torch.compile(
        function, backend=backend, dynamic=program.is_dynamic or None, options=options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dims in program.dims:
            try:
                eager = _run(program, function, dims)
            except RuntimeError as error:
                return Verdict("refused", str(error))  # autograd and writes in place
            try:
                found = _run(program, compiled, dims)
            except Exception:  # noqa: BLE001  (whatever it is, eager did not raise it)
                return Verdict("raises", traceback.format_exc(limit=-8))
            reference = functools.partial(
                _run, program, program.function(EXACT), dims, dtypes=EXACT
            )
            verdict = _compare(eager, found, reference)
            if verdict.is_failure:
                return verdict
    return Verdict("agreed")


def _compare(eager: _Run, found: _Run, reference: Callable[[], _Run]) -> Verdict:
    if len(eager.outputs) != len(found.outputs):
        return Verdict("outputs", f"{len(found.outputs)} outputs, eager {len(eager.outputs)}")
    if eager.shared() != found.shared():
        return Verdict("aliasing", f"shared storages {found.shared()}, eager {eager.shared()}")
    exact: list[tuple[str, torch.Tensor | None]] | None = None
    for i, ((name, want), (_, have)) in enumerate(
        zip(eager.tensors(), found.tensors(), strict=True)
    ):
        if want is None or have is None:
            if want is not have:
                return Verdict("gradient", f"{name}: {have is not None}, eager {want is not None}")
            continue
        for what in ("dtype", "shape", "requires_grad"):
            if getattr(want, what) != getattr(have, what):
                message = f"{name}: {getattr(have, what)}, eager {getattr(want, what)}"
                return Verdict(what, message)
        if "gradient" not in name and _strides(want) != _strides(have):
            return Verdict("strides", f"{name}: {have.stride()}, eager {want.stride()}")
        if _is_equal(want, have):
            continue
        if not want.is_floating_point():
            return Verdict("values", f"{name}: {_difference(want, have)}")
        exact = exact or reference().tensors()
        if not _is_as_close(want, have, exact[i][1]):
            return Verdict("values", f"{name}: {_difference(want, have)}")
    return Verdict("agreed")


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions that have a second element."""
    if not tensor.numel():
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _is_equal(want: torch.Tensor, have: torch.Tensor) -> bool:
    if not want.is_floating_point():
        return torch.equal(want, have)
    return bool(((want == have) | (want.isnan() & have.isnan())).all())


def _is_as_close(want: torch.Tensor, have: torch.Tensor, exact: torch.Tensor | None) -> bool:
    if exact is None or exact.shape != want.shape:
        return False
    want, have, exact = (one.detach().double() for one in (want, have, exact))
    if not torch.equal(want.isnan(), have.isnan()) or not torch.equal(want.isinf(), have.isinf()):
        return False
    usable = want.isfinite() & exact.isfinite()
    want, have, exact = want[usable], have[usable], exact[usable]
    if not want.numel():
        return True
    epsilon = 2.0**-24
    allowed = ERRORS * (want - exact).abs().max() + ROUNDINGS * epsilon * exact.abs().max()
    return bool((have - exact).abs().max() <= allowed)


def _difference(want: torch.Tensor, have: torch.Tensor) -> str:
    wrong = (want != have) & ~(want.isnan() & have.isnan())
    at = tuple(wrong.nonzero()[0].tolist()) if wrong.any() else ()
    return (
        f"{int(wrong.sum())} of {wrong.numel()} differ, the first at {at}: "
        f"{have[at].item()}, eager {want[at].item()}"
    )
