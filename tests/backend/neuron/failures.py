"""What fails under the runner `neuron`, run by `worker.py`: the errors that a user sees."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from nki import _launch
from torch_neuronx.neuron_dynamo_backend import backend

from trnx.backend.neuron import region_op
from trnx.backend.neuron.errors import NeuronError
from trnx.nki_kernels.spec import Launch


def _error(function: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """Class and message of what compiling and calling raises, without Dynamo's wrapper."""
    chosen = {"runner": "neuron", **options}
    try:
        torch.compile(function, backend="trnx", fullgraph=True, options=chosen)(*args)
    except Exception as error:  # noqa: BLE001  what it is, is the result
        found: BaseException = getattr(error, "inner_exception", error)
        return [type(found).__name__, str(found)]
    return ["", "nothing was raised"]


def _linear(x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, torch.ones(8, 4, device=x.device))


def _rows() -> torch.Tensor:
    return torch.ones(3, 4).to("neuron")


def lnc(value: str) -> list[str]:
    """NEURON_LOGICAL_NC_CONFIG is `value`, or not set."""
    before = os.environ.pop("NEURON_LOGICAL_NC_CONFIG")
    if value:
        os.environ["NEURON_LOGICAL_NC_CONFIG"] = value
    try:
        return _error(_linear, _rows(), lnc=1)
    finally:
        os.environ["NEURON_LOGICAL_NC_CONFIG"] = before


def both_cores(value: str, asked: int | None = 2) -> list[str]:
    """Kernels for LNC `asked` where NEURON_LOGICAL_NC_CONFIG is `value`: a product, a softmax and a
    generated chain equal eager. None: for those that the runtime has."""
    before = os.environ["NEURON_LOGICAL_NC_CONFIG"]
    os.environ["NEURON_LOGICAL_NC_CONFIG"] = value
    x, weight = torch.randn(129, 70), torch.randn(66, 70)

    def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (F.softmax(F.linear(x, weight), -1) * 3 + 1).tanh()

    try:
        options: dict[str, Any] = {"runner": "neuron", "select": "legal"}
        options |= {} if asked is None else {"lnc": asked}
        compiled = torch.compile(model, backend="trnx", options=options)
        found = compiled(x.to("neuron"), weight.to("neuron")).cpu()
        torch.testing.assert_close(found, model(x, weight))
    except Exception as error:  # noqa: BLE001  the test looks at it
        cause: BaseException = getattr(error, "inner_exception", error)
        return [type(cause).__name__, str(cause)]
    finally:
        os.environ["NEURON_LOGICAL_NC_CONFIG"] = before
    return []


def kernel_refused() -> list[str]:
    """The compiler of kernels refuses one."""
    _launch.refused["linear_kernel"] = "[NCC_INKI016] Kernel validation exception"
    return _error(_linear, _rows())


def kernel_cannot_be_imported() -> list[str]:
    """The installed `nki` cannot execute the kernel's file."""

    def fails(kernel: Any) -> Any:
        raise AttributeError(f"{kernel}: module 'nki.isa' has no attribute 'nc_matmul'")

    before, region_op.native_kernel = region_op.native_kernel, fails
    region_op._ops.clear()
    try:
        return _error(_linear, _rows(), fallback="error")
    finally:
        region_op.native_kernel = before


def graph_refused() -> list[str]:
    """The compiler of graphs refuses one."""

    def fails(gm: Any) -> None:
        raise RuntimeError(f"[NCC_EOOM001] memory of {len(gm.graph.nodes)} nodes exceeds the limit")

    before, backend._check = backend._check, fails
    try:
        return _error(_linear, _rows())
    finally:
        backend._check = before


def complex_numbers() -> list[str]:
    return _error(lambda x: torch.view_as_real(torch.polar(x, x) * 2), _rows())


def float64() -> list[str]:
    return _error(lambda x: (x.double() * 2).float(), _rows())


def data_dependent_size() -> list[str]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return _error(lambda x: F.relu(x[x > 0]), _rows())


def data_dependent_number() -> list[str]:
    """The metadata of the asserted number is the number that it is asserted to be."""

    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        number = count.item()
        torch._check(number == 3)
        return x * number

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        return _error(function, _rows(), torch.tensor(3).to("neuron"))


def asserted_size() -> list[str]:
    def function(x: torch.Tensor) -> torch.Tensor:
        places = x.nonzero()
        torch._check(places.size(0) == 12)
        return x.sum() + places.size(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return _error(function, _rows())


def host_memory() -> list[str]:
    return _error(_linear, torch.ones(3, 4))


def target_trn1() -> list[str]:
    return _error(_linear, _rows(), target="trn1")


def simulator_with_tensors_of_the_device() -> list[str]:
    return _error(_linear, _rows(), runner="simulator")


def constant_that_cannot_be_hashed() -> list[str]:
    try:
        region_op.constants_of(Launch(None, ([1, 2], {"a": 1}), ()), "mine")
    except NeuronError as error:
        return [type(error).__name__, str(error)]
    return ["", "nothing was raised"]


def nested_kernel_error_names_all_lines() -> list[str]:
    """An op that two lines share names both."""
    _launch.refused["linear_kernel"] = "too many instructions"

    def twice(x: torch.Tensor) -> torch.Tensor:
        w = torch.ones(4, 4, device=x.device)
        first = F.linear(x, w)
        return F.linear(first, w)

    return _error(twice, _rows())
