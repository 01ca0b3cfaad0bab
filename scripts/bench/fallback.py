"""What the exchange of tensors with XLA costs a call, against a bare call of the compiled program.

Bars (per tensor): an input that is not cached 30 us, an output 8 us, a cached parameter 1 us. Every
time is the least of 400 rounds of 5 calls: what the code costs when nothing else takes the core,
not what a call takes on a busy machine. A cached parameter is timed by itself, because the
differences between two compiled programs are larger than its look-up; the other numbers are the
difference of two such times, divided by the number of tensors. `--json` prints one object as the
last line; exit status 0 if and only if the bars hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from trnx.fallback import XlaEngine
from trnx.fallback.exchange import InputSlot
from trnx.fallback.program import Program

BARS = {"input_us": 30.0, "output_us": 8.0, "cached_parameter_us": 1.0}
ROUNDS, CALLS = 400, 5


def region(inputs: int, outputs: int, shape: Sequence[int]) -> fx.GraphModule:
    """A region that sums its inputs and returns that many multiples of the sum."""
    graph = fx.Graph()
    with FakeTensorMode():
        fake = torch.empty(*shape)
    nodes = [graph.placeholder(f"x{i}") for i in range(inputs)]
    total = nodes[0]
    for node in nodes[1:]:
        total = graph.call_function(torch.ops.aten.add.Tensor, (total, node))
    results = [
        graph.call_function(torch.ops.aten.mul.Tensor, (total, float(i + 2)))
        for i in range(outputs)
    ]
    graph.output(tuple(results))
    for node in graph.nodes:
        if node.op != "output":
            node.meta["val"] = fake
    return fx.GraphModule(torch.nn.Module(), graph)


def seconds(function: Callable[[], Any]) -> float:
    """Best mean time of a call over the rounds."""
    for _ in range(10 * CALLS):
        function()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            function()
        best = min(best, (time.perf_counter() - start) / CALLS)
    return best


def program(inputs: int, outputs: int) -> Callable[[Sequence[Any]], Any]:
    """A compiled region on [8, 8] tensors."""
    graph_module = region(inputs, outputs, (8, 8))
    run = XlaEngine().compile(graph_module)
    owner = getattr(run, "__self__", None)
    if not isinstance(owner, Program):
        raise SystemExit("XLA did not compile the region of the benchmark")
    return run


def bare_call(inputs: int, outputs: int, tensors: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """The same program jitted by itself, on JAX arrays, waiting for its results."""

    def function(*arrays: Any) -> Any:
        total = sum(arrays[1:], arrays[0])
        return tuple(total * float(i + 2) for i in range(outputs))

    compiled = jax.jit(function)
    arrays = [jax.dlpack.from_dlpack(t) for t in tensors[:inputs]]
    return lambda: jax.block_until_ready(compiled(*arrays))


def fresh_inputs_us(count: int) -> float:
    """Microseconds for one input that is a new tensor object at each call."""
    run, tensors = program(count, 1), [torch.randn(8, 8) for _ in range(count)]
    copies = [[t.clone() for t in tensors] for _ in range(CALLS + 1)]
    pools = [[t.detach() for t in c] for c in copies]
    turn = 0

    def call() -> None:
        nonlocal turn
        turn = (turn + 1) % len(pools)
        run(pools[turn])

    cached = seconds(lambda: run(tensors))
    return (seconds(call) - cached) / count * 1e6


def cached_parameter_us(tensors: Sequence[torch.Tensor]) -> float:
    """Microseconds for one input that is the same tensor object at each call."""
    pairs = [(InputSlot(None), tensor) for tensor in tensors]

    def exchange() -> list[Any]:
        return [slot.array(tensor) for slot, tensor in pairs]

    exchange()  # the first sight of a tensor is not kept, the second is
    if any(a is not b for a, b in zip(exchange(), exchange(), strict=True)):
        raise SystemExit("a parameter was not cached")
    return seconds(exchange) / len(tensors) * 1e6


def measure() -> dict[str, float]:
    """All numbers, in microseconds."""
    count = 32
    tensors = [torch.randn(8, 8) for _ in range(count)]
    one, one_bare = program(1, 1), bare_call(1, 1, tensors)
    outs, outs_bare = program(1, count), bare_call(1, count, tensors)
    overhead_one = seconds(lambda: one(tensors[:1])) - seconds(one_bare)
    overhead_outs = seconds(lambda: outs(tensors[:1])) - seconds(outs_bare)
    cached = cached_parameter_us(tensors)
    return {
        "input_us": fresh_inputs_us(count) + cached,
        "output_us": (overhead_outs - overhead_one) / (count - 1) * 1e6,
        "cached_parameter_us": cached,
        "call_us": overhead_one * 1e6,
    }


def main() -> int:
    """Print the table; 0 where all bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    numbers = measure()
    passed = all(numbers[name] <= bar for name, bar in BARS.items())
    for name, value in numbers.items():
        bar = (
            f"bar {BARS[name]:g}"
            if name in BARS
            else "overhead of a call with one input and output"
        )
        print(f"{name:<22}{value:8.2f}  {bar}")
    if arguments.json:
        print(json.dumps({"passed": passed, "bars": BARS, **numbers}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
