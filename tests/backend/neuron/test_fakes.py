"""The fakes have the documented signatures and nothing else, and refuse what is documented so."""

from __future__ import annotations

from typing import Any

import pytest

# Module, name, signature, and where the documentation of the AWS Neuron SDK has it (file:line; the
# files of 2.33 have no line numbers here, because its pages were read one by one).
DOCUMENTED = [
    (
        "nki", "jit", "(fn=None, *, compile_config=None, specialization_config=None, **kwargs)",
        "nki/api/generated/nki.jit.html of 2.33.1",
    ),
    ("nki", "simulate", "(kernel)", "nki/api/nki/__init__.py:33"),
    (
        "torch_neuronx", "nki_op", "(name, fn=None, mutates_args={})",
        "nki/get-started/about/index.rst:296, torch/guides/how-to-work-with-nki.rst",
    ),
    (
        "torch_neuronx", "wrap_nki", "(nki_kernel, **kwargs)",
        "vllm-neuron/docs/model-dev/nki_cpu_simulator.md:22",
    ),
    (
        "torch_neuronx.neuron_dynamo_backend.backend", "neuron_backend",
        "(gm, example_inputs, *, options=None, mode='default')",
        "frameworks/torch/pytorch-native-overview.rst:114, "
        "torch/compile/reference-torch-compile.rst",
    ),
]  # fmt: skip

# What is refused, with what, and where that is documented.
REFUSED = [
    ("dynamic=True", "dynamic shapes are not supported", "compiler/error-codes/EMOD025.rst"),
    ("constant without a hash", "TypeError: unhashable", "torch/guides/how-to-work-with-nki.rst"),
    ("LNC 2 on 1", "compiled for LNC 2 and the runtime has LNC 1", "nki/api/nki/__init__.py:24"),
    (
        "LNC 1 on the default", "the runtime has LNC 2",
        "about-neuron/arch/neuron-features/logical-neuroncore-config.rst:53",
    ),
    ("a tuple in the brackets", "only supports LNC 1 or 2", "nki/api/nki/__init__.py:23"),
    ("int64 to a kernel", "torch.int64, which NKI does not have", "nki/api/nki.api.shared.rst:16"),
    ("bool to a kernel", "torch.bool, which NKI does not have", "nki/api/nki.api.shared.rst:16"),
    (
        "strides to a kernel", "Cannot process non-contiguous tensors",
        "seen in public users of torch-neuronx 2.11",
    ),
    ("complex numbers", "complex64 is not supported", "compiler/error-codes/EVRF004.rst:9"),
    ("float64", "float64 is not supported", "trnx's own rule: see docs/trainium.md"),
    ("an op that returns its input", "alias", "torch.library.custom_op"),
    ("a graph in host memory", "not on the Neuron device", "torch/troubleshooting.rst"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "signature", "source"), DOCUMENTED)
def test_signature(on_fakes: Any, module: str, name: str, signature: str, source: str) -> None:
    assert on_fakes("signature", module, name) == signature, source


@pytest.mark.parametrize("module", ["nki", "torch_neuronx"])
def test_nothing_else(on_fakes: Any, module: str) -> None:
    assert on_fakes("exported", module) == sorted(n for m, n, *_ in DOCUMENTED if m == module)


def test_the_device_is_known_to_torch(on_fakes: Any) -> None:
    assert on_fakes("device") == {
        "accelerator": "neuron",
        "name": "neuron",
        "count": 1,
        "backends": True,
    }


@pytest.mark.parametrize(("name", "message", "source"), REFUSED)
def test_refused(on_fakes: Any, name: str, message: str, source: str) -> None:
    assert message in on_fakes("refusal", name), source
