"""PyTorch's OpInfo database through `torch.compile(backend="trnx")`, compared with eager.

Every op runs twice, with `select="profit"` (the default) and with `select="legal"`: float32, and
bool and int64 where the op has them, two samples each, forward. Values, dtypes, shapes and strides
are compared within `torch.testing.assert_close`'s own tolerances. Where float32 values are not
close to eager's, they must be as close as that to what eager computes in float64 (a sum near zero
is right in one order of its terms and rounded away in another). A failure counts unless
`backend="aot_eager"` fails on the same sample too. Bars: no failure, and at least 380 ops with an
NKI region in the second run.

With `--backward` the samples are the float32 ones of ops that support autograd; what is compared
are the results and the gradients of all inputs that require one, for tangents drawn at random.

With `--special` the samples are the float32 ones with a quarter of the elements of each tensor in
turn infinite, NaN, and at the limits of float32: what is not close to eager's must have the class
and the value of what eager computes in float64, element by element. At the limits any class that is
not finite is as good as another: the order of the terms decides which sum overflows first.

Run it in an environment with `trnx[test]`, from anywhere:

    OMP_NUM_THREADS=1 python scripts/conformance/opinfo.py --jobs 2 --json | tee opinfo.log

The whole database takes about half an hour on two cores; one line tells of each op as it ends.
`--sample N --seed S` takes N ops at random, `--ops REGEX` those whose name matches (the second
bar is then not applied), `--jobs N` runs N processes, `--json` prints one object as the last
line. Exit status 0 if and only if the bars hold.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math
import multiprocessing
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suites.opinfo_samples import samples_of

NKI_OPS_BAR = 380
DTYPES = (torch.float32, torch.bool, torch.int64)
SELECTS = ("profit", "legal")
SAMPLES = 2
OP_SECONDS = 300
SEED = 1234
MODES = ("forward", "backward", "special")
SPECIAL = {
    "infinite": (math.inf, -math.inf),
    "nan": (math.nan,),
    "extreme": (3e38, 1e-38, -1e-40, 0.0, -0.0),
}
RENEWED_AFTER = 60  # ops that one process runs

# How Dynamo calls a backend's error about fake tensors, after which it runs eager.
COMPILER_BROKE = "Backend compiler exception"

# Ops whose values nobody defines: shape, dtype and strides are compared.
UNDEFINED = re.compile(r"(new_)?empty(_like|_strided|_permuted)?$")


class OpTimeoutError(Exception):
    """One op took longer than its limit."""


@dataclass
class Failure:
    """One sample on which trnx differs from eager and aot_eager does not."""

    op: str
    select: str
    dtype: str
    sample: int
    reason: str


@dataclass
class Outcome:
    """What became of one op."""

    op: str
    samples: int = 0
    aot_eager_fails: int = 0
    seconds: float = 0.0
    nki: dict[str, bool] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One sample of one op; `make` builds fresh inputs each time, since ops may write to them.

    `backward` says that gradients are compared too, `special` which values are among the inputs'.
    """

    dtype: torch.dtype
    index: int
    make: Callable[[], Any]
    backward: bool = False
    special: str = ""


def full_name(op: Any) -> str:
    """The op with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def cases(op: Any, samples: int, mode: str = "forward") -> Iterator[Case]:
    """The first samples of each dtype that the op has; of float32 alone where the mode is not
    "forward".
    """
    backward = mode == "backward"
    if backward and not op.supports_autograd:
        return
    for dtype in DTYPES if mode == "forward" else DTYPES[:1]:
        if dtype not in op.supported_dtypes("cpu"):
            continue

        def sample(index: int, special: str = "", dtype: torch.dtype = dtype) -> Any:
            torch.manual_seed(SEED)
            random.seed(SEED)
            for i, found in enumerate(samples_of(op, dtype, requires_grad=backward)):
                if i == index:
                    return (
                        found.transform(lambda x: _with_special(x, special)) if special else found
                    )
            return None

        for index in range(samples):
            if sample(index) is None:
                break
            for special in SPECIAL if mode == "special" else ("",):
                make = functools.partial(sample, index, special)
                yield Case(dtype, index, make, backward, special)


def _with_special(value: Any, special: str) -> Any:
    """A tensor of floats with a quarter of its elements, at least one, replaced by special ones."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    if not special or not floating or not value.numel():
        return value
    generator = torch.Generator().manual_seed(SEED)
    places = torch.randperm(value.numel(), generator=generator)[: -(-value.numel() // 4)]
    given = torch.tensor(SPECIAL[special], dtype=value.dtype)
    changed = value.detach().flatten().clone()
    changed[places] = given[torch.arange(len(places)) % len(given)]
    return torch.empty_like(value).copy_(changed.view(value.shape))


def call(function: Callable[..., Any], case: Case, dtype: torch.dtype | None = None) -> list[Any]:
    """Run one sample and return what came out, tensors and values; with floats as `dtype`."""
    sample = case.make()
    if dtype is not None:
        sample = sample.transform(lambda x: _as_float(x, dtype))
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(case.backward):
        results = function(sample.input, *sample.args, **sample.kwargs)
        gradients = _gradients(sample, results) if case.backward else []
    return [*_detached(results), *gradients]


def _gradients(sample: Any, results: Any) -> list[torch.Tensor | None]:
    """Those of all inputs that require one, for tangents drawn at random; None where the results do
    not depend on an input.
    """
    # Of decompositions the part that does not depend on the choice of a basis.
    outputs = [x for x in tree_leaves(sample.output_process_fn_grad(results)) if _requires_grad(x)]
    given = (sample.input, sample.args, sample.kwargs)
    inputs = [x for x in tree_leaves(given) if _requires_grad(x)]
    if not outputs or not inputs:
        return []
    generator = torch.Generator().manual_seed(SEED)
    tangents = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in outputs]
    return list(torch.autograd.grad(outputs, inputs, tangents, allow_unused=True))


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _detached(results: Any) -> list[Any]:
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in tree_leaves(results)]


def _as_float(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().to(dtype).requires_grad_(value.requires_grad) if floating else value


def exact(op: Any, case: Case) -> list[Any] | None:
    """What eager gives in float64, rounded at the end; None where there is nothing more exact."""
    if case.dtype != torch.float32 or torch.float64 not in op.supported_dtypes("cpu"):
        return None
    try:
        return [_as_float(x, torch.float32) for x in call(op.op, case, torch.float64)]
    except RuntimeError:  # a sample's own function may name float32
        return None


def differs(actual: list[Any], expected: list[Any], undefined: bool) -> str | None:
    """Why two results are not the same, None where they are; values do not count if `undefined`."""
    if len(actual) != len(expected):
        return f"{len(actual)} results in place of {len(expected)}"
    for a, e in zip(actual, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            if (a is None) != (e is None) or (a != e and not (a != a and e != e)):
                return f"value {a!r} in place of {e!r}"
            continue
        if not isinstance(a, torch.Tensor) or (a.shape, a.dtype) != (e.shape, e.dtype):
            return f"{_kind(a)} in place of {_kind(e)}"
        if undefined:
            a, e = torch.zeros_like(a), torch.zeros_like(e)
        try:
            torch.testing.assert_close(
                a, e, equal_nan=True, check_stride=a.layout == torch.strided and a.numel() > 0
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    return None


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def attempt(op: Any, case: Case, expected: list[Any], backend: str, **settings: Any) -> str | None:
    """Compile and run one sample; why it is not what eager gives."""
    torch._dynamo.reset()
    counters.clear()
    try:
        compiled = torch.compile(op.op, backend=backend, **settings)
        actual = call(compiled, case)
        if refused := _refused():
            return refused
        reason = differs(actual, expected, bool(UNDEFINED.match(op.name)))
        if reason is not None and (finer := exact(op, case)) is not None:
            if case.special:
                both = zip(actual, expected, finer, strict=False)
                finer = [_closer(*values, overflows=case.special == "extreme") for values in both]
            reason = reason if differs(actual, finer, False) else None
        return reason
    except OpTimeoutError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is what is reported
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _closer(actual: Any, expected: Any, finer: Any, overflows: bool) -> Any:
    """What eager gives where it is close to `actual`, what float64 gives elsewhere; `actual` where
    that and eager's are not finite, if it `overflows`.
    """
    values = (actual, expected, finer)
    if not all(isinstance(x, torch.Tensor) and x.shape == expected.shape for x in values):
        return finer
    close = torch.isclose(actual, expected, rtol=1.3e-6, atol=1e-5, equal_nan=True)
    found = torch.where(close, expected, finer)
    both = ~(torch.isfinite(actual) | torch.isfinite(expected)) & overflows
    return torch.where(both, actual, found)


def _refused() -> str | None:
    """The backend's own error, of which Dynamo made a graph break, so that eager ran."""
    breaks = counters["unimplemented"]
    return next((" ".join(b.split())[:300] for b in breaks if b.startswith(COMPILER_BROKE)), None)


def nki_ran(reports: Any) -> bool:
    """Whether a compiled graph has a region on NKI."""
    return any(region.engine == "nki" for report in reports for region in report.regions)


def run_case(op: Any, case: Case, outcome: Outcome) -> None:
    """One sample through eager, trnx twice, and aot_eager where trnx differs."""
    from trnx.backend.report import collect_reports

    try:
        expected = call(op.op, case)
    except Exception:  # noqa: BLE001 - eager refuses the sample: there is nothing to compare with
        return
    undefined = bool(UNDEFINED.match(op.name))
    if differs(call(op.op, case), expected, undefined) is not None:
        return  # not the same twice in eager itself
    outcome.samples += 1
    for select in SELECTS:
        with collect_reports() as reports:
            reason = attempt(op, case, expected, "trnx", options={"select": select})
        outcome.nki[select] = outcome.nki.get(select, False) or nki_ran(reports)
        if reason is None:
            continue
        if attempt(op, case, expected, "aot_eager") is not None:
            outcome.aot_eager_fails += 1
            continue
        dtype = f"{case.special} {case.dtype}".strip().replace("torch.", "")
        outcome.failures.append(Failure(outcome.op, select, dtype, case.index, reason))


def _on_alarm(*_: Any) -> None:
    raise OpTimeoutError


def run_cases(op: Any, outcome: Outcome, samples: int = SAMPLES, mode: str = "forward") -> Outcome:
    """All samples of one op, added to `outcome`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases(op, samples, mode):
            run_case(op, case, outcome)
    return outcome


def run_op(position: int, mode: str = "forward") -> Outcome:
    """All samples of one op of the database, within the time limit."""
    op = op_db[position]
    outcome = Outcome(full_name(op))
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.alarm(OP_SECONDS)
    try:
        run_cases(op, outcome, mode=mode)
    except OpTimeoutError:
        reason = f"took longer than {OP_SECONDS} s"
        outcome.failures.append(Failure(outcome.op, "-", "-", -1, reason))
    finally:
        signal.alarm(0)
    outcome.seconds = time.perf_counter() - start
    return outcome


def choose(ops: str | None = None, sample: int | None = None, seed: int = 0) -> list[int]:
    """Positions in the database of the ops to run."""
    chosen = [i for i, op in enumerate(op_db) if not ops or re.search(ops, full_name(op))]
    if sample and sample < len(chosen):
        chosen = sorted(random.Random(seed).sample(chosen, sample))
    return chosen


def _prepare() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    torch._dynamo.config.suppress_errors = False


def run_all(positions: list[int], jobs: int, mode: str = "forward") -> Iterator[Outcome]:
    """Outcomes as they come, from `jobs` processes."""
    run = functools.partial(run_op, mode=mode)
    if jobs == 1:
        _prepare()
        yield from map(run, positions)
        return
    # Processes are renewed, so that compiled programs of hundreds of ops do not pile up.
    context = multiprocessing.get_context("spawn")
    missing = {full_name(op_db[position]) for position in positions}
    with context.Pool(jobs, initializer=_prepare, maxtasksperchild=RENEWED_AFTER) as pool:
        outcomes = pool.imap_unordered(run, positions)
        while missing:
            try:
                outcome = outcomes.next(timeout=2 * OP_SECONDS)
            except multiprocessing.TimeoutError:  # its process is gone; the pool made another one
                break
            missing.discard(outcome.op)
            yield outcome
    for name in sorted(missing):
        yield Outcome(name, failures=[Failure(name, "-", "-", -1, "its process died")])


def run_kept(positions: list[int], jobs: int, mode: str, path: Path | None) -> Iterator[Outcome]:
    """Outcomes that the file holds, then those of the ops that are left, which it gets."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    known = {outcome.op: outcome for outcome in map(_read, lines)}
    names = {position: full_name(op_db[position]) for position in positions}
    yield from (known[name] for name in names.values() if name in known)
    for outcome in run_all([p for p in positions if names[p] not in known], jobs, mode):
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        yield outcome


def _read(line: str) -> Outcome:
    """An outcome from its line."""
    values = json.loads(line)
    return Outcome(**{**values, "failures": [Failure(**f) for f in values["failures"]]})


def show(outcome: Outcome, done: int, total: int) -> None:
    """One line for an op, and one for the first failure of each run."""
    verdict = "FAIL" if outcome.failures else "ok"
    notes = [f"{outcome.samples} samples", f"{outcome.seconds:.1f} s"]
    notes += [f"nki by {select}" for select in SELECTS if outcome.nki.get(select)]
    print(f"[{done}/{total}] {verdict} {outcome.op}: {', '.join(notes)}", flush=True)
    for f in {f.select: f for f in reversed(outcome.failures)}.values():
        print(f"    {f.select}, {f.dtype} #{f.sample}: {f.reason}", flush=True)


def main() -> int:
    """Run, print the summary; 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, help="so many ops, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--ops", help="regular expression on the op's name")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--backward", action="store_true", help="gradients too, float32 alone")
    modes.add_argument(
        "--special", action="store_true", help="infinities, NaN and float32's limits"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--results", type=Path, help="a file that keeps outcomes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    mode = next((m for m in MODES[1:] if getattr(arguments, m)), MODES[0])
    positions = choose(arguments.ops, arguments.sample, arguments.seed)
    outcomes = []
    for outcome in run_kept(positions, arguments.jobs, mode, arguments.results):
        outcomes.append(outcome)
        show(outcome, len(outcomes), len(positions))
    failures = [f for o in outcomes for f in o.failures]
    nki = {s: sum(o.nki.get(s, False) for o in outcomes) for s in SELECTS}
    whole = len(positions) == len(op_db) and mode == "forward"
    passed = bool(outcomes) and not failures and (not whole or nki["legal"] >= NKI_OPS_BAR)
    counts = Counter(f.op for f in failures)
    print(
        f"{len(outcomes)} ops, {sum(o.samples for o in outcomes)} samples, {len(counts)} ops fail; "
        f"with an NKI region: {nki['profit']} by profit, {nki['legal']} where legal"
        + (f" (bar {NKI_OPS_BAR})" if whole else "")
    )
    if arguments.json:
        print(json.dumps({
            "passed": passed, "ops": len(outcomes), "samples": sum(o.samples for o in outcomes),
            "nki_ops": nki, "aot_eager_fails": sum(o.aot_eager_fails for o in outcomes),
            "failures": [asdict(f) for f in failures],
        }))  # fmt: skip
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
