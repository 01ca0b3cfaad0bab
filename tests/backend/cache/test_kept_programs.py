"""Recorded kernels in the cache: replayed, and not recorded again, with the same bits."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.backend import programs
from trnx.backend.cache.current import current
from trnx.backend.kernel_samples import operands, samples_of
from trnx.backend.programs import PROGRAMS, ProgramCache
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Launch
from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.program.portable import from_data, to_data
from trnx.simulator.program.program import Program

TARGET = "trn2"

# Kernels whose first sample has something that is not kept, and why.
NOT_KEPT = dict.fromkeys(("extremum", "recurrent", "recurrent_backward"), "register loops")


@pytest.fixture(autouse=True)
def _own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRNX_CACHE_DIR", str(folder))
    PROGRAMS.clear()
    yield
    PROGRAMS.clear()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts kernels that are recorded."""
    found: Counter[str] = Counter()
    real = programs.trace

    def counted(*args: Any, **kwargs: Any) -> Program:
        found["traces"] += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(programs, "trace", counted)
    return found


def run(program: Program, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results, and the arguments as they are then."""
    given = [tensor.clone() for tensor in tensors]
    return [*(result.clone() for result in program.run(given)), *given]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype is not other.dtype or one.stride() != other.stride():
        return False
    # Contiguous strides, also where they do not matter.
    dense = (x.clone(memory_format=torch.contiguous_format).flatten() for x in (one, other))
    return torch.equal(*(x.view(torch.uint8) for x in dense))


def traced_sample(name: str) -> tuple[Program, list[torch.Tensor]]:
    """The first sample of a kernel that it takes."""
    hw = hardware(TARGET)
    for sample, launch in samples_of(kernels()[name], hw):
        if isinstance(launch, Launch):
            given = operands(launch, sample)
            specs = [TensorSpec.of(x) if isinstance(x, torch.Tensor) else x for x in given]
            program = trace(launch.kernel, specs, target=TARGET, grid=launch.grid)
            return program, [x for x in given if isinstance(x, torch.Tensor)]
    raise AssertionError(f"{name} takes none of its samples")


# Samples of these are views, which no launch takes when they are dense.
OF_VIEWS = ("heads_linear", "permute_copy")


@pytest.mark.parametrize("name", [one.name for one in kernels() if one.name not in OF_VIEWS])
def test_every_kernel_comes_back_with_the_same_bits(name: str) -> None:
    program, tensors = traced_sample(name)
    data = to_data(program)
    assert (data is None) == (name in NOT_KEPT)
    if data is None:
        return
    again = from_data(json.loads(json.dumps(data)), lambda: program.rows)
    assert (again.inputs, again.outputs, again.totals) == (
        program.inputs, program.outputs, program.totals
    )  # fmt: skip
    assert len(again.steps) == len(program.steps)
    expected = run(program, tensors)
    # Twice: what a run leaves in memory does not matter to the next one.
    for _ in range(2):
        for one, other in zip(run(again, tensors), expected, strict=True):
            assert same_bits(one, other)
    assert to_data(again) is not None


ADDS = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def adds(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    {loop}
    nisa.dma_copy(dst=y, src=tile)
    return y
"""
PLAIN = "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0={number})"
LOOP = "nl.fori_loop(0, 3, lambda i: None)"


def own_kernel(file: Path, number: float = 1.0) -> Launch:
    file.write_text(ADDS.format(loop=PLAIN.format(number=number)))
    spec = TensorSpec.dense((4, 8), torch.float32)
    return Launch(load_module(file).adds, (spec,), ("x",))


def replayed(launch: Launch) -> torch.Tensor:
    """By a process that knows nothing yet."""
    (result,) = ProgramCache().replayable(launch, TARGET).run([torch.zeros(4, 8)])
    return result


def test_a_second_process_records_nothing(tmp_path: Path, traces: Counter[str]) -> None:
    launch = own_kernel(tmp_path / "own.py")
    assert replayed(launch).eq(1).all()
    assert replayed(launch).eq(1).all()
    assert traces["traces"] == 1
    assert current().counts["hit"] >= 1


def test_its_instructions_are_recorded_when_somebody_asks(
    tmp_path: Path, traces: Counter[str]
) -> None:
    launch = own_kernel(tmp_path / "own.py")
    first = ProgramCache().replayable(launch, TARGET)
    warm = ProgramCache().replayable(launch, TARGET)
    assert traces["traces"] == 1
    assert warm.rows == first.rows
    assert warm.instruction_count == 3
    assert traces["traces"] == 2


def test_an_edited_kernel_is_recorded_again(tmp_path: Path, traces: Counter[str]) -> None:
    assert replayed(own_kernel(tmp_path / "own.py")).eq(1).all()
    assert replayed(own_kernel(tmp_path / "own.py", number=2.5)).eq(2.5).all()
    assert traces["traces"] == 2


def test_what_is_known_is_asked_of_the_folder_once(tmp_path: Path, traces: Counter[str]) -> None:
    launch, known = own_kernel(tmp_path / "own.py"), ProgramCache()
    traced = known.get(launch, TARGET)
    assert known.replayable(launch, TARGET) is traced
    asked = current().counts.copy()
    assert known.replayable(launch, TARGET) is traced
    assert current().counts == asked
    assert traces["traces"] == 1


def _packed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """The entry with its Program changed."""

    def changed(value: Any) -> Any:
        data = json.loads(zlib.decompress(base64.b64decode(value["program"])))
        text = json.dumps(change(data) or data)
        return {"program": base64.b64encode(zlib.compress(text.encode())).decode()}

    return changed


def _first(kind: str, *given: Any) -> Callable[[dict[str, Any]], None]:
    """Another object in the place of the first of its kind."""

    def change(data: dict[str, Any]) -> None:
        place = next(i for i, one in enumerate(data["objects"]) if one[0] == kind)
        data["objects"][place] = [kind, *given]

    return change


FORGED: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda _: {},
    "no text": lambda _: {"program": 3},
    "no archive": lambda _: {"program": base64.b64encode(b"{}").decode()},
    "cut off": lambda value: {"program": value["program"][: len(value["program"]) // 8 * 4]},
    "a list": _packed(lambda _: [1]),
    "no steps": _packed(lambda data: data.pop("steps") and None),
    "a step that is not there": _packed(lambda data: data["steps"].append(10**6)),
    "a view beyond its memory": _packed(_first("view", 0, "float32", [4, 8], [8, 1], 4096)),
    "a function of another package": _packed(_first("function", "os", "system")),
    "a function that is not there": _packed(_first("function", "trnx.simulator.errors", "no")),
    "no dtype": _packed(_first("view", 0, "nn", [1], [1], 0)),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_tampered_program_is_told_and_recorded_again(
    name: str, tmp_path: Path, folder: Path, traces: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    from trnx.backend.cache.cache import KINDS
    from trnx.backend.cache.entries import Entry, read_entry

    launch = own_kernel(tmp_path / "own.py")
    replayed(launch)
    (file,) = (folder / "program").rglob("*.json")
    entry = read_entry(file.read_bytes(), KINDS)
    # With a checksum that fits: who can write can do that.
    file.write_bytes(Entry(entry.key, FORGED[name](entry.value)).to_bytes())
    assert replayed(launch).eq(1).all()
    assert traces["traces"] == 2
    assert str(file) in caplog.text
    assert replayed(launch).eq(1).all()
    assert traces["traces"] == 2


def test_a_program_that_others_could_have_written_is_not_read(
    tmp_path: Path, folder: Path, traces: Counter[str]
) -> None:
    launch = own_kernel(tmp_path / "own.py")
    replayed(launch)
    (file,) = (folder / "program").rglob("*.json")
    file.chmod(0o666)
    assert replayed(launch).eq(1).all()
    assert traces["traces"] == 2
    assert current().counts["foreign"] == 1
