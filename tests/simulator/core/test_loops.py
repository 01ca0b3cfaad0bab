"""A loop is recorded once; traced with no or three turns, it replays right with any number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import FindingWarning, KernelSubsetError, OutOfBoundsError
from trnx.simulator.program.listing import listing

Reference = Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor]


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    return load_module(Path(__file__).with_name("loop_kernels.py"))


def _rows(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return x[torch.tensor(rows, dtype=torch.int64)].sum(0, keepdim=True)


def _gathered(x: torch.Tensor, ids: torch.Tensor, turns: list[int]) -> torch.Tensor:
    picked = x[ids[torch.tensor(turns, dtype=torch.int64)].to(torch.int64)]
    return picked.sum(0)


def _scattered(x: torch.Tensor, ids: torch.Tensor, count: int, _inner: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(count):
        out[ids[i, 0]] = x[i]
    return out


REFERENCES: dict[str, Reference] = {
    "fori": lambda x, _ids, n, _m: _rows(x, list(range(n))),
    "fori_from_a_register": lambda x, _ids, n, m: _rows(x, list(range(m, n, 2))),
    "dynamic": lambda x, _ids, n, _m: _rows(x, list(range(n))),
    "while_register": lambda x, _ids, n, _m: _rows(x, list(range(1, n + 1))),
    "while_body": lambda x, _ids, n, _m: _rows(x, list(range(1, n + 1))),
    "gathers": lambda x, ids, n, _m: _gathered(x, ids, list(range(n))),
    "nested_fori": lambda x, _ids, n, m: _rows(x, list(range(m)) * n),
    "nested_triangle": lambda x, _ids, n, _m: _rows(x, [j for i in range(n) for j in range(i)]),
    "fori_in_while": lambda x, ids, n, m: _gathered(x, ids, list(range(m)) * n),
    "while_in_dynamic": lambda x, _ids, n, m: _rows(
        x, [j for i in range(n) for j in (*range(1, m + 1), i)]
    ),
    "scatters_in_a_loop": _scattered,
    "two_loops": lambda x, _ids, n, m: 2 * _rows(x, list(range(n))) + _rows(x, list(range(m))),
}


def _arguments(seed: int, count: int, inner: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    # Small integers: their sums are exact in any order.
    x = torch.randint(-50, 50, (8, 8), generator=g).to(torch.float32)
    ids = torch.randint(0, 8, (8, 4), generator=g, dtype=torch.int32)
    bounds = [torch.tensor([n], dtype=torch.int32) for n in (count, inner)]
    return [x, ids, *bounds]


def test_every_kernel_has_a_reference(loops: ModuleType) -> None:
    names = {name for name, value in vars(loops).items() if hasattr(value, "function")}
    refused = {"endless_statement", "endless_body"}
    assert names == {*REFERENCES, *refused, "writes_its_counter", "loops_by", "asks_for_axis"}


def test_a_written_counter_is_a_warning(loops: ModuleType) -> None:
    x, ids, *bounds = _arguments(1, 3, 0)
    with pytest.warns(FindingWarning, match="counter of a loop"):
        result = simulate(loops.writes_its_counter)(x, ids, *bounds)
    assert torch.equal(result, 3 * x[2:3])


@pytest.mark.parametrize("traced", [0, 3, None], ids=["no turn", "3 turns", "without values"])
@pytest.mark.parametrize("name", REFERENCES)
def test_replays_follow_counts_and_indices(
    loops: ModuleType, name: str, traced: int | None
) -> None:
    kernel, reference = getattr(loops, name), REFERENCES[name]
    if traced is None:
        specs = [TensorSpec.of(tensor) for tensor in _arguments(0, 0, 0)]
        program = trace(kernel, specs)
    else:
        program = trace(kernel, _arguments(0, traced, traced), values=True)
    count = program.instruction_count
    for seed, (n, m) in enumerate([(0, 0), (1, 1), (7, 7), (7, 0), (0, 7), (1, 7), (3, 2)], 1):
        x, ids, *bounds = _arguments(seed, n, m)
        (result,) = program.run([x, ids, *bounds])
        expected = reference(x, ids, n, m)
        assert torch.equal(result, expected)
        assert result.dtype is expected.dtype
        assert torch.equal(simulate(kernel)(x, ids, *bounds), expected)
    assert program.instruction_count == count


@pytest.mark.parametrize("name", REFERENCES)
def test_the_number_of_turns_does_not_change_the_program(loops: ModuleType, name: str) -> None:
    kernel = getattr(loops, name)
    specs = [TensorSpec.of(tensor) for tensor in _arguments(0, 0, 0)]
    without = listing(trace(kernel, specs))
    for turns in (0, 1, 7):
        arguments = _arguments(turns, turns, turns)
        assert listing(trace(kernel, arguments, values=True)) == without


@pytest.mark.parametrize("name", ["gathers", "scatters_in_a_loop"])
def test_an_index_that_is_bad_in_one_turn_is_found_in_a_replay(
    loops: ModuleType, name: str
) -> None:
    program = trace(getattr(loops, name), _arguments(0, 3, 3), values=True)
    x, ids, count, inner = _arguments(1, 7, 7)
    ids[6, 0] = 8
    with pytest.raises(OutOfBoundsError, match="index 8; valid are 0 to 7") as caught:
        program.run([x, ids, count, inner])
    assert caught.value.location is not None
    assert caught.value.location.file.endswith("loop_kernels.py")
    # The turn is not reached with fewer of them, and the Program is as good as before.
    count.fill_(6)
    (result,) = program.run([x, ids, count, inner])
    assert torch.equal(result, REFERENCES[name](x, ids, 6, 7))


@pytest.mark.parametrize("value", [None, 1.5, "3"])
def test_a_bound_that_is_no_number_is_named(loops: ModuleType, value: object) -> None:
    with pytest.raises(KernelSubsetError, match="a loop's bound is an integer or a register"):
        simulate(loops.loops_by)(torch.zeros(1, 4), "for", value)
    with pytest.raises(KernelSubsetError, match="while_loop is a register"):
        simulate(loops.loops_by)(torch.zeros(1, 4), "while", value)


@pytest.mark.parametrize("function", ["id", "count"])
def test_an_axis_that_the_grid_lacks_is_named(loops: ModuleType, function: str) -> None:
    wanted = {"id": 0.0, "count": 1.0}[function]
    got = simulate(loops.asks_for_axis)(torch.zeros(1, 4), function, 0)
    assert torch.equal(got, torch.full((1, 4), wanted))
    with pytest.raises(KernelSubsetError, match="axis 1 of a launch grid with 1 dimensions"):
        simulate(loops.asks_for_axis)(torch.zeros(1, 4), function, 1)


@pytest.mark.parametrize(
    ("name", "line"), [("endless_statement", "while left:"), ("endless_body", "nl.while_loop(")]
)
def test_a_loop_whose_condition_nothing_changes(loops: ModuleType, name: str, line: str) -> None:
    with pytest.raises(KernelSubsetError, match="the loop never ends") as finding:
        simulate(getattr(loops, name))(*_arguments(0, 2, 1))
    assert finding.value.location is not None
    text = Path(loops.__file__).read_text().splitlines()[finding.value.location.line - 1]
    assert text.strip().startswith(line)
