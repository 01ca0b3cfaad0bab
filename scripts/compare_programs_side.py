"""One side of `compare_programs.py`: write the text of every case of one checkout.

Uses what every checkout has under the same names: `trnx.simulator`'s public functions, the
registry, the fuzzer and the tests of that checkout.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator import TensorSpec
from trnx.simulator.errors import TrnxError
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.scheduler import schedule

try:
    from trnx.simulator.program.listing import listing
except ModuleNotFoundError:  # a checkout without rooms
    from trnx.simulator.listing import listing

TARGETS = ("trn1", "trn2", "trn3")
FUZZ_SEED, FUZZ_PROGRAMS = 20261122, 300
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((300, 700), (5, 3000))

Case = tuple[str, Callable[[], str]]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(program: Any, target: str) -> str:
    """The listing of a Program, and when each of its instructions starts and is visible."""
    planned = schedule(program.rows, hardware(target))
    times = hashlib.sha256(planned.start.tobytes() + planned.visible.tobytes()).hexdigest()
    return "\n".join(
        (*listing(program), f"predicted {planned.total_ps} ps", f"times of instructions {times}")
    )


def refused(error: TrnxError) -> str:
    """An error with its check and line."""
    return f"refused {type(error).__name__} {getattr(error, 'check', '')}: {error}"


def traced(kernel: Any, arguments: Any, target: str, grid: Any = None) -> str:
    """The text of a kernel, recorded without values."""
    try:
        return described(simulator.trace(kernel, arguments, target=target, grid=grid), target)
    except TrnxError as error:
        return refused(error)


def _specs(values: Any) -> dict[str, Any]:
    return {
        name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def registry_cases() -> Iterator[Case]:
    """Every kernel over its samples on every generation that takes them."""
    for spec in registry.kernels():
        samples = list(spec.samples(torch.Generator().manual_seed(7)))
        for number, sample in enumerate(samples):
            bindings = Bindings(_specs(sample.values))
            for target in TARGETS:
                if spec.supports(bindings, hardware(target)) is None:
                    launch = spec.launch(bindings, hardware(target))
                    run = functools.partial(traced, launch.kernel, launch.arguments, target)
                    yield f"registry {spec.name} {number} {target}", run


def _of_one(op: Any) -> Callable[[Any], Any]:
    return lambda x: op(x)


def _of_two(op: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: op(x, y)


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    aten = torch.ops.aten
    for name in ("exp", "gelu", "silu", "tanh", "sigmoid", "rsqrt", "relu", "log", "abs", "sqrt"):
        yield name, _of_one(getattr(aten, name).default)
    for name in ("add", "sub", "mul", "div", "gt"):
        yield name, _of_two(getattr(aten, name).Tensor)
    yield "maximum", _of_two(aten.maximum.default)
    yield "softmax", lambda x: aten._softmax.default(aten.mul.Tensor(x, 0.125), 1, False)
    yield "sum", lambda x, y: aten.sum.dim_IntList(aten.mul.Tensor(x, y), [1], True)
    yield "gate", lambda x, y: aten.mul.Tensor(aten.silu.default(x), y)
    yield "centre", lambda x: aten.sub.Tensor(x, aten.mean.dim(x, [1], True))


def generated_cases(checkout: Path) -> Iterator[Case]:
    """Generated kernels of pointwise and reduction chains."""
    build = _load(checkout / "tests" / "nki_kernels" / "conftest.py").build_region
    for name, function in _functions():
        for shape, dtype in itertools.product(SHAPES, DTYPES):
            region = build(function, *(torch.ones(shape, dtype=dtype) for _ in range(2)))
            for target in TARGETS:
                run = functools.partial(_generated, region, target)
                yield f"generated {name} {shape} {dtype} {target}", run


def _generated(region: Any, target: str) -> str:
    try:
        return described(region.program(target), target)
    except TrnxError as error:
        return refused(error)


def core_cases(checkout: Path) -> Iterator[Case]:
    """Kernels of the simulator's tests: loops, addresses that values decide, two cores."""
    tests = checkout / "tests" / "simulator" / "core"
    core = simulator.load_module(tests / "core_kernels.py")
    modes = _load(tests / "test_modes.py")
    for name, arguments, grid in modes.CASES:
        specs = [TensorSpec.of(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        run = functools.partial(traced, getattr(core, name), specs, "trn2", grid)
        yield f"core {name}", run


def rank_cases(checkout: Path) -> Iterator[Case]:
    """Kernels with collectives, of four ranks."""
    tests = checkout / "tests" / "simulator" / "ranks"
    ranks = _load(tests / "test_replay.py")
    kernels = [simulator.load_module(tests / name) for name in ranks.FILES]
    for name, (shape, rest) in ranks.KERNELS.items():
        kernel = next(vars(module)[name] for module in kernels if name in vars(module))
        grid = 2 if name in ranks.OF_TWO_PROGRAMS else None
        yield f"ranks {name}", functools.partial(_of_ranks, kernel, shape, rest, grid)


def _of_ranks(kernel: Any, shape: tuple[int, ...], rest: Any, grid: Any) -> str:
    spec = TensorSpec.dense(shape, torch.float32)
    traced = simulator.trace_ranks(kernel, [(spec, *rest)] * 4, grid=grid)
    return "\n".join(described(program, "trn2") for program in traced.programs)


def bug_cases(checkout: Path) -> Iterator[Case]:
    """The seeded bugs: what is found, and where."""
    folder = checkout / "tests" / "simulator" / "bugs"
    bugs = _load(folder / "test_bugs.py").BUGS
    twins = {bug.file: simulator.load_module(folder / f"{bug.file}.py") for bug in bugs}
    for bug in bugs:
        yield f"bug {bug.file} {bug.kernel}", functools.partial(_bug, twins[bug.file], bug)


def _bug(module: ModuleType, bug: Any) -> str:
    try:
        simulator.trace(
            getattr(module, bug.kernel),
            bug.arguments,
            target=bug.target,
            grid=bug.grid,
            values=bug.values,
        )
    except TrnxError as error:
        return refused(error)
    return "nothing found"


def fuzz_cases(checkout: Path) -> Iterator[Case]:
    """Programs of the fuzzer, legal ones and wild ones: verdict, bits of the results, listing."""
    sys.path.insert(0, str(checkout / "scripts" / "fuzz"))
    fuzz = _load(checkout / "scripts" / "fuzz" / "simulator.py")
    for number in range(FUZZ_PROGRAMS):
        yield f"fuzz {number}", functools.partial(_fuzzed, fuzz, number)


def _fuzzed(fuzz: ModuleType, number: int) -> str:
    program = fuzz.make_program(FUZZ_SEED, number)
    fuzz.plan_snapshots(program)
    fuzz.prune_snapshots(program)
    names = vars(fuzz.nki_reference)
    differential = names.get("differential") or names["running"]  # in a checkout of before
    results = differential.execute(program, replay=False)
    if isinstance(results, TrnxError):
        return refused(results) + "\n" + program.source()
    digest = hashlib.sha256(b"".join(np.asarray(one).tobytes() for one in results)).hexdigest()
    kernel = differential.compile_kernel(program.source())
    specs = [TensorSpec.of(torch.from_numpy(array)) for array in program.inputs()]
    grid = program.cores if program.cores > 1 else None
    text = traced(kernel, specs, program.target, grid)
    return f"{text}\nresults {digest}\n{program.source()}"


# The first word of the names of its cases -> where they come from.
KINDS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "registry": lambda _: registry_cases(),
    "generated": generated_cases,
    "core": core_cases,
    "ranks": rank_cases,
    "bug": bug_cases,
    "fuzz": fuzz_cases,
}


def cases(checkout: Path, only: str) -> Iterator[Case]:
    """All cases whose name contains `only`; of one kind, where it begins with a kind."""
    kind = only.partition(" ")[0]
    for name, cases_of in KINDS.items():
        if kind not in KINDS or kind == name:
            yield from (case for case in cases_of(checkout) if only in case[0])


# A line of one of trnx's kernels: <trnx> is the checkout, or its layout as installed.
_LOCATION = re.compile(
    r"Location(?:#\d+)?\(file='<trnx>/(?:trnx/)?(nki_kernels/[^']+)', line=(\d+), function='\w+'\)"
)


@functools.cache
def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def located_by_text(text: str, checkout: Path) -> str:
    """`text` with the text of each line of trnx's kernels in place of its file and number."""

    def line(match: re.Match[str]) -> str:
        return f"Location({_lines(checkout / match[1])[int(match[2]) - 1].strip()})"

    return _LOCATION.sub(line, text)


def main() -> None:
    """Write each text to a file; paths of the checkout and of its layout are left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("checkout", "tree", "cases"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if not Path(simulator.__file__).is_relative_to(options.tree):
        raise SystemExit(f"trnx comes from {simulator.__file__}, not from {options.tree}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    own = [str(path) for path in (options.checkout, options.tree, options.tree.parent)]
    for name, text_of in cases(options.checkout, options.only):
        text = text_of()
        for path in own:
            text = text.replace(path, "<trnx>")
        text = located_by_text(text, options.checkout)
        text = re.sub(r"\bat 0x[0-9a-f]+", "at 0x...", text)
        (options.cases / name.replace("/", "_")).write_text(text + "\n")


if __name__ == "__main__":
    main()
