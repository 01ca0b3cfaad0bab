"""Each documented failure ends in a named error that says how to mend it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import trnx.errors
from trnx.backend.neuron.choice import choose_runner, explained_runner
from trnx.backend.neuron.stack import Stack
from trnx.errors import NeuronDeviceError, NeuronError, NeuronStackError

GOOD = Stack(
    kind="native",
    version="2.13.3",
    torch_version="2.13.0",
    python=(3, 12),
    nki="native",
    nki_version="0.7.0",
    nodes=("/dev/neuron0",),
    opened=("/dev/neuron0",),
    devices=1,
    lnc="1",
)

STACKS: dict[str, tuple[Stack, type[NeuronError], str]] = {
    "nothing installed": (
        Stack(kind="none"), NeuronStackError, "is not installed: install torch-neuronx 2.13"
    ),
    "placeholder": (
        replace(GOOD, kind="placeholder", version="1.0"), NeuronStackError,
        "torch_neuronx 1.0 is the empty placeholder .*pip uninstall -y torch-neuronx",
    ),
    "XLA era": (
        replace(GOOD, kind="xla", version="2.9.0.2.15"), NeuronStackError,
        "2.9.0.2.15 is the predecessor .*python -m venv neuron",
    ),
    "no nki": (replace(GOOD, nki="none"), NeuronStackError, "nki is not installed.*install nki"),
    "nki placeholder": (
        replace(GOOD, nki="placeholder"), NeuronStackError,
        "nki is an empty placeholder.*pip uninstall -y nki",
    ),
    "another torch": (
        replace(GOOD, torch_version="2.14.0"), NeuronStackError,
        r'needs torch 2.13, and torch 2.14.0 .*pip install "torch==2.13.\*"',
    ),
    "newer than known": (
        replace(GOOD, version="2.17.0", torch_version="2.17.0"), NeuronStackError,
        r"2.17.0 is not one that trnx knows \(2.13 and 2.14\)",
    ),
    "another Python": (
        replace(GOOD, python=(3, 11), has_python=False), NeuronStackError,
        "does not run on Python 3.11: python3.12 -m venv .venv",
    ),
    "no device": (
        replace(GOOD, nodes=(), opened=(), devices=None), NeuronDeviceError,
        "no Neuron device.*run on a Trn2 or Trn3 instance.*modprobe neuron",
    ),
    "no rights": (
        replace(GOOD, opened=(), devices=0), NeuronDeviceError,
        "/dev/neuron0 cannot be opened by this user.*ls -l /dev/neuron0",
    ),
    "all cores taken": (
        replace(GOOD, devices=0), NeuronDeviceError,
        "another process may hold all cores .*NEURON_RT_VISIBLE_CORES",
    ),
}  # fmt: skip


def test_a_good_stack_has_no_problem() -> None:
    assert GOOD.problem() is None
    assert replace(GOOD, version="2.14.3", torch_version="2.14.0+cpu").problem() is None
    assert replace(GOOD, devices=None).problem() is None


@pytest.mark.parametrize("name", list(STACKS))
def test_stack(name: str) -> None:
    stack, kind, message = STACKS[name]
    with pytest.raises(kind, match=message):
        choose_runner("neuron", "trn2", stack)
    chosen = choose_runner("auto", "trn2", stack)
    assert chosen.runner.name == "simulator"
    assert str(stack.problem()) in chosen.reason


def test_auto_takes_the_device_where_it_can() -> None:
    for name in ("auto", "neuron"):
        chosen = choose_runner(name, "trn2", GOOD)
        assert chosen.runner.name == "neuron"
        assert "TorchNeuron 2.13.3" in chosen.reason


@pytest.mark.parametrize("name", ["simulator", "reference"])
def test_a_named_runner_looks_at_nothing(name: str) -> None:
    assert choose_runner(name, "trn2", GOOD).runner.name == name


def test_the_target_has_to_be_one_of_the_device() -> None:
    with pytest.raises(NeuronDeviceError, match="Trn2 and Trn3, and the target is trn1"):
        choose_runner("neuron", "trn1", GOOD)
    assert choose_runner("auto", "trn1", GOOD).runner.name == "simulator"


def test_explain_tells_of_a_missing_device_without_raising() -> None:
    assert explained_runner("neuron", "trn2").startswith("none: TorchNeuron")
    assert explained_runner("auto", "trn2").startswith("simulator (runner='auto': TorchNeuron")


COMPILED: dict[str, tuple[tuple[str, ...], str, list[str]]] = {
    "LNC is 2": (
        ("lnc", "2"), "NeuronLncError",
        ["kernel linear is launched on 1 physical core(s)", "is 2: export NEURON_LOGICAL_NC_"],
    ),
    "LNC is not set": (
        ("lnc", ""), "NeuronLncError",
        ["is not set, which means 2 on trn2", "export NEURON_LOGICAL_NC_CONFIG=1 before"],
    ),
    "a kernel is refused": (
        ("kernel_refused",), "NeuronKernelError",
        ["kernel linear", "failures.py:", "NCC_INKI016", "{'select': 'none'}"],
    ),
    "a kernel's file does not load": (
        ("kernel_cannot_be_imported",), "KernelFailedError",
        ["aten.linear.default at ", "failures.py:", "nc_matmul", "fallback='auto'"],
    ),
    "a kernel of two lines": (
        ("nested_kernel_error_names_all_lines",), "NeuronKernelError",
        [" and ", "in twice", "too many instructions"],
    ),
    "a graph is refused": (
        ("graph_refused",), "NeuronCompileError",
        ["NCC_EOOM001", "could not compile or run graph_", "{'select': 'none'}"],
    ),
    "complex numbers": (
        ("complex_numbers",), "NeuronDtypeError",
        ["complex64", "failures.py:", "use real and imaginary parts"],
    ),
    "float64": (("float64",), "NeuronDtypeError", ["float64", "failures.py:", "use .float()"]),
    "a size that depends on data": (
        ("data_dependent_size",), "NeuronShapeError",
        ["failures.py:", "capture_dynamic_output_shape_ops at False"],
    ),
    "a number that depends on data": (
        ("data_dependent_number",), "NeuronNumberError",
        ["failures.py:", "capture_scalar_outputs"],
    ),
    "an asserted size that depends on data": (
        ("asserted_size",), "NeuronNumberError",
        ["failures.py:", "capture_dynamic_output_shape_ops at False"],
    ),
    "a model in host memory": (
        ("host_memory",), "UnsupportedDeviceError", ["'cpu'", ".to('neuron')"]
    ),
    "a model of the device in the simulator": (
        ("simulator_with_tensors_of_the_device",), "UnsupportedDeviceError",
        ["'neuron:0'", ".to('cpu')"],
    ),
    "target trn1": (("target_trn1",), "NeuronDeviceError", ["Trn2 and Trn3", "trn1"]),
    "a constant without a hash": (
        ("constant_that_cannot_be_hashed",), "NeuronConstantError",
        ["kernel mine has the constant {'a': 1}", "tuples"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(COMPILED))
def test_compiled(on_fakes: Any, name: str) -> None:
    call, kind, parts = COMPILED[name]
    found, message = on_fakes(*call)
    assert found == kind, message
    assert [part for part in parts if part not in message] == [], message


def test_there_are_at_least_fifteen() -> None:
    assert len(STACKS) + len(COMPILED) >= 15
    kinds = {kind.__name__ for _, kind, _ in STACKS.values()} | {k for _, k, _ in COMPILED.values()}
    assert all(issubclass(getattr(trnx.errors, kind), trnx.errors.TrnxError) for kind in kinds)


def test_kernels_on_both_cores(on_fakes: Any) -> None:
    assert on_fakes("both_cores", "2") == []
    name, message = on_fakes("both_cores", "1")
    assert name == "NeuronLncError"
    assert "launched on 2 physical core(s), and NEURON_LOGICAL_NC_CONFIG is 1" in message
    assert "compile with options={'lnc': 1}" in message


@pytest.mark.parametrize("configured", ["1", "2", ""])
def test_kernels_are_for_the_cores_of_the_runtime(on_fakes: Any, configured: str) -> None:
    assert on_fakes("both_cores", configured, None) == []


def test_a_wrong_number_of_cores_is_named(on_fakes: Any) -> None:
    name, message = on_fakes("both_cores", "3", None)
    assert name == "InvalidOptionError"
    assert "NEURON_LOGICAL_NC_CONFIG='3' is not valid; choose one of 1, 2" in message
