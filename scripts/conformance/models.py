"""Whole models through `torch.compile(backend="trnx")`, compared with eager, forward and backward.

`--suite models`: the 39 architectures of `scripts/suites/hugging_face.py`. `--suite kernelbench
--checkout PATH`: KernelBench's problems of levels 1 to 3 at small sizes
(`scripts/suites/kernelbench.py`). NKI regions run in the simulator.

A model runs twice: for inference, and in training mode, where the gradients of all parameters and
inputs and the buffers after the step are compared too. Shapes, dtypes and the strides of what the
model returns are eager's. A float32 value may differ by 1e-4 of itself and 1e-4 of the largest
value of its tensor. A tensor that differs by more is right where its largest error against eager
in float64 is at most twice eager's own. `seen` counts these.

Each run has a process of its own, within limits of time and memory. `--results FILE` keeps
outcomes, one JSON object a line: what is in it does not run again.

    OMP_NUM_THREADS=1 python scripts/conformance/models.py --suite models --json

A model that eager itself refuses, or whose values differ from one eager run to the next, is
listed and counts neither way. `--json` prints one object as the last line; exit status 0 means
that no model differs or fails.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suites import hugging_face, kernelbench
from suites.apart import run_apart
from suites.case import Built, Case
from suites.exact import is_as_exact

SECONDS = 900
GIGABYTES = 16
RTOL, ATOL = 1e-4, 1e-4
SEED = 0
Values = dict[str, torch.Tensor]


@dataclass
class Outcome:
    """One run of one model: `ok`, `differs`, `failed`, or `eager` where eager gives no reference.

    `details` says what differs; `by_float64` counts the tensors that were right by float64 alone.
    """

    name: str
    train: bool
    status: str = "ok"
    tensors: int = 0
    by_float64: int = 0
    details: list[str] = field(default_factory=list)


def run_model(built: Built, train: bool, call: Callable[..., Any]) -> Values:
    """The values by name: results, and in training gradients and buffers."""
    args = tree_map(_leaf if train else _same, built.args)
    kwargs = tree_map(_leaf if train else _same, dict(built.kwargs))
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(train):
        results = [x for x in tree_leaves(call(*args, **kwargs)) if isinstance(x, torch.Tensor)]
    found = {f"result {i}": x for i, x in enumerate(results)}
    if train:
        found |= _gradients(built.model, results, tree_leaves((args, kwargs)))
    return {name: x.detach() for name, x in found.items()}


def _same(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _leaf(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.clone().requires_grad_() if floating else _same(value)


def _gradients(model: Any, results: Sequence[torch.Tensor], leaves: Sequence[Any]) -> Values:
    """After the backward pass of seeded gradients: those of parameters and inputs, and buffers."""
    roots = [x for x in results if x.requires_grad]
    if roots:
        torch.manual_seed(SEED)
        grads = [torch.randn(x.shape).to(x.dtype) for x in roots]
        torch.autograd.backward(roots, grads)
    found = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    found |= {f"buffer {name}": b for name, b in model.named_buffers()}
    return found | {
        f"gradient of input {i}": x.grad
        for i, x in enumerate(leaves)
        if isinstance(x, torch.Tensor) and x.grad is not None
    }


def is_close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether values agree within the tolerances; `ATOL` is of the largest finite value."""
    if not expected.is_floating_point() or expected.numel() == 0:
        return torch.equal(actual, expected)
    finite = expected[expected.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    return torch.allclose(actual, expected, RTOL, ATOL * scale, equal_nan=True)


def layout_differs(name: str, actual: torch.Tensor, expected: torch.Tensor) -> str:
    """How two tensors differ in shape, dtype or strides; "" where they do not."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        found = f"{actual.dtype}{list(actual.shape)}"
        return f"{found} in place of {expected.dtype}{list(expected.shape)}"
    returned = name.startswith("result") and expected.numel() > 0
    if returned and actual.stride() != expected.stride():
        return f"strides {actual.stride()} in place of {expected.stride()}"
    return ""


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> str:
    error = (actual.double() - expected.double()).abs().max().item()
    return f"differs by {error:.3g} where the largest value is {expected.abs().max().item():.3g}"


def compare(
    outcome: Outcome, actual: Values, expected: Values, exact: Callable[[], Values]
) -> None:
    """Note in `outcome` what differs; `exact` runs where a tensor is not close."""
    outcome.tensors = len(expected)
    if actual.keys() != expected.keys():
        outcome.details += [f"{name}: in one alone" for name in actual.keys() ^ expected.keys()]
    finer: Mapping[str, torch.Tensor] | None = None
    for name in [name for name in expected if name in actual]:
        a, e = actual[name], expected[name]
        if reason := layout_differs(name, a, e):
            outcome.details.append(f"{name}: {reason}")
        elif not is_close(a, e):
            finer = exact() if finer is None else finer
            if is_as_exact(a, e, finer.get(name)):
                outcome.by_float64 += 1
            else:
                outcome.details.append(f"{name}: {_distance(a, e)}")
    if outcome.details:
        outcome.status = "differs"


def _double(built: Built) -> Built:
    def wide(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating else value

    model = copy.deepcopy(built.model).double()
    return Built(model, tree_map(wide, built.args), tree_map(wide, dict(built.kwargs)))


def _exact(built: Built, train: bool) -> Values:
    """Eager's values in float64; none where the model refuses float64."""
    wide = _double(built)
    try:
        return run_model(wide, train, wide.model)
    except Exception:  # noqa: BLE001 - a model may have float32 written into it
        return {}


def _copied(built: Built) -> Built:
    return Built(copy.deepcopy(built.model), built.args, built.kwargs)


def measure(case: Case, train: bool) -> Outcome:
    """One run of one model."""
    outcome = Outcome(case.name, train)
    try:
        built = case.build(train)
        first, second = _copied(built), _copied(built)
        expected = run_model(first, train, first.model)
        again = run_model(second, train, second.model)
    except Exception as error:  # noqa: BLE001 - whatever eager raises is what is reported
        outcome.status, outcome.details = "eager", [f"{type(error).__name__}: {error}"[:200]]
        return outcome
    if not all(torch.equal(expected[n].nan_to_num(), again[n].nan_to_num()) for n in expected):
        outcome.status, outcome.details = "eager", ["its values differ from run to run"]
        return outcome
    compiled = _copied(built)
    call = torch.compile(compiled.model, backend="trnx", options={"runner": "simulator"})
    actual = run_model(compiled, train, call)
    compare(outcome, actual, expected, lambda: _exact(built, train))
    return outcome


def run(case: Case, train: bool, seconds: int, gigabytes: int) -> Outcome:
    """One run of one model in a process of its own."""
    outcome, error = run_apart(lambda: measure(case, train), seconds, gigabytes)
    return Outcome(case.name, train, "failed", details=[error]) if error else outcome


def run_all(cases: Sequence[Case], arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Outcomes as they come; those in the file of results as they are there."""
    path: Path | None = arguments.results
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    known = {(o.name, o.train): o for o in (Outcome(**json.loads(line)) for line in lines)}
    for case in cases:
        for train in (False, True):
            found = known.get((case.name, train))
            if found is None:
                found = run(case, train, arguments.seconds, arguments.gigabytes)
                if path is not None:
                    with path.open("a") as file:
                        file.write(json.dumps(asdict(found)) + "\n")
            yield found


def show(outcome: Outcome) -> None:
    """One line for a run, and one for each detail."""
    mode = "training" if outcome.train else "inference"
    exact = f", {outcome.by_float64} by float64" if outcome.by_float64 else ""
    print(f"{outcome.status} {outcome.name} {mode}: {outcome.tensors} tensors{exact}", flush=True)
    for detail in outcome.details[:5]:
        print(f"    {detail}", flush=True)


def main() -> int:
    """Run, print; 0 where no model differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--suite", choices=("kernelbench", "models"), required=True)
    parser.add_argument("--checkout", type=Path, help="KernelBench, for its suite")
    parser.add_argument("--only", help="regular expression on the model's name")
    parser.add_argument("--results", type=Path, help="a file that keeps outcomes")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="limit for one run")
    parser.add_argument("--gigabytes", type=int, default=GIGABYTES, help="limit for one run")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    if arguments.suite == "kernelbench" and arguments.checkout is None:
        parser.error("--suite kernelbench needs --checkout PATH of ScalingIntelligence/KernelBench")
    if arguments.suite == "models":
        cases = hugging_face.cases()
    else:
        cases = kernelbench.cases(arguments.checkout, small=True)
    cases = [c for c in cases if not arguments.only or re.search(arguments.only, c.name)]
    outcomes = []
    for outcome in run_all(cases, arguments):
        outcomes.append(outcome)
        show(outcome)
    bad = [o for o in outcomes if o.status in ("differs", "failed")]
    print(f"{len(outcomes)} runs of {len(cases)} models: {len(bad)} differ or fail")
    passed = bool(outcomes) and not bad
    if arguments.json:
        print(json.dumps({"passed": passed, "runs": [asdict(o) for o in outcomes]}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
