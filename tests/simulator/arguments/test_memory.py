"""Tensors whose memory does not hold their values: read as torch reads them, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from trnx.simulator import TensorSpec, interactive, load_module, simulate, trace
from trnx.simulator.frontend.arguments import ArgumentError
from trnx.simulator.memory.host_memory import MemoryReadError, is_plain, plain, unreadable
from trnx.simulator.program.program import BindingError

SPEC = TensorSpec.dense((4, 3), torch.float32)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("argument_kernels.py"))


def dense() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)


def negative() -> torch.Tensor:
    return torch._neg_view(dense())


def zero() -> torch.Tensor:
    return torch._efficientzerotensor((4, 3))


READ: dict[str, Callable[[], torch.Tensor]] = {
    "negative": negative,
    "negative transposed": lambda: torch._neg_view(torch.arange(12.0).reshape(3, 4).t()),
    "negative expanded": lambda: negative()[:1].expand(4, 3),
    "of a complex tensor": lambda: torch.complex(dense(), dense() + 1).conj().imag,
    "zero": zero,
    "zero transposed": lambda: torch._efficientzerotensor((3, 4)).t(),
    "expanded": lambda: dense()[:1].expand(4, 3),
}
LOST: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "freed": (lambda: resized(dense(), 0), "freed or shrunk"),
    "shrunk": (lambda: resized(dense(), 44), "byte 48 of a storage that has 44 bytes"),
    "a view of what was freed": (lambda: part_of_freed(), "freed or shrunk"),
    "a wrapper": (lambda: TwoTensor(dense(), dense()), "TwoTensor that wraps other tensors"),
    "quantised": (lambda: torch.quantize_per_tensor(dense(), 1.0, 0, torch.quint8), "dequantize"),
    "mkldnn": (lambda: dense().to_mkldnn(), "to_dense"),
    "sparse rows": (lambda: dense().to_sparse_csr(), "to_dense"),
    "nested": (
        lambda: torch.nested.nested_tensor([dense()], layout=torch.jagged),
        "wraps other tensors",
    ),
}


def resized(tensor: torch.Tensor, nbytes: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def part_of_freed() -> torch.Tensor:
    part = torch.ones(9, 3)[5:]
    resized(part, 0)
    return part


@pytest.mark.parametrize("name", READ)
def test_values_are_read(kernels: ModuleType, name: str) -> None:
    given = READ[name]()
    expected = given.clone()
    for keep_strides in (False, True, False):
        found = simulate(kernels.copy, keep_strides=keep_strides)(given)
        assert torch.equal(found, expected)
    made = plain(given)
    assert is_plain(made)
    assert made.stride() == given.stride()
    assert torch.equal(made, expected)


@pytest.mark.parametrize("name", READ)
def test_a_program_reads_values(kernels: ModuleType, name: str) -> None:
    program = trace(kernels.copy, [SPEC])
    given = READ[name]()
    for value in (given, given, dense(), given):
        assert torch.equal(program.run([value])[0], value)


@pytest.mark.filterwarnings(
    "ignore:.*quantized tensor creation", "ignore:Sparse CSR tensor support"
)
@pytest.mark.parametrize("name", LOST)
def test_what_cannot_be_read_is_refused(kernels: ModuleType, name: str) -> None:
    make, message = LOST[name]
    for keep_strides in (False, True):
        with pytest.raises(ArgumentError, match=f"argument x .*{message}"):
            simulate(kernels.copy, keep_strides=keep_strides)(make())
    with pytest.raises(BindingError, match=f"input 0 .*{message}"):
        trace(kernels.copy, [SPEC]).run([make()])
    with interactive() as session, pytest.raises(ArgumentError, match=message):
        session.tensor(make())


def test_storage_that_is_lost_between_two_runs(kernels: ModuleType) -> None:
    program, given = trace(kernels.copy, [SPEC]), dense()
    call = simulate(kernels.copy)
    for _ in range(2):
        assert torch.equal(program.run([given])[0], dense())
        assert torch.equal(call(given), dense())
        resized(given, 0)
        with pytest.raises(BindingError, match="restore the storage"):
            program.run([given])
        with pytest.raises(ArgumentError, match="restore the storage"):
            call(given)
        with pytest.raises(MemoryReadError, match="restore the storage"):
            program.replay([given])
        resized(given, 48).copy_(dense())


@pytest.mark.parametrize("name", ["negative", "zero"])
def test_results_are_written_into_values(kernels: ModuleType, name: str) -> None:
    program = trace(kernels.copy, [SPEC])
    if name == "negative":
        out = negative()
        program.run([dense() + 5], [out])
        assert torch.equal(out, dense() + 5)
        return
    with pytest.raises(RuntimeError, match="immutable"):
        program.run([dense()], [zero()])


def test_an_output_that_was_freed_is_refused(kernels: ModuleType) -> None:
    with pytest.raises(BindingError, match="output cannot be written"):
        trace(kernels.copy, [SPEC]).run([dense()], [resized(dense(), 0)])


def test_arguments_that_a_kernel_writes(kernels: ModuleType) -> None:
    given = torch._neg_view(torch.ones(4, 3))
    for _ in range(2):
        simulate(kernels.clears)(given)
        assert torch.equal(given, torch.zeros(4, 3))
        given.fill_(5.0)
    with pytest.raises(ArgumentError, match=r"without storage.*pass `.clone\(\)`"):
        simulate(kernels.clears)(zero())
    with pytest.raises(BindingError, match=r"writes into input 0.*pass `.clone\(\)`"):
        trace(kernels.clears, [SPEC]).run([given])


def test_inside_of_torch_func_is_refused(kernels: ModuleType) -> None:
    with pytest.raises(ArgumentError, match="wraps other tensors"):
        torch.vmap(simulate(kernels.copy))(torch.ones(2, 4, 3))


def test_a_read_only_array_at_the_prompt_stays_as_it_is() -> None:
    array = np.ones((4, 3), np.float32)
    array.flags.writeable = False
    with interactive() as session:
        assert torch.equal(session.values(session.tensor(array)), torch.ones(4, 3))


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_plain_tensors_are_not_copied(shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape)
    assert unreadable(tensor) is None
    assert plain(tensor) is tensor
