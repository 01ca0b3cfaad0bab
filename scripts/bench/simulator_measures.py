"""What `simulator.py` measures: replay against eager, the cost of tracing, memory."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch
from trnx.simulator import Program, TensorSpec, load_module, simulate, trace
from trnx.simulator.hardware import Hardware, hardware
from trnx.simulator.program.observer import Observer, Recorded, observing

TARGETS = ("trn1", "trn2", "trn3")
TURNS = 200
# Pairs of calls before those that count: caches and the allocator settle.
WARM_UP = 5


@dataclass(frozen=True)
class Case:
    """One kernel of the registry with its operands, and eager doing the same mathematics.

    `eager` writes to preallocated memory where torch has an `out=`; `tolerance` is what results may
    differ by, relative to the largest value.
    """

    name: str
    kernel: str
    bar: float
    operands: dict[str, Any]
    eager: Callable[[], torch.Tensor]
    tolerance: float


def cases() -> Iterator[Case]:
    """The kernels of the bars; the bfloat16 product runs against eager's float32 one."""
    torch.manual_seed(0)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    x = torch.randn(2048, 2048)
    q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
    product, weights = torch.empty(1024, 1024), torch.empty(2048, 2048)

    def multiply() -> torch.Tensor:
        return torch.mm(a, b, out=product)

    def linear(dtype: torch.dtype) -> dict[str, Any]:
        operands = {"x": a.to(dtype), "weight": b.to(dtype).t()}
        return {**operands, "bias": None, "residual": None, "activation": "none"}

    yield Case("matmul 1024^3 float32", "linear", 1.25, linear(torch.float32), multiply, 1e-5)
    yield Case("matmul 1024^3 bfloat16", "linear", 1.3, linear(torch.bfloat16), multiply, 2e-2)
    yield Case(
        "softmax 2048x2048",
        "softmax",
        3.0,
        {"x": x, "dim": 1, "half_to_float": False, "is_log": False},
        lambda: torch.softmax(x, 1, out=weights),
        1e-5,
    )
    nothing = {
        "attn_mask": None,
        "dropout_mask": None,
        "dropout_p": 0.0,
        "is_causal": False,
        "window": 0,
    }
    yield Case(
        "flash attention 1x8x1024x64",
        "sdpa",
        2.2,
        {"q": q, "k": k, "v": v, **nothing, "scale": 1 / math.sqrt(64)},
        lambda: F.scaled_dot_product_attention(q, k, v),
        1e-5,
    )


def launch(case: Case, target: str) -> tuple[Launch, list[torch.Tensor]]:
    """The launch that the registry plans for the case, and its tensors in order."""
    found: KernelSpec = next(spec for spec in kernels() if spec.name == case.kernel)
    operands = {
        name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
        for name, value in case.operands.items()
    }
    chip = hardware(target)
    reason = found.supports(Bindings(operands), chip)
    if reason is not None:
        raise SystemExit(f"{case.name} on {target}: {reason}")
    planned = found.launch(Bindings(operands), chip)
    return planned, [case.operands[name] for name in planned.tensor_names]


def checked_result(planned: Launch, tensors: list[torch.Tensor], target: str) -> torch.Tensor:
    """What the kernel computes while it is traced with values and all checks on."""
    left = list(tensors)
    arguments = [left.pop(0) if isinstance(a, TensorSpec) else a for a in planned.arguments]
    results = simulate(planned.kernel, target, keep_strides=True)(*arguments)
    first: torch.Tensor = results[0] if isinstance(results, tuple) else results
    return first


def alternate(
    first: Callable[[], Any], second: Callable[[], Any], runs: int
) -> tuple[float, float, float]:
    """Medians of the calls' CPU seconds, and of the ratios of two calls in a row: the machine's
    speed changes while this runs, but little between neighbours.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(WARM_UP + runs):
        for call, taken in zip((first, second), times, strict=True):
            start = time.thread_time()
            call()
            if turn >= WARM_UP:
                taken.append(time.thread_time() - start)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return statistics.median(times[0]), statistics.median(times[1]), ratio


def replay(case: Case, target: str, runs: int) -> dict[str, Any]:
    """Replay against eager: seconds, ratio, and whether the results are right."""
    planned, tensors = launch(case, target)
    program = trace(planned.kernel, planned.arguments, target=target)
    outputs = [torch.empty(spec.shape, dtype=spec.dtype) for spec in program.outputs]
    program.run(tensors, outputs)
    expected = case.eager().clone()
    error = (outputs[0].float() - expected).abs().max().item() / expected.abs().max().item()
    is_same = torch.equal(checked_result(planned, tensors, target), outputs[0])
    trnx, eager, ratio = alternate(lambda: program.run(tensors, outputs), case.eager, runs)
    return {
        "bar": case.bar,
        "ratio": ratio,
        "trnx_ms": trnx * 1e3,
        "eager_ms": eager * 1e3,
        "is_right": is_same and error <= case.tolerance,
    }


def tiles_kernel() -> Any:
    """The kernel of 128 x 8 tiles."""
    return load_module(Path(__file__).with_name("simulator_kernels.py")).tiles


def tiles_program(turns: int) -> Program:
    """Traced without values."""
    spec = TensorSpec.dense((turns * 128, 8), torch.float32)
    return trace(tiles_kernel(), [spec, turns])


class _Clock(Observer):
    """The CPU time at which each instruction is recorded."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_instruction(self, instruction: Recorded) -> None:
        """Note the time."""
        del instruction
        self.marks.append(time.thread_time())


def _instruction_times(kernel: Any, arguments: list[Any], values: bool) -> list[float]:
    """CPU seconds from each instruction of one trace to the next."""
    clock = _Clock()
    with observing(clock):
        trace(kernel, arguments, values=values)
    return [after - before for before, after in itertools.pairwise(clock.marks)]


def least_times(taken: list[list[float]]) -> list[float]:
    """The least time of each instruction over the traces, which are all of the same instructions:
    what the code costs on a core, and with caches, of its own.
    """
    return [min(times) for times in zip(*taken, strict=True)]


def tracing(values: bool, turns: int, repeats: int) -> tuple[float, float]:
    """(median, mean) microseconds of an instruction."""
    kernel = tiles_kernel()
    x = torch.randn(turns * 128, 8)
    arguments: list[Any] = [x if values else TensorSpec.of(x), turns]
    times = least_times([_instruction_times(kernel, arguments, values) for _ in range(repeats)])
    return statistics.median(times) * 1e6, statistics.mean(times) * 1e6


def attention_tracing(repeats: int) -> float:
    """Median of the instructions of the attention kernel, without values."""
    case = next(case for case in cases() if case.kernel == "sdpa")
    planned, _ = launch(case, "trn2")
    arguments = list(planned.arguments)
    taken = [_instruction_times(planned.kernel, arguments, False) for _ in range(repeats)]
    return statistics.median(least_times(taken)) * 1e6


def growth(turns: int, factor: int, repeats: int) -> float:
    """Mean cost of an instruction in a kernel `factor` times as long, relative to the short one."""
    short = tracing(False, turns, repeats)[1]
    return tracing(False, turns * factor, repeats)[1] / short


def resident_bytes(field: str = "VmRSS") -> int:
    """Memory of this process now; "VmHWM": the most that it had since it began."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say how much memory a process has")


def settled_bytes() -> int:
    """Memory of this process without garbage and without what malloc keeps for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return resident_bytes()


def bytes_per_instruction(turns: int) -> float:
    """What a Program adds to the memory of the process, all of it; run in a process of its own."""
    kept = [tiles_program(100), tiles_program(turns)]
    before = settled_bytes()
    kept.append(tiles_program(turns))
    return (settled_bytes() - before) / kept[-1].instruction_count


def chip_bytes(chip: Hardware) -> int:
    """SBUF and PSUM."""
    return chip.partitions * (chip.sbuf_partition_bytes + chip.psum_partition_bytes)


def peak_memory(name: str, target: str) -> float:
    """Growth of peak memory by a traced run with values and a replay, relative to arguments,
    outputs, SBUF and PSUM; run in a process of its own.
    """
    tiles_program(10)
    case = next(case for case in cases() if case.name == name)
    case.eager()
    planned, tensors = launch(case, target)
    before = resident_bytes()
    arguments = [t.clone() for t in tensors]
    checked_result(planned, arguments, target)
    program = trace(planned.kernel, planned.arguments, target=target)
    outputs = program.run(arguments)
    held = sum(t.numel() * t.element_size() for t in (*arguments, *outputs))
    return (resident_bytes("VmHWM") - before) / (held + chip_bytes(hardware(target)))
